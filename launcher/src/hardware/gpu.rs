//! Which GPUs this process was granted, and the variables that hand some of them on. What a vendor's
//! tool says is read in that vendor's file.

use copal_schemas::StringMap;

use super::{Gpu, GpuVendor, System, amd, intel, nvidia};

impl GpuVendor {
    /// The variable by which a process is told which devices are its own.
    fn variable(self) -> &'static str {
        match self {
            Self::Nvidia => "CUDA_VISIBLE_DEVICES",
            Self::Amd => "ROCR_VISIBLE_DEVICES",
            Self::Intel => "ZE_AFFINITY_MASK",
        }
    }
}

/// Variables to set and to take away for a process that is given some GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuEnvironment {
    /// To set.
    pub set: StringMap,
    /// To take away: they would choose among the chosen ones a second time.
    pub unset: Vec<String>,
}

/// How a process is told which GPUs it is given. Nothing for none: a variable that is set but empty hides
/// devices in one library and is an error in the next.
#[must_use]
pub fn gpu_environment(gpus: &[&Gpu]) -> GpuEnvironment {
    let Some(first) = gpus.first() else { return GpuEnvironment::default() };
    let ids: Vec<&str> = gpus.iter().map(|gpu| gpu.id.as_str()).collect();
    let mut set = StringMap::from([(first.vendor.variable().to_owned(), ids.join(","))]);
    let mut unset = Vec::new();
    match first.vendor {
        // Numbers mean what nvidia-smi means by them only in this order.
        GpuVendor::Nvidia => {
            set.insert("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into());
        }
        // HIP reads these on top of ROCR's. Slurm sets them all.
        GpuVendor::Amd => {
            unset.extend(["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"].map(String::from));
        }
        GpuVendor::Intel => {
            set.insert("ZE_ENABLE_PCI_ID_DEVICE_ORDER".into(), "1".into());
            // `3.1` is the second tile of the fourth device only where tiles are parts of devices.
            if ids.iter().any(|id| id.contains('.')) {
                set.insert("ZE_FLAT_DEVICE_HIERARCHY".into(), "COMPOSITE".into());
            }
        }
    }
    GpuEnvironment { set, unset }
}

/// What a vendor's file offers.
type Finder = fn(&System) -> Vec<Gpu>;

/// The GPUs of this machine that the allocation was granted.
pub(super) fn find(system: &System, env: &dyn Fn(&str) -> Option<String>) -> Vec<Gpu> {
    let finders: [(GpuVendor, Finder); 3] =
        [(GpuVendor::Nvidia, nvidia::find), (GpuVendor::Amd, amd::find), (GpuVendor::Intel, intel::find)];
    for (vendor, find) in finders {
        let gpus = find(system);
        if !gpus.is_empty() {
            return granted(gpus, env(vendor.variable()).as_deref());
        }
    }
    granted_without_tools(system, env)
}

/// Where no tool is here, what the scheduler granted is still good to hand on.
fn granted_without_tools(system: &System, env: &dyn Fn(&str) -> Option<String>) -> Vec<Gpu> {
    let vendors = match system.dev.join("kfd").exists() {
        true => [GpuVendor::Amd, GpuVendor::Nvidia, GpuVendor::Intel],
        false => [GpuVendor::Nvidia, GpuVendor::Amd, GpuVendor::Intel],
    };
    let named = vendors.into_iter().map(|vendor| (vendor, env(vendor.variable()).unwrap_or_default()));
    named
        .map(|(vendor, text)| ids(&text).into_iter().map(|id| new(id, vendor)).collect::<Vec<_>>())
        .find(|gpus| !gpus.is_empty())
        .unwrap_or_default()
}

/// GPUs by the ids of the settings. The vendor is the one whose driver is here.
pub(super) fn named(system: &System, names: &[String]) -> Vec<Gpu> {
    let vendor = if system.dev.join("kfd").exists() {
        GpuVendor::Amd
    } else if names.iter().any(|id| id.contains('.')) {
        GpuVendor::Intel
    } else {
        GpuVendor::Nvidia
    };
    names.iter().map(|id| new(id, vendor)).collect()
}

fn new(id: &str, vendor: GpuVendor) -> Gpu {
    Gpu { id: id.to_owned(), vendor, mig: id.starts_with("MIG-"), near_cores: Vec::new() }
}

fn ids(text: &str) -> Vec<&str> {
    let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty());
    // Slurm writes this where no device was granted; CUDA reads only what stands before an id it does not know.
    ids.take_while(|id| *id != "NoDevFiles" && *id != "-1").collect()
}

