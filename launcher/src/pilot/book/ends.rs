//! How runs end: what workers report of them, and what ends them from outside.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use chrono::Utc;
use copal_schemas::{JobId, JobState, Timestamp, session::JobUpdate};
use tracing::info;

use super::{super::verdict, Book};
use crate::{
    fleet::Fleet,
    protocol::{Cause, Ended, Event, Outcome, RunId, SlotId, ToWorker},
    stop::Deadline,
};

/// Cancelled Jobs are gone within 5 s.
const CANCEL_GRACE_SEC: f64 = 3.0;

impl Book {
    /// Hears what a worker reports; returns what the service must hear.
    pub(in crate::pilot) fn hear(
        &mut self,
        worker: usize,
        events: Vec<Event>,
        fleet: &Fleet,
        now: Instant,
    ) -> Vec<JobUpdate> {
        let mut updates = Vec::new();
        for event in events {
            match event {
                Event::Started { run, slot, time } => self.hear_start(run, slot, time, &mut updates),
                Event::Ended(ended) => self.hear_end(worker, &ended, fleet, now, &mut updates),
                Event::Vacant(slot) => self.close_slot(slot),
                Event::Returned(run) => {
                    let Some(state) = self.forget_run(run) else { continue };
                    let job = if state.is_lost { state.successor } else { Some(state.held.job) };
                    job.into_iter().for_each(|job| self.enqueue(job, false));
                }
            }
        }
        updates
    }

