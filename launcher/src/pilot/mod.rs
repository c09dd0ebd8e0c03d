//! The head: acquires Jobs, places them, has workers run them, reports. One loop over what the service,
//! the workers, the system and the clock say; nothing in it waits for anything else.
//!
//! `book` keeps who waits and who runs where; `demand` says what to ask for; `verdict` what an end means.

mod asking;
mod begin;
mod book;
pub mod demand;
mod doubts;
mod posts;
mod rate;
mod setup;
mod signals;
mod survey;
pub mod verdict;
mod waiting;
mod wake;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use copal_client::{
    Client, SiteDir,
    launcher_exit::{ExitReason, LauncherExit},
};
use copal_schemas::{BatchJobId, SessionId, job::Job, session::Release, settings::Settings};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::{error, info, warn};

use crate::{
    args::PilotArgs,
    fleet::{Fleet, FromFleet},
    hardware::NodeHardware,
    logs, partition,
    process::{
        group,
        tree::{self, HANG},
    },
    protocol::Cause,
    report::{Reporter, Verdict},
    session::{Asker, Contact, Heard, chain},
    stop::Deadline,
};
use asking::Asking;
use book::Book;
use demand::{Kind, Terms};
use doubts::Doubts;
pub use setup::{exit_record, forget_earlier_exit, nodes_of, site_of};
use signals::Signals;

/// The part of the time for which the service holds the Session that is kept for killing its runs, at least and at most.
const KILL_PART: (f64, f64) = (0.1, 0.5);
/// How long it takes to be sure that runs are gone which were killed when their grace was over.
const KILL_TIME: Duration = Duration::from_secs(2);
/// How long a Job that was offered to others is left to them.
const OFFER_GAP: Duration = Duration::from_millis(30);
/// How often is looked at Jobs that wait for the next place, here and at workers.
const RECALL_PERIOD: Duration = Duration::from_millis(200);
/// How often a worker may be lost before the pilot gives up on its nodes.
const MAX_LOSSES: usize = 3;

