//! Binding runs to CPUs: a thread that starts runs takes the CPUs of its slot, and what it starts
//! inherits them.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use tracing::debug;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// The CPUs that this process may use.
#[derive(Debug)]
pub(super) struct Cpus {
    all: Option<CpuSet>,
}

impl Default for Cpus {
    fn default() -> Self {
        // A machine with more CPUs than the set can hold is not bound at all.
        Self { all: sched_getaffinity(SELF).ok() }
    }
}

impl Cpus {
    /// Binds the calling thread to these hardware threads, or to all when there are none or when one of them
    /// is not this process's to use. Whether it is bound to some now.
    pub(super) fn bind(&self, cpus: &[u32]) -> bool {
        let Some(all) = &self.all else { return false };
        let wanted = Self::set(all, cpus);
        let bound = sched_setaffinity(SELF, wanted.as_ref().unwrap_or(all));
        if let Err(error) = bound {
            debug!(%error, ?cpus, "can't bind a run to its CPUs");
        }
        bound.is_ok() && wanted.is_some()
    }

    fn set(all: &CpuSet, cpus: &[u32]) -> Option<CpuSet> {
        let mut set = CpuSet::new();
        for cpu in cpus {
            let cpu = *cpu as usize;
            if !all.is_set(cpu).unwrap_or(false) || set.set(cpu).is_err() {
                return None;
            }
        }
        (!cpus.is_empty()).then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<usize> {
        let set = sched_getaffinity(SELF).unwrap();
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect()
    }

    #[test]
    fn a_thread_and_what_it_starts_is_bound_and_freed() {
        let cpus = Cpus::default();
        let all = own();
        let last = *all.last().unwrap();
        assert!(cpus.bind(&[last as u32]));
        assert_eq!(own(), [last]);
        let child =
            std::process::Command::new("grep").args(["Cpus_allowed_list", "/proc/self/status"]).output().unwrap();
        assert!(String::from_utf8_lossy(&child.stdout).trim().ends_with(&format!("\t{last}")), "{child:?}");
        assert!(!cpus.bind(&[]));
        assert_eq!(own(), all);
        // A CPU that is not there binds to nothing.
        assert!(!cpus.bind(&[last as u32, 1_000_000]));
        assert_eq!(own(), all);
    }
}
