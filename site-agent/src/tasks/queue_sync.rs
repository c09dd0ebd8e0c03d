//! Keeps the scheduler and the service's BatchJobs in step. A pass reads what both say, submits
//! what waits, cancels what its owner wants gone and reports what changed.
//!
//! The truth about a BatchJob is alive, ended or unknown. A scheduler that does not answer says
//! nothing: then nothing is marked finished and nothing is submitted. Ended needs evidence: the scheduler's
//! history, the launcher's own exit record, or an absence that lasts.

mod desk;
mod ending;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use chrono::Utc;
use copal_client::SiteDir;
use copal_schemas::{
    BatchJobId, StringMap,
    batch_job::{BatchJob, BatchJobPatch, BatchJobState, SchedulerId},
    settings::{SchedulerSettings, Settings},
};

use self::{
    desk::{Desk, ServiceDesk},
    ending::Absence,
};
use super::{Context, Passes, Wakes, run_passes};
use crate::{
    ledger::{Ledger, Submission},
    nodes_aside, policy,
    scheduler::{self, EndReason, Ending, Scheduler, Status, SubmitError, SubmitSpec, Tracked},
    script::{JobTemplate, context::ScriptContext},
    settings::SettingsFile,
};

/// A cancel is repeated after this time, in case it was lost.
const CANCEL_AGAIN: Duration = Duration::from_secs(30);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    let sync = QueueSync {
        dir: context.dir.clone(),
        programs: Arc::clone(&context.programs),
        settings: Arc::clone(&context.settings),
        wakes: Arc::clone(&context.wakes),
        desk: ServiceDesk::new(&context),
        ledger: Ledger::new(&context.dir.qsubmit(), &context.site),
        scheduler: None,
        opened_with: None,
        absences: HashMap::new(),
        awaited: HashMap::new(),
        missing: HashMap::new(),
        cancelled: HashMap::new(),
        to_cancel: Vec::new(),
        followed: BTreeMap::new(),
    };
    run_passes(&context, sync).await;
}

struct QueueSync<D> {
    dir: SiteDir,
    programs: Arc<PathBuf>,
    settings: Arc<SettingsFile>,
    wakes: Arc<Wakes>,
    desk: D,
    ledger: Ledger,
    scheduler: Option<Arc<dyn Scheduler>>,
    /// The settings that the scheduler was opened with.
    opened_with: Option<SchedulerSettings>,
    absences: HashMap<BatchJobId, Absence>,
    /// Since when a job is known to have ended whose launcher may still have left something.
    awaited: HashMap<BatchJobId, Instant>,
    /// Since when a submission without an answer is looked for in vain.
    missing: HashMap<BatchJobId, Instant>,
    cancelled: HashMap<BatchJobId, Instant>,
    /// What this pass cancels, at once in the end: a command for each is a burden on the scheduler.
    to_cancel: Vec<(BatchJobId, Tracked)>,
    /// What was at the scheduler when last looked at. Where its BatchJob is not open any more and it was not this agent
    /// that reported the end, nobody wants it: its record was deleted, or somebody else called it finished.
    followed: BTreeMap<BatchJobId, Tracked>,
}

/// A BatchJob and what the agent and the scheduler know of it.
struct Case {
    batch_job: BatchJob,
    key: String,
    submission: Option<Submission>,
    /// What the scheduler says; `None` when there is nothing to ask it about.
    status: Option<Status>,
}

impl Case {
    fn tracked(&self) -> Option<Tracked> {
        Some(Tracked { key: self.key.clone(), id: self.scheduler_id()?.clone() })
    }

    fn scheduler_id(&self) -> Option<&SchedulerId> {
        self.submission
            .as_ref()
            .and_then(|submission| submission.scheduler_id.as_ref())
            .or(self.batch_job.scheduler_id.as_ref())
    }
}

impl<D: Desk> Passes for QueueSync<D> {
    const NAME: &'static str = "scheduler";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        self.sync().await
    }

    /// Rings when the service or the scheduler itself has news.
    async fn rung(&self) {
        let service = self.wakes.scheduler.notified();
        match &self.scheduler {
            Some(scheduler) => tokio::select! {
                () = service => {}
                () = scheduler.changed() => {}
            },
            None => service.await,
        }
    }
}

