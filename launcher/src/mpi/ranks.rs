//! A few lines of shell in front of the program, for what only a rank itself can do: take the GPUs or
//! the CPUs that are its own. Used only where the launcher of ranks can't do it.

use copal_client::app_file::quote;

use super::{
    LaunchCommand,
    gpus::{self, GpuPlan},
    run::RankedRun,
};

/// By which variables a rank knows who it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankVariables {
    /// Its number among all ranks.
    pub(super) global: &'static str,
    /// Its number on its node.
    pub(super) local: &'static str,
}

/// What each rank executes, and what the command sets for it.
pub(super) struct Program {
    pub(super) argv: Vec<String>,
    pub(super) command: LaunchCommand,
}

/// The program of a run with its environment and GPUs. `bind` gives each rank of a node its hardware threads,
/// for launchers of ranks that have no exact way of their own.
pub(super) fn program(run: &RankedRun, variables: RankVariables, bind: Option<&[Vec<u32>]>) -> Program {
    let mut command = LaunchCommand { argv: Vec::new(), env: run.env.clone(), unset: Vec::new() };
    let mut script = String::new();
    match gpus::plan(run) {
        GpuPlan::Same(gpus) => {
            command.env.extend(gpus.set);
            command.unset = gpus.unset;
        }
        GpuPlan::ByRank(of_ranks) => {
            let sets = of_ranks.iter().map(|gpus| {
                let words = gpus.set.iter().map(|(name, value)| format!(" {name}={}", quote(value)));
                format!("export{}", words.collect::<String>())
            });
            script += &cases(variables.global, sets);
            command.unset = of_ranks.first().map(|gpus| gpus.unset.clone()).unwrap_or_default();
        }
    }
    if let Some(cpus) = bind {
        script += &cases(variables.local, cpus.iter().map(|cpus| format!("cpus={}", list(cpus))));
        script += "command -v taskset >/dev/null && exec taskset -c \"$cpus\" \"$@\"\n";
    }
    let mut argv = Vec::new();
    if !script.is_empty() {
        script += "exec \"$@\"";
        argv.extend(["/bin/sh".into(), "-c".into(), script, "copal-rank".into()]);
    }
    argv.extend(run.program.iter().cloned());
    Program { argv, command }
}

/// `case $VARIABLE in 0) …;; 1) …;; esac`
fn cases(variable: &str, bodies: impl Iterator<Item = String>) -> String {
    let arms: Vec<String> = bodies.enumerate().map(|(number, body)| format!("{number}) {body};;")).collect();
    format!("case ${variable} in\n{}\nesac\n", arms.join("\n"))
}

/// `0,1,2`
pub(super) fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
