//! The only writer of `jobs.state`.
//!
//! A bulk of state changes is: lock the Jobs in the order of their ids, work out every step in
//! memory by the table of `copal_schemas::job_state`, then one UPDATE, one INSERT of attempts where
//! runs ended, and one statement that writes events and tallies and wakes whoever waits. Where
//! parents came to an end, their children follow in the same way, one level of the graph at a time.
//!
//! What is not here: which Jobs an owner, a Session or the sweeper means, and fields other than
//! those that a state change implies.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SessionId, SiteId, Timestamp, UserId,
    app::AppHooks,
    job_state::{self, Actor, Dependencies, Facts, IllegalTransition, Step},
    session::Usage,
    transfer::Direction,
};
use serde_json::json;
use sqlx::{FromRow, PgConnection, types::Json};

use super::{
    dependencies::{self, Ended},
    events::{self, NewEvent, Place},
    scope::Scope,
};
use crate::error::ApiResult;

/// One state change that somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// When it happened; `None` for now.
    pub at: Option<Timestamp>,
    /// For the event.
    pub data: JsonObject,
    /// The exit code of a run that ended.
    pub return_code: Option<i32>,
    /// What the run used.
    pub usage: Option<Usage>,
}

/// Which Jobs a bulk is about.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// These, as far as they are within the scope.
    Owned(Scope, &'a [JobId]),
    /// These, whoever owns them: the service acts.
    Any(&'a [JobId]),
    /// Those that these Sessions hold.
    HeldBy(&'a [SessionId]),
}

/// The part of a Job that its lifecycle reads and writes.
#[derive(Clone, Debug, FromRow)]
pub struct Row {
    /// The Job.
    pub id: JobId,
    /// Its owner.
    pub owner_id: UserId,
    /// Its Site.
    pub site_id: SiteId,
    /// Its App.
    pub app_id: AppId,
    /// Who holds it.
    pub session_id: Option<SessionId>,
    /// The BatchJob it ran in last.
    pub batch_job_id: Option<BatchJobId>,
    /// When its present or last run began.
    pub started_at: Option<Timestamp>,
    /// Where it is.
    pub state: JobState,
    /// The exit code of its last run.
    pub return_code: Option<i32>,
    /// Its own retry policy.
    pub max_restarts: Option<i32>,
    /// Runs so far.
    pub num_attempts: i32,
    /// Restarts after errors.
    pub error_restarts: i32,
    /// Restarts after time-outs.
    pub timeout_restarts: i32,
    /// Its launcher was told to kill it.
    pub cancel_requested: bool,
    /// The service made it FAILED for a dependency.
    pub dependency_failed: bool,
    /// The set of its tags.
    pub tag_set: i64,
    has_transfers: bool,
    has_parents: bool,
    has_children: bool,
}

/// The columns of a [`Row`].
macro_rules! row_columns {
    () => {
        "id, owner_id, site_id, app_id, session_id, batch_job_id, started_at, state, return_code, \
     max_restarts, num_attempts, error_restarts, timeout_restarts, cancel_requested, dependency_failed, \
     tag_set, has_transfers, has_parents, has_children"
    };
}

/// What an App says about the life of its Jobs.
#[derive(Clone, Copy, Debug)]
pub struct AppPolicy {
    /// Balsam's: every step is taken.
    pub hooks_hidden: bool,
    /// What it declares.
    pub hooks: AppHooks,
    /// Its retry policy.
    pub max_restarts: Option<i32>,
}

/// An App that is being removed says nothing: its Jobs take every step, and so stay where they are.
const NO_APP: AppPolicy = AppPolicy {
    hooks_hidden: true,
    hooks: AppHooks { preprocess: false, postprocess: false, handle_error: false, handle_timeout: false },
    max_restarts: None,
};

impl AppPolicy {
    /// The Facts of a Job that has not run yet.
    #[must_use]
    pub fn facts(&self, dependencies: Dependencies, stage_in_open: bool, stage_out_open: bool) -> Facts {
        Facts {
            dependencies,
            stage_in_open,
            stage_out_open,
            hooks_hidden: self.hooks_hidden,
            preprocess: self.hooks.preprocess,
            postprocess: self.hooks.postprocess,
            handle_error: self.hooks.handle_error,
            handle_timeout: self.hooks.handle_timeout,
            restart_after_error: false,
            restart_after_timeout: false,
        }
    }
}

/// A run that ended.
struct NewAttempt {
    number: i32,
    state: JobState,
    return_code: Option<i32>,
    started_at: Option<Timestamp>,
    ended_at: Timestamp,
    usage: Usage,
}

/// A locked Job on its way.
pub struct Moving {
    /// As it is after the steps so far.
    pub row: Row,
    policy: AppPolicy,
    dependencies: dependencies::Status,
    stage_in_open: bool,
    stage_out_open: bool,
    /// Its state and its tag set when it was locked.
    was: JobState,
    was_in: i64,
    last_at: Option<Timestamp>,
    attempts: Vec<NewAttempt>,
    events: Vec<NewEvent>,
    touched: bool,
}

/// Locked Jobs and what is to be written of them.
pub struct Moves {
    now: Timestamp,
    jobs: Vec<Moving>,
}

impl Moves {
    /// Locks Jobs, in the order of their ids, and reads what decides about their steps. Those that
    /// do not exist (or are not that user's) are missing from the result.
    ///
    /// # Errors
    /// The database's.
    pub async fn lock(conn: &mut PgConnection, which: Which<'_>) -> ApiResult<Self> {
        let rows: Vec<Row> = match which {
            Which::Owned(scope, ids) => {
                const SQL: &str = concat!(
                    "select ",
                    row_columns!(),
                    " from jobs where id = any($1) and owner_id = $2 and ($3::bigint is null or site_id = $3) \
                      and app_id <> all(array(select app_id from deleted_apps where owner_id = $2)) \
                      order by id for no key update"
                );
                sqlx::query_as(SQL).bind(ids).bind(scope.owner).bind(scope.site).fetch_all(&mut *conn).await?
            }
            Which::Any(ids) => {
                const SQL: &str =
                    concat!("select ", row_columns!(), " from jobs where id = any($1) order by id for no key update");
                sqlx::query_as(SQL).bind(ids).fetch_all(&mut *conn).await?
            }
            Which::HeldBy(sessions) => {
                const SQL: &str = concat!(
                    "select ",
                    row_columns!(),
                    " from jobs where session_id = any($1) order by id for no key update"
                );
                sqlx::query_as(SQL).bind(sessions).fetch_all(&mut *conn).await?
            }
        };
        Self::read_facts(conn, rows).await
    }

    /// Everything is read after the locks were taken, so that it is what the last writer left.
    async fn read_facts(conn: &mut PgConnection, rows: Vec<Row>) -> ApiResult<Self> {
        let mut app_ids: Vec<AppId> = rows.iter().map(|row| row.app_id).collect();
        app_ids.sort_unstable();
        app_ids.dedup();
        let (now, policies) = read_policies(conn, &app_ids).await?;
        let with =
            |flag: fn(&Row) -> bool| -> Vec<JobId> { rows.iter().filter(|row| flag(row)).map(|row| row.id).collect() };
        let open = open_transfers(conn, &with(|row| row.has_transfers)).await?;
        let statuses = dependencies::statuses(conn, &with(|row| row.has_parents)).await?;
        let jobs = rows
            .into_iter()
            .map(|row| {
                let (stage_in_open, stage_out_open) = open.get(&row.id).copied().unwrap_or_default();
                Moving {
                    policy: policies.get(&row.app_id).copied().unwrap_or(NO_APP),
                    dependencies: statuses.get(&row.id).copied().unwrap_or_default(),
                    stage_in_open,
                    stage_out_open,
                    was: row.state,
                    was_in: row.tag_set,
                    last_at: None,
                    attempts: Vec::new(),
                    events: Vec::new(),
                    touched: false,
                    row,
                }
            })
            .collect();
        Ok(Self { now, jobs })
    }

    /// How many Jobs are locked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The locked Jobs in the order of their ids.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Timestamp, &mut Moving)> {
        let now = self.now;
        self.jobs.iter_mut().map(move |job| (now, job))
    }

    /// One of the locked Jobs, and the time.
    pub fn get_mut(&mut self, id: JobId) -> Option<(Timestamp, &mut Moving)> {
        let at = self.jobs.binary_search_by_key(&id, |job| job.row.id).ok()?;
        Some((self.now, &mut self.jobs[at]))
    }

    /// Writes everything, then lets children follow. Gives the number of Jobs that were changed by
    /// the caller's asks.
    ///
    /// # Errors
    /// The database's.
    pub async fn apply(self, conn: &mut PgConnection) -> ApiResult<usize> {
        let touched = self.jobs.iter().filter(|job| job.touched).count();
        let mut ended = self.write(conn).await?;
        while !ended.is_empty() {
            let children = dependencies::record(conn, &ended).await?;
            if children.is_empty() {
                break;
            }
            let mut moves = Self::lock(conn, Which::Any(&children)).await?;
            for (now, child) in moves.iter_mut() {
                child.follow_dependencies(now);
            }
            ended = moves.write(conn).await?;
        }
        Ok(touched)
    }

    /// Writes the Jobs, their attempts and events; gives those whose children must follow.
    async fn write(self, conn: &mut PgConnection) -> ApiResult<Vec<Ended>> {
        let touched: Vec<&Moving> = self.jobs.iter().filter(|job| job.touched).collect();
        if touched.is_empty() {
            return Ok(Vec::new());
        }
        update_jobs(conn, &touched).await?;
        release_transfers(conn, &touched).await?;
        insert_attempts(conn, &touched).await?;
        let ended = touched.iter().filter(|job| job.row.has_children).filter_map(|job| job.ended()).collect();
        let mut log = events::Log::default();
        for job in &touched {
            let Row { owner_id: owner, site_id: site, app_id: app, tag_set, state, .. } = job.row;
            let place = Place { owner, site, app, tag_set };
            log.moved((Place { tag_set: job.was_in, ..place }, job.was), (place, state), job.row.session_id);
            if job.row.cancel_requested {
                log.signal(job.row.owner_id, job.row.site_id);
            }
        }
        for job in self.jobs {
            let Row { id, owner_id, site_id, app_id, batch_job_id, .. } = job.row;
            log.events.extend(job.events.into_iter().map(|event| events::LoggedEvent {
                job_id: id,
                owner_id,
                site_id,
                app_id,
                batch_job_id,
                event,
            }));
        }
        log.write(conn).await?;
        Ok(ended)
    }
}

impl Moving {
    /// Takes the step that somebody asks for, and those with nothing to do that follow.
    ///
    /// An owner may leave the table; the event of such a step says `forced`.
    ///
    /// # Errors
    /// When the table has no such transition for `by`; nothing is changed then.
    pub fn ask(&mut self, now: Timestamp, by: Actor, to: JobState, ask: Ask) -> Result<(), IllegalTransition> {
        let from = self.row.state;
        let mut data = ask.data;
        if by == Actor::Owner {
            // The contract: the present state again is no change.
            if from == to {
                return Ok(());
            }
            if !job_state::TRANSITIONS.iter().any(|row| row.from == from && row.to == to) {
                data.insert("forced".into(), true.into());
            }
        } else {
            job_state::check(from, to, by)?;
        }
        let ends_run = from == JobState::Running;
        if let (true, Some(code)) = (ends_run, ask.return_code) {
            data.entry("return_code").or_insert_with(|| code.into());
        }
        if ask.return_code.is_some() {
            self.row.return_code = ask.return_code;
        }
        let cancelled = self.row.cancel_requested && ends_run;
        let steps = job_state::settle(from, to, &self.facts());
        let at = ask.at.unwrap_or(now);
        if ends_run && matches!(to, JobState::RunDone | JobState::RunError | JobState::RunTimeout | JobState::Failed) {
            self.attempts.push(NewAttempt {
                number: self.row.num_attempts,
                state: to,
                return_code: ask.return_code,
                started_at: self.row.started_at,
                ended_at: at,
                usage: ask.usage.unwrap_or_default(),
            });
        }
        let mut data = Some(data);
        for (index, step) in steps.into_iter().enumerate() {
            // A Job that was cancelled while it ran is not restarted, and no hook is asked.
            if index > 0 && cancelled && matches!(to, JobState::RunError | JobState::RunTimeout) {
                break;
            }
            let event_data = message(data.take().unwrap_or_default(), step.message);
            self.enter(step, self.time_of(index, at, now), event_data);
        }
        if cancelled && matches!(self.row.state, JobState::RunError | JobState::RunTimeout) {
            let step = Step { from: self.row.state, to: JobState::Failed, message: None };
            let data = object(json!({"reason": "cancelled"}));
            self.enter(step, self.time_of(1, at, now), data);
        }
        Ok(())
    }

    /// Frees a Job whose Session ended; one that was RUNNING timed out.
    pub fn lose_session(&mut self, now: Timestamp) {
        self.touched = true;
        if self.row.state == JobState::Running {
            let data = object(json!({
                "message": "Session expired: job was stuck in RUNNING state",
                "reason": "session_ended",
            }));
            // The table lets the server make this step.
            let _ = self.ask(now, Actor::Server, JobState::RunTimeout, Ask { data, ..Ask::default() });
        }
        self.row.session_id = None;
    }

    /// Cancels: a Job that waits is FAILED now, one that runs is to be killed by who holds it.
    /// Gives whether it is FAILED now, or `None` when it was at an end already.
    pub fn cancel(&mut self, now: Timestamp) -> Option<bool> {
        if self.row.state.is_terminal() {
            return None;
        }
        if self.row.state == JobState::Running && self.row.session_id.is_some() {
            self.touched |= !self.row.cancel_requested;
            self.row.cancel_requested = true;
            return Some(false);
        }
        let data = object(json!({"reason": "cancelled"}));
        // An owner's step is never refused.
        let _ = self.ask(now, Actor::Owner, JobState::Failed, Ask { data, ..Ask::default() });
        Some(true)
    }

    /// Whether the service may carry the Job on because a transfer came to its end, and does so.
    pub fn follow_transfers(&mut self, now: Timestamp) {
        let done = match self.row.state {
            JobState::Ready => !self.stage_in_open,
            JobState::Postprocessed => !self.stage_out_open,
            _ => false,
        };
        if done {
            self.carry_on(now, true);
        }
    }

    /// Whether the Job waits for its transfers in this direction.
    #[must_use]
    pub fn waits_for(&self, direction: Direction) -> bool {
        match direction {
            Direction::In => self.row.state == JobState::Ready,
            Direction::Out => self.row.state == JobState::Postprocessed,
        }
    }

    /// Changes nothing but `last_update`.
    pub fn touch(&mut self) {
        self.touched = true;
    }

    /// Moves the Job as its dependencies now say.
    pub fn follow_dependencies(&mut self, now: Timestamp) {
        let status = self.dependencies.as_dependencies();
        match self.row.state {
            JobState::AwaitingParents => self.carry_on(now, false),
            JobState::Failed if self.row.dependency_failed && status != Dependencies::Impossible => {
                let step = Step { from: JobState::Failed, to: JobState::AwaitingParents, message: None };
                let data = object(json!({"message": "A parent is restarted"}));
                self.enter(step, now, data);
                self.carry_on(now, false);
            }
            _ => {}
        }
    }

    /// Takes the steps that have nothing to do, without anybody asking. `quiet` leaves the message
    /// out of the first one, as the contract wants it after transfers.
    fn carry_on(&mut self, now: Timestamp, quiet: bool) {
        let facts = self.facts();
        let mut index = 0;
        while let Some((to, why)) = job_state::advance(self.row.state, &facts) {
            let from = self.row.state;
            let mut data = JsonObject::new();
            if !(quiet && index == 0) {
                data.insert("message".into(), why.into());
            }
            let impossible = from == JobState::AwaitingParents && to == JobState::Failed;
            if impossible {
                data.extend(self.dependencies.reason());
            }
            self.enter(Step { from, to, message: None }, self.time_of(index, now, now), data);
            self.row.dependency_failed |= impossible;
            index += 1;
        }
    }

    fn facts(&self) -> Facts {
        let limit = self.row.max_restarts.or(self.policy.max_restarts);
        Facts {
            restart_after_error: self.row.error_restarts < limit.unwrap_or(0),
            restart_after_timeout: limit.is_none_or(|limit| self.row.timeout_restarts < limit),
            ..self.policy.facts(self.dependencies.as_dependencies(), self.stage_in_open, self.stage_out_open)
        }
    }

    /// The first step has the time it was asked for; those that follow are the service's, and later.
    fn time_of(&self, index: usize, asked: Timestamp, now: Timestamp) -> Timestamp {
        match (index, self.last_at) {
            (0, _) | (_, None) => asked,
            (_, Some(last)) => now.max(last + TimeDelta::microseconds(1)),
        }
    }

    fn enter(&mut self, step: Step, at: Timestamp, data: JsonObject) {
        let Step { from, to, .. } = step;
        let row = &mut self.row;
        match (from, to) {
            (_, JobState::Running) => {
                row.num_attempts = row.num_attempts.saturating_add(1);
                row.started_at = Some(at);
            }
            (JobState::RunError, JobState::RestartReady) => row.error_restarts = row.error_restarts.saturating_add(1),
            (JobState::RunTimeout, JobState::RestartReady) => {
                row.timeout_restarts = row.timeout_restarts.saturating_add(1);
            }
            // An owner's restart starts the count anew.
            (JobState::Failed, JobState::RestartReady) => (row.error_restarts, row.timeout_restarts) = (0, 0),
            _ => {}
        }
        if to != JobState::Running {
            row.session_id = None;
            row.cancel_requested = false;
        }
        row.dependency_failed = false;
        row.state = to;
        self.last_at = Some(at);
        self.touched = true;
        self.events.push(NewEvent { timestamp: at, from_state: from, to_state: to, data });
    }

    /// What its children must know, if the Job came to an end or left one.
    fn ended(&self) -> Option<Ended> {
        let end = |state: JobState| state.is_terminal().then_some(state);
        match (end(self.was), end(self.row.state)) {
            (before, after) if before == after => None,
            (before, after) => Some(Ended {
                parent: self.row.id,
                finished: after.map(|end| end == JobState::JobFinished),
                was_at_end: before.is_some(),
            }),
        }
    }
}

fn message(mut data: JsonObject, message: Option<&str>) -> JsonObject {
    if let Some(message) = message {
        data.insert("message".into(), message.into());
    }
    data
}

fn object(value: serde_json::Value) -> JsonObject {
    match value {
        serde_json::Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

/// The time of the database's clock, and what these Apps say.
///
/// # Errors
/// The database's.
pub async fn read_policies(
    conn: &mut PgConnection,
    app_ids: &[AppId],
) -> ApiResult<(Timestamp, BTreeMap<AppId, AppPolicy>)> {
    #[derive(FromRow)]
    struct PolicyRow {
        now: Timestamp,
        id: Option<AppId>,
        hooks_hidden: bool,
        hooks: Option<Json<AppHooks>>,
        max_restarts: Option<i32>,
    }
    const SQL: &str = "select clock_timestamp() as now, a.id, a.command is null as hooks_hidden, a.hooks, \
         a.max_restarts from (values (1)) as one left join apps a on a.id = any($1)";
    let rows: Vec<PolicyRow> = sqlx::query_as(SQL).bind(app_ids).fetch_all(conn).await?;
    let now = rows.first().map_or_else(chrono::Utc::now, |row| row.now);
    let policies = rows.into_iter().filter_map(|row| {
        let hooks = row.hooks.map(|Json(hooks)| hooks).unwrap_or_default();
        Some((row.id?, AppPolicy { hooks_hidden: row.hooks_hidden, hooks, max_restarts: row.max_restarts }))
    });
    Ok((now, policies.collect()))
}

/// Whether Jobs have transfers in and out that are not done.
async fn open_transfers(conn: &mut PgConnection, ids: &[JobId]) -> ApiResult<BTreeMap<JobId, (bool, bool)>> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    const SQL: &str = "select job_id, bool_or(direction = 'in' and state <> 'done'), \
         bool_or(direction = 'out' and state <> 'done') from transfers where job_id = any($1) group by job_id";
    let rows: Vec<(JobId, bool, bool)> = sqlx::query_as(SQL).bind(ids).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, stage_in, stage_out)| (id, (stage_in, stage_out))).collect())
}

