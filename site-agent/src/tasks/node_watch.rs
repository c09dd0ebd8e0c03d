//! Watches how Jobs and launchers fare on the nodes, and sets nodes aside on which they fail at once
//! (`nodes_aside`). The scheduler's service leaves such nodes out of what it submits.

use std::{collections::BTreeMap, fs, time::Duration};

use chrono::{TimeDelta, Utc};
use copal_client::{
    api::JobQuery,
    launcher_exit::{self, ExitReason, LauncherExit},
};
use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, Timestamp, job::Attempt, settings::SchedulerKind, site::NodeAside,
};

use super::{Context, Passes, run_passes};
use crate::{
    nodes_aside::{self, AT_ONCE, Subject, Trial, WINDOW},
    records,
};

/// How often the nodes are looked at.
const PERIOD: Duration = Duration::from_secs(60);
/// The most Jobs of one kind whose runs are looked at in a pass: a sample is enough.
const SAMPLE: i64 = 30;
/// What a Job is after a run that failed.
const AFTER_FAILURE: &[JobState] = &[JobState::RunError, JobState::RestartReady, JobState::Failed];
/// What a Job is after a run that went well.
const AFTER_SUCCESS: &[JobState] =
    &[JobState::RunDone, JobState::Postprocessed, JobState::StagedOut, JobState::JobFinished];

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, NodeWatch { context: context.clone(), since: None, trials: BTreeMap::new() }).await;
}

struct NodeWatch {
    context: Context,
    /// Up to when Jobs were looked at.
    since: Option<Timestamp>,
    /// What was tried on the nodes within the window, by whose and which run it was.
    trials: BTreeMap<(String, i32, String), Trial>,
}

impl Passes for NodeWatch {
    const NAME: &'static str = "nodes";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        if self.context.settings.current().0.scheduler.kind == SchedulerKind::Local {
            return Ok(("one machine".into(), PERIOD));
        }
        let now = Utc::now();
        self.learn(now).await?;
        let qsubmit = self.context.dir.qsubmit();
        let mut known = nodes_aside::read(&qsubmit, now)?;
        let trials: Vec<Trial> = self.trials.values().cloned().collect();
        let new = nodes_aside::judge(&trials, &known, now);
        if !new.is_empty() {
            for aside in &new {
                tracing::warn!(
                    node = aside.node,
                    "set aside until {} UTC: {}",
                    aside.until.format("%H:%M"),
                    aside.reason
                );
            }
            known.extend(new);
            records::write(&nodes_aside::path(&qsubmit), &known, false)?;
            self.context.wakes.site.notify_one();
        }
        Ok((detail(&known, now), PERIOD))
    }

    async fn rung(&self) {
        self.context.wakes.nodes.notified().await;
    }
}

impl NodeWatch {
    /// Learns how runs and launchers ended since the last look.
    async fn learn(&mut self, now: Timestamp) -> anyhow::Result<()> {
        self.trials.retain(|_, trial| now - trial.time <= WINDOW);
        for trial in self.launchers(now)? {
            self.trials.insert((trial.who.clone(), 0, trial.node.clone()), trial);
        }
        let since = self.since.unwrap_or(now - WINDOW);
        let failed = self.runs(AFTER_FAILURE, since).await?;
        let has_failures = !failed.is_empty();
        self.trials.extend(failed);
        // How it goes elsewhere matters only then.
        if has_failures {
            let good = self.runs(AFTER_SUCCESS, now - WINDOW).await?;
            self.trials.extend(good);
        }
        // Clocks of the service and of this machine differ: what was seen already replaces itself.
        self.since = Some(now - TimeDelta::minutes(5));
        Ok(())
    }

    /// The runs of this Site's Jobs that are in these states and changed since.
    async fn runs(&self, states: &[JobState], since: Timestamp) -> anyhow::Result<Vec<((String, i32, String), Trial)>> {
        let client = self.context.api.client();
        let query = JobQuery {
            site_ids: vec![self.context.site.id],
            states: states.to_vec(),
            last_update_after: Some(since),
            ordering: Some("-last_update".into()),
            limit: Some(SAMPLE),
            ..JobQuery::default()
        };
        let mut trials = Vec::new();
        for job in client.list_jobs(&query).await?.results {
            for attempt in client.list_attempts(job.id).await? {
                let key = |trial: &Trial| (trial.who.clone(), attempt.number, trial.node.clone());
                trials.extend(tried(job.id, job.app_id, &attempt).into_iter().map(|trial| (key(&trial), trial)));
            }
        }
        Ok(trials)
    }

    /// How launchers ended, by their exit records.
    fn launchers(&self, now: Timestamp) -> anyhow::Result<Vec<Trial>> {
        let qsubmit = self.context.dir.qsubmit();
        let ids = fs::read_dir(&qsubmit)?.flatten().filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_suffix(launcher_exit::SUFFIX)?.parse().ok()?;
            let age = entry.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
            (age <= WINDOW.to_std().ok()?).then_some(BatchJobId(id))
        });
        let trials = ids.filter_map(|id| launched(id, &LauncherExit::read(&qsubmit, id)?));
        Ok(trials.filter(|trial| now - trial.time <= WINDOW).collect())
    }
}

