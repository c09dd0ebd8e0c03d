//! Whole passes against a scheduler and a service in memory.

mod endings;

use std::sync::{Mutex, MutexGuard};

use copal_client::launcher_exit::{ExitReason, LauncherExit};
use copal_schemas::{SiteId, StringMap, Timestamp, batch_job::JobMode, settings::QueueLimits, site::NodeAside};

use super::{
    ending::{ABSENT_FOR, ABSENT_LOOKS, Absence, UNSEEN_FOR},
    *,
};
use crate::{
    nodes_aside, records,
    scheduler::{Adapter, SchedulerError},
};

/// A service in memory; what it was told, in order.
#[derive(Clone, Default)]
struct FakeDesk {
    state: Arc<Mutex<DeskState>>,
}

#[derive(Default)]
struct DeskState {
    batch_jobs: BTreeMap<BatchJobId, BatchJob>,
    told: Vec<String>,
    /// Reports that fail before one gets through.
    failures: usize,
    /// Reports that arrive, but whose answer gets lost.
    lost_answers: usize,
    /// The last signs of life of launchers with an open Session.
    heartbeats: BTreeMap<BatchJobId, Timestamp>,
}

impl FakeDesk {
    fn lock(&self) -> MutexGuard<'_, DeskState> {
        self.state.lock().unwrap()
    }
}

impl Desk for FakeDesk {
    async fn open_batch_jobs(&self) -> anyhow::Result<Vec<BatchJob>> {
        Ok(self.lock().batch_jobs.values().filter(|batch_job| !batch_job.state.is_over()).cloned().collect())
    }

    async fn equip(&self, _: BatchJobId) -> anyhow::Result<()> {
        Ok(())
    }

    async fn report(&self, id: BatchJobId, patch: &BatchJobPatch) -> anyhow::Result<()> {
        let mut state = self.lock();
        if state.failures > 0 {
            state.failures -= 1;
            anyhow::bail!("the service is away");
        }
        let Some(batch_job) = state.batch_jobs.get_mut(&id) else { return Ok(()) };
        if let Some(new) = patch.state
            && (batch_job.state != BatchJobState::PendingDeletion || new == BatchJobState::Finished)
        {
            batch_job.state = new;
        }
        if let Some(id) = &patch.scheduler_id {
            batch_job.scheduler_id = id.clone();
        }
        if let Some(info) = &patch.status_info {
            batch_job.status_info = info.clone();
        }
        let line = format!("{id} {}", patch.state.map_or("-".into(), |state| state.to_string()));
        state.told.push(line);
        if state.lost_answers > 0 {
            state.lost_answers -= 1;
            anyhow::bail!("the answer got lost");
        }
        Ok(())
    }

    async fn last_heartbeat(&self, id: BatchJobId) -> anyhow::Result<Option<Timestamp>> {
        Ok(self.lock().heartbeats.get(&id).copied())
    }

    async fn deliver(&self, id: BatchJobId) -> anyhow::Result<()> {
        self.lock().told.push(format!("{id} delivered"));
        Ok(())
    }
}

/// A scheduler in memory.
#[derive(Default)]
struct FakeScheduler {
    state: Mutex<SchedulerState>,
}

#[derive(Default)]
struct SchedulerState {
    /// Name, id and status of each job.
    jobs: Vec<(String, SchedulerId, Status)>,
    is_down: bool,
    /// Submissions are taken, but their answer gets lost.
    answers_get_lost: bool,
    /// Submissions do not even arrive.
    requests_get_lost: bool,
    refuses: Option<String>,
    submissions: usize,
    cancelled: Vec<SchedulerId>,
    /// The nodes that each submission was to leave out.
    avoided: Vec<Vec<String>>,
    /// It refuses what leaves out nodes, since too few are left.
    has_few_nodes: bool,
    /// How often it was told to cancel something.
    cancels: usize,
    lost_after: Duration,
}

impl FakeScheduler {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap()
    }

    fn set(&self, key: &str, status: Status) {
        self.lock().jobs.iter_mut().find(|(name, ..)| name == key).unwrap().2 = status;
    }
}

fn away() -> SchedulerError {
    SchedulerError::Answer { command: "squeue".into(), text: "Socket timed out on send/recv operation".into() }
}