    fn hear_start(&mut self, run: RunId, slot: SlotId, time: Timestamp, updates: &mut Vec<JobUpdate>) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        state.has_started = true;
        self.started += 1;
        if state.slot.replace(slot).is_none() {
            let followers = &mut self.posts[state.worker].followers;
            *followers = followers.saturating_sub(1);
        }
        if !state.is_lost {
            updates.push(verdict::plain(state.held.job.id, JobState::Running, time));
        }
    }

    fn hear_end(&mut self, worker: usize, ended: &Ended, fleet: &Fleet, now: Instant, updates: &mut Vec<JobUpdate>) {
        let Some(state) = self.forget_run(ended.run) else { return };
        // A clock that jumps makes a time that is none.
        let took_sec = (ended.end - ended.start).num_microseconds().unwrap_or_default() as f64 / 1e6;
        self.rate.count(now, took_sec);
        self.posts[worker].rate.count(now, took_sec);
        let job = &state.held.job;
        if !state.is_lost {
            // By the table a run that could not be started fails from RUNNING, so that its retry policy counts.
            if !state.has_started && ended.outcome != Outcome::Withdrawn {
                updates.push(verdict::plain(job.id, JobState::Running, ended.start));
            }
            let place = ended.slot.and_then(|slot| self.slots.get(&slot));
            let (nodes, gpus) = place.map_or((&[][..], &[][..]), |place| (&place.nodes[..], &place.gpus[..]));
            if let Some(update) = verdict::of(job, ended, nodes, gpus) {
                if update.state != JobState::RunDone {
                    let text = |key: &str| update.state_data.get(key).and_then(|value| value.as_str());
                    let message = text("message").unwrap_or_default();
                    info!(job.id = %job.id, state = %update.state, "a Job ended: {message}");
                }
                updates.push(update);
            }
        }
        if let Some(slot) = ended.slot.filter(|_| ended.vacant) {
            self.vacate(slot, fleet);
        }
        if let Some(job) = state.successor {
            self.enqueue(job, false);
        }
    }

    /// A slot is vacant at its worker. Followers that were on their way to it may still use it.
    fn vacate(&mut self, slot: SlotId, fleet: &Fleet) {
        let Some(state) = self.slots.get(&slot) else { return };
        if self.posts[state.worker].followers > 0 {
            fleet.tell(state.worker, ToWorker::Reoffer(state.slot.clone()));
        } else {
            self.close_slot(slot);
        }
    }

    /// A worker is gone, and with it its runs: those that had started run again later, the others at once.
    pub(in crate::pilot) fn worker_lost(&mut self, worker: usize, reason: &str, message: &str) -> Vec<JobUpdate> {
        let runs: Vec<RunId> = self.runs.iter().filter(|(_, run)| run.worker == worker).map(|(id, _)| *id).collect();
        let slots: Vec<SlotId> =
            self.slots.iter().filter(|(_, slot)| slot.worker == worker).map(|(id, _)| *id).collect();
        slots.into_iter().for_each(|slot| self.close_slot(slot));
        let mut updates = Vec::new();
        for run in runs {
            let Some(state) = self.forget_run(run) else { continue };
            let job = state.held.job;
            if state.is_lost {
                if let Some(job) = state.successor {
                    self.enqueue(job, false);
                }
                continue;
            }
            // One that is sent but not reported may have started: it counts as a run that was cut off.
            if state.slot.is_none() {
                self.enqueue(job, false);
                continue;
            }
            if !state.has_started {
                updates.push(verdict::plain(job.id, JobState::Running, Utc::now()));
            }
            updates.push(verdict::with_reason(job.id, JobState::RunTimeout, Utc::now(), reason, message));
        }
        self.posts[worker].followers = 0;
        updates
    }

    /// Ends cancelled Jobs. Returns the end of those that have not been given to a worker.
    pub(in crate::pilot) fn cancel(&mut self, jobs: &[JobId], fleet: &Fleet, grace_sec: f64) -> Vec<JobUpdate> {
        let mut updates = Vec::new();
        let mut runs = Vec::new();
        for job in jobs {
            if let Some(held) = self.waiting.take_job(*job) {
                self.packer.withdraw(held.ask.job);
                updates.push(verdict::cancelled(*job));
            }
            if self.forget_doubtful(*job) {
                updates.push(verdict::cancelled(*job));
            }
            runs.extend(self.run_of.get(job));
        }
        self.kill(&runs, Cause::Cancelled, grace_sec.min(CANCEL_GRACE_SEC), fleet);
        updates
    }

    fn forget_doubtful(&mut self, job: JobId) -> bool {
        let place = self.doubtful.iter().position(|known| known.id == job);
        place.map(|place| self.doubtful.swap_remove(place)).is_some()
    }

    /// Ends runs of Jobs that the Session does not hold any more.
    pub(in crate::pilot) fn lose(&mut self, jobs: &[JobId], fleet: &Fleet) {
        let mut runs = Vec::new();
        for job in jobs {
            self.forget_doubtful(*job);
            if let Some(held) = self.waiting.take_job(*job) {
                self.packer.withdraw(held.ask.job);
            }
            if let Some(run) = self.run_of.get(job) {
                if let Some(state) = self.runs.get_mut(run) {
                    state.is_lost = true;
                }
                runs.push(*run);
            }
        }
        self.kill(&runs, Cause::LeaseLost, CANCEL_GRACE_SEC, fleet);
    }

    /// The same for all of them.
    pub(in crate::pilot) fn lose_all(&mut self, fleet: &Fleet) {
        let jobs: Vec<JobId> = self.held().into_iter().collect();
        self.lose(&jobs, fleet);
        // Its end has given these back already, and a later Session may be given them.
        self.given_back.clear();
    }

    /// Ends everything; what waits is given up.
    pub(in crate::pilot) fn kill_all(&mut self, cause: Cause, grace_sec: f64, fleet: &Fleet) {
        for held in self.waiting.clear() {
            self.packer.withdraw(held.ask.job);
        }
        self.doubtful.clear();
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        self.kill(&runs, cause, grace_sec, fleet);
    }

    fn kill(&self, runs: &[RunId], cause: Cause, grace_sec: f64, fleet: &Fleet) {
        let mut of_worker: HashMap<usize, Vec<RunId>> = HashMap::new();
        for run in runs {
            if let Some(state) = self.runs.get(run) {
                of_worker.entry(state.worker).or_default().push(*run);
            }
        }
        for (worker, runs) in of_worker {
            fleet.tell(worker, ToWorker::Kill { runs, cause, grace_sec });
        }
    }

    /// The longest grace of a run that saves its state.
    pub(in crate::pilot) fn longest_checkpoint(&self) -> Duration {
        self.checkpoints.last().map_or(Duration::ZERO, |(grace, _)| Duration::from_millis(*grace))
    }

    /// When the next run must be told to save its state, so that it has its grace before the end.
    pub(in crate::pilot) fn next_checkpoint(&self, deadline: &Deadline) -> Option<Instant> {
        let (grace, _) = self.checkpoints.last()?;
        deadline.term_at.checked_sub(Duration::from_millis(*grace))
    }

    /// Tells those that are due.
    pub(in crate::pilot) fn checkpoint(&mut self, now: Instant, deadline: &Deadline, grace_sec: f64, fleet: &Fleet) {
        let mut due = Vec::new();
        while self.next_checkpoint(deadline).is_some_and(|at| now >= at) {
            due.extend(self.checkpoints.pop_last().map(|(_, run)| run));
        }
        if !due.is_empty() {
            info!(runs = due.len(), "the time is nearly over: telling runs to save their state");
            self.kill(&due, Cause::EndOfTime, grace_sec, fleet);
        }
    }
}
