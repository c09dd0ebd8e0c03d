//! Delivers what launchers could not report themselves (`copal_client::spool`), so that no result is
//! lost. While a launcher lives its file is only read: it may still add to it. The files of a BatchJob that
//! ended are delivered and deleted before the service is told of the end, since an ended Session reports nothing more.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use copal_client::{
    ClientError,
    site_dir::FileError,
    spool::{self, Spool},
};
use copal_schemas::{
    BatchJobId, SessionId, SiteId,
    batch_job::BatchJobState,
    problem::ErrorCode,
    session::{Updates, UpdatesAnswer},
};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{
    Context, Passes,
    reports::{self, is_about_content},
    run_passes,
};

/// How often the folder is looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// A file without a BatchJob, of a launcher that was started by hand, is deleted when it was not touched for this time.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);
/// A launcher that lives asks again within 5 s, hears that a batch is refused for what is in it and takes its file away.
/// After this time nobody else will send it in parts. It is short against what a Session lasts whose launcher is silent.
const HEARD_AFTER: Duration = Duration::from_secs(30);
/// A file that can't be read for this time is set aside. By then the Session of a launcher that is gone has ended, where
/// the service's lease is the usual one, and what it left would be refused.
const UNREADABLE_FOR: Duration = Duration::from_secs(300);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, SpoolDelivery { context: context.clone() }).await;
}

struct SpoolDelivery {
    context: Context,
}

impl Passes for SpoolDelivery {
    const NAME: &'static str = "spool";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let detail = match self.context.spool.deliver(&self.context, None).await? {
            0 => "nothing to deliver".into(),
            delivered => format!("delivered {delivered} reports"),
        };
        Ok((detail, PERIOD))
    }

    async fn rung(&self) {
        self.context.wakes.spool.notified().await;
    }
}

/// The deliverer; one for the agent, so that two services never send the same file at once.
#[derive(Default)]
pub struct Deliverer {
    known: Mutex<HashMap<PathBuf, Known>>,
}

/// What the agent remembers of a file that is there.
#[derive(Default)]
struct Known {
    /// The keys of the batches that were sent already. A launcher may take its file away and write another one of the
    /// same name.
    sent: HashSet<Uuid>,
    /// The first batch that was refused for what is in it, and since when.
    refused: Option<(Uuid, Instant)>,
    /// Since when the file can't be read.
    unreadable: Option<Instant>,
}

/// How far the delivery of a file got.
enum Outcome {
    /// Everything in it was sent.
    Sent,
    /// Its launcher, if it lives, must send what comes next.
    Waits,
    /// The Session is gone; how the service says it.
    SessionEnded(String),
}

impl Deliverer {
    /// Delivers the files of a BatchJob that has ended, and deletes them; without one, whatever there is.
    /// Gives the number of reports that were sent.
    ///
    /// # Errors
    /// When the service can't take them now, or a file that may be meant can't be read; they stay for the next time. What
    /// can be read is delivered all the same.
    pub async fn deliver(&self, context: &Context, ended: Option<BatchJobId>) -> anyhow::Result<usize> {
        self.deliver_from(&context.dir.spool(), context.site.id, context, ended).await
    }

    async fn deliver_from(
        &self,
        folder: &Path,
        site: SiteId,
        service: &impl Service,
        ended: Option<BatchJobId>,
    ) -> anyhow::Result<usize> {
        let mut known = self.known.lock().await;
        let (mut delivered, mut trouble) = (0, None);
        let paths = spool::list(folder)?;
        known.retain(|path, _| paths.contains(path));
        for path in paths {
            let file = match spool::read(&path) {
                Ok(Some(file)) => file,
                // Its launcher has only begun it, or died of that.
                Ok(None) => {
                    if is_left(service, &path, None).await? {
                        remove(&path);
                    }
                    continue;
                }
                Err(error @ FileError::Content { .. }) => {
                    set_aside(&path, "unreadable", &format!("{:#}", anyhow::Error::from(error)));
                    continue;
                }
                // Its launcher was quicker.
                Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                // The file may be in order, and what can't be read now is read later.
                Err(error) => {
                    let since = *known.entry(path.clone()).or_default().unreadable.get_or_insert_with(Instant::now);
                    if since.elapsed() >= UNREADABLE_FOR {
                        set_aside(&path, "unreadable", &format!("{:#}", anyhow::Error::from(error)));
                    } else if may_be_of(service, &path, ended).await? {
                        trouble = trouble.or(Some(error));
                    }
                    continue;
                }
            };
            let id = file.header.batch_job_id;
            if file.header.site_id != site || (ended.is_some() && id != ended) {
                continue;
            }
            let known_of_file = known.entry(path.clone()).or_default();
            known_of_file.unreadable = None;
            let (count, outcome) = known_of_file.send(service, &file, ended.is_some()).await?;
            delivered += count;
            match outcome {
                Outcome::Sent if ended.is_some() || is_left(service, &path, id).await? => remove(&path),
                Outcome::Sent | Outcome::Waits => {}
                Outcome::SessionEnded(reason) => set_aside(&path, "refused", &reason),
            }
        }
        match trouble {
            Some(error) => Err(error.into()),
            None => Ok(delivered),
        }
    }
}

