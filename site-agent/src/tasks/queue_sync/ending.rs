//! When a BatchJob counts as ended, by which evidence, and what is reported then. The scheduler's history,
//! the launcher's own exit record, the heartbeats of its Session and an absence that lasts each have a say of their own;
//! which of them decided, is shown.

use std::{
    fmt, fs,
    path::Path,
    time::{Duration, Instant},
};

use chrono::Utc;
use copal_client::launcher_exit::{ExitReason, LauncherExit};
use copal_schemas::{
    StringMap, Timestamp,
    batch_job::{BatchJobPatch, BatchJobState},
    settings::SchedulerKind,
};

use super::{Case, QueueSync, desk::Desk, new_id};
use crate::scheduler::{EndReason, Ending};

/// An absence counts as the end after this many answers in a row without the job, over at least this time.
pub(super) const ABSENT_LOOKS: u32 = 3;
pub(super) const ABSENT_FOR: Duration = Duration::from_secs(120);
/// How long what a compute node wrote may stay unseen on this machine: network file systems remember for some time
/// that a file was not there.
pub(super) const UNSEEN_FOR: Duration = Duration::from_secs(30);
/// The most bytes of a script's output that are shown after a bad end.
const MAX_TAIL: usize = 2_000;

/// A job that the scheduler does not list any more.
pub(super) struct Absence {
    pub(super) since: Instant,
    pub(super) looks: u32,
    /// The last sign of life of its launcher's Session then.
    pub(super) heard: Option<Timestamp>,
}

/// What says that a BatchJob has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The scheduler says so.
    Scheduler,
    /// The scheduler does not list it, and its launcher left an exit record.
    Launcher,
    /// The scheduler does not know it any more, and nothing was heard of its launcher for a while.
    Absence,
    /// The scheduler never had it.
    NeverSubmitted,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler => f.write_str("the scheduler says so"),
            Self::Launcher => f.write_str("its launcher's exit record says so; the scheduler does not"),
            Self::Absence => write!(
                f,
                "for {} s the scheduler did not list it and its launcher gave no sign of life",
                ABSENT_FOR.as_secs()
            ),
            Self::NeverSubmitted => f.write_str("it was never submitted"),
        }
    }
}

impl<D: Desk> QueueSync<D> {
    /// How a job ended that the scheduler does not know any more, and what says so; `None` while that is not certain.
    pub(super) async fn absent(&mut self, case: &Case) -> anyhow::Result<Option<(Ending, Evidence)>> {
        if let Some(exited) = self.exited(case) {
            return Ok(Some(exited));
        }
        let id = case.batch_job.id;
        let heard = self.desk.last_heartbeat(id).await?;
        let new = || Absence { since: Instant::now(), looks: 0, heard };
        let absence = self.absences.entry(id).or_insert_with(new);
        if heard > absence.heard {
            // A launcher that gives signs of life is alive, whatever the scheduler lists.
            *absence = new();
        }
        absence.looks += 1;
        let certain = absence.looks >= ABSENT_LOOKS && absence.since.elapsed() >= ABSENT_FOR;
        let lost = Ending { start: case.batch_job.start_time, ..Ending::now(EndReason::Lost) };
        Ok(certain.then_some((lost, Evidence::Absence)))
    }

    /// How a job ended by its launcher's exit record.
    pub(super) fn exited(&self, case: &Case) -> Option<(Ending, Evidence)> {
        let exit = self.launcher_exit(case)?;
        let reason = match exit.reason {
            ExitReason::Failed => EndReason::Failed,
            _ => EndReason::Completed,
        };
        let ending = Ending { start: case.batch_job.start_time, end: Some(exit.time), ..Ending::now(reason) };
        Some((ending, Evidence::Launcher))
    }

