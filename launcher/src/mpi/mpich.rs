//! `mpiexec` of MPICH and its kin: the hydra process manager.

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};

const VARIABLES: RankVariables = RankVariables { global: "PMI_RANK", local: "MPI_LOCALRANKID" };

/// How MPICH is started here.
#[derive(Debug)]
pub(super) struct Mpich {
    pub(super) program: String,
    /// All nodes are this machine.
    pub(super) is_local: bool,
    /// Inside Slurm, where `mpiexec` starts its helpers by `srun`.
    pub(super) in_slurm: bool,
    /// Whether `-bind-to` is known: not to Intel's hydra, which binds by its own rules.
    pub(super) can_bind: bool,
}

impl MpiLaunch for Mpich {
    fn kind(&self) -> MpiKind {
        MpiKind::Mpich
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        // The environment of mpiexec reaches all ranks by itself.
        let ranks::Program { argv: program, mut command } = ranks::program(run, VARIABLES, None);
        let mut argv = vec![self.program.clone(), "-n".into(), run.ranks().to_string()];
        if self.is_local {
            argv.extend(["-launcher".into(), "fork".into()]);
        } else {
            argv.extend(["-ppn".into(), run.ranks_per_node().to_string()]);
            argv.extend(["-hosts".into(), run.host_names().join(",")]);
        }
        if let Some(cpus) = run.binding().filter(|_| self.can_bind) {
            // `user:0+1,2+3`: by the system's numbers, rank by rank on each node.
            let ranks: Vec<String> = cpus.iter().map(|cpus| ranks::list(cpus).replace(',', "+")).collect();
            argv.extend(["-bind-to".into(), format!("user:{}", ranks.join(","))]);
        }
        argv.extend(params::arguments(&run.launch_params, Style::Apart));
        argv.extend(program);
        if self.in_slurm {
            command.env.insert("SLURM_OVERLAP".into(), "1".into());
        }
        command.argv = argv;
        Ok(command)
    }
}
