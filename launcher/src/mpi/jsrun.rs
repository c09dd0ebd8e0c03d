//! IBM's `jsrun`. It chooses nodes, CPUs and GPUs among the free ones by itself, so counts are all it is told,
//! and one run on a node at a time is all it is trusted with.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    run::RankedRun,
};

/// How jsrun is started here.
#[derive(Debug)]
pub(super) struct Jsrun {
    pub(super) program: String,
}

impl MpiLaunch for Jsrun {
    fn kind(&self) -> MpiKind {
        MpiKind::Jsrun
    }

    fn shares_nodes(&self) -> bool {
        false
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let (hosts, ranks) = (run.hosts.len(), run.ranks_per_node());
        let cores = run.cores_per_rank();
        // A fraction of a GPU is shared within one resource set of all the node's ranks.
        let shares = run.whole_gpus_per_rank() == 0 && run.gpus_per_node() > 0;
        let (sets, ranks_of_set, sets_on_host) = if shares { (hosts, ranks, 1) } else { (run.ranks(), 1, ranks) };
        let gpus = if shares { run.gpus_per_node() } else { run.whole_gpus_per_rank() as usize };
        let mut argv = vec![self.program.clone()];
        for (option, number) in [
            ("--nrs", sets),
            ("--tasks_per_rs", ranks_of_set as usize),
            ("--rs_per_host", sets_on_host as usize),
            ("--cpu_per_rs", (cores * ranks_of_set) as usize),
            ("--gpu_per_rs", gpus),
        ] {
            argv.extend([option.to_owned(), number.to_string()]);
        }
        if !params::has_own_binding(&run.launch_params) {
            let binding = if shares { format!("packed:{cores}") } else { "rs".into() };
            argv.extend(["--bind".into(), binding]);
        }
        argv.extend(params::arguments(&run.launch_params, Style::Apart));
        argv.extend(run.program.iter().cloned());
        // The environment of jsrun reaches all ranks by itself; the devices are jsrun's own choice.
        Ok(LaunchCommand { argv, env: run.env.clone(), unset: Vec::new() })
    }
}