impl Adapter for FakeScheduler {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let mut state = self.lock();
        state.submissions += 1;
        state.avoided.push(spec.avoid.clone());
        if state.has_few_nodes && !spec.avoid.is_empty() {
            return Err(SubmitError::Refused("Requested node configuration is not available".into()));
        }
        if let Some(reason) = &state.refuses {
            return Err(SubmitError::Refused(reason.clone()));
        }
        let id = SchedulerId(state.submissions.to_string());
        if !state.requests_get_lost {
            state.jobs.push((spec.key.clone(), id.clone(), Status::Queued { reason: None }));
        }
        if state.answers_get_lost || state.requests_get_lost { Err(SubmitError::Unsure(away())) } else { Ok(id) }
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let state = self.lock();
        if state.is_down {
            return Err(away());
        }
        Ok(state.jobs.iter().find(|(name, ..)| name == key).map(|(_, id, _)| id.clone()))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let state = self.lock();
        if state.is_down {
            return Err(away());
        }
        let status =
            |job: &Tracked| state.jobs.iter().find(|(name, ..)| *name == job.key).map(|(.., status)| status.clone());
        Ok(jobs.iter().map(|job| status(job).unwrap_or(Status::Absent)).collect())
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        let mut state = self.lock();
        if state.is_down {
            return Err(away());
        }
        state.cancels += 1;
        state.cancelled.extend(jobs.iter().map(|job| job.id.clone()));
        Ok(())
    }

    fn can_avoid(&self, _: &SubmitSpec) -> bool {
        true
    }

    fn lost_after(&self) -> Duration {
        self.lock().lost_after
    }
}

struct World {
    _folder: tempfile::TempDir,
    dir: SiteDir,
    desk: FakeDesk,
    scheduler: Arc<FakeScheduler>,
    sync: QueueSync<FakeDesk>,
}

impl World {
    fn new() -> Self {
        Self::with(BTreeMap::new())
    }

    fn with(allowed_queues: BTreeMap<String, QueueLimits>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = SiteDir::new(folder.path());
        dir.create_folders().unwrap();
        let settings = serde_json::json!({"site_id": 3, "scheduler": {"allowed_queues": allowed_queues}});
        fs::write(dir.settings_path(), settings.to_string()).unwrap();
        fs::write(dir.root().join("job-template.sh"), "#!/bin/sh\nexec {{launcher_cmd}}\n").unwrap();
        let (desk, scheduler) = (FakeDesk::default(), Arc::new(FakeScheduler::default()));
        let sync = Self::agent(&dir, &desk, &scheduler);
        Self { _folder: folder, dir, desk, scheduler, sync }
    }

    fn agent(dir: &SiteDir, desk: &FakeDesk, scheduler: &Arc<FakeScheduler>) -> QueueSync<FakeDesk> {
        let settings = SettingsFile::open(dir).unwrap();
        QueueSync {
            dir: dir.clone(),
            programs: Arc::new("/opt/copal".into()),
            wakes: Arc::default(),
            desk: desk.clone(),
            ledger: Ledger::new(&dir.qsubmit(), &crate::ledger::tests::a_site(3, 0)),
            scheduler: Some(Arc::clone(scheduler) as Arc<dyn Scheduler>),
            opened_with: Some(settings.current().0.scheduler.clone()),
            settings: Arc::new(settings),
            absences: HashMap::new(),
            awaited: HashMap::new(),
            missing: HashMap::new(),
            cancelled: HashMap::new(),
            to_cancel: Vec::new(),
            followed: BTreeMap::new(),
        }
    }

    /// kill -9 and a new start.
    fn restart_agent(&mut self) {
        self.sync = Self::agent(&self.dir, &self.desk, &self.scheduler);
    }

    fn add(&self, id: i64) -> BatchJobId {
        let id = BatchJobId(id);
        let batch_job = BatchJob {
            num_nodes: 1,
            wall_time_min: 60,
            job_mode: JobMode::Mpi,
            optional_params: StringMap::new(),
            filter_tags: StringMap::new(),
            partitions: None,
            id,
            site_id: SiteId(3),
            scheduler_id: None,
            project: "proj".into(),
            queue: "debug".into(),
            state: BatchJobState::PendingSubmission,
            status_info: StringMap::new(),
            start_time: None,
            end_time: None,
        };
        self.desk.lock().batch_jobs.insert(id, batch_job);
        id
    }

    fn set_state(&self, id: BatchJobId, state: BatchJobState) {
        self.desk.lock().batch_jobs.get_mut(&id).unwrap().state = state;
    }

    fn key(&self, id: BatchJobId) -> String {
        self.sync.ledger.key(id)
    }

    fn state(&self, id: BatchJobId) -> BatchJobState {
        self.desk.lock().batch_jobs[&id].state
    }