impl Known {
    /// Sends what was not sent yet of a file. Gives the number of reports.
    async fn send(
        &mut self,
        service: &impl Service,
        file: &Spool,
        has_ended: bool,
    ) -> Result<(usize, Outcome), ClientError> {
        let session = file.header.session_id;
        let mut count = 0;
        // Another file of the same name is another matter.
        self.refused = self.refused.filter(|(key, _)| file.batches.iter().any(|batch| batch.batch_key == *key));
        for batch in &file.batches {
            if self.sent.contains(&batch.batch_key) {
                continue;
            }
            let mut outcome = offer(service, session, batch.clone()).await;
            if let Err(error) = &outcome
                && is_about_content(error)
            {
                let (_, since) = *self.refused.get_or_insert_with(|| (batch.batch_key, Instant::now()));
                if !has_ended && since.elapsed() < HEARD_AFTER {
                    // Its launcher hears the same and sends it in parts, which must not count twice. What follows waits
                    // for that.
                    return Ok((count, Outcome::Waits));
                }
                outcome = send_in_parts(service, session, batch).await;
            }
            match outcome {
                Ok(()) => {
                    count += batch.updates.len();
                    self.sent.insert(batch.batch_key);
                }
                Err(ClientError::Problem(problem)) if problem.code == ErrorCode::SessionEnded => {
                    return Ok((count, Outcome::SessionEnded(problem.detail)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((count, Outcome::Sent))
    }
}

/// The service, as far as reports are delivered to it.
trait Service: Sync {
    /// Sends reports of a Session.
    fn send(
        &self,
        session: SessionId,
        updates: &Updates,
    ) -> impl Future<Output = Result<UpdatesAnswer, ClientError>> + Send;

    /// Whether a BatchJob has ended, or is not known any more.
    fn has_ended(&self, id: BatchJobId) -> impl Future<Output = Result<bool, ClientError>> + Send;

    /// The open Sessions of a BatchJob.
    fn sessions_of(&self, id: BatchJobId) -> impl Future<Output = Result<Vec<SessionId>, ClientError>> + Send;
}

impl Service for Context {
    async fn send(&self, session: SessionId, updates: &Updates) -> Result<UpdatesAnswer, ClientError> {
        self.api.client().send_updates(session, updates).await
    }

    async fn has_ended(&self, id: BatchJobId) -> Result<bool, ClientError> {
        match self.api.client().get_batch_job(id).await {
            Ok(batch_job) => Ok(batch_job.state == BatchJobState::Finished),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn sessions_of(&self, id: BatchJobId) -> Result<Vec<SessionId>, ClientError> {
        let sessions = self.api.client().list_sessions().await?;
        let own = sessions.into_iter().filter(|session| session.batch_job_id == Some(id));
        Ok(own.map(|session| session.id).collect())
    }
}

/// Sends a batch that the service does not take as a whole. A report that it does not take for what is in it blocks no
/// other.
async fn send_in_parts(service: &impl Service, session: SessionId, batch: &Updates) -> Result<(), ClientError> {
    // The batch was not taken, and neither was its key.
    let anew = |updates| offer(service, session, Updates { batch_key: Uuid::new_v4(), updates, release: Vec::new() });
    reports::deliver(batch.updates.clone(), anew, spool::bare).await
}

async fn offer(service: &impl Service, session: SessionId, updates: Updates) -> Result<(), ClientError> {
    let answer = service.send(session, &updates).await?;
    for rejected in answer.rejected {
        tracing::warn!(job.id = rejected.job_id.0, "a late report was refused: {}", rejected.detail);
    }
    Ok(())
}

/// Whether the launcher that wrote a file is gone.
async fn is_left(service: &impl Service, path: &Path, batch_job_id: Option<BatchJobId>) -> Result<bool, ClientError> {
    match batch_job_id {
        Some(id) => service.has_ended(id).await,
        None => {
            let touched = fs::metadata(path).and_then(|meta| meta.modified());
            Ok(touched.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > LEFT_AFTER))
        }
    }
}

/// Whether a file that can't be read may be meant: without a BatchJob every file is. An ended Session has nothing more to
/// report.
async fn may_be_of(service: &impl Service, path: &Path, ended: Option<BatchJobId>) -> Result<bool, ClientError> {
    match (ended, spool::session_of(path)) {
        (None, _) => Ok(true),
        (Some(id), Some(session)) => Ok(service.sessions_of(id).await?.contains(&session)),
        (Some(_), None) => Ok(false),
    }
}

/// Deletes a file that is delivered. Where that fails, what was sent is remembered and it is tried again.
fn remove(path: &Path) {
    if let Err(error) = spool::remove(path) {
        tracing::warn!("a delivered file stays: {:#}", anyhow::Error::from(error));
    }
}

/// Renames a file that can't be delivered, so that it is kept for people and not tried again.
fn set_aside(path: &Path, how: &str, why: &str) {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{how}"));
    tracing::warn!("{} becomes {}: {why}", path.display(), Path::new(&name).display());
    if let Err(error) = fs::rename(path, &name) {
        tracing::error!("{} can't be renamed: {error}", path.display());
    }
}

#[cfg(test)]
mod tests;