    /// Whether the launcher of a job that has ended may have left reports that can't be seen here yet. Its Session
    /// is still open then, and its exit record, which it writes last, is not there.
    pub(super) async fn may_have_left_more(&mut self, case: &Case) -> anyhow::Result<bool> {
        let is_remote = self.settings.current().0.scheduler.kind != SchedulerKind::Local;
        let id = case.batch_job.id;
        if !is_remote || self.launcher_exit(case).is_some() || self.desk.last_heartbeat(id).await?.is_none() {
            return Ok(false);
        }
        let since = *self.awaited.entry(id).or_insert_with(Instant::now);
        Ok(since.elapsed() < UNSEEN_FOR)
    }

    /// The exit record of the BatchJob's launcher.
    pub(super) fn launcher_exit(&self, case: &Case) -> Option<LauncherExit> {
        let folder = self.dir.qsubmit();
        // Listing the folder makes a network file system ask the server what is in it.
        let _ = fs::read_dir(&folder).map(Iterator::count);
        let exit = LauncherExit::read(&folder, case.batch_job.id)?;
        // An older one belongs to another service's BatchJob of this number.
        case.submission.as_ref().filter(|submission| exit.time >= submission.intent).map(|_| exit)
    }

    /// Reports that a BatchJob is over.
    pub(super) async fn finish(&mut self, case: &Case, ending: Ending, evidence: Evidence) -> anyhow::Result<()> {
        let id = case.batch_job.id;
        // Once the service knows that it ended, its Session is over and what its launcher left to report is refused.
        self.desk.deliver(id).await?;
        let exit = self.launcher_exit(case);
        // A launcher that its owner stopped ends well, and sooner than the scheduler's cancel reaches it.
        let is_stopped = exit.as_ref().is_some_and(|exit| exit.reason == ExitReason::Stopped);
        let ending = match ending.reason {
            EndReason::Completed if is_stopped => Ending { reason: EndReason::Cancelled, ..ending },
            _ => ending,
        };
        let mut info = StringMap::new();
        let reason = match evidence {
            Evidence::NeverSubmitted => "cancelled before it was submitted".into(),
            _ => ending_reason(&ending),
        };
        info.insert("reason".into(), reason);
        info.insert("evidence".into(), evidence.to_string());
        if case.submission.is_some() {
            info.insert("script".into(), self.path(&case.key, "sh").display().to_string());
        }
        if matches!(ending.reason, EndReason::Failed | EndReason::Lost | EndReason::OutOfMemory) {
            let output = tail(&self.path(&case.key, "out"));
            let said = exit.map(|exit| exit.message);
            if let Some(error) = said.or_else(|| output.as_deref().and_then(last_complaint)) {
                info.insert("error".into(), error);
            }
            info.extend(output.map(|output| ("output".to_owned(), output)));
        }
        let patch = BatchJobPatch {
            scheduler_id: new_id(&case.batch_job, case.scheduler_id()),
            state: Some(BatchJobState::Finished),
            status_info: Some(info),
            start_time: ending.start.or(case.batch_job.start_time).map(Some),
            end_time: Some(ending.end.or_else(|| Some(Utc::now()))),
        };
        self.desk.report(id, &patch).await?;
        tracing::info!(batch_job.id = id.0, "finished: {} ({evidence})", ending.reason);
        self.absences.remove(&id);
        self.awaited.remove(&id);
        self.cancelled.remove(&id);
        self.followed.remove(&id);
        Ok(())
    }
}

/// Why a job ended, for people.
pub(super) fn ending_reason(ending: &Ending) -> String {
    match (&ending.signal, ending.exit_code) {
        (Some(signal), _) => format!("{}: {signal}", ending.reason),
        (None, Some(code)) if code != 0 => format!("{}: exit code {code}", ending.reason),
        _ => ending.reason.to_string(),
    }
}

/// The last line of an output that is no log line of the launcher about its ordinary work.
pub(super) fn last_complaint(output: &str) -> Option<String> {
    let line = output.lines().rev().find(|line| !line.trim().is_empty())?;
    (!line.contains(" INFO ")).then(|| line.trim().to_owned())
}

/// The last lines of a script's output.
pub(super) fn tail(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_TAIL)..]).replace('\0', "\u{fffd}");
    let lines: Vec<&str> = text.lines().collect();
    let text = lines[lines.len().saturating_sub(10)..].join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}