    fn info(&self, id: BatchJobId) -> StringMap {
        self.desk.lock().batch_jobs[&id].status_info.clone()
    }

    async fn pass(&mut self) -> anyhow::Result<()> {
        self.sync.sync().await.map(drop)
    }
}

fn completed() -> Status {
    Status::Ended(Ending { start: None, end: None, reason: EndReason::Completed, exit_code: Some(0), signal: None })
}

#[tokio::test]
async fn from_submission_to_end() {
    let mut world = World::new();
    let id = world.add(7);
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Queued);
    world.scheduler.set(&world.key(id), Status::Running { start: Some(Utc::now()) });
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Running);
    world.scheduler.set(&world.key(id), completed());
    world.pass().await.unwrap();
    // What launchers left is delivered first: a finished BatchJob's Session takes nothing more.
    assert_eq!(world.desk.lock().told, ["7 queued", "7 running", "7 delivered", "7 finished"]);
    let script = fs::read_to_string(world.dir.qsubmit().join(format!("{}.sh", world.key(id)))).unwrap();
    assert!(script.contains("--batch-job-id 7"), "{script}");
}

#[tokio::test]
async fn pitfall_031_032_064_a_scheduler_that_is_away_changes_nothing() {
    let mut world = World::new();
    let running = world.add(1);
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(running), Status::Running { start: None });
    world.pass().await.unwrap();
    let waiting = world.add(2);
    world.scheduler.lock().is_down = true;
    for _ in 0..10 {
        let error = world.pass().await.unwrap_err();
        assert!(format!("{error:#}").contains("Socket timed out"), "{error:#}");
    }
    assert_eq!(world.state(running), BatchJobState::Running);
    assert_eq!(world.state(waiting), BatchJobState::PendingSubmission);
    assert_eq!(world.scheduler.lock().submissions, 1);
    world.scheduler.lock().is_down = false;
    world.pass().await.unwrap();
    assert_eq!(world.state(waiting), BatchJobState::Queued);
}

#[tokio::test]
async fn pitfall_033_039_an_answer_that_got_lost_makes_no_second_job() {
    let mut world = World::new();
    let id = world.add(1);
    world.scheduler.lock().answers_get_lost = true;
    world.pass().await.unwrap_err();
    assert_eq!(world.state(id), BatchJobState::PendingSubmission);
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Queued);
    assert_eq!(world.scheduler.lock().submissions, 1);
}

#[tokio::test]
async fn a_submission_that_never_arrived_is_made_again_after_a_while() {
    let mut world = World::new();
    let id = world.add(1);
    {
        let mut scheduler = world.scheduler.lock();
        scheduler.requests_get_lost = true;
        scheduler.lost_after = Duration::from_secs(3_600);
    }
    world.pass().await.unwrap_err();
    world.scheduler.lock().requests_get_lost = false;
    world.pass().await.unwrap();
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.scheduler.lock().submissions), (BatchJobState::PendingSubmission, 1));
    world.scheduler.lock().lost_after = Duration::ZERO;
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.scheduler.lock().submissions), (BatchJobState::Queued, 2));
}

#[tokio::test]
async fn pitfall_035_a_crash_at_any_point_makes_no_second_job() {
    let mut world = World::new();
    let id = world.add(1);
    // Between the scheduler's answer and the agent's record of it.
    world.scheduler.lock().answers_get_lost = true;
    world.pass().await.unwrap_err();
    world.restart_agent();
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Queued);
    // Between the record and the service.
    world.scheduler.lock().answers_get_lost = false;
    let second = world.add(2);
    world.desk.lock().failures = 1;
    world.pass().await.unwrap_err();
    assert_eq!(world.state(second), BatchJobState::PendingSubmission);
    world.restart_agent();
    world.pass().await.unwrap();
    assert_eq!(world.state(second), BatchJobState::Queued);
    assert_eq!(world.scheduler.lock().submissions, 2);
}

#[tokio::test]
async fn pitfall_036_trouble_with_one_holds_no_other_up() {
    let mut world = World::new();
    let (bad, doomed, good) = (world.add(1), world.add(2), world.add(3));
    world.set_state(doomed, BatchJobState::PendingDeletion);
    let record = world.dir.qsubmit().join(format!("{}.submit.json", world.key(bad)));
    fs::write(&record, "{").unwrap();
    for _ in 0..3 {
        let error = world.pass().await.unwrap_err();
        assert!(format!("{error:#}").contains(".submit.json"), "{error:#}");
    }
    assert_eq!(world.state(bad), BatchJobState::PendingSubmission);
    assert_eq!(world.state(doomed), BatchJobState::Finished);
    assert_eq!(world.state(good), BatchJobState::Queued);
    assert_eq!(world.scheduler.lock().submissions, 1);
}