async fn update_jobs(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    // UNNEST is joined straight to the primary key: anything in between plans badly.
    const SQL: &str = "update jobs j set state = u.state, session_id = u.session_id, \
         return_code = u.return_code, started_at = u.started_at, num_attempts = u.num_attempts, \
         error_restarts = u.error_restarts, timeout_restarts = u.timeout_restarts, \
         cancel_requested = u.cancel_requested, dependency_failed = u.dependency_failed, \
         last_update = greatest(clock_timestamp(), j.last_update + interval '1 microsecond') \
         from unnest($1::bigint[], $2::job_state[], $3::bigint[], $4::int[], $5::timestamptz[], $6::int[], \
         $7::int[], $8::int[], $9::bool[], $10::bool[]) \
         as u(id, state, session_id, return_code, started_at, num_attempts, error_restarts, timeout_restarts, \
         cancel_requested, dependency_failed) where j.id = u.id";
    fn column<T>(jobs: &[&Moving], field: impl Fn(&Row) -> T) -> Vec<T> {
        jobs.iter().map(|job| field(&job.row)).collect()
    }
    sqlx::query(SQL)
        .bind(column(jobs, |row| row.id))
        .bind(column(jobs, |row| row.state))
        .bind(column(jobs, |row| row.session_id))
        .bind(column(jobs, |row| row.return_code))
        .bind(column(jobs, |row| row.started_at))
        .bind(column(jobs, |row| row.num_attempts))
        .bind(column(jobs, |row| row.error_restarts))
        .bind(column(jobs, |row| row.timeout_restarts))
        .bind(column(jobs, |row| row.cancel_requested))
        .bind(column(jobs, |row| row.dependency_failed))
        .execute(conn)
        .await?;
    Ok(())
}

