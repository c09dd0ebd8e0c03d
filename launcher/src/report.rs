//! Reports state changes to the service: in order, each once, at once when little happens, in batches when
//! much does. While the service is away they are kept, here and in the Site's spool, and sent when it is
//! back; what is left at the end is the agent's to deliver. No result is lost.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use copal_client::{
    Client, ClientError,
    spool::{SpoolHeader, SpoolWriter, bare},
};
use copal_schemas::{
    JobId, JobState, SessionId,
    problem::ErrorCode,
    session::{JobUpdate, Rejection, Release, Updates},
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    watch,
};
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::session::{Backoff, Contact, chain, is_ended};

/// The most updates of one call. Larger ones stall the others at the service.
const MAX_BATCH: usize = 1_000;
/// How long an update waits for others where nobody is in a hurry for it: the start of a run, whose end may be near,
/// and its end, while all places stay busy.
const PATIENCE: Duration = Duration::from_millis(50);
/// The least time between two calls for each update of the first: a call costs the service as much as
/// some dozens of updates.
const GAP_PER_UPDATE: Duration = Duration::from_millis(1);
/// No update waits longer than this for others.
const MAX_GAP: Duration = Duration::from_millis(100);
/// So few updates are followed at once: little happens.
const FEW: u32 = 5;

/// With more updates than this undelivered no new Jobs are asked for: they would only make the reports later, and the
/// launcher larger.
const MOST_BEHIND: u64 = 2 * MAX_BATCH as u64;

/// What the service made of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These Jobs are not held any more: their runs must be killed.
    NotHeld(Vec<JobId>),
    /// The Session is gone, with all its Jobs.
    SessionEnded(SessionId),
}

enum Message {
    Update(Box<JobUpdate>),
    Release(Release),
    Hurry(Pace),
    Finish(Instant),
}

/// How soon what is pending is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// After [`PATIENCE`].
    Patient,
    /// When the gap after the last call is over.
    Soon,
    /// At once.
    Now,
}

/// Takes updates and sends them by a task of its own.
#[derive(Debug)]
pub struct Reporter {
    updates: UnboundedSender<Message>,
    pushed: AtomicU64,
    /// Whether something was reported that is worth a hurry: more than that a run started.
    has_news: AtomicBool,
    delivered: watch::Receiver<u64>,
    task: tokio::task::JoinHandle<usize>,
}

impl Reporter {
    /// A reporter of one Session. `spool` is the Site's spool folder.
    #[must_use]
    pub fn start(
        client: Client,
        header: SpoolHeader,
        spool: PathBuf,
        contact: Contact,
        verdicts: UnboundedSender<Verdict>,
    ) -> Self {
        let (updates, messages) = unbounded_channel();
        let (delivered, watched) = watch::channel(0);
        let sender = Sender {
            client,
            header,
            spool,
            contact,
            verdicts,
            messages,
            delivered,
            pending: VecDeque::new(),
            given_back: Vec::new(),
            sealed: VecDeque::new(),
            spooled: 0,
            file: None,
            bare: None,
            pace: Pace::Patient,
            deadline: None,
            is_closed: false,
        };
        Self {
            updates,
            pushed: AtomicU64::new(0),
            has_news: AtomicBool::new(false),
            delivered: watched,
            task: tokio::spawn(sender.run()),
        }
    }

