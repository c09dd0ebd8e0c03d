//! Intel's compute devices and their tiles, as the kernel lists them. A tile counts as a GPU.

use std::{fs, path::Path};

use super::{Gpu, GpuVendor, System, number_list};

/// Class of a display controller that has no display: compute devices, not a laptop's graphics.
const COMPUTE_CLASS: &str = "0x0380";

/// Devices in the order of their PCI addresses, as `0`, or their tiles as `0.0`, `0.1`. Empty without the driver.
pub(super) fn find(system: &System) -> Vec<Gpu> {
    let entries = fs::read_dir(system.sys.join("class/drm")).into_iter().flatten().flatten();
    let cards = entries.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("card"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let mut devices: Vec<(String, usize, Vec<u32>)> = cards.filter_map(|card| device(&card.path())).collect();
    devices.sort();
    let mut gpus = Vec::new();
    for (number, (_, tiles, near_cores)) in devices.into_iter().enumerate() {
        let new = |id: String| Gpu { id, vendor: GpuVendor::Intel, mig: false, near_cores: near_cores.clone() };
        match tiles {
            0 | 1 => gpus.push(new(number.to_string())),
            tiles => gpus.extend((0..tiles).map(|tile| new(format!("{number}.{tile}")))),
        }
    }
    gpus
}

/// PCI address, tiles and near cores of a card, if it is a compute device of Intel's.
fn device(card: &Path) -> Option<(String, usize, Vec<u32>)> {
    let device = card.join("device");
    let read = |name: &str| fs::read_to_string(device.join(name)).ok();
    if read("vendor")?.trim() != "0x8086" || !read("class")?.starts_with(COMPUTE_CLASS) {
        return None;
    }
    let uevent = read("uevent")?;
    let address = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="))?.to_owned();
    // The older driver has a folder for each tile below the card, the newer one below the device.
    let tiles = |folder: &Path, prefix: &str| {
        (0..64).take_while(|tile| folder.join(format!("{prefix}{tile}")).is_dir()).count()
    };
    let tiles = tiles(&card.join("gt"), "gt").max(tiles(&device, "tile"));
    Some((address, tiles, number_list(&read("local_cpulist").unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_count_and_displays_do_not() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join("sys/class/drm").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (card, class, address) in
            [(0, "0x030000", "0000:00:02.0"), (1, "0x038000", "0001:6c:00.0"), (2, "0x038000", "0000:18:00.0")]
        {
            write(format!("card{card}/device/vendor"), "0x8086\n");
            write(format!("card{card}/device/class"), class);
            write(format!("card{card}/device/uevent"), &format!("DRIVER=i915\nPCI_SLOT_NAME={address}\n"));
            write(format!("card{card}/device/local_cpulist"), if card == 2 { "0-51" } else { "52-103" });
            write(format!("card{card}/gt/gt0/id"), "0");
            write(format!("card{card}/gt/gt1/id"), "1");
        }
        let gpus = find(&System::below(root.path()));
        let text: Vec<String> = gpus.iter().map(|gpu| format!("{}@{}", gpu.id, gpu.near_cores[0])).collect();
        assert_eq!(text, ["0.0@0", "0.1@0", "1.0@52", "1.1@52"]);
    }
}
