//! Cray's `aprun`. One run on a node at a time: ALPS shares no node between them.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};

const VARIABLES: RankVariables = RankVariables { global: "ALPS_APP_PE", local: "ALPS_APP_PE" };

/// How aprun is started here.
#[derive(Debug)]
pub(super) struct Aprun {
    pub(super) program: String,
}

impl MpiLaunch for Aprun {
    fn kind(&self) -> MpiKind {
        MpiKind::Aprun
    }

    fn shares_nodes(&self) -> bool {
        false
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let ranks::Program { argv: program, mut command } = ranks::program(run, VARIABLES, None);
        // `nid01001` is 1001 to aprun.
        let number = |name: &str| name.trim_start_matches("nid").trim_start_matches('0').to_owned();
        let nids: Vec<String> = run.host_names().into_iter().map(number).collect();
        let mut argv = vec![self.program.clone(), "-n".into(), run.ranks().to_string()];
        argv.extend(["-N".into(), run.ranks_per_node().to_string()]);
        argv.extend(["-L".into(), nids.join(",")]);
        argv.extend(["-d".into(), run.threads_per_rank().to_string()]);
        argv.extend(["-j".into(), run.threads_per_core().to_string()]);
        let mut params = run.launch_params.clone();
        // Balsam's word for it.
        let binding = params.remove("cpu_affinity").unwrap_or_else(|| "depth".into());
        if !params::has_own_binding(&params) {
            argv.extend(["-cc".into(), binding]);
        }
        argv.extend(params::arguments(&params, Style::Apart));
        argv.extend(program);
        command.argv = argv;
        Ok(command)
    }
}
