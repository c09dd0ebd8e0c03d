//! The adapter for Globus Transfer: `globus://COLLECTION/PATH`. A batch becomes one task at the service, which moves
//! the files between that collection and the Site's own (`transfers.globus_endpoint_id`) without this machine's help,
//! and checks them by checksum.
//!
//! Submitting is exactly-once: the submission's id is written into the scratch folder before it is used, and the
//! service answers a second use with the first one's task. So an agent that was stopped or killed finds its task again;
//! a task whose transfers nobody wants any more is cancelled.

mod api;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use copal_schemas::{JsonObject, transfer::Direction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::api::{Api, Status};
use super::{Adapter, Batch, Cause, Item, Run, StagingError};

/// The first wait between two looks at a task.
const FIRST_POLL: Duration = Duration::from_millis(500);
/// Looks at a task in a row that see a fault which does not mend by itself, until the task is given up.
const HOPELESS_LOOKS: u32 = 2;

/// The adapter.
#[derive(Debug)]
pub struct Globus;

impl Adapter for Globus {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let own = run.settings.globus_endpoint_id.as_deref().ok_or_else(|| {
            let message = "settings.yml names no collection of the Site; set transfers.globus_endpoint_id";
            StagingError::new(Cause::Settings, message)
        })?;
        let api = Api::open(&batch.location.alias, run)?;
        let document = document(batch, own, Path::new(&run.settings.globus.collection_root))?;
        let work = Work { batch, run, api, note: batch.scratch.join("globus.json") };
        tokio::select! {
            () = run.stop.cancelled() => {}
            outcome = work.carry(&document) => return outcome,
        }
        // The task goes on without this agent, and the next one finds it again.
        if !run.agent_stop.is_cancelled()
            && let Some(task) = work.read_note().and_then(|note| note.task_id)
        {
            work.api.cancel(&task).await?;
        }
        Err(StagingError::stopped())
    }
}

/// What is kept of a task between tries.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Of what it moves, so that another set of transfers is another task.
    digest: String,
    submission_id: String,
    #[serde(default)]
    task_id: Option<String>,
}

/// One batch at work.
struct Work<'a> {
    batch: &'a Batch,
    run: &'a Run,
    api: Api,
    note: PathBuf,
}

impl Work<'_> {
    async fn carry(&self, document: &Value) -> Result<(), StagingError> {
        let task_id = self.submit(document).await?;
        let mut shown = JsonObject::new();
        shown.insert("globus_task".into(), json!(task_id));
        for item in &self.batch.items {
            self.run.note(item.id, shown.clone());
        }
        let outcome = self.follow(&task_id).await;
        // A cut connection leaves the task to the next try; every other end is one.
        if !matches!(&outcome, Err(error) if error.cause == Cause::Network) {
            let _ = fs::remove_file(&self.note);
        }
        outcome
    }

    /// Gives the id of the task that moves the batch, submitted now or by an earlier try.
    async fn submit(&self, document: &Value) -> Result<String, StagingError> {
        let digest: String = Sha256::digest(document.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut note = match self.read_note() {
            Some(note) if note.digest == digest => note,
            earlier => {
                if let Some(task) = earlier.and_then(|note| note.task_id) {
                    // Its transfers are other ones now; what it has moved is not moved again.
                    self.api.cancel(&task).await?;
                }
                let note = Note { digest, submission_id: self.api.submission_id().await?, task_id: None };
                self.write_note(&note)?;
                note
            }
        };
        if let Some(task) = note.task_id {
            return Ok(task);
        }
        let mut document = document.clone();
        document["submission_id"] = json!(note.submission_id);
        let task = self.api.submit(&document).await?;
        note.task_id = Some(task.clone());
        self.write_note(&note)?;
        Ok(task)
    }

    /// Looks at the task until it ends, less and less often, and reports the items.
    async fn follow(&self, task_id: &str) -> Result<(), StagingError> {
        let longest = Duration::try_from_secs_f64(self.run.settings.globus.poll_period_sec).unwrap_or(FIRST_POLL);
        let mut wait = FIRST_POLL.min(longest);
        let mut hopeless = 0;
        loop {
            let task = self.api.task(task_id).await?;
            match task.status() {
                Status::Succeeded => {
                    self.batch.items.iter().for_each(|item| self.conclude(item));
                    return Ok(());
                }
                Status::Failed => {
                    self.report_moved(task_id).await?;
                    return Err(task.error());
                }
                Status::Inactive => {
                    self.api.cancel(task_id).await?;
                    return Err(task.error());
                }
                Status::Active if task.is_hopeless() => {
                    hopeless += 1;
                    if hopeless >= HOPELESS_LOOKS {
                        self.api.cancel(task_id).await?;
                        self.report_moved(task_id).await?;
                        return Err(task.error());
                    }
                }
                Status::Active => hopeless = 0,
            }
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2).min(longest.max(FIRST_POLL));
        }
    }

    /// Reports the items that a task has moved although it failed.
    async fn report_moved(&self, task_id: &str) -> Result<(), StagingError> {
        let moved = self.api.moved(task_id).await?;
        for item in self.batch.items.iter().filter(|item| !item.recursive && moved.contains(&item.remote)) {
            self.conclude(item);
        }
        Ok(())
    }

    /// Reports an item that the service calls moved. Inwards it must be there, too: a collection that shows another
    /// folder than the settings say would go unnoticed else.
    fn conclude(&self, item: &Item) {
        match size(&item.local) {
            Ok(bytes) => self.run.arrived(item.id, bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let message = format!(
                    "Globus moved {}, and it is not here; is transfers.globus.collection_root what the Site's collection shows as /?",
                    item.remote
                );
                self.run.failed(item.id, StagingError::new(Cause::Settings, message));
            }
            Err(error) => self.run.failed(item.id, StagingError::reading(&item.remote, &error)),
        }
    }

    fn read_note(&self) -> Option<Note> {
        serde_json::from_slice(&fs::read(&self.note).ok()?).ok()
    }

    fn write_note(&self, note: &Note) -> Result<(), StagingError> {
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.batch.scratch)?;
            serde_json::to_writer(&mut file, note)?;
            file.as_file().sync_all()?;
            file.persist(&self.note).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|error| StagingError::writing(self.note.display(), &error))
    }
}

