//! What becomes of one Job in memory: the steps that somebody asks for and those that follow, by the table of
//! `copal_schemas::job_state`. Nothing here speaks to the database.

use chrono::TimeDelta;
use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SessionId, SiteId, Timestamp, UserId,
    app::AppHooks,
    job_state::{self, Actor, Dependencies, Facts, IllegalTransition, Step},
    session::Usage,
    transfer::Direction,
};
use serde_json::json;
use sqlx::FromRow;

use crate::db::{
    dependencies::{self, Ended},
    events::NewEvent,
};

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
    pub(super) has_transfers: bool,
    pub(super) has_parents: bool,
    pub(super) has_children: bool,
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
pub(super) const NO_APP: AppPolicy = AppPolicy {
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
pub(super) struct NewAttempt {
    pub(super) number: i32,
    pub(super) state: JobState,
    pub(super) return_code: Option<i32>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Timestamp,
    pub(super) usage: Usage,
}

/// A locked Job on its way.
pub struct Moving {
    /// As it is after the steps so far.
    pub row: Row,
    pub(super) policy: AppPolicy,
    pub(super) dependencies: dependencies::Status,
    pub(super) stage_in_open: bool,
    pub(super) stage_out_open: bool,
    /// Its state and its tag set when it was locked.
    pub(super) was: JobState,
    pub(super) was_in: i64,
    pub(super) last_at: Option<Timestamp>,
    pub(super) attempts: Vec<NewAttempt>,
    pub(super) events: Vec<NewEvent>,
    pub(super) touched: bool,
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
        let is_end_of_run = matches!(to, JobState::RunDone | JobState::RunError | JobState::RunTimeout);
        // Its launcher must kill the run before anybody else may run it. Balsam's launchers report as owners; what they
        // report is the end of a run, and of their Apps the service knows least.
        let is_taken_away = by == Actor::Owner && ends_run && !is_end_of_run && !self.policy.hooks_hidden;
        let runs_at = self.row.session_id.filter(|_| is_taken_away);
        let steps = job_state::settle(from, to, &self.facts());
        let at = ask.at.unwrap_or(now);
        // What goes on at its launcher has not ended: `end_taken_away` tells of it.
        if ends_run && runs_at.is_none() && (is_end_of_run || to == JobState::Failed) {
            self.record_attempt(to, at, ask.return_code, ask.usage);
        }
        let mut data = Some(data);
        for (index, step) in steps.into_iter().enumerate() {
            // A Job that was cancelled while it ran is not restarted, and no hook is asked.
            if index > 0 && cancelled && matches!(to, JobState::RunError | JobState::RunTimeout) {
                break;
            }
            let event_data = message(data.take().unwrap_or_default(), step.message);
            self.enter(step, self.time_of(index, at, now), event_data);
            if let (0, Some(session)) = (index, runs_at) {
                self.row.session_id = Some(session);
                self.row.cancel_requested = true;
            }
        }
        if cancelled && matches!(self.row.state, JobState::RunError | JobState::RunTimeout) {
            let step = Step { from: self.row.state, to: JobState::Failed, message: None };
            let data = object(json!({"reason": "cancelled"}));
            self.enter(step, self.time_of(1, at, now), data);
        }
        Ok(())
    }

    fn record_attempt(&mut self, state: JobState, ended_at: Timestamp, return_code: Option<i32>, usage: Option<Usage>) {
        self.attempts.push(NewAttempt {
            number: self.row.num_attempts,
            state,
            return_code,
            started_at: self.row.started_at,
            ended_at,
            usage: usage.unwrap_or_default(),
        });
    }

    /// Frees a Job that was taken away, whose run ended in `state`. That makes an attempt and moves the Job nowhere: its
    /// owner has decided what becomes of it.
    pub fn end_taken_away(&mut self, now: Timestamp, state: JobState, ask: Ask) {
        self.record_attempt(state, ask.at.unwrap_or(now), ask.return_code, ask.usage);
        self.let_go();
    }

    /// Frees a Job whose Session ended; one that was RUNNING timed out.
    pub fn lose_session(&mut self, now: Timestamp) {
        if self.is_taken_away() {
            // Nobody will tell how its run ended.
            self.end_taken_away(now, JobState::RunTimeout, Ask::default());
        }
        if self.row.state == JobState::Running {
            let data = object(json!({
                "message": "Session expired: job was stuck in RUNNING state",
                "reason": "session_ended",
            }));
            // The table lets the server make this step.
            let _ = self.ask(now, Actor::Server, JobState::RunTimeout, Ask { data, ..Ask::default() });
        }
        self.let_go();
    }

    fn let_go(&mut self) {
        self.touched = true;
        self.row.session_id = None;
        self.row.cancel_requested = false;
    }

    /// Whether its owner took it out of RUNNING and its launcher has not let go of it yet.
    #[must_use]
    pub fn is_taken_away(&self) -> bool {
        self.row.state != JobState::Running && self.row.session_id.is_some() && self.row.cancel_requested
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
        let is_taken_away = self.is_taken_away();
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
        if to != JobState::Running && !is_taken_away {
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
    pub(super) fn ended(&self) -> Option<Ended> {
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