#[tokio::test]
async fn pitfall_037_the_queues_limit_counts_what_this_pass_submitted() {
    let limits = QueueLimits { max_nodes: 1, max_walltime: 60, max_queued_jobs: 2 };
    let mut world = World::with([("debug".into(), limits)].into());
    let ids: Vec<BatchJobId> = (1..=5).map(|id| world.add(id)).collect();
    world.pass().await.unwrap();
    assert_eq!(world.scheduler.lock().submissions, 2);
    assert_eq!(world.state(ids[1]), BatchJobState::Queued);
    for id in &ids[2..] {
        assert_eq!(world.state(*id), BatchJobState::SubmitFailed);
        assert!(world.info(*id)["error"].contains("holds 2 waiting"), "{:?}", world.info(*id));
    }
}

#[tokio::test]
async fn a_refusal_is_told_in_the_schedulers_words_and_forgotten() {
    let mut world = World::new();
    let id = world.add(1);
    world.scheduler.lock().refuses = Some("Invalid partition name specified".into());
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::SubmitFailed);
    assert_eq!(world.info(id)["error"], "Invalid partition name specified");
    assert_eq!(world.sync.ledger.get(&world.key(id)).unwrap(), None);
}

#[tokio::test]
async fn what_is_cancelled_before_it_was_submitted_never_is() {
    let mut world = World::new();
    let id = world.add(1);
    world.set_state(id, BatchJobState::PendingDeletion);
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.scheduler.lock().submissions), (BatchJobState::Finished, 0));
    assert_eq!(world.info(id)["reason"], "cancelled before it was submitted");
}

#[tokio::test]
async fn a_running_one_that_is_to_be_deleted_is_cancelled_once_and_then_finished() {
    let mut world = World::new();
    let id = world.add(1);
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(id), Status::Running { start: None });
    world.pass().await.unwrap();
    world.set_state(id, BatchJobState::PendingDeletion);
    for _ in 0..3 {
        world.pass().await.unwrap();
    }
    assert_eq!(world.scheduler.lock().cancelled, [SchedulerId("1".into())]);
    assert_eq!(world.state(id), BatchJobState::PendingDeletion);
    world.scheduler.set(&world.key(id), completed());
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Finished);
}

#[tokio::test]
async fn one_whose_record_is_deleted_is_taken_back_from_the_scheduler() {
    let mut world = World::new();
    let ids = [world.add(1), world.add(2), world.add(3)];
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(ids[0]), Status::Running { start: None });
    world.pass().await.unwrap();
    // One ends as it should, one is called finished by somebody who does not know.
    world.scheduler.set(&world.key(ids[2]), completed());
    world.pass().await.unwrap();
    world.desk.lock().batch_jobs.remove(&ids[0]);
    world.set_state(ids[1], BatchJobState::Finished);
    world.scheduler.lock().is_down = true;
    world.pass().await.unwrap_err();
    assert_eq!(world.scheduler.lock().cancelled, []);
    world.scheduler.lock().is_down = false;
    for _ in 0..3 {
        world.pass().await.unwrap();
    }
    let cancelled = world.scheduler.lock().cancelled.clone();
    assert_eq!(cancelled, [SchedulerId("1".into()), SchedulerId("2".into())]);
}

#[tokio::test]
async fn what_has_ended_is_not_cancelled_where_the_answer_to_that_report_got_lost() {
    let mut world = World::new();
    let (vanished, ended) = (world.submitted(1, Status::Unknown).await, world.submitted(2, completed()).await);
    world.desk.lock().lost_answers = 1;
    world.pass().await.unwrap_err();
    assert_eq!(world.state(ended), BatchJobState::Finished);
    // And one that nobody wants, but the scheduler has no more.
    world.scheduler.set(&world.key(vanished), Status::Absent);
    world.desk.lock().batch_jobs.remove(&vanished);
    world.pass().await.unwrap();
    assert_eq!((world.scheduler.lock().cancels, world.sync.followed.len()), (0, 0));
}

#[tokio::test]
async fn pitfall_055_what_can_never_start_is_taken_back() {
    let mut world = World::new();
    let id = world.add(1);
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(id), Status::Impossible { reason: "PartitionTimeLimit".into() });
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::SubmitFailed);
    assert!(world.info(id)["error"].contains("PartitionTimeLimit"));
    assert_eq!(world.scheduler.lock().cancelled.len(), 1);
}

