//! From a placed Job to the task that a worker runs.

use std::{collections::HashMap, str::FromStr};

use anyhow::{Result, anyhow};
use copal_client::{SiteDir, app_file::App};
use copal_schemas::{BatchJobId, StringMap, job::Job, resources::ResourceShape};
use nix::sys::signal::Signal;

use super::command::{quoted, without_shell};
use crate::{
    mpi::{MpiLaunch, RankedRun},
    nodes::Node,
    packing::{Ask, Placement},
    protocol::{CheckpointSignal, Program, RunId, Task},
};

/// What all Jobs of a launcher have in common.
pub struct Workshop {
    /// The Site.
    pub site: SiteDir,
    /// The BatchJob.
    pub batch_job_id: Option<BatchJobId>,
    /// Starts ranks, in mpi mode.
    pub mpi: Option<Box<dyn MpiLaunch + Send + Sync>>,
}

impl std::fmt::Debug for Workshop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workshop").field("site", &self.site).finish_non_exhaustive()
    }
}

/// Where a Job was placed.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// What it asked.
    pub ask: &'a Ask,
    /// What it was given.
    pub placement: &'a Placement,
    /// The nodes of the allocation.
    pub nodes: &'a [Node],
}

impl Workshop {
    /// The task of one run. In mpi mode `place` says where; in serial mode the slot does.
    ///
    /// # Errors
    /// A sentence for the Job's owner: a parameter that is missing, a workdir that is no text, a
    /// template of the MPI command that does not render.
    pub fn task(&self, run: RunId, class: u64, job: &Job, app: &App, place: Option<Place<'_>>) -> Result<Task> {
        let workdir = self.site.job_folder(&job.workdir).map_err(|message| anyhow!(message))?;
        let workdir = workdir.to_str().ok_or_else(|| anyhow!("the workdir {} is not UTF-8", workdir.display()))?;
        let command = app.command(&job.parameters)?;
        let preamble = app.spec().preamble.as_deref().filter(|text| !text.trim().is_empty());
        let mut env = self.environment(job, app, workdir);
        let mut unset = Vec::new();
        let direct = without_shell(&command);
        let program = match (&self.mpi, place) {
            (Some(mpi), Some(place)) => {
                let ranks = direct.unwrap_or_else(|| vec!["bash".into(), "-c".into(), command]);
                let launch = mpi.command(&RankedRun::new(
                    place.ask,
                    place.placement,
                    place.nodes,
                    ranks,
                    env.clone(),
                    job.launch_params.clone(),
                ))?;
                env = launch.env;
                unset = launch.unset;
                match preamble {
                    // The preamble may load the module that the command comes from.
                    Some(preamble) => Program::Shell(format!("{preamble}\nexec {}", quoted(&launch.argv))),
                    None => Program::Direct(launch.argv),
                }
            }
            _ => match (direct, preamble) {
                (Some(argv), None) => Program::Direct(argv),
                (_, None) => Program::Shell(command),
                (_, Some(preamble)) => Program::Shell(format!("{preamble}\n{command}")),
            },
        };
        let checkpoint = job.checkpoint.as_ref().and_then(|checkpoint| {
            let signal = signal_number(&checkpoint.signal)?;
            Some(CheckpointSignal { signal, grace_sec: checkpoint.grace_sec })
        });
        Ok(Task {
            run,
            job: job.id,
            class,
            earlier_runs: job.num_attempts,
            workdir: workdir.into(),
            program,
            env,
            unset,
            output: app.spec().output,
            limit_sec: job.walltime_limit_min.map(|minutes| f64::from(minutes) * 60.0),
            checkpoint,
            own_group: job.mem_mb.is_some(),
        })
    }

    fn environment(&self, job: &Job, app: &App, workdir: &str) -> StringMap {
        let mut env = StringMap::new();
        env.insert("OMP_NUM_THREADS".into(), job.threads_per_rank.to_string());
        env.extend(app.spec().environment.iter().map(|(name, value)| (name.clone(), value.clone())));
        env.insert("COPAL_JOB_ID".into(), job.id.to_string());
        env.insert("COPAL_SITE_PATH".into(), self.site.root().display().to_string());
        env.insert("COPAL_WORKDIR".into(), workdir.into());
        if let Some(id) = self.batch_job_id {
            env.insert("COPAL_BATCH_JOB_ID".into(), id.to_string());
        }
        env
    }
}

/// The number of a signal that is named with or without `SIG`, or by its number.
fn signal_number(name: &str) -> Option<i32> {
    let upper = name.trim().to_ascii_uppercase();
    let named = Signal::from_str(&upper).or_else(|_| Signal::from_str(&format!("SIG{upper}")));
    named.ok().or_else(|| Signal::try_from(upper.parse::<i32>().ok()?).ok()).map(|signal| signal as i32)
}

/// A number for each shape of Jobs: what has the same class may follow in the same slot.
#[derive(Debug, Default)]
pub struct Classes {
    numbers: HashMap<[i64; 6], u64>,
}

impl Classes {
    /// The class of a shape on one node.
    pub fn of(&mut self, shape: &ResourceShape) -> u64 {
        let key = [
            i64::from(shape.ranks_per_node),
            i64::from(shape.cpus_per_node()),
            i64::from(shape.threads_per_core),
            i64::from(shape.gpu_shares_per_rank()),
            i64::from(shape.node_packing_count),
            shape.mem_mb.unwrap_or(-1),
        ];
        let next = self.numbers.len() as u64;
        *self.numbers.entry(key).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_in_every_way() {
        for name in ["SIGUSR1", "usr1", "10", " USR1 "] {
            assert_eq!(signal_number(name), Some(libc::SIGUSR1), "{name}");
        }
        assert_eq!(signal_number("SIGNOTHING"), None);
    }

    #[test]
    fn the_same_shape_has_the_same_class() {
        let mut classes = Classes::default();
        let one = ResourceShape::default();
        let two = ResourceShape { node_packing_count: 2, ..one };
        let (first, second) = (classes.of(&one), classes.of(&two));
        assert_ne!(first, second);
        assert_eq!(classes.of(&one), first);
    }
}
