//! `mpiexec` of HPE's PALS, on Cray EX machines.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};

const VARIABLES: RankVariables = RankVariables { global: "PALS_RANKID", local: "PALS_LOCAL_RANKID" };

/// How PALS is started here.
#[derive(Debug)]
pub(super) struct Pals {
    pub(super) program: String,
}

impl MpiLaunch for Pals {
    fn kind(&self) -> MpiKind {
        MpiKind::Pals
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let ranks::Program { argv: program, mut command } = ranks::program(run, VARIABLES, None);
        let mut argv = vec![self.program.clone(), "-n".into(), run.ranks().to_string()];
        argv.extend(["--ppn".into(), run.ranks_per_node().to_string()]);
        argv.extend(["--hosts".into(), run.host_names().join(",")]);
        argv.extend(["--depth".into(), run.threads_per_rank().to_string()]);
        if let Some(cpus) = run.binding() {
            let ranks: Vec<String> = cpus.iter().map(|cpus| ranks::list(cpus)).collect();
            argv.extend(["--cpu-bind".into(), format!("list:{}", ranks.join(":"))]);
        }
        argv.push("--envall".into());
        argv.extend(params::arguments(&run.launch_params, Style::Apart));
        argv.extend(program);
        command.argv = argv;
        Ok(command)
    }
}
