//! Delivers what launchers could not report themselves (`copal_client::spool`), so that no result is
//! lost. While a launcher lives its file is only read: it may still add to it. The files of a BatchJob that
//! ended are delivered and deleted before the service is told of the end, since an ended Session reports nothing more.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use copal_client::{ClientError, site_dir::FileError, spool};
use copal_schemas::{
    BatchJobId, SessionId,
    batch_job::BatchJobState,
    problem::ErrorCode,
    session::Updates,
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
/// A file without a BatchJob, of a launcher that was started by hand, counts as left when it was not touched for this time.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);

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
    /// The keys of the batches of each file that were sent already. A launcher may take its file away and write another
    /// one of the same name.
    sent: Mutex<HashMap<PathBuf, HashSet<Uuid>>>,
}

impl Deliverer {
    /// Delivers the files of a BatchJob that has ended, and deletes them; without one, whatever there is.
    /// Gives the number of reports that were sent.
    ///
    /// # Errors
    /// When the service can't take them now; they stay for the next time.
    pub async fn deliver(&self, context: &Context, ended: Option<BatchJobId>) -> anyhow::Result<usize> {
        let mut sent = self.sent.lock().await;
        let mut delivered = 0;
        let paths = spool::list(&context.dir.spool())?;
        sent.retain(|path, _| paths.contains(path));
        for path in paths {
            let file = match spool::read(&path) {
                Ok(Some(file)) => file,
                // Its launcher has only begun it, or died of that.
                Ok(None) => {
                    if is_left(context, &path, None).await? {
                        spool::remove(&path)?;
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
                Err(error) => return Err(error.into()),
            };
            if file.header.site_id != context.site.id {
                continue;
            }
            if ended.is_some() && file.header.batch_job_id != ended {
                continue;
            }
            let id = file.header.batch_job_id;
            let sent_of_file = sent.entry(path.clone()).or_default();
            let mut refused = None;
            for batch in &file.batches {
                if sent_of_file.contains(&batch.batch_key) {
                    continue;
                }
                let mut outcome = offer(context, file.header.session_id, batch.clone()).await;
                if let Err(error) = &outcome
                    && is_about_content(error)
                {
                    if ended.is_none() && !is_left(context, &path, id).await? {
                        // Its launcher hears the same and sends it in parts, which must not count twice. What
                        // follows waits for that.
                        break;
                    }
                    outcome = send_in_parts(context, file.header.session_id, batch).await;
                }
                match outcome {
                    Ok(()) => {
                        delivered += batch.updates.len();
                        sent_of_file.insert(batch.batch_key);
                    }
                    Err(ClientError::Problem(problem)) if problem.code == ErrorCode::SessionEnded => {
                        refused = Some(problem.detail);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(reason) = refused {
                set_aside(&path, "refused", &reason);
                sent.remove(&path);
            } else if ended.is_some() || is_left(context, &path, id).await? {
                spool::remove(&path)?;
                sent.remove(&path);
            }
        }
        Ok(delivered)
    }
}

/// Sends a batch that the service does not take as a whole. A report that it does not take for what is in it blocks no
/// other.
async fn send_in_parts(context: &Context, session: SessionId, batch: &Updates) -> Result<(), ClientError> {
    // The batch was not taken, and neither was its key.
    let anew = |updates| offer(context, session, Updates { batch_key: Uuid::new_v4(), updates, release: Vec::new() });
    reports::deliver(batch.updates.clone(), anew, spool::bare).await
}

async fn offer(context: &Context, session: SessionId, updates: Updates) -> Result<(), ClientError> {
    let answer = context.api.client().send_updates(session, &updates).await?;
    for rejected in answer.rejected {
        tracing::warn!(job.id = rejected.job_id.0, "a late report was refused: {}", rejected.detail);
    }
    Ok(())
}

/// Whether the launcher that wrote a file is gone.
async fn is_left(context: &Context, path: &Path, batch_job_id: Option<BatchJobId>) -> anyhow::Result<bool> {
    match batch_job_id {
        Some(id) => match context.api.client().get_batch_job(id).await {
            Ok(batch_job) => Ok(batch_job.state == BatchJobState::Finished),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(true),
            Err(error) => Err(error.into()),
        },
        None => {
            let touched = fs::metadata(path).and_then(|meta| meta.modified());
            Ok(touched.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > LEFT_AFTER))
        }
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