/// The results of Jobs that reached POSTPROCESSED and have some to stage out can go.
async fn release_transfers(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    let open = |job: &Moving| match job.row.state {
        JobState::Ready if job.stage_in_open => Some(Direction::In),
        JobState::Postprocessed if job.stage_out_open => Some(Direction::Out),
        _ => None,
    };
    let waiting: Vec<(JobId, Direction, bool)> = jobs
        .iter()
        .filter_map(|job| Some((job.row.id, open(job)?, job.was != job.row.state)))
        .collect();
    if !waiting.is_empty() {
        // What failed is tried again when its Job is taken back to the step.
        const SQL: &str = "update transfers t set state = 'pending' \
             from unnest($1::bigint[], $2::transfer_direction[], $3::bool[]) as u(job_id, direction, again) \
             where t.job_id = u.job_id and t.direction = u.direction \
             and (t.state = 'awaiting_job' or (t.state = 'error' and u.again))";
        sqlx::query(SQL)
            .bind(waiting.iter().map(|(id, ..)| *id).collect::<Vec<_>>())
            .bind(waiting.iter().map(|(_, direction, _)| *direction).collect::<Vec<_>>())
            .bind(waiting.iter().map(|(.., again)| *again).collect::<Vec<_>>())
            .execute(conn)
            .await?;
    }
    Ok(())
}