impl<D: Desk> QueueSync<D> {
    async fn sync(&mut self) -> anyhow::Result<(String, Duration)> {
        let (settings, _) = self.settings.current();
        let scheduler = self.open_scheduler(&settings)?;
        let mut batch_jobs = self.desk.open_batch_jobs().await?;
        batch_jobs.sort_by_key(|batch_job| batch_job.id);
        let open: HashSet<BatchJobId> = batch_jobs.iter().map(|batch_job| batch_job.id).collect();
        // What goes wrong with one BatchJob must not hold the others up.
        let mut trouble = None;
        let mut cases = Vec::with_capacity(batch_jobs.len());
        for batch_job in batch_jobs {
            match self.case(scheduler.as_ref(), batch_job).await {
                Ok(case) => cases.push(case),
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        self.look(scheduler.as_ref(), &mut cases).await?;
        let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
        let (mut queued, mut running) = (0, 0);
        let mut to_submit = Vec::new();
        for case in cases {
            self.followed.extend(case.tracked().map(|job| (case.batch_job.id, job)));
            match case.status {
                Some(Status::Queued { .. }) => {
                    queued += 1;
                    *waiting.entry(case.batch_job.queue.clone()).or_default() += 1;
                }
                Some(Status::Running { .. }) => running += 1,
                _ => {}
            }
            if case.batch_job.state == BatchJobState::PendingSubmission && case.scheduler_id().is_none() {
                to_submit.push(case);
            } else if let Err(error) = self.follow(scheduler.as_ref(), case).await {
                trouble = trouble.or(Some(error));
            }
        }
        if let Err(error) = self.take_back(scheduler.as_ref(), &open).await {
            trouble = trouble.or(Some(error));
        }
        if let Err(error) = self.send_cancels(scheduler.as_ref()).await {
            trouble = trouble.or(Some(error));
        }
        for case in to_submit {
            let count = waiting.entry(case.batch_job.queue.clone()).or_default();
            match self.submit(scheduler.as_ref(), &settings, case, *count).await {
                Ok(true) => {
                    *count += 1;
                    queued += 1;
                }
                Ok(false) => {}
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        if let Some(error) = trouble {
            return Err(error);
        }
        let period = Duration::try_from_secs_f64(settings.scheduler.sync_period).unwrap_or(Duration::from_secs(10));
        Ok((format!("{queued} queued, {running} running"), period.max(Duration::from_millis(200))))
    }

    /// The scheduler, opened anew when its settings changed.
    fn open_scheduler(&mut self, settings: &Settings) -> anyhow::Result<Arc<dyn Scheduler>> {
        match &self.scheduler {
            Some(scheduler) if self.opened_with.as_ref() == Some(&settings.scheduler) => Ok(Arc::clone(scheduler)),
            _ => {
                let scheduler = scheduler::open(&self.dir, settings, &self.programs)?;
                self.scheduler = Some(Arc::clone(&scheduler));
                self.opened_with = Some(settings.scheduler.clone());
                Ok(scheduler)
            }
        }
    }

    /// Finds out whether a BatchJob was submitted. Where the answer to a submission got lost, its name is looked for.
    async fn case(&mut self, scheduler: &dyn Scheduler, batch_job: BatchJob) -> anyhow::Result<Case> {
        let key = self.ledger.key(batch_job.id);
        let mut submission = self.ledger.get(&key)?;
        if let Some(intent) = &submission
            && intent.scheduler_id.is_none()
        {
            match scheduler.find(&key).await? {
                Some(id) => {
                    tracing::info!(
                        batch_job.id = batch_job.id.0,
                        scheduler.id = id.0,
                        "found at the scheduler by its name"
                    );
                    self.missing.remove(&batch_job.id);
                    submission = Some(self.ledger.confirm(intent, &id)?);
                }
                None => {
                    self.missing.entry(batch_job.id).or_insert_with(Instant::now);
                }
            }
        }
        Ok(Case { batch_job, key, submission, status: None })
    }

    /// Asks the scheduler about all that were submitted, at once.
    async fn look(&self, scheduler: &dyn Scheduler, cases: &mut [Case]) -> anyhow::Result<()> {
        let tracked: Vec<(usize, Tracked)> =
            cases.iter().enumerate().filter_map(|(index, case)| Some((index, case.tracked()?))).collect();
        if tracked.is_empty() {
            return Ok(());
        }
        let jobs: Vec<Tracked> = tracked.iter().map(|(_, job)| job.clone()).collect();
        let statuses = scheduler.statuses(&jobs).await.context("the scheduler does not answer; nothing is changed")?;
        for ((index, _), status) in tracked.into_iter().zip(statuses) {
            cases[index].status = Some(status);
        }
        Ok(())
    }

    /// Reports what became of a BatchJob that was submitted, or that its owner wants gone.
    async fn follow(&mut self, scheduler: &dyn Scheduler, case: Case) -> anyhow::Result<()> {
        let id = case.batch_job.id;
        let unsubmitted = case.scheduler_id().is_none();
        if unsubmitted {
            // Only a BatchJob that is to be deleted comes here without an id.
            return match &case.submission {
                Some(_) if !self.is_lost(scheduler, id) => Ok(()),
                _ => {
                    let ending = Ending::now(EndReason::Cancelled);
                    self.finish(&case, ending, ending::Evidence::NeverSubmitted).await
                }
            };
        }
        match case.status.clone() {
            Some(Status::Ended(ending)) => match self.may_have_left_more(&case).await? {
                true => Ok(()),
                false => self.finish(&case, ending, ending::Evidence::Scheduler).await,
            },
            Some(Status::Absent) => match self.absent(&case).await? {
                Some((ending, evidence)) => self.finish(&case, ending, evidence).await,
                None => Ok(()),
            },
            Some(Status::Impossible { reason }) => {
                self.cancel(id, case.tracked());
                if case.batch_job.state == BatchJobState::PendingDeletion {
                    return Ok(());
                }
                self.refuse(id, format!("the scheduler would never start it: {reason}")).await
            }
            Some(status @ (Status::Queued { .. } | Status::Running { .. })) => {
                self.absences.remove(&id);
                if case.batch_job.state == BatchJobState::PendingDeletion {
                    self.cancel(id, case.tracked());
                }
                match alive_patch(&case.batch_job, case.scheduler_id(), &status) {
                    Some(patch) => self.desk.report(id, &patch).await,
                    None => Ok(()),
                }
            }
            // That its launcher exited is known all the same.
            Some(Status::Unknown) => match self.exited(&case) {
                Some((ending, evidence)) => self.finish(&case, ending, evidence).await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Whether a submission without an answer never reached the scheduler.
    fn is_lost(&self, scheduler: &dyn Scheduler, id: BatchJobId) -> bool {
        self.missing.get(&id).is_some_and(|since| since.elapsed() >= scheduler.lost_after())
    }

    /// Cancels what nobody wants any more. What has ended is let go: its BatchJob may be over because this agent
    /// reported it, though the answer to that got lost.
    async fn take_back(&mut self, scheduler: &dyn Scheduler, open: &HashSet<BatchJobId>) -> anyhow::Result<()> {
        let left = self.followed.iter().filter(|(id, _)| !open.contains(id));
        let (ids, jobs): (Vec<BatchJobId>, Vec<Tracked>) = left.map(|(id, job)| (*id, job.clone())).unzip();
        if jobs.is_empty() {
            return Ok(());
        }
        let statuses = scheduler.statuses(&jobs).await?;
        for ((id, job), status) in ids.into_iter().zip(jobs).zip(statuses) {
            match status {
                Status::Ended(_) | Status::Absent => drop(self.followed.remove(&id)),
                _ => self.cancel(id, Some(job)),
            }
        }
        Ok(())
    }

    /// Has a job cancelled at the end of this pass.
    fn cancel(&mut self, id: BatchJobId, job: Option<Tracked>) {
        let again = self.cancelled.get(&id).is_none_or(|when| when.elapsed() >= CANCEL_AGAIN);
        self.to_cancel.extend(job.filter(|_| again).map(|job| (id, job)));
    }

    /// Tells the scheduler which jobs are to be cancelled.
    async fn send_cancels(&mut self, scheduler: &dyn Scheduler) -> anyhow::Result<()> {
        let (ids, jobs): (Vec<BatchJobId>, Vec<Tracked>) = std::mem::take(&mut self.to_cancel).into_iter().unzip();
        if jobs.is_empty() {
            return Ok(());
        }
        scheduler.cancel(&jobs).await?;
        for (id, job) in ids.into_iter().zip(jobs) {
            tracing::info!(batch_job.id = id.0, scheduler.id = job.id.0, "cancelled");
            self.cancelled.insert(id, Instant::now());
            // One whose BatchJob is open is seen again by the next pass.
            self.followed.remove(&id);
        }
        Ok(())
    }

    /// Submits a BatchJob. Says whether it now waits at the scheduler.
    async fn submit(
        &mut self,
        scheduler: &dyn Scheduler,
        settings: &Settings,
        case: Case,
        waiting: usize,
    ) -> anyhow::Result<bool> {
        let id = case.batch_job.id;
        match &case.submission {
            Some(_) if !self.is_lost(scheduler, id) => {
                tracing::debug!(batch_job.id = id.0, "the answer to its submission is not known; looking again");
                return Ok(false);
            }
            // Looked for and not there: it never arrived.
            Some(_) => {
                tracing::info!(batch_job.id = id.0, "submitting again; the first time came to nothing");
                self.missing.remove(&id);
            }
            None => {}
        }
        if let Err(reason) = policy::check(&settings.scheduler, &case.batch_job, waiting) {
            return self.refuse(id, reason).await.map(|()| false);
        }
        let text = match self.render(settings, &case) {
            Ok(text) => text,
            Err(error) => return self.refuse(id, format!("{error:#}")).await.map(|()| false),
        };
        // A disk that is full is not the BatchJob's fault: it waits until there is room.
        let mut spec = self.write_script(&case, &text)?;
        self.desk.equip(id).await?;
        let intent = self.ledger.intend(id)?;
        match submit_spec(scheduler, &mut spec).await {
            Ok(scheduler_id) => {
                self.followed.insert(id, Tracked { key: case.key.clone(), id: scheduler_id.clone() });
                self.ledger.confirm(&intent, &scheduler_id)?;
                tracing::info!(batch_job.id = id.0, scheduler.id = scheduler_id.0, "submitted");
                let mut info: StringMap = [("script".to_owned(), spec.script.display().to_string())].into();
                if !spec.avoid.is_empty() {
                    info.insert("avoids".into(), spec.avoid.join(" "));
                }
                let patch = BatchJobPatch {
                    scheduler_id: Some(Some(scheduler_id)),
                    state: Some(BatchJobState::Queued),
                    status_info: Some(info),
                    ..BatchJobPatch::default()
                };
                self.desk.report(id, &patch).await?;
                Ok(true)
            }
            Err(SubmitError::Refused(reason)) => {
                self.ledger.withdraw(&case.key)?;
                self.refuse(id, reason).await.map(|()| false)
            }
            Err(SubmitError::Unsure(error)) => {
                Err(anyhow::Error::from(error).context(format!("BatchJob {id}: nobody knows whether it was submitted")))
            }
        }
    }

    /// Renders the script. What is wrong with it is wrong whenever it is tried.
    fn render(&self, settings: &Settings, case: &Case) -> anyhow::Result<String> {
        let batch_job = &case.batch_job;
        let path = self.dir.root().join(&settings.scheduler.job_template_path);
        let names: Vec<&str> = settings.scheduler.optional_batch_job_params.keys().map(String::as_str).collect();
        let context = ScriptContext::new(&self.dir, settings, &self.programs, batch_job, &case.key);
        Ok(JobTemplate::load(&path, &names)?.render(&context)?)
    }

    /// Writes the script.
    fn write_script(&self, case: &Case, text: &str) -> anyhow::Result<SubmitSpec> {
        let batch_job = &case.batch_job;
        let script = self.path(&case.key, "sh");
        let cant = || format!("can't write {}", script.display());
        fs::write(&script, text).with_context(cant)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).with_context(cant)?;
        Ok(SubmitSpec {
            key: case.key.clone(),
            num_nodes: u32::try_from(batch_job.num_nodes).context("num_nodes is negative")?,
            wall_time_min: u32::try_from(batch_job.wall_time_min).context("wall_time_min is negative")?,
            script,
            output: self.path(&case.key, "out"),
            avoid: self.avoided(),
        })
    }

    /// Nodes that are set aside. What can't be read sets none aside.
    fn avoided(&self) -> Vec<String> {
        nodes_aside::avoided(&self.dir.qsubmit(), Utc::now()).unwrap_or_else(|error| {
            tracing::warn!("no node is left out: {:#}", anyhow::Error::from(error));
            Vec::new()
        })
    }

    fn path(&self, key: &str, extension: &str) -> PathBuf {
        self.dir.qsubmit().join(format!("{key}.{extension}"))
    }

    async fn refuse(&self, id: BatchJobId, reason: String) -> anyhow::Result<()> {
        tracing::warn!(batch_job.id = id.0, "not submitted: {reason}");
        let patch = BatchJobPatch {
            state: Some(BatchJobState::SubmitFailed),
            status_info: Some([("error".to_owned(), reason)].into()),
            end_time: Some(Some(Utc::now())),
            ..BatchJobPatch::default()
        };
        self.desk.report(id, &patch).await
    }
}

/// Submits a script. Where too few nodes are left for it, those that are set aside have to do.
async fn submit_spec(scheduler: &dyn Scheduler, spec: &mut SubmitSpec) -> Result<SchedulerId, SubmitError> {
    if !scheduler.can_avoid(spec) {
        spec.avoid.clear();
    }
    match scheduler.submit(spec).await {
        Err(SubmitError::Refused(reason)) if !spec.avoid.is_empty() => {
            tracing::info!("refused without {}: {reason}; submitted with them", spec.avoid.join(", "));
            spec.avoid.clear();
            scheduler.submit(spec).await
        }
        answer => answer,
    }
}

/// What to report about a job that waits or runs; `None` when the service knows it all.
fn alive_patch(batch_job: &BatchJob, id: Option<&SchedulerId>, status: &Status) -> Option<BatchJobPatch> {
    let (state, start, reason) = match status {
        Status::Queued { reason } => (BatchJobState::Queued, None, reason.as_deref()),
        Status::Running { start } => (BatchJobState::Running, *start, None),
        Status::Ended(_) | Status::Absent | Status::Unknown | Status::Impossible { .. } => return None,
    };
    let mut info = batch_job.status_info.clone();
    match reason {
        Some(reason) => info.insert("reason".into(), reason.into()),
        None => info.remove("reason"),
    };
    let patch = BatchJobPatch {
        scheduler_id: new_id(batch_job, id),
        // A BatchJob that is to be deleted stays so until it is finished.
        state: (batch_job.state != state && batch_job.state != BatchJobState::PendingDeletion).then_some(state),
        status_info: (info != batch_job.status_info).then_some(info),
        start_time: (start.is_some() && batch_job.start_time != start).then_some(start),
        end_time: None,
    };
    let news = patch.scheduler_id.is_some()
        || patch.state.is_some()
        || patch.status_info.is_some()
        || patch.start_time.is_some();
    news.then_some(patch)
}

fn new_id(batch_job: &BatchJob, id: Option<&SchedulerId>) -> Option<Option<SchedulerId>> {
    (id.is_some() && batch_job.scheduler_id.as_ref() != id).then(|| id.cloned())
}

#[cfg(test)]
mod pass_tests;
#[cfg(test)]
mod tests;
