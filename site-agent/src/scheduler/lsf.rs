//! LSF: argv in, text out; reading the text is `lsf/parse.rs`. The script goes in on standard input, which is
//! the one way in which every LSF reads its `#BSUB` lines.

pub mod history;
pub mod nodes;
pub mod parse;
pub mod queues;

use std::{
    fs::{self, File},
    io::{self, Seek, Write},
    time::Duration,
};

use chrono::Utc;
use copal_schemas::{batch_job::SchedulerId, site::ALL_NODES};
use futures_util::future::{BoxFuture, FutureExt};

use super::{
    Adapter, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Runner, batches},
    ids,
    inventory::{Discovered, Inventory, MANY, Nodes},
    listing::Listing,
    reply::SubmitReply,
    user_name,
};
use crate::records::RecordError;

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[("LSB_DISPLAY_YEAR", "Y")], scrub };

/// What LSF sets in an allocation. Where the cluster is, is not among it.
fn scrub(name: &str) -> bool {
    let kept = ["LSF_ENVDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_SERVERDIR", "LSB_DEFAULTPROJECT"];
    ["LSB_", "LS_", "LSF_PM_", "PMI_", "PMIX_", "JSM_"].iter().any(|prefix| name.starts_with(prefix))
        && !kept.contains(&name)
}

/// An LSF cluster, through its commands.
pub struct Lsf;

impl Lsf {
    /// All jobs of the user, those that ended a while ago included.
    async fn jobs(&self) -> Result<Listing<parse::Row>, SchedulerError> {
        let user = user_name();
        let args = ["-a", "-u", user.as_deref().unwrap_or("all"), "-o", parse::FIELDS, "-json"];
        let answer = RUNNER.run("bjobs", &args).await?;
        let text = if parse::means_none(&answer) { String::new() } else { answer.success("bjobs")? };
        parse::bjobs(&text, Utc::now()).map_err(|text| SchedulerError::Answer { command: "bjobs".into(), text })
    }

    /// How these jobs ended, by LSF's event log, which remembers longer than `CLEAN_PERIOD`; nothing where it has
    /// nothing to tell.
    async fn history(&self, jobs: &[&str]) -> Listing<history::Past> {
        let mut past = Listing::default();
        for ids in batches(jobs) {
            match RUNNER.run("bhist", &[&["-l"], ids].concat()).await {
                // Its exit code tells of ids that it does not know.
                Ok(answer) => past.extend(history::bhist(&answer.stdout, Utc::now())),
                Err(error) => tracing::debug!("no history: {error}"),
            }
        }
        past
    }
}

impl Adapter for Lsf {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let script = self::script(spec)
            .map_err(|source| SubmitError::Unsure(RecordError { path: spec.script.clone(), source }.into()))?;
        let output = spec.output.display().to_string();
        // A job that is rerun would run a second launcher under the same BatchJob.
        let args = ["-J", &spec.key, "-o", &output, "-rn"];
        let answer =
            RUNNER.run_with("bsub", &args, script.into()).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read("bsub", &answer, parse::job_id).outcome("bsub")
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        Ok(self.jobs().await?.find(key))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let mut statuses = self.jobs().await?.statuses(jobs);
        let gone = |(job, status): (&Tracked, &Status)| (*status == Status::Absent).then(|| job.clone());
        let gone: Vec<Tracked> = jobs.iter().zip(&statuses).filter_map(gone).collect();
        if !gone.is_empty() {
            let past = self.history(&ids(&gone)).await;
            for (job, status) in jobs.iter().zip(&mut statuses).filter(|(_, status)| **status == Status::Absent) {
                if let ended @ Status::Ended(_) = past.status(job) {
                    *status = ended;
                }
            }
        }
        Ok(statuses)
    }

    fn can_avoid(&self, _: &SubmitSpec) -> bool {
        true
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // INT, then TERM, then KILL, with the queue's JOB_TERMINATE_INTERVAL between them.
        for ids in batches(&ids(jobs)) {
            match RUNNER.run_ok("bkill", ids).await {
                Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => {}
                answer => drop(answer?),
            }
        }
        Ok(())
    }
}

/// The script as bsub gets it. Which hosts it must not get is a line of its own behind the first: requirements of several
/// lines add up, where one on the command line would replace them.
fn script(spec: &SubmitSpec) -> io::Result<File> {
    if spec.avoid.is_empty() {
        return File::open(&spec.script);
    }
    let others: Vec<String> = spec.avoid.iter().map(|node| format!("hname!='{node}'")).collect();
    let text = fs::read_to_string(&spec.script)?;
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let mut file = tempfile::tempfile()?;
    write!(file, "{first}\n#BSUB -R \"select[{}]\"\n{rest}", others.join(" && "))?;
    file.rewind()?;
    Ok(file)
}

/// The cluster's hosts and queues.
pub struct Machine;

impl Inventory for Machine {
    /// `bslots` knows for how long hosts stay idle, where a queue backfills; else it is as long as the queue allows.
    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        async {
            let text = RUNNER.run_ok("bhosts", &["-w"]).await.unwrap_or_default();
            let Some(hosts) = nodes::hosts(&text) else { return Nodes::default() };
            let windows = async {
                let queues = queues::queues(&RUNNER.run_ok("bqueues", &["-l"]).await.ok()?);
                let holes = RUNNER.run_ok("bslots", &[]).await.map(|text| queues::holes(&text)).unwrap_or_default();
                Some(queues::windows(&queues, &hosts, &holes))
            };
            // Which of them a queue may use, LSF does not tell in one form.
            Nodes { windows: windows.await, states: Some([(ALL_NODES.to_owned(), nodes::states(&hosts))].into()) }
        }
        .boxed()
    }

    /// LSF does not know who may pay.
    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        async {
            let queues = queues::queues(&RUNNER.run_ok("bqueues", &["-l"]).await?);
            let text = RUNNER.run_ok("bhosts", &["-w"]).await?;
            let hosts = nodes::hosts(&text).ok_or_else(|| SchedulerError::unread("bhosts", &text))?;
            let mut queues = queues::limits(&queues, &hosts);
            // One user may have fewer jobs waiting than a queue takes.
            let pending = RUNNER.run_ok("busers", &["-w"]).await.ok().and_then(|text| queues::max_pending(&text));
            queues.values_mut().for_each(|limits| limits.max_queued_jobs = pending.unwrap_or(MANY));
            Ok(Some(Discovered { queues, projects: Vec::new() }))
        }
        .boxed()
    }
}