    /// Waits until the service has everything that was reported or given back before this call, or the Session is gone.
    pub fn caught_up(&self) -> impl Future<Output = ()> + Send + 'static {
        self.all_delivered_but(0)
    }

    /// The same but for what is on its way while the service keeps up.
    pub fn keeping_up(&self) -> impl Future<Output = ()> + Send + 'static {
        self.all_delivered_but(MOST_BEHIND)
    }

    fn all_delivered_but(&self, rest: u64) -> impl Future<Output = ()> + Send + 'static {
        let (goal, mut delivered) = (self.pushed.load(Ordering::Relaxed).saturating_sub(rest), self.delivered.clone());
        async move { drop(delivered.wait_for(|count| *count >= goal).await) }
    }

    /// Reports one change. Changes of one Job arrive in the order of the calls.
    pub fn push(&self, update: JobUpdate) {
        self.pushed.fetch_add(1, Ordering::Relaxed);
        if update.state != JobState::Running {
            self.has_news.store(true, Ordering::Relaxed);
        }
        // The task ends only when told to, or when the Session is gone and nothing counts any more.
        drop(self.updates.send(Message::Update(Box::new(update))));
    }

    /// Gives a Job back, after all changes that were reported before.
    pub fn release(&self, release: Release) {
        self.pushed.fetch_add(1, Ordering::Relaxed);
        drop(self.updates.send(Message::Release(release)));
    }

    /// Does not let ends of runs wait any more: a place is free, and Jobs that could run there may wait for them. Where
    /// nothing runs at all, nothing else will come that could be sent with them.
    pub fn hurry(&self, is_idle: bool) {
        if self.has_news.swap(false, Ordering::Relaxed) {
            drop(self.updates.send(Message::Hurry(if is_idle { Pace::Now } else { Pace::Soon })));
        }
    }

    /// Sends what is left, until `deadline`; the rest stays in the spool. Says how many updates that is.
    pub async fn finish(self, deadline: Instant) -> usize {
        drop(self.updates.send(Message::Finish(deadline)));
        self.task.await.unwrap_or_default()
    }
}

/// How long the next call waits for more to say, from the start of one with so many updates.
fn gap(updates: usize) -> Duration {
    match u32::try_from(updates) {
        Ok(updates) if updates <= FEW => Duration::ZERO,
        Ok(updates) => (GAP_PER_UPDATE * updates).min(MAX_GAP),
        Err(_) => MAX_GAP,
    }
}

struct Sender {
    client: Client,
    header: SpoolHeader,
    spool: PathBuf,
    contact: Contact,
    verdicts: UnboundedSender<Verdict>,
    messages: UnboundedReceiver<Message>,
    /// How many updates and releases the service has, or does not understand.
    delivered: watch::Sender<u64>,
    /// Not in a batch yet.
    pending: VecDeque<JobUpdate>,
    /// Jobs to give back, not in a batch yet.
    given_back: Vec<Release>,
    /// In a batch with its key, so sent or perhaps sent: never changed again.
    sealed: VecDeque<Updates>,
    /// How many of the sealed are in the spool file, from the front.
    spooled: usize,
    file: Option<SpoolWriter>,
    /// The batch of one update that is told without its details, since the service did not take it with them.
    bare: Option<Uuid>,
    /// How soon the pending are to be sent.
    pace: Pace,
    /// When to give up; set once nothing more will come.
    deadline: Option<Instant>,
    is_closed: bool,
}

