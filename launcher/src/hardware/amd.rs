//! AMD devices, as the kernel's KFD topology lists them: the order is the one of ROCR's numbers.

use std::fs;

use super::{Gpu, GpuVendor, System, number_list};

/// The devices that this process may open, by ROCR's number. Empty without the driver.
pub(super) fn find(system: &System) -> Vec<Gpu> {
    let nodes = system.sys.join("class/kfd/kfd/topology/nodes");
    let entries = fs::read_dir(&nodes).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    // The properties of a device that a control group denies can't be read: ROCR does not count it either.
    let properties =
        numbers.iter().filter_map(|number| fs::read_to_string(nodes.join(format!("{number}/properties"))).ok());
    let devices = properties.filter(|properties| property(properties, "simd_count").is_some_and(|count| count > 0));
    let gpu = |(number, properties): (usize, String)| Gpu {
        id: number.to_string(),
        vendor: GpuVendor::Amd,
        mig: false,
        near_cores: near_cores(system, &properties).unwrap_or_default(),
    };
    devices.enumerate().map(gpu).collect()
}

fn property(properties: &str, name: &str) -> Option<u64> {
    properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn near_cores(system: &System, properties: &str) -> Option<Vec<u32>> {
    let place = property(properties, "location_id")?;
    let domain = property(properties, "domain").unwrap_or(0);
    let address = format!("{domain:04x}:{:02x}:{:02x}.{}", place >> 8, (place >> 3) & 0x1f, place & 7);
    let cores = fs::read_to_string(system.sys.join(format!("bus/pci/devices/{address}/local_cpulist"))).ok()?;
    Some(number_list(&cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_no_devices_and_devices_know_their_cores() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let node = |number: u32, text: &str| write(&format!("class/kfd/kfd/topology/nodes/{number}/properties"), text);
        node(0, "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\n");
        node(4, "cpu_cores_count 0\nsimd_count 440\ndomain 0\nlocation_id 49408\n");
        node(10, "cpu_cores_count 0\nsimd_count 440\ndomain 0\nlocation_id 50688\n");
        write("bus/pci/devices/0000:c1:00.0/local_cpulist", "48-55\n");
        let gpus = find(&System::below(root.path()));
        let text: Vec<String> = gpus.iter().map(|gpu| format!("{} {:?}", gpu.id, gpu.near_cores.first())).collect();
        assert_eq!(text, ["0 Some(48)", "1 None"]);
    }
}
