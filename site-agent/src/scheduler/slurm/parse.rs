//! Reading what Slurm's commands print. Pure functions over text, tested on recorded output.
//! A line that can't be read is counted, and then no absence means anything.

use copal_schemas::{Timestamp, resources::NodeShape};
use nix::sys::signal::Signal;

use crate::scheduler::{
    EndReason, Ending, Status,
    listing::{Listing, Record, unknown_state},
    times::epoch,
};

/// Fields of `squeue -o`: id, state, start, end, reason, name. The name is last: a user's name may hold the separator.
pub const SQUEUE_FORMAT: &str = "%i|%T|%S|%e|%r|%j";
/// Fields of `sacct -o`, in the same order but for the exit code in place of the reason.
pub const SACCT_FIELDS: &str = "JobID,State,Start,End,ExitCode,JobName";

/// One job in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The job's id, whatever its grammar.
    pub id: String,
    /// The state's word.
    pub state: String,
    /// When it started.
    pub start: Option<Timestamp>,
    /// When it ended, or will end at the latest.
    pub end: Option<Timestamp>,
    /// squeue: why it waits. sacct: `code:signal`.
    pub note: String,
    /// The job's name.
    pub name: String,
}

/// Reads `squeue -h -o` [`SQUEUE_FORMAT`] and `sacct -n -P -X -o` [`SACCT_FIELDS`].
#[must_use]
pub fn rows(text: &str) -> Listing<Row> {
    Listing::of(text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
        let fields: Vec<&str> = line.splitn(6, '|').collect();
        let [id, state, start, end, note, name] = fields[..] else { return None };
        Some(Row {
            id: id.trim().into(),
            state: state.trim().into(),
            start: epoch(start),
            end: epoch(end),
            note: note.trim().into(),
            name: name.trim_end().into(),
        })
    }))
}

/// What a state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits, or will run again.
    Waiting,
    /// It has its nodes.
    Running,
    /// It is over.
    Over(EndReason),
}

/// What a state's word says, long or short, in any case, with anything behind it (`CANCELLED by 0`, `CANCELLED+`).
/// A word of a newer Slurm says `Running`: alive is the safe reading.
#[must_use]
pub fn phase(state: &str) -> Phase {
    let word: String = state.chars().take_while(|letter| letter.is_ascii_alphabetic() || *letter == '_').collect();
    match word.to_ascii_uppercase().as_str() {
        "PENDING" | "PD" | "REQUEUED" | "RQ" | "REQUEUE_FED" | "RF" | "REQUEUE_HOLD" | "RH" | "SPECIAL_EXIT" | "SE"
        | "RESV_DEL_HOLD" | "RD" => Phase::Waiting,
        "RUNNING" | "R" | "COMPLETING" | "CG" | "CONFIGURING" | "CF" | "SUSPENDED" | "S" | "STOPPED" | "ST"
        | "SIGNALING" | "SI" | "STAGE_OUT" | "SO" | "RESIZING" | "RS" | "POWER_UP_NODE" | "EXPEDITING"
        | "UPDATE_DB" => Phase::Running,
        "COMPLETED" | "CD" => Phase::Over(EndReason::Completed),
        "FAILED" | "F" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Phase::Over(EndReason::Failed),
        "CANCELLED" | "CA" | "REVOKED" | "RV" => Phase::Over(EndReason::Cancelled),
        "TIMEOUT" | "TO" | "DEADLINE" | "DL" => Phase::Over(EndReason::TimeLimit),
        "NODE_FAIL" | "NF" | "BOOT_FAIL" | "BF" => Phase::Over(EndReason::NodeFailure),
        "PREEMPTED" | "PR" => Phase::Over(EndReason::Preempted),
        "OUT_OF_MEMORY" | "OOM" => Phase::Over(EndReason::OutOfMemory),
        _ => {
            unknown_state("Slurm", state);
            Phase::Running
        }
    }
}

/// Reasons of a pending job that no waiting mends: the request itself is beyond a limit.
const NEVER: &[&str] = &[
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionConfig",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "DependencyNeverSatisfied",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "AssocMaxWallDurationPerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "AssocMaxNodePerJobLimit",
    "QOSMaxNodePerJobLimit",
    "AssocMaxCpuPerJobLimit",
    "QOSMaxCpuPerJobLimit",
];

impl Record for Row {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> Status {
        match phase(&self.state) {
            Phase::Waiting if NEVER.contains(&self.note.as_str()) => Status::Impossible { reason: self.note.clone() },
            Phase::Waiting => {
                let reason = (!self.note.is_empty() && self.note != "None").then(|| self.note.clone());
                Status::Queued { reason }
            }
            Phase::Running => Status::Running { start: self.start },
            Phase::Over(reason) => {
                let (exit_code, signal) = exit(&self.note);
                Status::Ended(Ending { start: self.start, end: self.end, reason, exit_code, signal })
            }
        }
    }
}

/// Reads `code:signal`.
fn exit(text: &str) -> (Option<i32>, Option<String>) {
    let Some((code, signal)) = text.split_once(':') else { return (None, None) };
    match (code.parse(), signal.parse::<i32>()) {
        (Ok(code), Ok(0)) => (Some(code), None),
        (Ok(_), Ok(number)) => {
            let name =
                Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().into());
            (None, Some(name))
        }
        _ => (None, None),
    }
}

/// The id in one line of sbatch's output: `64`, `64;cluster`, `Submitted batch job 64`, with anything a site's
/// wrapper puts before it.
#[must_use]
pub fn job_id(line: &str) -> Option<String> {
    let line = line.trim();
    let candidate = match line.rsplit_once("Submitted batch job ") {
        Some((_, rest)) => rest.split_whitespace().next()?,
        None => line.split(';').next()?,
    };
    (!candidate.is_empty() && candidate.bytes().all(|byte| byte.is_ascii_digit())).then(|| candidate.into())
}

/// Reads `sinfo -h -N -o "%c|%m|%G"`; `None` when the nodes differ.
#[must_use]
pub fn node_shape(text: &str) -> Option<NodeShape> {
    let mut shapes = text.lines().map(|line| {
        let fields: Vec<&str> = line.splitn(3, '|').collect();
        let [cpus, memory, gres] = fields[..] else { return None };
        Some(NodeShape {
            cpus: cpus.trim_end_matches('+').trim().parse().ok()?,
            gpus: gpus(gres),
            mem_mb: memory.trim_end_matches('+').trim().parse().ok()?,
        })
    });
    let first = shapes.next()??;
    shapes.all(|shape| shape == Some(first)).then_some(first)
}

/// GPUs in a list of generic resources: `gpu:a100:4(S:0-1),gpu:1g.10gb:2,nic:1`.
fn gpus(gres: &str) -> u32 {
    gres.split(',')
        .filter_map(|item| {
            let item = item.split('(').next()?.trim();
            let mut parts = item.split(':');
            (parts.next()? == "gpu").then_some(())?;
            Some(parts.next_back().map_or(1, |count| count.parse().unwrap_or(1)))
        })
        .sum()
}

#[cfg(test)]
mod tests;