impl Sender {
    /// Returns how many updates were left to the spool.
    async fn run(mut self) -> usize {
        let mut backoff = Backoff::default();
        let mut next = Instant::now();
        loop {
            self.take_messages();
            if self.pending.is_empty() && self.given_back.is_empty() && self.sealed.is_empty() {
                if self.is_closed {
                    return 0;
                }
                match self.messages.recv().await {
                    Some(message) => self.take(message),
                    None => self.is_closed = true,
                }
                continue;
            }
            if self.sealed.is_empty() {
                self.gather(next).await;
                self.seal();
            }
            let Some(batch) = self.sealed.front() else { continue };
            next = Instant::now() + gap(batch.updates.len());
            match self.send(batch).await {
                Ok(()) => {
                    backoff.reset();
                    self.delivered();
                }
                Err(error) if is_ended(&error) => return self.session_ended(),
                Err(error)
                    if matches!(
                        error.code(),
                        Some(ErrorCode::Invalid | ErrorCode::BodyTooLarge | ErrorCode::BulkTooLarge)
                    ) =>
                {
                    self.split(&error);
                }
                Err(error) => {
                    if self.file.is_none() {
                        warn!(error = %chain(&error), "can't report to the service; results are kept in the spool");
                    }
                    self.write_spool();
                    if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return self.give_up();
                    }
                    self.wait(backoff.wait()).await;
                }
            }
        }
    }

    async fn send(&self, batch: &Updates) -> Result<(), ClientError> {
        let sent = Instant::now();
        let call = self.client.send_updates(self.header.session_id, batch);
        let answer = match self.deadline {
            // At the end an answer is not waited for as long as in the middle.
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), call).await {
                Ok(answer) => answer?,
                Err(_) => {
                    let problem = copal_schemas::problem::Problem::new(ErrorCode::Unavailable, "no answer in time");
                    return Err(ClientError::Problem(Box::new(problem)));
                }
            },
            None => call.await?,
        };
        self.contact.mark(sent);
        let mut not_held = Vec::new();
        for rejected in answer.rejected {
            match rejected.reason {
                Rejection::NotHeld => not_held.push(rejected.job_id),
                Rejection::IllegalTransition => {
                    warn!(job.id = %rejected.job_id, detail = rejected.detail, "the service refused an update");
                }
            }
        }
        if !not_held.is_empty() {
            not_held.dedup();
            drop(self.verdicts.send(Verdict::NotHeld(not_held)));
        }
        Ok(())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Update(update) => self.pending.push_back(*update),
            Message::Release(release) => {
                self.given_back.push(release);
                self.pace = self.pace.max(Pace::Soon);
            }
            Message::Hurry(pace) => self.pace = self.pace.max(pace),
            Message::Finish(deadline) => {
                self.deadline = Some(deadline);
                self.is_closed = true;
            }
        }
    }

    fn take_messages(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            self.take(message);
        }
    }

    /// Waits until it is time for the next call. The gap after the last one is over at `next`.
    async fn gather(&mut self, next: Instant) {
        let patience = next.max(Instant::now() + PATIENCE);
        loop {
            self.take_messages();
            let due = match self.pace {
                _ if self.is_closed || self.pending.len() >= MAX_BATCH => return,
                Pace::Now => return,
                Pace::Soon => next,
                Pace::Patient => patience,
            };
            if due <= Instant::now() {
                return;
            }
            match tokio::time::timeout_at(due.into(), self.messages.recv()).await {
                Err(_) => return,
                Ok(None) => self.is_closed = true,
                Ok(Some(message)) => self.take(message),
            }
        }
    }

    /// Makes batches of all that is pending.
    fn seal(&mut self) {
        self.pace = Pace::Patient;
        while !self.pending.is_empty() {
            let count = self.pending.len().min(MAX_BATCH);
            let updates = self.pending.drain(..count).collect();
            self.sealed.push_back(Updates { batch_key: Uuid::new_v4(), updates, release: Vec::new() });
        }
        while !self.given_back.is_empty() {
            let count = self.given_back.len().min(MAX_BATCH);
            let release = self.given_back.drain(..count).collect();
            self.sealed.push_back(Updates { batch_key: Uuid::new_v4(), updates: Vec::new(), release });
        }
    }

    /// The first batch has reached the service.
    fn delivered(&mut self) {
        let count = self.sealed.pop_front().map_or(0, |batch| (batch.updates.len() + batch.release.len()) as u64);
        self.delivered.send_modify(|delivered| *delivered += count);
        self.spooled = self.spooled.saturating_sub(1);
        if self.sealed.is_empty() && self.file.is_some() {
            info!("the service has all results again");
            self.discard_spool();
        }
    }

    /// Puts on the disk what the service does not have, so that a killed launcher leaves it.
    fn write_spool(&mut self) {
        self.take_messages();
        self.seal();
        if self.file.is_none() {
            match SpoolWriter::open(&self.spool, &self.header) {
                Ok(file) => self.file = Some(file),
                Err(error) => {
                    error!(error = %chain(&error), "can't write the spool file; results are kept in memory only");
                    return;
                }
            }
        }
        let Some(file) = &mut self.file else { return };
        while let Some(batch) = self.sealed.get(self.spooled) {
            if let Err(error) = file.add(batch) {
                error!(error = %chain(&error), "can't write the spool file; results are kept in memory only");
                return;
            }
            self.spooled += 1;
        }
    }

    /// Waits before the next try; what is reported meanwhile goes to the spool at once.
    async fn wait(&mut self, time: Duration) {
        let mut end = Instant::now() + time;
        if let Some(deadline) = self.deadline {
            end = end.min(deadline);
        }
        while !self.is_closed {
            match tokio::time::timeout_at(end.into(), self.messages.recv()).await {
                Err(_) => return,
                Ok(None) => self.is_closed = true,
                Ok(Some(message)) => {
                    self.take(message);
                    self.write_spool();
                }
            }
        }
        tokio::time::sleep_until(end.into()).await;
    }

    /// The service does not understand a batch: its halves are sent, down to the one bad row, of which the bare state is
    /// told, so that it never blocks the others.
    fn split(&mut self, error: &ClientError) {
        let Some(batch) = self.sealed.pop_front() else { return };
        // The service is there. What comes in the place of the batch must not be sent beside it by whoever finds it in
        // the spool; the others stay there.
        self.spooled = 0;
        let was_spooled = self.file.is_some();
        self.discard_spool();
        for part in self.parts(batch, error).into_iter().rev() {
            self.sealed.push_front(part);
        }
        if was_spooled {
            self.write_spool();
        }
    }

    /// What is sent in the place of a batch that was not understood.
    fn parts(&mut self, batch: Updates, error: &ClientError) -> Vec<Updates> {
        let Updates { mut updates, mut release, batch_key } = batch;
        let anew = |updates, release| Updates { batch_key: Uuid::new_v4(), updates, release };
        if !updates.is_empty() && !release.is_empty() {
            return vec![anew(updates, Vec::new()), anew(Vec::new(), release)];
        }
        if updates.len() + release.len() > 1 {
            let second = anew(updates.split_off(updates.len() / 2), release.split_off(release.len() / 2));
            return vec![anew(updates, release), second];
        }
        match updates.first() {
            Some(update) if self.bare != Some(batch_key) => {
                let job = update.job_id.0;
                warn!(job.id = job, error = %chain(error), "the service does not understand an update; sending it without details");
                let alone = anew(vec![bare(update, error)], release);
                self.bare = Some(alone.batch_key);
                vec![alone]
            }
            first => {
                let job = first.map(|update| update.job_id).or(release.first().map(|release| release.job_id));
                error!(job.id = job.map(|id| id.0), error = %chain(error), "the service does not understand a report; it is dropped");
                self.delivered.send_modify(|delivered| *delivered += 1);
                Vec::new()
            }
        }
    }

    fn discard_spool(&mut self) {
        if let Some(file) = self.file.take()
            && let Err(error) = file.discard()
        {
            warn!(error = %chain(&error), "can't delete the spool file; the agent will");
        }
    }

    fn session_ended(mut self) -> usize {
        let lost = self.sealed.iter().map(|batch| batch.updates.len()).sum::<usize>() + self.pending.len();
        warn!(session.id = %self.header.session_id, updates = lost, "the Session ended; its results do not count any more");
        self.discard_spool();
        drop(self.verdicts.send(Verdict::SessionEnded(self.header.session_id)));
        0
    }

    fn give_up(mut self) -> usize {
        self.write_spool();
        let left = self.sealed.iter().map(|batch| batch.updates.len()).sum();
        let file = self.file.as_ref().map(|file| file.path().display().to_string()).unwrap_or_default();
        warn!(updates = left, file, "the service is away; the agent delivers these results later");
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_call_waits_only_where_much_happens() {
        assert_eq!(gap(1), Duration::ZERO);
        assert_eq!(gap(20), Duration::from_millis(20));
        assert_eq!(gap(MAX_BATCH), MAX_GAP);
        assert_eq!(gap(usize::MAX), MAX_GAP);
    }
}
