//! The record that a launcher leaves in the Site's `qsubmit/` when it exits: positive evidence for the
//! agent that the launcher ended, when and why, whatever the scheduler says or forgets.

use std::{
    io,
    path::{Path, PathBuf},
};

use copal_schemas::{BatchJobId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{site_dir::FileError, yaml};

/// Why a launcher exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// There was nothing to run for `idle_ttl_sec`.
    Idle,
    /// Its time was over, or the scheduler's signal said so.
    EndOfTime,
    /// The BatchJob's owner wanted it gone.
    Stopped,
    /// It could not go on; `message` says why.
    Failed,
}

/// How a launcher ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LauncherExit {
    /// Why.
    pub reason: ExitReason,
    /// A sentence about it.
    pub message: String,
    /// When.
    #[serde(with = "copal_schemas::time::aware")]
    pub time: Timestamp,
    /// Runs that it started.
    pub runs: u64,
    /// The machine that it was on, without its domain.
    #[serde(default)]
    pub host: Option<String>,
}

/// The end of the name of every record's file, behind the BatchJob's id.
pub const SUFFIX: &str = ".launcher.json";

/// The record's file.
#[must_use]
pub fn path(qsubmit: &Path, batch_job_id: BatchJobId) -> PathBuf {
    qsubmit.join(format!("{batch_job_id}{SUFFIX}"))
}

impl LauncherExit {
    /// Writes the record in one step.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, qsubmit: &Path, batch_job_id: BatchJobId) -> Result<(), FileError> {
        let path = path(qsubmit, batch_job_id);
        let text = serde_json::to_string(self)
            .map_err(|error| FileError::Content { path: path.clone(), message: error.to_string() })?;
        yaml::write_atomically(&path, &text, 0o644)
    }

    /// Takes away the record of an earlier start, where the scheduler has started the BatchJob once more: it would say
    /// of the launcher that runs now that it has ended. One that is not there is no error.
    ///
    /// # Errors
    /// When it can't be deleted.
    pub fn forget(qsubmit: &Path, batch_job_id: BatchJobId) -> Result<(), FileError> {
        let path = path(qsubmit, batch_job_id);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FileError::Write { path, source }),
            _ => Ok(()),
        }
    }

    /// Reads the record; `None` where there is none (yet), or none that can be read.
    #[must_use]
    pub fn read(qsubmit: &Path, batch_job_id: BatchJobId) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path(qsubmit, batch_job_id)).ok()?).ok()
    }
}