/// Runs a pilot to its end.
///
/// # Errors
/// When there is no Site, no login, no nodes, no way to start processes, or the service refuses.
pub fn run(args: &PilotArgs) -> Result<()> {
    let start = Instant::now();
    let (site, settings) = site_of(args)?;
    let log = args.batch_job_id.map(|id| site.log().join(format!("launcher-{id}.log")));
    logs::init(log.as_deref(), &settings.logging.level);
    forget_earlier_exit(args, &site);
    // What a worker that was killed leaves behind comes to this process, which can then end it.
    tree::adopt_orphans().context("can't become the parent of orphans")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start")?;
    let result = runtime.block_on(async {
        let mut pilot = Pilot::start(args, site.clone(), settings, start).await?;
        let reason = pilot.fly().await;
        Ok(pilot.land(reason).await)
    });
    let exit = match &result {
        Ok(exit) => exit.clone(),
        Err(error) => exit_record(ExitReason::Failed, &format!("{error:#}"), 0),
    };
    // A partition is not the launcher: its parent leaves the record.
    if let Some(id) = args.batch_job_id.filter(|_| args.nodes.is_none())
        && let Err(error) = exit.write(&site.qsubmit(), id)
    {
        warn!(error = %chain(&error), "can't leave an exit record");
    }
    match result {
        Ok(exit) if exit.reason == ExitReason::Failed => bail!(exit.message),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Why a pilot stops.
#[derive(Clone, Debug)]
struct Reason {
    exit: ExitReason,
    message: String,
}

impl Reason {
    fn new(exit: ExitReason, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}

/// A Session and who speaks for it.
#[derive(Debug)]
struct Lease {
    asker: Asker,
    reporter: Reporter,
    signals: tokio::task::JoinHandle<()>,
}

/// The ends of the channels on which things are heard.
#[derive(Debug)]
struct Ears {
    heard: UnboundedReceiver<Heard>,
    verdicts: UnboundedReceiver<Verdict>,
    fleet: UnboundedReceiver<FromFleet>,
    opened: UnboundedReceiver<Result<(Client, SessionId)>>,
    surveyed: UnboundedReceiver<survey::Found>,
}

/// The other ends.
#[derive(Clone, Debug)]
struct Mouths {
    heard: UnboundedSender<Heard>,
    verdicts: UnboundedSender<Verdict>,
    opened: UnboundedSender<Result<(Client, SessionId)>>,
}

/// The head.
struct Pilot {
    site: SiteDir,
    settings: Settings,
    batch_job_id: Option<BatchJobId>,
    /// The way to the service, once the launcher has logged in.
    client: Option<Client>,
    deadline: Deadline,
    terms: Terms,
    contact: Contact,
    lease: Option<Lease>,
    asking: Asking,
    ears: Ears,
    mouths: Mouths,
    fleet: Fleet,
    survey: survey::Commands,
    book: Book,
    doubts: Doubts,
    /// Workers of other nodes that are not there yet, and when they must be.
    arriving: BTreeSet<usize>,
    arrive_by: Instant,
    /// When each worker was lost.
    losses: Vec<Vec<Instant>>,
    last_busy: Instant,
    is_cut_off: bool,
    stopping: Option<Reason>,
    /// When whatever still runs is given up.
    give_up_at: Option<Instant>,
}

impl Pilot {
    /// The loop, until there is nothing left to do and a reason to stop.
    async fn fly(&mut self) -> Reason {
        let mut signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return Reason::new(ExitReason::Failed, format!("can't hear signals: {error}")),
        };
        let mut parent = std::pin::pin!(partition::parent_is_gone());
        loop {
            self.step();
            self.hurry();
            if let Some(reason) = self.stopping.clone()
                && self.book.is_empty()
            {
                return reason;
            }
            let wake = self.next_wake();
            let was_busy = !self.book.is_empty();
            tokio::select! {
                Some(heard) = self.ears.heard.recv() => self.hear(heard),
                Some(event) = self.ears.fleet.recv() => self.hear_fleet(event).await,
                Some(verdict) = self.ears.verdicts.recv() => self.hear_verdict(verdict),
                Some(opened) = self.ears.opened.recv() => match opened {
                    Ok((client, session_id)) => self.begin_lease(client, session_id),
                    Err(error) => self.stop(Reason::new(ExitReason::Failed, format!("{error:#}"))),
                },
                Some((node, found)) = self.ears.surveyed.recv() => self.hear_node(node, found),
                name = signals.next() => {
                    self.stop(Reason::new(ExitReason::EndOfTime, format!("got {name}")));
                }
                () = &mut parent => {
                    self.stop(Reason::new(ExitReason::EndOfTime, "the launcher of all partitions is gone"));
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            // What is there already is heard before anything is decided.
            while let Ok(event) = self.ears.fleet.try_recv() {
                self.hear_fleet(event).await;
            }
            while let Ok(heard) = self.ears.heard.try_recv() {
                self.hear(heard);
            }
            if was_busy {
                self.last_busy = Instant::now();
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            // An answer that belongs to a Session which is gone.
            Heard::Acquired(session_id, ..) | Heard::NotAcquired(session_id, ..) if !self.speaks_for(session_id) => {}
            // They come too late to be started here; others should not have to wait for the end of the Session.
            Heard::Acquired(_, _, jobs, _) if self.stopping.is_some() => {
                if let Some(lease) = &self.lease {
                    let release =
                        |job: Job| lease.reporter.release(Release { job_id: job.id, message: None, for_now: false });
                    jobs.into_iter().for_each(release);
                }
            }
            Heard::Acquired(_, is_whole, jobs, names) => {
                let (kind, finds_lost) = self.asking.answered(is_whole);
                if finds_lost {
                    self.last_busy = Instant::now();
                }
                self.asking.backoff.reset();
                self.asking.kind = kind.after(jobs.len());
                self.book.learn(names);
                self.book.receive(jobs, kind == Kind::Turn, Instant::now(), &self.deadline);
            }
            Heard::NotAcquired(_, is_whole, wait) => {
                self.asking.failed(is_whole, Instant::now() + wait);
            }
            Heard::Signals(signals) => {
                if !signals.cancel.is_empty() {
                    info!(jobs = signals.cancel.len(), "cancelling");
                    let updates = self.book.cancel(&signals.cancel, &self.fleet, self.settings.launcher.kill_grace_sec);
                    self.report(updates);
                }
                if signals.stop {
                    self.stop(Reason::new(ExitReason::Stopped, "the BatchJob's owner wants it gone"));
                }
            }
            // What waits for that is decided at the loop's next turn.
            Heard::Back => {}
            Heard::Ended(session_id) => self.lose_session(session_id),
        }
    }

    fn speaks_for(&self, session_id: SessionId) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.asker.session_id == session_id)
    }

    fn hear_verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::NotHeld(jobs) => {
                warn!(jobs = jobs.len(), "the service took Jobs away; killing their runs");
                self.book.lose(&jobs, &self.fleet);
            }
            Verdict::SessionEnded(session_id) => self.lose_session(session_id),
        }
    }

    /// The Session is gone: what runs under it is killed, and a new one is opened.
    fn lose_session(&mut self, session_id: SessionId) {
        if !self.speaks_for(session_id) {
            return;
        }
        warn!(session.id = %session_id, "the Session ended; killing its runs");
        if let Some(lease) = self.lease.take() {
            lease.signals.abort();
        }
        self.book.lose_all(&self.fleet);
        if self.stopping.is_none() {
            self.open_session();
        }
    }

    async fn hear_fleet(&mut self, event: FromFleet) {
        match event {
            FromFleet::Report(worker, events) => {
                let now = Instant::now();
                let clear = self.doubts.sift(worker, events, self.stopping.is_some(), now);
                let updates = self.book.hear(worker, clear, &self.fleet, now);
                self.report(updates);
            }
            FromFleet::Arrived(worker, connection, hardware) => {
                if self.arriving.remove(&worker) {
                    self.fleet.admit(worker, connection);
                    self.book.bring_back(worker, hardware);
                } else {
                    // Without a connection it ends by itself.
                    warn!(worker, "a worker came too late");
                }
            }
            FromFleet::CommandEnded(worker) => {
                if self.arriving.remove(&worker) {
                    error!(
                        worker,
                        node = self.book.node_of(worker),
                        "a worker could not be started; its node is not used"
                    );
                    self.book.retire(worker);
                    self.stop_without_nodes();
                }
            }
            FromFleet::Gone(worker, number) => {
                if self.fleet.lost(worker, number) {
                    self.replace_worker(worker, self.fleet.group(number)).await;
                }
            }
        }
    }

    fn hear_node(&mut self, node: usize, found: Result<NodeHardware>) {
        let name = self.book.name(node).to_owned();
        let found = found.inspect_err(|error| {
            let error = format!("{error:#}");
            error!(
                node = name,
                error, "can't ask a node for its GPUs; it is not used. launcher.gpu_ids would tell them"
            );
        });
        self.book.hear_node(node, found.ok());
    }

    /// A worker is gone: its runs are over, what they left is killed, and a new worker takes its place.
    async fn replace_worker(&mut self, worker: usize, group: String) {
        let updates = self.book.worker_lost(worker, "worker_lost", "the worker process on its node was gone");
        warn!(worker, runs = updates.len(), "a worker is gone; its Jobs run again elsewhere or later");
        self.book.set_aside(worker);
        let (others, survey) = (self.fleet.pids_but(worker), self.survey.clone());
        // Its orphans are ours now. Nothing new may start on its CPUs before they are gone.
        let clear = move || {
            let killed = tree::kill_all_below(|| others.iter().copied().chain(survey.pids()).collect());
            group::clear(&group);
            killed
        };
        match tokio::task::spawn_blocking(clear).await {
            Ok(killed) if killed > 0 => info!(killed, "killed what the worker left"),
            _ => {}
        }
        // Whoever hears of it may have the Jobs run again at once.
        self.report(updates);
        let now = Instant::now();
        self.losses[worker].retain(|lost| now.duration_since(*lost) < Duration::from_secs(600));
        self.losses[worker].push(now);
        if self.stopping.is_some() {
            return;
        }
        if self.losses[worker].len() > MAX_LOSSES || !self.book.is_local(worker) {
            error!(worker, "its nodes are not used any more");
            self.book.retire(worker);
        } else {
            match self.fleet.start_here(worker) {
                Ok(()) => self.book.bring_back(worker, None),
                Err(error) => error!(worker, error = format!("{error:#}"), "can't start another worker"),
            }
        }
        self.stop_without_nodes();
    }

    /// Gives up on workers of other nodes that have not come in time, and on their nodes.
    fn give_up_late_workers(&mut self, now: Instant) {
        if now < self.arrive_by || self.arriving.is_empty() {
            return;
        }
        let limit_sec = self.settings.launcher.worker_start_sec;
        for worker in std::mem::take(&mut self.arriving) {
            error!(worker, node = self.book.node_of(worker), "no worker came in {limit_sec} s; its node is not used");
            self.fleet.give_up(worker);
            self.book.retire(worker);
        }
        self.stop_without_nodes();
    }

    /// Stops when no worker is there and none can come any more.
    fn stop_without_nodes(&mut self) {
        if !self.fleet.any() && self.arriving.is_empty() {
            self.stop(Reason::new(ExitReason::Failed, "no worker is left"));
        }
    }

    fn report(&self, updates: Vec<copal_schemas::session::JobUpdate>) {
        // Without a Session they count for nothing: it took their Jobs with it.
        if let Some(lease) = &self.lease {
            updates.into_iter().for_each(|update| lease.reporter.push(update));
        }
    }

    /// Ends of runs are not kept for a batch when places are free.
    fn hurry(&self) {
        if let Some(lease) = self.lease.as_ref().filter(|_| !self.book.has_spare()) {
            lease.reporter.hurry(self.book.is_empty());
        }
    }

    /// Tells the service which Jobs can't run here.
    fn give_back(&mut self) {
        let given_back = self.book.take_given_back();
        // The end of a Session has given them back already.
        if let Some(lease) = &self.lease {
            given_back.into_iter().for_each(|release| lease.reporter.release(release));
        }
    }

    /// Decides what is due: place, feed, ask, end.
    fn step(&mut self) {
        let now = Instant::now();
        if now >= self.deadline.term_at {
            self.stop(Reason::new(ExitReason::EndOfTime, "the walltime is over"));
        }
        self.check_lease(now);
        self.give_up_late_workers(now);
        for (worker, event) in self.doubts.settle(self.stopping.is_some(), now) {
            let updates = self.book.hear(worker, vec![event], &self.fleet, now);
            self.report(updates);
        }
        if self.stopping.is_some() {
            if self.give_up_at.is_some_and(|at| now >= at) && !self.book.is_empty() {
                self.give_up();
            }
            return;
        }
        self.book.checkpoint(now, &self.deadline, self.settings.launcher.kill_grace_sec, &self.fleet);
        if self.places() {
            let failed = self.book.place(now, &self.deadline, &self.fleet);
            self.report(failed);
            self.book.feed(now, &self.deadline, &self.fleet);
            self.book.give_back_spare(now);
            if self.book.give_back_late(now) {
                // Whoever waits for them at the service is asked first.
                self.asking.stand_back(now + OFFER_GAP);
            }
            self.give_back();
            if now.saturating_duration_since(self.book.last_recall) >= RECALL_PERIOD {
                self.book.recall(now, &self.fleet);
            }
            self.ask(now);
        }
        if self.idle_end().is_some_and(|at| now >= at) {
            let idle_sec = self.settings.launcher.idle_ttl_sec;
            self.stop(Reason::new(ExitReason::Idle, format!("nothing to run for {idle_sec:.0} s")));
        }
    }

    /// Kills everything when the service has not been heard for nearly as long as it holds the Session:
    /// another launcher may be given the Jobs soon.
    fn check_lease(&mut self, now: Instant) {
        let cut_off = now >= self.fence_at();
        if cut_off && !self.is_cut_off && !self.book.is_empty() {
            error!("the service was not heard for nearly as long as it holds the Session; killing all runs");
            let (_, grace_sec) = fence(self.contact.held(), self.settings.launcher.kill_grace_sec);
            self.book.kill_all(Cause::LeaseLost, grace_sec, &self.fleet);
        }
        self.is_cut_off = cut_off;
    }

    fn fence_at(&self) -> Instant {
        self.contact.last() + fence(self.contact.held(), self.settings.launcher.kill_grace_sec).0
    }

    /// Begins to stop: nothing new starts, what runs is ended.
    fn stop(&mut self, reason: Reason) {
        if self.stopping.is_some() {
            return;
        }
        info!(reason = reason.message, running = self.book.running(), "launcher stops");
        let now = Instant::now();
        let grace = self.deadline.grace_sec(now, self.settings.launcher.kill_grace_sec);
        let last = self.book.longest_checkpoint() + Duration::from_secs_f64(grace) + HANG;
        self.give_up_at = Some(now + last);
        self.book.kill_all(Cause::EndOfTime, grace, &self.fleet);
        self.stopping = Some(reason);
    }

    /// Leaves runs that can't be killed, as processes that hang in the kernel can't.
    fn give_up(&mut self) {
        error!(runs = self.book.running(), "runs do not end; leaving them behind");
        for worker in 0..self.book.workers() {
            let message = "the launcher's time was over, and it did not end when it was killed";
            let updates = self.book.worker_lost(worker, "walltime", message);
            self.report(updates);
        }
    }

    /// Delivers what is left, gives the Session back, sends the workers home.
    async fn land(mut self, reason: Reason) -> LauncherExit {
        let runs = self.book.started();
        let now = Instant::now();
        let usual = now + Duration::from_secs(20);
        // Never later than the end of the allocation, but long enough for one try.
        let deliver_until = usual.min(self.deadline.end_at).max(now + Duration::from_millis(1_500));
        if let Some(lease) = self.lease.take() {
            lease.signals.abort();
            let left = lease.reporter.finish(deliver_until).await;
            // Updates of an ended Session are refused: with results in the spool it stays until the agent has
            // delivered them.
            if left == 0 {
                let call = lease.asker.client.delete_session(lease.asker.session_id);
                match tokio::time::timeout(Duration::from_secs(3), call).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => warn!(error = %chain(&error), "can't end the Session; it ends by itself"),
                    Err(_) => warn!("can't end the Session in time; it ends by itself"),
                }
            }
        }
        self.fleet.close(Duration::from_secs(3)).await;
        info!(runs, reason = reason.message, "launcher ends");
        exit_record(reason.exit, &reason.message, runs)
    }
}

/// How long the launcher goes on without the service, where that holds the Session for so long; and the seconds that runs
/// get to end then, so that they are gone before others may have their Jobs.
fn fence(held: Duration, kill_grace_sec: f64) -> (Duration, f64) {
    let (least, most) = (held.mul_f64(KILL_PART.0), held.mul_f64(KILL_PART.1));
    let grace = Duration::try_from_secs_f64(kill_grace_sec).unwrap_or_default();
    let kept = (grace + KILL_TIME).max(least).min(most);
    (held - kept, grace.min(kept.saturating_sub(KILL_TIME).max(kept / 2)).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_killed_before_its_lease_is_over() {
        let fence = |held, grace| fence(Duration::from_secs(held), grace);
        // What is usual, a long grace, a short lease, and one that is shorter than the grace.
        assert_eq!(fence(1_800, 5.0), (Duration::from_secs(1_620), 5.0));
        assert_eq!(fence(300, 60.0), (Duration::from_secs(238), 60.0));
        assert_eq!(fence(30, 5.0), (Duration::from_secs(23), 5.0));
        assert_eq!(fence(8, 60.0), (Duration::from_secs(4), 2.0));
        assert_eq!(fence(0, 5.0), (Duration::ZERO, 0.0));
    }
}
