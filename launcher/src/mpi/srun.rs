//! Slurm's `srun`. Steps overlap and are bound to the CPUs that placement chose: steps that Slurm packs
//! itself wait for each other's memory, CPUs and GPUs, and can't share a GPU.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    gpus::{self, GpuPlan},
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};
use crate::hostlist;

const VARIABLES: RankVariables = RankVariables { global: "SLURM_PROCID", local: "SLURM_LOCALID" };

/// Options that sbatch leaves in the environment of the script, where srun takes them for its own:
/// some contradict `--mem=0`, some make a step exact, some bind all steps to the same CPUs.
const INHERITED: &[&str] = &[
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_HINT",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_STEP_GRES",
    "SLURM_THREADS_PER_CORE",
    "SLURM_THREAD_SPEC",
];

/// How srun is started here.
#[derive(Debug)]
pub(super) struct Srun {
    /// Major and minor: (22, 5).
    pub(super) version: (u32, u32),
    /// Whether Slurm binds ranks to CPUs here. Without its affinity plugin `--cpu-bind` does nothing.
    pub(super) binds: bool,
}

impl Srun {
    /// Before 22.05 `--overlap` shared CPUs but not GPUs: there Slurm deals out whole GPUs.
    fn slurm_deals_gpus(&self, run: &RankedRun) -> bool {
        run.whole_gpus_per_rank() > 0 && self.version < (22, 5)
    }
}

impl MpiLaunch for Srun {
    fn kind(&self) -> MpiKind {
        MpiKind::Srun
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let ranks = run.ranks_per_node();
        let mut argv: Vec<String> = vec![
            "srun".into(),
            format!("--nodes={}", run.hosts.len()),
            format!("--ntasks={}", run.ranks()),
            format!("--ntasks-per-node={ranks}"),
            format!("--nodelist={}", hostlist::compress(&run.host_names())),
            "--distribution=block".into(),
            "--mem=0".into(),
            "--kill-on-bad-exit=1".into(),
        ];
        // Since 21.08 this confines a step to CPUs of Slurm's own choice. Without it a step has the whole node.
        if self.version < (21, 8) || self.slurm_deals_gpus(run) {
            argv.push(format!("--cpus-per-task={}", run.threads_per_rank()));
        }
        let mut command;
        let program;
        if self.slurm_deals_gpus(run) {
            argv.extend(["--exact".into(), format!("--gres=gpu:{}", run.gpus_per_node())]);
            argv.extend(params::arguments(&run.launch_params, Style::Joined));
            command = LaunchCommand { env: run.env.clone(), ..LaunchCommand::default() };
            program = run.program.clone();
        } else {
            // Older ones share by themselves.
            if self.version >= (20, 11) {
                argv.push("--overlap".into());
            }
            // Where Slurm does not, ranks take their CPUs themselves.
            if self.binds && !params::has_own_binding(&run.launch_params) {
                let masks = |cpus: &[Vec<u32>]| cpus.iter().map(|cpus| mask(cpus)).collect::<Vec<_>>().join(",");
                let binding = run.binding().map_or("none".into(), |cpus| format!("mask_cpu:{}", masks(cpus)));
                argv.push(format!("--cpu-bind={binding}"));
            }
            argv.extend(params::arguments(&run.launch_params, Style::Joined));
            let bind = run.binding().filter(|_| !self.binds);
            ranks::Program { argv: program, command } = ranks::program(run, VARIABLES, bind);
            if let GpuPlan::Same(gpus) = gpus::plan(run) {
                argv.extend(in_front(&gpus.set, &gpus.unset));
            }
        }
        argv.extend(program);
        command.unset.extend(INHERITED.iter().map(|name| (*name).to_owned()));
        command.argv = argv;
        Ok(command)
    }
}

/// `env` in front of the program: Slurm sets the GPU variables of a step itself, after those of srun.
fn in_front(set: &copal_schemas::StringMap, unset: &[String]) -> Vec<String> {
    if set.is_empty() {
        return Vec::new();
    }
    let mut words = vec!["env".to_owned()];
    words.extend(unset.iter().flat_map(|name| ["-u".to_owned(), name.clone()]));
    words.extend(set.iter().map(|(name, value)| format!("{name}={value}")));
    words
}

/// The CPUs as a hexadecimal mask.
fn mask(cpus: &[u32]) -> String {
    let mut digits = vec![0u8; cpus.iter().max().map_or(1, |highest| *highest as usize / 4 + 1)];
    for cpu in cpus {
        digits[*cpu as usize / 4] |= 1 << (cpu % 4);
    }
    let digits: String =
        digits.iter().rev().map(|digit| char::from_digit(u32::from(*digit), 16).unwrap_or('0')).collect();
    format!("0x{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_a_bit_a_cpu() {
        assert_eq!(mask(&[0]), "0x1");
        assert_eq!(mask(&[0, 1, 2, 3, 4]), "0x1f");
        assert_eq!(mask(&[64, 127]), "0x80000000000000010000000000000000");
    }
}
