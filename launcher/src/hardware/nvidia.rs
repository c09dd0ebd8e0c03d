//! NVIDIA devices and MIG slices, as `nvidia-smi` lists them.

use std::{collections::HashMap, fs};

use super::{Gpu, GpuVendor, System, command, number_list};

/// Whole devices by number; where a device is cut up, its slices by UUID instead. Empty without the tool.
pub(super) fn find(system: &System) -> Vec<Gpu> {
    let listed = match command::output("nvidia-smi", &["-L"], command::TIMEOUT) {
        Ok(text) => parse_list(&text),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!("no NVIDIA GPUs are used: {error}");
            }
            return Vec::new();
        }
    };
    if listed.is_empty() {
        return Vec::new();
    }
    let query = ["--query-gpu=index,pci.bus_id", "--format=csv,noheader"];
    let places = command::output("nvidia-smi", &query, command::TIMEOUT).unwrap_or_default();
    let near = near_cores(system, &places);
    let at = |mut device: Listed| {
        device.gpu.near_cores = near.get(&device.index).cloned().unwrap_or_default();
        device.gpu
    };
    listed.into_iter().map(at).collect()
}

/// A device or slice, and the number of its device.
struct Listed {
    index: u32,
    gpu: Gpu,
}

/// Reads `nvidia-smi -L`:
/// `GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)` with lines `  MIG 2g.10gb Device 0: (UUID: MIG-…)` below it
/// where the device is cut up. Old drivers write `MIG-GPU-<uuid>/<gi>/<ci>`.
fn parse_list(text: &str) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    let mut index = None;
    let new = |index: u32, id: String, mig: bool| Listed {
        index,
        gpu: Gpu { id, vendor: GpuVendor::Nvidia, mig, near_cores: Vec::new() },
    };
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("GPU ") {
            index = rest.split(':').next().and_then(|number| number.trim().parse().ok());
            if let Some(index) = index {
                listed.push(new(index, index.to_string(), false));
            }
        } else if line.starts_with("MIG ")
            && let Some(index) = index
            && let Some((_, uuid)) = line.split_once("UUID:")
        {
            // The device itself can't be used beside its slices.
            listed.retain(|device| device.gpu.mig || device.index != index);
            listed.push(new(index, uuid.trim().trim_end_matches(')').to_owned(), true));
        }
    }
    listed
}

/// The cores next to each device, from lines `0, 00000000:07:00.0`.
fn near_cores(system: &System, places: &str) -> HashMap<u32, Vec<u32>> {
    let near = |line: &str| {
        let (index, bus) = line.split_once(',')?;
        let bus = bus.trim().to_ascii_lowercase();
        // The tool writes the domain with eight digits, the system with four.
        let (domain, rest) = bus.split_once(':')?;
        let domain = domain.get(domain.len().saturating_sub(4)..)?;
        let path = system.sys.join(format!("bus/pci/devices/{domain}:{rest}/local_cpulist"));
        Some((index.trim().parse().ok()?, number_list(&fs::read_to_string(path).ok()?)))
    };
    places.lines().filter_map(near).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        parse_list(text).into_iter().map(|device| format!("{}@{}", device.gpu.id, device.index)).collect()
    }

    #[test]
    fn whole_devices_go_by_number() {
        let text = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-aaaa)\n\
                    GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-bbbb)\n";
        assert_eq!(ids(text), ["0@0", "1@1"]);
        assert_eq!(ids("No devices found.\n"), Vec::<String>::new());
    }

    #[test]
    fn pitfall_089_slices_go_by_uuid_in_both_spellings() {
        let text = "GPU 0: A100-SXM4-40GB (UUID: GPU-1111)\n  MIG 3g.20gb     Device  0: (UUID: MIG-GPU-1111/1/0)\n  \
                    MIG 3g.20gb     Device  1: (UUID: MIG-GPU-1111/2/0)\n\
                    GPU 1: A100-SXM4-40GB (UUID: GPU-2222)\n  MIG 1g.5gb      Device  0: (UUID: MIG-c7384736-a75d)\n\
                    GPU 2: A100-SXM4-40GB (UUID: GPU-3333)\n";
        assert_eq!(ids(text), ["MIG-GPU-1111/1/0@0", "MIG-GPU-1111/2/0@0", "MIG-c7384736-a75d@1", "2@2"]);
        let slices: Vec<bool> = parse_list(text).iter().map(|device| device.gpu.mig).collect();
        assert_eq!(slices, [true, true, true, false]);
    }

    #[test]
    fn pitfall_090_a_device_knows_its_cores() {
        let root = tempfile::tempdir().unwrap();
        for (bus, cores) in [("0000:07:00.0", "24-31"), ("0000:c1:00.0", "0-7")] {
            let folder = root.path().join("sys/bus/pci/devices").join(bus);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("local_cpulist"), cores).unwrap();
        }
        let near = near_cores(&System::below(root.path()), "0, 00000000:07:00.0\n1, 00000000:C1:00.0\n2, [N/A]\n");
        assert_eq!(near[&0], (24..32).collect::<Vec<_>>());
        assert_eq!(near[&1], (0..8).collect::<Vec<_>>());
        assert_eq!(near.len(), 2);
    }
}