/// Those of the GPUs that the variable names: by number in the vendor's order, or by id or the start of one.
/// Without the variable, all. A list that fits none of them comes from a scheduler whose numbers are not the
/// tool's, where the tool shows only what was granted.
fn granted(gpus: Vec<Gpu>, variable: Option<&str>) -> Vec<Gpu> {
    let Some(variable) = variable else { return gpus };
    let wanted = ids(variable);
    if wanted.is_empty() {
        return Vec::new();
    }
    let is = |gpu: &Gpu, id: &str| {
        gpu.id == id
            || gpu.id.split_once('.').is_some_and(|(device, _)| device == id)
            || (id.len() >= 8 && gpu.id.starts_with(id))
    };
    let chosen: Vec<Gpu> = wanted.iter().flat_map(|id| gpus.iter().filter(|gpu| is(gpu, id)).cloned()).collect();
    if !chosen.is_empty() {
        return chosen;
    }
    // Whole NVIDIA devices may be granted by UUID, which CUDA takes as it is.
    if wanted.iter().all(|id| id.starts_with("GPU-") || id.starts_with("MIG-")) {
        return wanted.into_iter().map(|id| new(id, GpuVendor::Nvidia)).collect();
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(ids: &[&str], vendor: GpuVendor) -> Vec<Gpu> {
        ids.iter().map(|id| new(id, vendor)).collect()
    }

    fn chosen(gpus: &[Gpu]) -> Vec<&str> {
        gpus.iter().map(|gpu| gpu.id.as_str()).collect()
    }

    #[test]
    fn pitfall_087_a_granted_list_is_kept_and_indexed() {
        let all = devices(&["0", "1", "2", "3"], GpuVendor::Nvidia);
        assert_eq!(chosen(&granted(all.clone(), Some("2,3"))), ["2", "3"]);
        assert_eq!(chosen(&granted(all.clone(), None)), ["0", "1", "2", "3"]);
        assert!(granted(all.clone(), Some("")).is_empty());
        assert!(granted(all.clone(), Some("NoDevFiles")).is_empty());
        assert_eq!(chosen(&granted(all, Some("GPU-1234-5678"))), ["GPU-1234-5678"]);
        let two = devices(&["0", "1"], GpuVendor::Nvidia);
        assert_eq!(chosen(&granted(two, Some("6,7"))), ["0", "1"]);
        let tiles = devices(&["0.0", "0.1", "1.0", "1.1"], GpuVendor::Intel);
        assert_eq!(chosen(&granted(tiles.clone(), Some("1"))), ["1.0", "1.1"]);
        assert_eq!(chosen(&granted(tiles, Some("0.1,1.0"))), ["0.1", "1.0"]);
        let slices = devices(&["MIG-aaaa1111", "MIG-bbbb2222"], GpuVendor::Nvidia);
        assert_eq!(chosen(&granted(slices, Some("MIG-bbbb2222"))), ["MIG-bbbb2222"]);
    }

    #[test]
    fn pitfall_087_no_gpu_sets_no_variable() {
        assert_eq!(gpu_environment(&[]), GpuEnvironment::default());
    }

    #[test]
    fn each_vendor_has_its_variable() {
        let text = |ids: &[&str], vendor| {
            let gpus = devices(ids, vendor);
            let environment = gpu_environment(&gpus.iter().collect::<Vec<_>>());
            let set: Vec<String> = environment.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (set.join(" "), environment.unset.join(" "))
        };
        assert_eq!(
            text(&["2", "3"], GpuVendor::Nvidia),
            ("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,3".into(), String::new())
        );
        assert_eq!(
            text(&["0"], GpuVendor::Amd),
            ("ROCR_VISIBLE_DEVICES=0".into(), "HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL".into())
        );
        assert_eq!(
            text(&["0.1", "1.0"], GpuVendor::Intel).0,
            "ZE_AFFINITY_MASK=0.1,1.0 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE"
        );
    }

    #[test]
    fn without_a_tool_the_granted_list_is_handed_on() {
        let empty = tempfile::tempdir().unwrap();
        let system = System::below(empty.path());
        let env =
            |name: &str| matches!(name, "CUDA_VISIBLE_DEVICES" | "ROCR_VISIBLE_DEVICES").then(|| "0,1".to_owned());
        let gpus = granted_without_tools(&system, &env);
        assert_eq!(chosen(&gpus), ["0", "1"]);
        assert_eq!(gpus[0].vendor, GpuVendor::Nvidia);
        std::fs::create_dir_all(empty.path().join("dev/kfd")).unwrap();
        assert_eq!(granted_without_tools(&system, &env)[0].vendor, GpuVendor::Amd);
    }
}