/// What a run says about the nodes that it was on. Of a failure on several nodes nobody knows whose fault it is.
fn tried(job: JobId, app: AppId, attempt: &Attempt) -> Vec<Trial> {
    let (Some(start), Some(end)) = (attempt.usage.start, attempt.usage.end) else { return Vec::new() };
    let failure = match attempt.state {
        JobState::RunError if end - start < AT_ONCE && attempt.usage.nodes.len() == 1 => {
            Some(match (&attempt.usage.signal, attempt.return_code) {
                (Some(signal), _) => signal.clone(),
                (None, Some(code)) => format!("exit code {code}"),
                (None, None) => "it could not be run".into(),
            })
        }
        JobState::RunDone => None,
        _ => return Vec::new(),
    };
    let trial = |node: &String| Trial {
        subject: Subject::App(app),
        who: format!("Job {job}"),
        node: node.clone(),
        time: end,
        failure: failure.clone(),
    };
    attempt.usage.nodes.iter().map(trial).collect()
}

/// What a launcher's exit says about the node that it was on: one that ran something, or had nothing to run, went well.
fn launched(id: BatchJobId, exit: &LauncherExit) -> Option<Trial> {
    let failed = exit.reason == ExitReason::Failed;
    if failed && exit.runs > 0 {
        return None;
    }
    Some(Trial {
        subject: Subject::Launcher,
        who: format!("BatchJob {id}"),
        node: exit.host.clone()?,
        time: exit.time,
        failure: failed.then(|| exit.message.clone()),
    })
}

/// What is set aside, for people.
fn detail(known: &[NodeAside], now: Timestamp) -> String {
    let aside: Vec<String> = known
        .iter()
        .filter(|aside| aside.until > now)
        .map(|aside| format!("{} is set aside until {} UTC: {}", aside.node, aside.until.format("%H:%M"), aside.reason))
        .collect();
    if aside.is_empty() { "no node is set aside".into() } else { aside.join("; ") }
}

#[cfg(test)]
mod tests {
    use copal_schemas::session::Usage;

    use super::*;

    fn now() -> Timestamp {
        chrono::DateTime::from_timestamp(1_796_300_000, 0).unwrap()
    }

    fn attempt(state: JobState, seconds: i64, nodes: &[&str]) -> Attempt {
        let usage = Usage {
            start: Some(now() - TimeDelta::seconds(seconds)),
            end: Some(now()),
            nodes: nodes.iter().map(|node| (*node).into()).collect(),
            ..Usage::default()
        };
        Attempt { number: 1, batch_job_id: None, state, return_code: Some(3), usage }
    }

    fn failures(attempt: &Attempt) -> Vec<(String, Option<String>)> {
        tried(JobId(7), AppId(1), attempt).into_iter().map(|trial| (trial.node, trial.failure)).collect()
    }

    #[test]
    fn pitfall_070_only_what_fails_at_once_on_one_node_speaks_against_it() {
        let bad = Some("exit code 3".to_owned());
        assert_eq!(failures(&attempt(JobState::RunError, 2, &["n7"])), [("n7".to_owned(), bad)]);
        assert_eq!(failures(&attempt(JobState::RunError, 60, &["n7"])), []);
        assert_eq!(failures(&attempt(JobState::RunError, 2, &["n7", "n8"])), []);
        assert_eq!(failures(&attempt(JobState::RunTimeout, 2, &["n7"])), []);
        assert_eq!(failures(&attempt(JobState::RunDone, 60, &["n7", "n8"])).len(), 2);
    }

    #[test]
    fn a_launcher_that_ran_nothing_before_it_failed_speaks_against_its_node() {
        let exit = |reason, runs, host: Option<&str>| LauncherExit {
            reason,
            message: "can't find the nodes".into(),
            time: now(),
            runs,
            host: host.map(Into::into),
        };
        let failure = |exit| launched(BatchJobId(3), &exit).map(|trial| trial.failure.is_some());
        assert_eq!(failure(exit(ExitReason::Failed, 0, Some("n7"))), Some(true));
        assert_eq!(failure(exit(ExitReason::Failed, 5, Some("n7"))), None);
        assert_eq!(failure(exit(ExitReason::Idle, 0, Some("n7"))), Some(false));
        assert_eq!(failure(exit(ExitReason::Failed, 0, None)), None);
    }

    #[test]
    fn pitfall_063_what_is_set_aside_is_shown_with_the_reason() {
        let aside = |node: &str, minutes| NodeAside {
            node: node.into(),
            until: now() + TimeDelta::minutes(minutes),
            reason: "3 Jobs in a row failed".into(),
        };
        let time = (now() + TimeDelta::minutes(9)).format("%H:%M");
        let text = detail(&[aside("n7", 9), aside("n8", -9)], now());
        assert_eq!(text, format!("n7 is set aside until {time} UTC: 3 Jobs in a row failed"));
        assert_eq!(detail(&[], now()), "no node is set aside");
    }
}
