//! What a worker has in hand: runs, followers, threads that wait for work. One lock around all of it,
//! never held while a process is started or awaited.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::Utc;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::{cpus::Cpus, report::Outbox};
use crate::process::{
    group::{Group, Groups},
    tree::{HANG, LAUNCH_PATIENCE, Orphans},
};
use crate::protocol::{Cause, CheckpointSignal, Ended, Event, Outcome, RunId, Setup, Slot, Task};

/// The next blow against a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blow {
    /// Its checkpoint signal, because its own limit is near.
    Limit,
    /// TERM.
    Term,
    /// What started ranks on other nodes is told to kill these.
    Interrupt,
    /// KILL.
    Kill,
}

/// A run that was accepted and has not been reported as ended.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its first process, once started and until that has ended.
    pub(super) leader: Option<Pid>,
    /// Whether that has ended, though what came of it may still be there.
    pub(super) is_over: bool,
    /// Why it is being ended.
    pub(super) cause: Option<Cause>,
    /// What it is sent before it is cut off.
    pub(super) checkpoint: Option<CheckpointSignal>,
    /// Seconds between TERM and KILL.
    pub(super) grace: Duration,
    /// Its control group, where it has one.
    pub(super) group: Option<Arc<Group>>,
    /// When which blow is due.
    pub(super) due: Option<(Instant, Blow)>,
    /// When it is killed at the latest, once it is being ended.
    pub(super) kill_at: Option<Instant>,
}

/// The state.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Runs by number.
    pub(super) runs: HashMap<RunId, Entry>,
    /// Started work for which no thread is free yet.
    pub(super) ready: VecDeque<(Slot, Task)>,
    /// Threads that wait for [`Table::ready`].
    pub(super) idle_threads: usize,
    /// Work for the next vacant slot, by class.
    followers: BTreeMap<u64, VecDeque<Task>>,
    /// Where events go.
    outbox: Arc<Outbox>,
    /// Nothing new is started.
    pub(super) closing: bool,
    /// A run has ended since the janitor looked.
    pub(super) is_dirty: bool,
}

/// The table and who waits for it.
#[derive(Debug)]
pub(super) struct Shared {
    table: Mutex<Table>,
    /// Woken when there is ready work.
    pub(super) work: Condvar,
    /// Woken when a blow becomes due earlier than before.
    pub(super) warden: Condvar,
    /// Woken when a run has ended.
    pub(super) janitor: Condvar,
    /// Woken when the last run has ended.
    empty: Condvar,
    /// The CPUs of this process.
    pub(super) cpus: Cpus,
    /// Control groups for runs, where they may be made.
    pub(super) groups: Option<Groups>,
    /// What runs that ended have left.
    pub(super) orphans: Orphans,
    /// How to work.
    pub(super) setup: Setup,
    /// Tells this worker's runs from those of any other.
    pub(super) nonce: String,
}

impl Shared {
    pub(super) fn new(outbox: Arc<Outbox>, setup: Setup) -> Self {
        let table = Table { outbox, ..Table::default() };
        Self {
            table: Mutex::new(table),
            work: Condvar::new(),
            warden: Condvar::new(),
            janitor: Condvar::new(),
            empty: Condvar::new(),
            cpus: Cpus::default(),
            groups: Groups::make(&setup.group),
            orphans: Orphans::watch(),
            setup,
            nonce: format!("{:016x}", rand::random::<u64>()),
        }
    }

    /// Locks the table. A thread that panicked has not left it half changed in a way that matters more
    /// than the other runs.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of the marker variable of a run.
    pub(super) fn marker(&self, run: RunId) -> String {
        format!("{}-{}", self.nonce, run.0)
    }

    /// The run that a marker means, when it is one of this worker's.
    pub(super) fn run_of(&self, marker: &str) -> Option<RunId> {
        marker.strip_prefix(&self.nonce)?.strip_prefix('-')?.parse().ok().map(RunId)
    }

    /// Begins to end these runs.
    pub(super) fn kill(&self, runs: &[RunId], cause: Cause, grace_sec: f64) {
        let mut table = self.table();
        table.withdraw(runs, cause);
        for run in runs {
            if let Some(entry) = table.runs.get_mut(run) {
                entry.begin_end(cause, seconds(grace_sec));
            }
        }
        drop(table);
        self.warden.notify_all();
    }

