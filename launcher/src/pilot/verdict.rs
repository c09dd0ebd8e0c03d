//! What the end of a run means for its Job. Pure.

use copal_schemas::{
    JobId, JobState, JsonObject, Timestamp,
    job::Job,
    session::{JobUpdate, Usage},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::protocol::{Cause, Ended, Outcome};

/// An update without anything but state and time.
#[must_use]
pub fn plain(job: JobId, state: JobState, time: Timestamp) -> JobUpdate {
    JobUpdate {
        job_id: job,
        state,
        state_timestamp: Some(time),
        state_data: JsonObject::new(),
        return_code: None,
        data: None,
        usage: None,
    }
}

/// An update with a reason.
#[must_use]
pub fn with_reason(job: JobId, state: JobState, time: Timestamp, reason: &str, message: &str) -> JobUpdate {
    let mut update = plain(job, state, time);
    update.state_data.insert("reason".into(), reason.into());
    update.state_data.insert("message".into(), message.into());
    update
}

/// The end of a cancelled Job that does not run.
#[must_use]
pub fn cancelled(job: JobId) -> JobUpdate {
    with_reason(job, JobState::Failed, chrono::Utc::now(), "cancelled", "cancelled by its owner")
}

/// The name of a signal.
#[must_use]
pub fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// What is reported when a run of this Job ended; `None` when it never began and nobody cancelled it,
/// so that the Job is as it was.
#[must_use]
pub fn of(job: &Job, ended: &Ended, nodes: &[String], gpus: &[String]) -> Option<JobUpdate> {
    let mut data = JsonObject::new();
    let mut put = |key: &str, value: Value| drop(data.insert(key.into(), value));
    let mut return_code = None;
    let mut signal = None;
    match &ended.outcome {
        Outcome::Exited(code) => return_code = Some(*code),
        Outcome::Signaled(number) => {
            let name = signal_name(*number);
            put("signal", json!(name));
            put("message", json!(format!("ended by {name}")));
            signal = Some(name);
        }
        Outcome::NotStarted { reason, message } => {
            put("reason", json!(reason));
            put("message", json!(message));
        }
        Outcome::Withdrawn if ended.cause != Some(Cause::Cancelled) => return None,
        Outcome::Withdrawn => {}
    }
    let state = match ended.cause {
        None if return_code == Some(0) => JobState::RunDone,
        None => JobState::RunError,
        Some(Cause::Cancelled) => JobState::Failed,
        Some(Cause::EndOfTime | Cause::Limit | Cause::LeaseLost | Cause::HeadLost) => JobState::RunTimeout,
    };
    if let Some(code) = return_code.filter(|code| *code != 0) {
        put("return_code", json!(code));
        if ended.cause.is_none() {
            put("message", json!(explain(code)));
        }
    }
    if let Some(cause) = ended.cause {
        let (reason, message) = match cause {
            Cause::Cancelled => ("cancelled", "cancelled by its owner"),
            Cause::EndOfTime => ("walltime", "the launcher's time was over"),
            Cause::Limit => ("walltime_limit", "the Job's own walltime_limit_min was over"),
            Cause::LeaseLost => ("cut_off", "the launcher was cut off from the service for too long"),
            // A head that hears this is there. It is the worker that had to end: its guard was killed.
            Cause::HeadLost => ("worker_lost", "the worker process on its node had to end"),
        };
        put("reason", json!(reason));
        put("message", json!(message));
    }
    if state == JobState::RunError
        && let Some(text) = memory_exceeded(job, ended)
    {
        put("reason", json!("memory"));
        put("message", json!(text));
    }
    if !ended.tail.is_empty() {
        put("error_tail", json!(ended.tail));
    }
    let began = !matches!(ended.outcome, Outcome::Withdrawn | Outcome::NotStarted { .. });
    let usage = Usage {
        start: began.then_some(ended.start),
        end: began.then_some(ended.end),
        signal,
        peak_memory_bytes: ended.peak_memory_bytes,
        cpu_sec: ended.cpu_sec,
        nodes: nodes.to_vec(),
        gpus: gpus.to_vec(),
    };
    Some(JobUpdate {
        job_id: job.id,
        state,
        state_timestamp: Some(ended.end),
        state_data: data,
        return_code,
        data: None,
        usage: began.then_some(usage),
    })
}

/// Exit codes by which shells say what happened.
fn explain(code: i32) -> String {
    match code {
        126 => "exit code 126: a program could not be executed".into(),
        127 => "exit code 127: a program was not found".into(),
        129..=159 => format!("exit code {code}: a program was ended by {}", signal_name(code - 128)),
        _ => format!("exit code {code}"),
    }
}

/// A run that was killed after it used more memory than its Job asked for.
fn memory_exceeded(job: &Job, ended: &Ended) -> Option<String> {
    if is_killed_by_slurm(&ended.tail) {
        let asked = job.mem_mb.map(|asked| format!("; {asked} MiB were asked for")).unwrap_or_default();
        return Some(format!("killed by Slurm for want of memory{asked}"));
    }
    let killed = matches!(ended.outcome, Outcome::Signaled(libc::SIGKILL) | Outcome::Exited(137));
    let asked = job.mem_mb.filter(|_| killed)?;
    let used = ended.peak_memory_bytes? >> 20;
    (used > asked).then(|| format!("killed after it used {used} MiB of memory; {asked} MiB were asked for"))
}

/// Whether the last lines are what Slurm says of ranks that it killed for their memory. The launcher sees only `srun`,
/// which ends with an exit code of the ranks'.
fn is_killed_by_slurm(tail: &str) -> bool {
    tail.lines().any(|line| {
        (line.starts_with("slurmstepd") && line.contains("oom-kill event"))
            || (line.starts_with("srun: error:") && line.ends_with(": Out Of Memory"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RunId;

    fn job() -> Job {
        serde_json::from_value(json!({
            "id": 5, "workdir": "w", "tags": {}, "app_id": 1, "session_id": null, "serialized_parameters": "",
            "serialized_return_value": "", "serialized_exception": "", "batch_job_id": null, "state": "RUNNING",
            "last_update": "2026-11-30T10:00:00", "data": {}, "return_code": null, "pending_file_cleanup": true,
            "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "threads_per_core": 1,
            "gpus_per_rank": 0.0, "node_packing_count": 1, "wall_time_min": 0, "launch_params": {}, "mem_mb": 100
        }))
        .unwrap()
    }

    fn ended(outcome: Outcome, cause: Option<Cause>) -> Ended {
        let time = copal_schemas::time::parse("2026-11-30T10:00:01").unwrap();
        Ended {
            run: RunId(1),
            slot: None,
            vacant: true,
            outcome,
            cause,
            start: time,
            end: time,
            peak_memory_bytes: Some(200 << 20),
            cpu_sec: Some(0.5),
            tail: "last line".into(),
        }
    }

    fn update(outcome: Outcome, cause: Option<Cause>) -> (JobState, Value) {
        let update = of(&job(), &ended(outcome, cause), &["n1".into()], &[]).unwrap();
        (update.state, Value::Object(update.state_data))
    }

    #[test]
    fn codes_signals_and_causes_are_told_apart() {
        assert_eq!(update(Outcome::Exited(0), None).0, JobState::RunDone);
        let (state, data) = update(Outcome::Exited(3), None);
        assert_eq!(state, JobState::RunError);
        assert_eq!(data, json!({"return_code": 3, "message": "exit code 3", "error_tail": "last line"}));
        let (state, data) = update(Outcome::Signaled(libc::SIGSEGV), None);
        assert_eq!((state, &data["signal"]), (JobState::RunError, &json!("SIGSEGV")));
        assert_eq!(update(Outcome::Exited(0), Some(Cause::EndOfTime)).0, JobState::RunTimeout);
        let (state, data) = update(Outcome::Signaled(libc::SIGKILL), Some(Cause::Cancelled));
        assert_eq!((state, &data["reason"]), (JobState::Failed, &json!("cancelled")));
        assert_eq!(update(Outcome::Withdrawn, Some(Cause::Cancelled)).0, JobState::Failed);
        assert_eq!(of(&job(), &ended(Outcome::Withdrawn, Some(Cause::EndOfTime)), &[], &[]), None);
        let (state, data) = update(Outcome::NotStarted { reason: "disk_full".into(), message: "m".into() }, None);
        assert_eq!((state, &data["reason"]), (JobState::RunError, &json!("disk_full")));
    }

    #[test]
    fn memory_that_was_exceeded_is_named() {
        let (_, data) = update(Outcome::Signaled(libc::SIGKILL), None);
        assert_eq!(data["reason"], json!("memory"));
        assert_eq!(update(Outcome::Exited(1), None).1["reason"], Value::Null);
    }

    #[test]
    fn memory_for_which_slurm_killed_ranks_is_named() {
        let reason = |tail: &str, code: i32| {
            let mut ended = ended(Outcome::Exited(code), None);
            ended.tail = tail.into();
            let update = of(&job(), &ended, &[], &[]).unwrap();
            update.state_data.get("reason").cloned()
        };
        let step = "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=4.1. Some of your processes may have been killed";
        for tail in
            [step, "a line\nsrun: error: n1: task 0: Out Of Memory\nsrun: launch/slurm: _step_signal: Terminating"]
        {
            assert_eq!(reason(tail, 1), Some(json!("memory")));
            assert_eq!(reason(tail, 0), None);
        }
        assert_eq!(reason("I fear an oom-kill event", 1), None);
    }
}
