//! `flux run` inside a Flux instance: Flux deals out cores and whole GPUs of the nodes that placement chose.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};
use crate::hostlist;

const VARIABLES: RankVariables = RankVariables { global: "FLUX_TASK_RANK", local: "FLUX_TASK_LOCAL_ID" };

/// How Flux is started here.
#[derive(Debug)]
pub(super) struct Flux {
    pub(super) program: String,
    /// All nodes are this machine.
    pub(super) is_local: bool,
}

impl MpiLaunch for Flux {
    fn kind(&self) -> MpiKind {
        MpiKind::Flux
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let mut argv: Vec<String> = vec![self.program.clone(), "run".into()];
        if !self.is_local {
            argv.push(format!("--nodes={}", run.hosts.len()));
            argv.push(format!("--requires=host:{}", hostlist::compress(&run.host_names())));
        }
        argv.push(format!("--ntasks={}", run.ranks()));
        argv.push(format!("--cores-per-task={}", run.cores_per_rank()));
        if !params::has_own_binding(&run.launch_params) {
            argv.push("--setopt=cpu-affinity=per-task".into());
        }
        let gpus = run.whole_gpus_per_rank();
        let mut command = LaunchCommand { env: run.env.clone(), ..LaunchCommand::default() };
        let mut program = run.program.clone();
        if gpus > 0 {
            argv.push(format!("--gpus-per-task={gpus}"));
            argv.push("--setopt=gpu-affinity=per-task".into());
        } else if run.gpus_per_node() > 0 {
            argv.push("--setopt=gpu-affinity=off".into());
            ranks::Program { argv: program, command } = ranks::program(run, VARIABLES, None);
        }
        argv.extend(params::arguments(&run.launch_params, Style::Joined));
        argv.extend(program);
        command.argv = argv;
        Ok(command)
    }
}
