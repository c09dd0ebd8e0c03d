//! `mpiexec` of Open MPI, versions 4 and 5.

use std::{env, fs, path::PathBuf};

use copal_schemas::settings::MpiKind;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks::{self, RankVariables},
    run::RankedRun,
};

const VARIABLES: RankVariables = RankVariables { global: "OMPI_COMM_WORLD_RANK", local: "OMPI_COMM_WORLD_LOCAL_RANK" };

/// Where Open MPI up to version 4 makes its folder.
pub(super) const FOLDER_VARIABLE: &str = "OMPI_MCA_orte_tmpdir_base";

/// How Open MPI is started here.
#[derive(Debug)]
pub(super) struct OpenMpi {
    pub(super) program: String,
    /// All nodes are this machine.
    pub(super) is_local: bool,
    /// Inside Slurm, where `mpiexec` starts its helpers by `srun`.
    pub(super) in_slurm: bool,
    /// Open MPI refuses root unless told twice.
    pub(super) as_root: bool,
    /// Where its runs keep their files; `None` where they get along without.
    pub(super) folders: Option<Folders>,
}

/// Folders for the files of runs, a folder for each place, so that no two runs use one at the same time. Up to
/// version 4 all runs of a user share one by default, and it happens that one run removes it when another is about to
/// use it. What is left of them on this machine goes with this value.
#[derive(Debug)]
pub(super) struct Folders {
    prefix: String,
}

impl Default for Folders {
    fn default() -> Self {
        Self { prefix: format!("copal-mpi-{:016x}-", rand::random::<u64>()) }
    }
}

impl Folders {
    fn of(&self, lane: &str) -> PathBuf {
        env::temp_dir().join(format!("{}{lane}", self.prefix))
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.prefix) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    }
}

impl MpiLaunch for OpenMpi {
    fn kind(&self) -> MpiKind {
        MpiKind::Openmpi
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        // Its own binding counts cores from 0 for each mpiexec, so that runs that share a node would share
        // the first cores. Ranks take their CPUs themselves instead.
        let own_binding = params::has_own_binding(&run.launch_params);
        let ranks::Program { argv: program, mut command } = ranks::program(run, VARIABLES, run.binding());
        let mut argv = vec![self.program.clone(), "-n".into(), run.ranks().to_string()];
        if self.is_local {
            argv.push("--oversubscribe".into());
        } else {
            let ranks = run.ranks_per_node();
            let hosts: Vec<String> = run.host_names().iter().map(|host| format!("{host}:{ranks}")).collect();
            argv.extend(["--host".into(), hosts.join(",")]);
            if !own_binding {
                argv.extend(["--map-by".into(), format!("ppr:{ranks}:node")]);
            }
        }
        if !own_binding {
            argv.extend(["--bind-to".into(), "none".into()]);
        }
        // Names only: values on a command line can be read by everybody.
        for name in command.env.keys() {
            argv.extend(["-x".into(), name.clone()]);
        }
        argv.extend(params::arguments(&run.launch_params, Style::Apart));
        argv.extend(program);
        if self.as_root {
            for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
                command.env.insert(name.into(), "1".into());
            }
        }
        if let Some(folders) = &self.folders {
            // Set after the names that ranks get, since they need not know.
            let folder = folders.of(&run.lane).display().to_string();
            command.env.insert(FOLDER_VARIABLE.into(), folder);
        }
        if self.in_slurm {
            command.env.insert("SLURM_OVERLAP".into(), "1".into());
        }
        command.argv = argv;
        Ok(command)
    }
}