    /// Begins to end everything; nothing new is started.
    pub(super) fn kill_all(&self, cause: Cause, grace_sec: f64) {
        let mut table = self.table();
        table.closing = true;
        let followers: Vec<RunId> = table.followers.values().flatten().map(|task| task.run).collect();
        table.withdraw(&followers, cause);
        for entry in table.runs.values_mut() {
            entry.begin_end(cause, seconds(grace_sec));
        }
        drop(table);
        self.warden.notify_all();
        self.work.notify_all();
    }

    /// Forgets a run that has ended and reports it; the next one in its slot is returned.
    pub(super) fn finish(&self, slot: &Slot, mut ended: Ended) -> Option<Task> {
        let mut table = self.table();
        table.runs.remove(&ended.run);
        // Once told, the janitor takes its time.
        if !std::mem::replace(&mut table.is_dirty, true) {
            self.janitor.notify_one();
        }
        let next = if table.closing { None } else { table.next_follower(slot.class) };
        ended.vacant = next.is_none();
        table.report(Event::Ended(Box::new(ended)));
        if table.closing && table.runs.is_empty() {
            self.empty.notify_all();
        }
        next
    }

    /// Waits until every run has ended, all of which are being ended. A run that hangs in the kernel is not waited for
    /// for ever. Returns how many are left.
    pub(super) fn wait_until_empty(&self) -> usize {
        let mut table = self.table();
        while let Some(last) = table.runs.values().filter_map(|entry| entry.kill_at).max() {
            let left = (last + LAUNCH_PATIENCE + HANG).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            table = self.empty.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        table.runs.len()
    }
}

/// A duration from a number that came over the wire.
pub(super) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.clamp(0.0, 1e9)).unwrap_or_default()
}

impl Table {
    /// Reports an event, in the order of the calls.
    pub(super) fn report(&self, event: Event) {
        self.outbox.push(event);
    }

    /// Accepts a task: it can be killed from now on.
    pub(super) fn accept(&mut self, task: &Task, grace_sec: f64) {
        let entry = Entry {
            leader: None,
            is_over: false,
            cause: None,
            checkpoint: task.checkpoint,
            grace: seconds(grace_sec),
            group: None,
            due: None,
            kill_at: None,
        };
        self.runs.insert(task.run, entry);
    }

    /// Keeps tasks for slots that will become vacant.
    pub(super) fn follow(&mut self, tasks: Vec<Task>) {
        for task in tasks {
            self.followers.entry(task.class).or_default().push_back(task);
        }
    }

    /// The next follower of a class, accepted.
    pub(super) fn next_follower(&mut self, class: u64) -> Option<Task> {
        let queue = self.followers.get_mut(&class)?;
        let task = queue.pop_front();
        if queue.is_empty() {
            self.followers.remove(&class);
        }
        let task = task?;
        self.accept(&task, 0.0);
        Some(task)
    }

    /// Gives back up to `count` followers, last first.
    pub(super) fn recall(&mut self, count: usize) {
        for _ in 0..count {
            let Some(mut queue) = self.followers.last_entry() else { return };
            let task = queue.get_mut().pop_back();
            if queue.get().is_empty() {
                queue.remove();
            }
            if let Some(task) = task {
                self.report(Event::Returned(task.run));
            }
        }
    }

    /// Takes these runs out of the followers and reports that they never started.
    fn withdraw(&mut self, runs: &[RunId], cause: Cause) {
        let mut withdrawn = Vec::new();
        self.followers.retain(|_, queue| {
            queue.retain(|task| {
                let stays = !runs.contains(&task.run);
                if !stays {
                    withdrawn.push(task.run);
                }
                stays
            });
            !queue.is_empty()
        });
        for run in withdrawn {
            self.report(Event::Ended(Box::new(never_started(run, None, Outcome::Withdrawn, Some(cause)))));
        }
    }
}

/// The end of a run that had no beginning.
pub(super) fn never_started(run: RunId, slot: Option<&Slot>, outcome: Outcome, cause: Option<Cause>) -> Ended {
    let now = Utc::now();
    Ended {
        run,
        slot: slot.map(|slot| slot.id),
        vacant: false,
        outcome,
        cause,
        start: now,
        end: now,
        peak_memory_bytes: None,
        cpu_sec: None,
        tail: String::new(),
    }
}

