//! Staging: takes from the service the transfers that Jobs wait for, in batches of one location and one direction,
//! carries them, tries again what may mend, and tells the service, which lets the Jobs go on. A Job whose transfer can't be
//! made fails with the reason.
//!
//! A transfer that was taken is `active`, with its batch in `task_id`: an agent that starts takes those over, and what
//! an earlier one left of them in the staging area serves them. One that waits for a new try is `inactive`.

mod held;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::Pin,
    time::Duration,
};

use copal_client::ClientError;
use copal_schemas::{
    TransferId,
    page::MAX_BULK,
    problem::ErrorCode,
    settings::TransferSettings,
    transfer::{Direction, DueTransfer, TransferClaim, TransferItem, TransferPatch, TransferPatchItem, TransferState},
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use self::held::{Held, OnTrip, batch_name, room};
use super::{Context, MAX_BACKOFF, mend_login};
use crate::{
    api::Backoff,
    process::{ProcessId, marked},
    staging::{
        Cause, StagingError,
        area::Area,
        program::MARK,
        trip::{Said, Trip, gather},
    },
};

/// How long the service is asked to wait for something to do.
const POLL_SEC: f64 = 25.0;
/// Transfers of a batch at most, whatever the settings say.
const MAX_BATCH: usize = 20_000;
/// Batches that are known at once, in the sizes of full ones; more is asked for when some are done.
const HELD_BATCHES: usize = 4;
/// Transfers that are known at once, at most.
const MAX_HELD: usize = 20_000;
/// How long a batch that is not full waits for the service to say what else is due. It is carried then without that.
const MAX_FILLING: Duration = Duration::from_secs(1);
/// How long processes of an earlier agent may take to save what they have.
const LEFT_GRACE: Duration = Duration::from_secs(5);
/// What a transfer shows while it waits for a new try, or when it failed (`copal job why`).
const ERROR: &str = "error";

/// Runs until the agent stops.
pub async fn run(context: Context) {
    end_left_processes(&context).await;
    let mut backoff = Backoff::new(MAX_BACKOFF);
    let mut stager = loop {
        match Stager::start(&context).await {
            Ok(stager) => break stager,
            Err(error) => {
                context.board.failure(NAME, &context.api.explain(&error));
                mend_login(&context, &error).await;
                tokio::select! {
                    () = context.stop.cancelled() => return,
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                }
            }
        }
    };
    stager.work().await;
}

const NAME: &str = "staging";

/// Programs that an agent started which was killed: two of a kind must not write the same files.
async fn end_left_processes(context: &Context) {
    let left: Vec<ProcessId> =
        marked(MARK, &context.dir.root().display().to_string()).into_iter().filter_map(ProcessId::of).collect();
    for process in &left {
        tracing::info!("ends process {} of an earlier agent's staging", process.pid);
        process.signal(Signal::SIGTERM);
    }
    for process in &left {
        if tokio::time::timeout(LEFT_GRACE, process.ended()).await.is_err() {
            process.signal(Signal::SIGKILL);
        }
    }
}

/// A claim that is on its way, and the name of the batch that it makes.
struct Claim {
    key: String,
    /// Until when the batch waits for the answer, for a claim that goes on with one.
    until: Option<Instant>,
    answer: Pin<Box<dyn Future<Output = Result<Vec<DueTransfer>, ClientError>> + Send>>,
}

struct Stager {
    context: Context,
    area: Area,
    batches: BTreeMap<String, Held>,
    /// The batch that the next claim goes on with. It waits for that, since a batch costs a connection and more whatever is
    /// in it, and what many Jobs need becomes due call by call.
    filling: Option<String>,
    trips: JoinSet<String>,
    says: mpsc::UnboundedSender<(String, TransferId, Said)>,
    said: mpsc::UnboundedReceiver<(String, TransferId, Said)>,
    done: u64,
    failed: u64,
}

impl Stager {
    /// Takes over what an earlier agent began.
    async fn start(context: &Context) -> Result<Self, ClientError> {
        let (says, said) = mpsc::unbounded_channel();
        let mut stager = Self {
            context: context.clone(),
            area: Area::new(&context.dir),
            batches: BTreeMap::new(),
            filling: None,
            trips: JoinSet::new(),
            says,
            said,
            done: 0,
            failed: 0,
        };
        let begun = stager.begun().await?;
        let moved = stager.adopt(begun, false);
        stager.save(moved).await;
        if !stager.batches.is_empty() {
            tracing::info!("goes on with {} batches of transfers", stager.batches.len());
        }
        stager.area.keep_only(|key| stager.batches.contains_key(key));
        Ok(stager)
    }

    /// The transfers that were begun and that a Job still waits for.
    async fn begun(&self) -> Result<Vec<DueTransfer>, ClientError> {
        let states = [TransferState::Active, TransferState::Inactive];
        self.context.api.client().due_transfers(self.context.site.id, &states, 100_000).await
    }

    /// Holds transfers that were taken, with those of the same batch. A batch is of one location and one direction: others
    /// make a new one, and what is given tells the service so.
    /// So do those that a batch got when it did not wait for them any more.
    fn adopt(&mut self, taken: Vec<DueTransfer>, is_late: bool) -> Vec<TransferPatchItem> {
        let known: BTreeSet<TransferId> =
            self.batches.values().flat_map(|batch| batch.transfers.keys().copied()).collect();
        let mut moved: HashMap<(String, String, Direction), String> = HashMap::new();
        let mut patches = Vec::new();
        // Somebody may have given some back to the service while they are carried here.
        for due in taken.into_iter().filter(|due| !known.contains(&due.transfer.id)) {
            let mut key = batch_name(&due.transfer);
            if is_late || self.batches.get(&key).is_some_and(|batch| !batch.is_for(&due.transfer)) {
                let TransferItem { location_alias, direction, id, .. } = &due.transfer;
                let new = moved.entry((key, location_alias.clone(), *direction));
                key = new.or_insert_with(|| Uuid::new_v4().to_string()).clone();
                patches.push(patch(*id, TransferPatch { task_id: Some(key.clone()), ..TransferPatch::default() }));
            }
            let batch = self.batches.entry(key).or_insert_with(|| Held::of(&due));
            batch.transfers.insert(due.transfer.id, due);
        }
        patches
    }

    async fn work(&mut self) {
        let context = self.context.clone();
        let mut backoff = Backoff::new(MAX_BACKOFF);
        let mut poll: Option<Claim> = None;
        // A claim that got no answer may have taken something.
        let mut is_doubtful = false;
        let mut poll_from = Instant::now();
        let mut look = Instant::now();
        while !context.stop.is_cancelled() {
            let settings = context.settings.current().0.transfers.clone();
            let limit = settings.num_items_query_limit.clamp(1, MAX_BATCH);
            let held: usize = self.batches.values().map(|batch| batch.transfers.len()).sum();
            let may_ask = held < (limit * HELD_BATCHES).min(MAX_HELD) && poll_from <= Instant::now();
            // The limit may be another one since.
            let has_room = self.filling.as_deref().is_some_and(|key| room(self.batches.get(key), limit) > 0);
            if poll.is_none() && !(may_ask && has_room) {
                self.filling = None;
            }
            self.begin_trips(&settings).await;
            self.show();
            if poll.is_none() && may_ask {
                let until = self.filling.is_some().then(|| Instant::now() + MAX_FILLING);
                let key = self.filling.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
                let client = context.api.client();
                let claim = TransferClaim {
                    site_id: context.site.id,
                    task_id: key.clone(),
                    limit: i64::try_from(room(self.batches.get(&key), limit).min(MAX_BULK)).unwrap_or(1),
                    wait_sec: if until.is_some() { 0.0 } else { POLL_SEC },
                };
                let answer = Box::pin(async move { client.claim_transfers(&claim).await });
                poll = Some(Claim { key, until, answer });
            }
            let period = Duration::try_from_secs_f64(settings.service_period).unwrap_or(MAX_BACKOFF);
            let next_look = Instant::now() + period;
            // Counted from when there is something to compare.
            look = if is_doubtful || !self.batches.is_empty() { look.min(next_look) } else { next_look };
            let soonest = self.ready().map(|(_, batch)| batch.not_before).min();
            let full = self.trips.len() >= settings.max_concurrent_transfers.max(1);
            let next_try = if full { None } else { soonest };
            let filled_at = poll.as_ref().and_then(|claim| claim.until).filter(|_| self.filling.is_some());
            let mut said = Vec::new();
            tokio::select! {
                () = context.stop.cancelled() => break,
                () = context.wakes.staging.notified() => {
                    let now = Instant::now();
                    self.batches.values_mut().for_each(|batch| batch.not_before = batch.not_before.min(now));
                    poll_from = now;
                }
                (key, until, answer) = async {
                    match &mut poll {
                        Some(poll) => (poll.key.clone(), poll.until, (&mut poll.answer).await),
                        None => std::future::pending().await,
                    }
                } => {
                    poll = None;
                    let is_late = until.is_some() && self.filling.is_none();
                    match answer {
                        Ok(due) => {
                            backoff.reset();
                            // Nothing to do is the time to look for what an answer that was lost has taken.
                            is_doubtful |= due.is_empty() && self.filling.is_none();
                            self.fill(key, due, limit, is_late).await;
                        }
                        Err(error) => {
                            is_doubtful = true;
                            self.filling = None;
                            context.board.failure(NAME, &context.api.explain(&error));
                            mend_login(&context, &error).await;
                            poll_from = Instant::now() + backoff.next_wait();
                        }
                    }
                }
                _ = self.said.recv_many(&mut said, MAX_BULK) => {
                    let room = MAX_BULK - said.len();
                    gather(&mut self.said, &mut said, room).await;
                    self.hear(said).await;
                }
                Some(ended) = self.trips.join_next() => self.trip_ended(ended, &settings).await,
                () = sleep_until(poll_from), if poll.is_none() && poll_from > Instant::now() => {}
                () = at(next_try) => {}
                () = at(filled_at) => self.filling = None,
                () = sleep_until(look), if is_doubtful || !self.batches.is_empty() => {
                    look = Instant::now() + period;
                    is_doubtful &= !self.compare(poll.as_ref().map(|claim| claim.key.as_str())).await;
                }
            }
        }
        self.end().await;
    }

    /// What is under way is stopped; what already got through is told.
    async fn end(&mut self) {
        for batch in self.batches.values() {
            if let Some(trip) = &batch.trip {
                trip.stop.cancel();
            }
        }
        while self.trips.join_next().await.is_some() {}
        let mut said = Vec::new();
        while let Ok(one) = self.said.try_recv() {
            said.push(one);
        }
        self.hear(said).await;
    }

    fn show(&self) {
        let count = |on_trip: bool| -> usize {
            let those = self.batches.values().filter(|batch| batch.trip.is_some() == on_trip);
            those.map(|batch| batch.transfers.len()).sum()
        };
        let text =
            format!("{} on their way, {} wait, {} done, {} failed", count(true), count(false), self.done, self.failed);
        self.context.board.success(NAME, text);
    }

    /// Holds what a claim got for a batch, which waits for more unless it is full or there is none now.
    async fn fill(&mut self, key: String, taken: Vec<DueTransfer>, limit: usize, is_late: bool) {
        let is_over = taken.is_empty() || is_late;
        let moved = self.adopt(taken, is_late);
        let may_go_on = !is_over && moved.is_empty() && self.batches.contains_key(&key);
        self.filling = (may_go_on && room(self.batches.get(&key), limit) > 0).then_some(key);
        let gone = self.save(moved).await;
        self.forget(&gone);
    }

    /// Batches that may be tried when their time has come.
    fn ready(&self) -> impl Iterator<Item = (&String, &Held)> {
        self.batches.iter().filter(|(key, batch)| batch.trip.is_none() && self.filling.as_ref() != Some(key))
    }

    /// Begins as many tries as may run at once.
    async fn begin_trips(&mut self, settings: &TransferSettings) {
        let now = Instant::now();
        let mut active = Vec::new();
        let ready: Vec<String> = self
            .ready()
            .filter(|(_, batch)| batch.not_before <= now)
            .map(|(key, _)| key.clone())
            .take(settings.max_concurrent_transfers.max(1).saturating_sub(self.trips.len()))
            .collect();
        for key in ready {
            let Some(batch) = self.batches.get_mut(&key) else { continue };
            if batch.failed_tries > 0 {
                active.extend(batch.transfers.keys().map(|id| patch(*id, state(TransferState::Active))));
            }
            let on_trip = OnTrip::default();
            let trip = Trip {
                key: key.clone(),
                alias: batch.alias.clone(),
                direction: batch.direction,
                transfers: batch.transfers.values().cloned().collect(),
                site: self.context.dir.clone(),
                settings: settings.clone(),
                guard: std::sync::Arc::clone(&self.context.guard),
                area: self.area.clone(),
                stop: on_trip.stop.clone(),
                agent_stop: self.context.stop.clone(),
            };
            batch.trip = Some(on_trip);
            let says = self.says.clone();
            self.trips.spawn(async move {
                let (from_trip, mut said) = mpsc::unbounded_channel();
                let name = key.clone();
                let hand_on = async move {
                    while let Some((id, what)) = said.recv().await {
                        // The stager outlives its trips.
                        let _ = says.send((name.clone(), id, what));
                    }
                };
                tokio::join!(trip.run(from_trip), hand_on);
                key
            });
        }
        let gone = self.save(active).await;
        self.forget(&gone);
    }

    /// Notes what transfers say, and tells the service of those that are done.
    async fn hear(&mut self, said: Vec<(String, TransferId, Said)>) {
        let mut patches = BTreeMap::new();
        for (key, id, what) in said {
            let Some(batch) = self.batches.get_mut(&key) else { continue };
            match what {
                Said::Note(info) => {
                    if let Some(due) = batch.transfers.get_mut(&id) {
                        due.transfer.transfer_info.extend(info);
                        let transfer_info = Some(due.transfer.transfer_info.clone());
                        patches.insert(id, TransferPatch { transfer_info, ..TransferPatch::default() });
                    }
                }
                Said::Ended(Ok(bytes)) => {
                    if let Some(trip) = &mut batch.trip {
                        trip.got_through = true;
                    }
                    if let Some(mut due) = batch.transfers.remove(&id) {
                        self.done += 1;
                        due.transfer.transfer_info.remove(ERROR);
                        due.transfer.transfer_info.insert("bytes".into(), json!(bytes));
                        let transfer_info = Some(due.transfer.transfer_info);
                        patches.insert(id, TransferPatch { transfer_info, ..state(TransferState::Done) });
                    }
                }
                Said::Ended(Err(error)) => {
                    if let Some(trip) = &mut batch.trip {
                        trip.failures.push((id, error));
                    }
                }
            }
        }
        let gone = self.save(patches.into_iter().map(|(id, what)| patch(id, what)).collect()).await;
        self.forget(&gone);
    }

    /// Decides what becomes of the transfers that did not get through.
    async fn trip_ended(&mut self, ended: Result<String, tokio::task::JoinError>, settings: &TransferSettings) {
        let key = match ended {
            Ok(key) => key,
            Err(error) => {
                // A fault of the agent: the next one takes the transfers over.
                tracing::error!("a batch of transfers failed by a fault of its own: {error}");
                return;
            }
        };
        // What it said last is here already, since it was sent before the trip ended.
        let mut said = Vec::new();
        while let Ok(one) = self.said.try_recv() {
            said.push(one);
        }
        self.hear(said).await;
        let Some(batch) = self.batches.get_mut(&key) else { return };
        let Some(trip) = batch.trip.take() else { return };
        batch.failed_tries = if trip.got_through { 1 } else { batch.failed_tries + 1 };
        let first_wait = Duration::try_from_secs_f64(settings.retry_wait_sec).unwrap_or(MAX_BACKOFF);
        let mut patches = Vec::new();
        let mut longest = Duration::ZERO;
        let mut shown: BTreeMap<(Cause, String), usize> = BTreeMap::new();
        for (id, error) in trip.failures {
            let Some(due) = batch.transfers.get_mut(&id) else { continue };
            let wait = error.cause.rule(first_wait, settings.max_retries).next_wait(batch.failed_tries);
            let info = &mut due.transfer.transfer_info;
            info.insert(ERROR.into(), json!(error.to_string()));
            info.insert("failed_tries".into(), json!(batch.failed_tries));
            let transfer_info = Some(info.clone());
            *shown.entry((error.cause, error.message.clone())).or_default() += 1;
            match wait {
                Some(wait) => {
                    longest = longest.max(wait);
                    patches.push(patch(id, TransferPatch { transfer_info, ..state(TransferState::Inactive) }));
                }
                None => {
                    let job_error = Some(reason(&due.transfer, &error));
                    self.failed += 1;
                    batch.transfers.remove(&id);
                    patches.push(patch(id, TransferPatch { transfer_info, job_error, ..state(TransferState::Error) }));
                }
            }
        }
        batch.not_before = Instant::now() + longest;
        for ((cause, message), count) in shown.into_iter().take(10) {
            tracing::warn!(batch = key, location = batch.alias, "{count} transfers failed: {cause}: {message}");
        }
        let is_over = batch.transfers.is_empty();
        if is_over {
            self.batches.remove(&key);
        }
        let gone = self.save(patches).await;
        self.forget(&gone);
        if is_over {
            let area = self.area.clone();
            drop(tokio::task::spawn_blocking(move || area.close_batch(&key)));
        }
    }

    /// Compares what is held with what the service holds to be taken, without what a claim on its way may have got.
    /// Transfers that no Job waits for any more, such as those of Jobs that were cancelled, are given up; those that were
    /// taken by a claim whose answer was lost are held. Gives whether the service answered.
    async fn compare(&mut self, on_its_way: Option<&str>) -> bool {
        // The next report or poll shows an outage.
        let Ok(begun) = self.begun().await else { return false };
        let wanted: BTreeSet<TransferId> = begun.iter().map(|due| due.transfer.id).collect();
        let others = begun.into_iter().filter(|due| on_its_way != Some(due.transfer.task_id.as_str()));
        let mut patches = self.adopt(others.collect(), false);
        let mut gone = BTreeSet::new();
        for batch in self.batches.values_mut() {
            for (id, due) in batch.transfers.iter_mut().filter(|(id, _)| !wanted.contains(id)) {
                gone.insert(*id);
                due.transfer.transfer_info.insert(ERROR.into(), json!("no Job waits for it any more"));
                let transfer_info = Some(due.transfer.transfer_info.clone());
                patches.push(patch(*id, TransferPatch { transfer_info, ..state(TransferState::Error) }));
            }
        }
        self.save(patches).await;
        self.forget(&gone);
        true
    }

    /// Drops transfers from their batches; a batch that has no other stops.
    fn forget(&mut self, gone: &BTreeSet<TransferId>) {
        if gone.is_empty() {
            return;
        }
        let area = &self.area;
        self.batches.retain(|key, batch| {
            batch.transfers.retain(|id, _| !gone.contains(id));
            match &batch.trip {
                // Its end tidies up.
                Some(trip) if batch.transfers.is_empty() => trip.stop.cancel(),
                None if batch.transfers.is_empty() => {
                    area.close_batch(key);
                    return false;
                }
                _ => {}
            }
            true
        });
    }

    /// Tells the service, for as long as it takes. Gives the transfers that are not there any more.
    async fn save(&self, patches: Vec<TransferPatchItem>) -> BTreeSet<TransferId> {
        let mut gone = BTreeSet::new();
        let mut backoff = Backoff::new(MAX_BACKOFF);
        let mut parts: Vec<Vec<TransferPatchItem>> = patches.chunks(MAX_BULK).map(<[_]>::to_vec).collect();
        while let Some(part) = parts.pop() {
            match self.context.api.client().update_transfers(&part).await {
                Ok(_) => backoff.reset(),
                // All or none: the one that is gone is found by halves.
                Err(error) if error.code() == Some(ErrorCode::Conflict) => match part.as_slice() {
                    [one] => {
                        gone.insert(one.id);
                    }
                    _ => {
                        let (left, right) = part.split_at(part.len() / 2);
                        parts.extend([left.to_vec(), right.to_vec()]);
                    }
                },
                Err(error) if error.is_transient() || error.code() == Some(ErrorCode::Unauthenticated) => {
                    self.context.board.failure(NAME, &self.context.api.explain(&error));
                    mend_login(&self.context, &error).await;
                    parts.push(part);
                    tokio::select! {
                        // What the service was not told is done again by the next agent.
                        () = self.context.stop.cancelled() => return gone,
                        () = tokio::time::sleep(backoff.next_wait()) => {}
                    }
                }
                Err(error) => {
                    tracing::error!("the service refused a report of transfers: {}", self.context.api.explain(&error));
                }
            }
        }
        gone
    }
}

/// Ends at a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn state(state: TransferState) -> TransferPatch {
    TransferPatch { state: Some(state), ..TransferPatch::default() }
}

fn patch(id: TransferId, patch: TransferPatch) -> TransferPatchItem {
    TransferPatchItem { id, patch }
}

/// Why a Job fails with its transfer.
fn reason(transfer: &TransferItem, error: &StagingError) -> String {
    let (alias, remote, local) = (&transfer.location_alias, &transfer.remote_path, &transfer.local_path);
    match transfer.direction {
        Direction::In => format!("can't stage in {local} from {alias}:{remote}: {error}"),
        Direction::Out => format!("can't stage out {local} to {alias}:{remote}: {error}"),
    }
}