/// The transfer document of a batch, but for its submission's id.
fn document(batch: &Batch, own: &str, collection_root: &Path) -> Result<Value, StagingError> {
    let (source, destination) = match batch.direction {
        Direction::In => (batch.location.host.as_str(), own),
        Direction::Out => (own, batch.location.host.as_str()),
    };
    let items = batch.items.iter().map(|item| {
        let local = own_path(&item.local, collection_root)?;
        let (from, to) = match batch.direction {
            Direction::In => (&item.remote, &local),
            Direction::Out => (&local, &item.remote),
        };
        Ok(json!({
            "DATA_TYPE": "transfer_item", "source_path": from, "destination_path": to, "recursive": item.recursive,
        }))
    });
    Ok(json!({
        "DATA_TYPE": "transfer",
        "label": format!("copal {}", batch.key.chars().filter(|c| c.is_ascii_alphanumeric() || " -_".contains(*c)).take(100).collect::<String>()),
        "source_endpoint": source,
        "destination_endpoint": destination,
        // By checksum, so that what an earlier task moved is not moved again.
        "sync_level": 3,
        "verify_checksum": true,
        "fail_on_quota_errors": true,
        "notify_on_succeeded": false,
        "notify_on_failed": false,
        "notify_on_inactive": false,
        "DATA": items.collect::<Result<Vec<Value>, StagingError>>()?,
    }))
}

/// The path of one of this machine's files at the Site's collection.
fn own_path(path: &Path, collection_root: &Path) -> Result<String, StagingError> {
    let below = path.strip_prefix(collection_root).ok().and_then(Path::to_str).ok_or_else(|| {
        let message = format!(
            "{} is not below transfers.globus.collection_root ({}), which the Site's collection shows as /",
            path.display(),
            collection_root.display()
        );
        StagingError::new(Cause::Settings, message)
    })?;
    Ok(format!("/{below}"))
}

/// The size of a file, or of all that is in a folder.
fn size(path: &Path) -> io::Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_dir() {
        return Ok(meta.len());
    }
    fs::read_dir(path)?.try_fold(0, |sum, entry| Ok(sum + size(&entry?.path())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_the_collections() {
        let path = Path::new("/scratch/ann/site/staging/7");
        assert_eq!(own_path(path, Path::new("/")).unwrap(), "/scratch/ann/site/staging/7");
        assert_eq!(own_path(path, Path::new("/scratch/ann/")).unwrap(), "/site/staging/7");
        assert_eq!(own_path(path, Path::new("/home")).unwrap_err().cause, Cause::Settings);
    }
}