#[tokio::test]
async fn pitfall_012_018_an_absence_ends_nothing_until_it_lasts_or_the_launcher_said_so() {
    let mut world = World::new();
    let id = world.add(1);
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(id), Status::Absent);
    for _ in 0..20 {
        world.pass().await.unwrap();
    }
    assert_eq!(world.state(id), BatchJobState::Queued);
    let exit = LauncherExit {
        reason: ExitReason::Idle,
        message: "nothing to run".into(),
        time: Utc::now(),
        runs: 3,
        host: None,
    };
    exit.write(&world.dir.qsubmit(), id).unwrap();
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Finished);
    assert_eq!(world.info(id)["reason"], "completed");

    let second = world.add(2);
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(second), Status::Absent);
    world.pass().await.unwrap();
    let long_ago = Instant::now().checked_sub(ABSENT_FOR).unwrap();
    world.sync.absences.insert(second, Absence { since: long_ago, looks: ABSENT_LOOKS, heard: None });
    world.pass().await.unwrap();
    assert_eq!((world.state(second), world.info(second)["reason"].as_str()), (BatchJobState::Finished, "lost"));
}

#[tokio::test]
async fn a_template_with_a_mistake_is_named() {
    let mut world = World::new();
    let id = world.add(1);
    fs::write(world.dir.root().join("job-template.sh"), "#!/bin/sh\n{{nodes}}\n").unwrap();
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::SubmitFailed);
    assert!(world.info(id)["error"].contains("job-template.sh:2: unknown variable \"nodes\""), "{:?}", world.info(id));
}

impl World {
    /// A BatchJob that the scheduler has, with this status.
    async fn submitted(&mut self, id: i64, status: Status) -> BatchJobId {
        let id = self.add(id);
        self.pass().await.unwrap();
        self.scheduler.set(&self.key(id), status);
        id
    }
}

#[tokio::test]
async fn pitfall_050_many_are_cancelled_by_one_command() {
    let mut world = World::new();
    let mut ids = Vec::new();
    for id in 1..=20 {
        ids.push(world.submitted(id, Status::Running { start: None }).await);
    }
    for id in &ids {
        world.set_state(*id, BatchJobState::PendingDeletion);
    }
    world.pass().await.unwrap();
    world.pass().await.unwrap();
    let scheduler = world.scheduler.lock();
    assert_eq!((scheduler.cancels, scheduler.cancelled.len()), (1, 20));
}

#[tokio::test]
async fn pitfall_038_a_queues_limit_counts_by_what_was_asked_for() {
    // Where a queue is a quality of service, the scheduler lists the job in a partition of another name.
    let limits = QueueLimits { max_nodes: 1, max_walltime: 60, max_queued_jobs: 1 };
    let mut world = World::with([("debug".into(), limits)].into());
    let (first, second) = (world.add(1), world.add(2));
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(first), Status::Queued { reason: Some("in partition cpu_a".into()) });
    let third = world.add(3);
    world.pass().await.unwrap();
    assert_eq!(world.state(first), BatchJobState::Queued);
    for id in [second, third] {
        assert_eq!(world.state(id), BatchJobState::SubmitFailed);
    }
}

#[tokio::test]
async fn pitfall_070_a_node_that_is_set_aside_gets_no_batch_job() {
    let mut world = World::new();
    let aside = |node: &str, until| NodeAside { node: node.into(), until, reason: "failed".into() };
    let soon = Utc::now() + chrono::TimeDelta::minutes(9);
    let known = [aside("n7", soon), aside("n8", Utc::now())];
    records::write(&nodes_aside::path(&world.dir.qsubmit()), &known, false).unwrap();
    let id = world.add(1);
    world.pass().await.unwrap();
    assert_eq!(
        (world.state(id), &world.scheduler.lock().avoided),
        (BatchJobState::Queued, &vec![vec!["n7".to_owned()]])
    );
    assert_eq!(world.info(id)["avoids"], "n7");
    // One that needs every node gets that one, too.
    world.scheduler.lock().has_few_nodes = true;
    let wide = world.add(2);
    world.pass().await.unwrap();
    assert_eq!(world.state(wide), BatchJobState::Queued);
    assert_eq!(world.scheduler.lock().avoided[1..], [vec!["n7".to_owned()], vec![]]);
    assert!(!world.info(wide).contains_key("avoids"));
}