impl Entry {
    /// Begins to end the run, or hastens an end that has begun. A checkpoint comes first where time
    /// is the cause; whoever lost the right to run gets none.
    fn begin_end(&mut self, cause: Cause, grace: Duration) {
        let now = Instant::now();
        let is_first = self.cause.is_none();
        if is_first {
            self.cause = Some(cause);
        }
        let checkpoint = self.checkpoint.filter(|_| is_first && cause == Cause::EndOfTime);
        let term_at = match (checkpoint, self.leader) {
            (Some(checkpoint), Some(leader)) => {
                signal_group(leader, checkpoint.signal);
                now + seconds(checkpoint.grace_sec)
            }
            _ => now,
        };
        self.grace = if is_first { grace } else { grace.min(self.grace) };
        let kill_at = term_at + grace;
        self.kill_at = Some(self.kill_at.map_or(kill_at, |known| known.min(kill_at)));
        self.due = Some(match self.due {
            Some((at, Blow::Kill)) => (at.min(kill_at), Blow::Kill),
            Some((at, Blow::Interrupt)) => (at.min(kill_at - self.patience()), Blow::Interrupt),
            Some((at, Blow::Term)) if at < term_at => (at, Blow::Term),
            _ => (term_at, Blow::Term),
        });
    }

    /// How long before KILL what started ranks on other nodes is told to kill these.
    pub(super) fn patience(&self) -> Duration {
        LAUNCH_PATIENCE.min(self.grace / 2)
    }

    /// The run has started: its own limit begins to count. Whether something is due.
    pub(super) fn started(
        &mut self,
        leader: Pid,
        group: Option<Arc<Group>>,
        limit_sec: Option<f64>,
        grace: Duration,
    ) -> bool {
        self.leader = Some(leader);
        self.group = group;
        if self.cause.is_some() {
            // It was killed while it was being started.
            self.due = Some((Instant::now(), Blow::Term));
            return true;
        }
        self.grace = grace;
        if let Some(limit) = limit_sec {
            let before = self.checkpoint.map_or(0.0, |checkpoint| checkpoint.grace_sec);
            self.due = Some((Instant::now() + seconds(limit - before), Blow::Limit));
        }
        limit_sec.is_some()
    }
}

/// Sends a signal by its number to a process group. The leader is not reaped while the table is locked,
/// so the number is still its own.
pub(super) fn signal_group(leader: Pid, signal: i32) {
    if let Ok(signal) = Signal::try_from(signal) {
        let _ = killpg(leader, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            leader: None,
            is_over: false,
            cause: None,
            checkpoint: None,
            grace: seconds(10.0),
            group: None,
            due: None,
            kill_at: None,
        }
    }

    #[test]
    fn a_second_order_to_end_a_run_hastens_the_blow_that_is_next_and_repeats_none() {
        let (now, long, short) = (Instant::now(), seconds(10.0), seconds(4.0));
        let mut entry = entry();
        entry.begin_end(Cause::EndOfTime, long);
        assert!(entry.due.is_some_and(|(at, blow)| blow == Blow::Term && at < now + short));
        for (next, before_kill) in [(Blow::Interrupt, LAUNCH_PATIENCE), (Blow::Kill, Duration::ZERO)] {
            let kill_at = now + long;
            (entry.due, entry.kill_at, entry.grace) = (Some((kill_at - before_kill, next)), Some(kill_at), long);
            // The same again changes nothing, nor does one that leaves more time.
            entry.begin_end(Cause::EndOfTime, long);
            entry.begin_end(Cause::Cancelled, long * 2);
            assert_eq!((entry.due, entry.kill_at), (Some((kill_at - before_kill, next)), Some(kill_at)));
            entry.begin_end(Cause::HeadLost, short);
            let (at, blow) = entry.due.unwrap();
            assert!(blow == next && at >= now + short - before_kill && at < kill_at - before_kill, "{next:?}");
            assert_eq!(entry.kill_at, Some(at + before_kill));
        }
        assert_eq!(entry.cause, Some(Cause::EndOfTime));
    }

    #[test]
    fn a_run_that_hangs_in_the_kernel_is_not_waited_for_for_ever() {
        let setup = Setup { kill_grace_sec: 1.0, tail_lines: 1, starts_ranks: false, group: String::new() };
        let shared = Shared::new(Arc::default(), setup);
        assert_eq!(shared.wait_until_empty(), 0);
        let kill_at = Instant::now().checked_sub(LAUNCH_PATIENCE + HANG);
        shared.table().runs.insert(RunId(1), Entry { cause: Some(Cause::EndOfTime), kill_at, ..entry() });
        assert_eq!(shared.wait_until_empty(), 1);
    }
}