async fn insert_attempts(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    let runs: Vec<(&Row, &NewAttempt)> =
        jobs.iter().flat_map(|job| job.attempts.iter().map(|attempt| (&job.row, attempt))).collect();
    if runs.is_empty() {
        return Ok(());
    }
    const SQL: &str = "insert into job_attempts (job_id, number, batch_job_id, state, return_code, started_at, \
         ended_at, signal, peak_memory_bytes, cpu_sec, nodes, gpus) \
         select * from unnest($1::bigint[], $2::int[], $3::bigint[], $4::job_state[], $5::int[], \
         $6::timestamptz[], $7::timestamptz[], $8::text[], $9::bigint[], $10::float8[], $11::jsonb[], $12::jsonb[])";
    fn column<'a, T>(runs: &[(&'a Row, &'a NewAttempt)], field: impl Fn(&'a Row, &'a NewAttempt) -> T) -> Vec<T> {
        runs.iter().map(|(row, attempt)| field(row, attempt)).collect()
    }
    sqlx::query(SQL)
        .bind(column(&runs, |row, _| row.id))
        .bind(column(&runs, |_, attempt| attempt.number))
        .bind(column(&runs, |row, _| row.batch_job_id))
        .bind(column(&runs, |_, attempt| attempt.state))
        .bind(column(&runs, |_, attempt| attempt.return_code))
        .bind(column(&runs, |_, attempt| attempt.usage.start.or(attempt.started_at)))
        .bind(column(&runs, |_, attempt| attempt.usage.end.unwrap_or(attempt.ended_at)))
        .bind(column(&runs, |_, attempt| attempt.usage.signal.as_deref()))
        .bind(column(&runs, |_, attempt| attempt.usage.peak_memory_bytes))
        .bind(column(&runs, |_, attempt| attempt.usage.cpu_sec))
        .bind(column(&runs, |_, attempt| Json(&attempt.usage.nodes)))
        .bind(column(&runs, |_, attempt| Json(&attempt.usage.gpus)))
        .execute(conn)
        .await?;
    Ok(())
}
