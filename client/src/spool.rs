//! The spool: reports of a launcher that the service could not take. The launcher writes them to a
//! file in the Site's `spool/`, the agent delivers them and deletes the file.
//!
//! A file is JSON lines: a [`SpoolHeader`], then one [`Updates`] a line, in the order in which they must
//! be sent. Each keeps its batch key, so a line that did reach the service changes nothing when it is sent
//! again: a launcher that lives may deliver the same lines. They must reach the service before the
//! BatchJob is reported finished, since the updates of an ended Session are refused.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use copal_schemas::{BatchJobId, SessionId, SiteId, session::Updates};
use serde::{Deserialize, Serialize};

use crate::site_dir::FileError;

/// What the ends of the files' names are.
const SUFFIX: &str = "jsonl";

/// The first line of a spool file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolHeader {
    /// The Site.
    pub site_id: SiteId,
    /// The Session that held the Jobs.
    pub session_id: SessionId,
    /// The BatchJob that the launcher ran in.
    pub batch_job_id: Option<BatchJobId>,
}

/// A spool file that is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Spool {
    /// Whose reports they are.
    pub header: SpoolHeader,
    /// The reports, to be sent in this order.
    pub batches: Vec<Updates>,
}

/// A spool file that is being written, line by line, so that a launcher that is killed leaves what it knew.
#[derive(Debug)]
pub struct SpoolWriter {
    path: PathBuf,
    file: File,
}

impl SpoolWriter {
    /// Starts the file of this Session in a Site's `spool/`, which is made where it is missing.
    /// A file that is there already is continued.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn open(folder: &Path, header: &SpoolHeader) -> Result<Self, FileError> {
        let path = folder.join(format!("session-{}.{SUFFIX}", header.session_id));
        let failed = |source| FileError::Write { path: path.clone(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            write_line(&mut file, header).map_err(failed)?;
        }
        Ok(Self { path, file })
    }

    /// Adds one report and makes sure that it is on the disk.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn add(&mut self, batch: &Updates) -> Result<(), FileError> {
        write_line(&mut self.file, batch)
            .and_then(|()| self.file.sync_data())
            .map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the file, because everything in it is delivered.
    ///
    /// # Errors
    /// When it can't be deleted; that the agent was quicker is no error.
    pub fn discard(self) -> Result<(), FileError> {
        remove(&self.path)
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// The spool files of a Site, oldest Session first.
///
/// # Errors
/// When the folder can't be read; a folder that is not there holds none.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = |source| FileError::Read { path: folder.into(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
    paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    Ok(paths)
}

/// Reads one spool file. A last line that is cut short, as a killed launcher leaves it, is left out; where that is the
/// first line, or a launcher has only begun the file, there is nothing in it yet.
///
/// # Errors
/// When it can't be read, or a line before the last is not understood.
pub fn read(path: &Path) -> Result<Option<Spool>, FileError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    let mut lines = BufReader::new(File::open(path).map_err(failed)?).split(b'\n').enumerate().peekable();
    let wrong = |line: usize, error: serde_json::Error| FileError::Content {
        path: path.into(),
        message: format!("line {}: {error}", line + 1),
    };
    let first = lines.next().map(|(_, line)| line).transpose().map_err(failed)?.unwrap_or_default();
    let header = match serde_json::from_slice(&first) {
        Ok(header) => header,
        Err(_) if lines.peek().is_none() => return Ok(None),
        Err(error) => return Err(wrong(0, error)),
    };
    let mut batches = Vec::new();
    while let Some((number, line)) = lines.next() {
        let line = line.map_err(failed)?;
        match serde_json::from_slice(&line) {
            Ok(batch) => batches.push(batch),
            Err(_) if lines.peek().is_none() => break,
            Err(error) => return Err(wrong(number, error)),
        }
    }
    Ok(Some(Spool { header, batches }))
}

/// Deletes a spool file that is delivered; one that is gone already is no error.
///
/// # Errors
/// When it can't be deleted.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FileError::Write { path: path.into(), source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{JobId, JobState, JsonObject, session::JobUpdate};
    use uuid::Uuid;

    use super::*;

    fn batch(job: i64) -> Updates {
        let update = JobUpdate {
            job_id: JobId(job),
            state: JobState::RunDone,
            state_timestamp: copal_schemas::time::parse("2026-11-30T10:06:02.5"),
            state_data: JsonObject::new(),
            return_code: Some(0),
            data: None,
            usage: None,
        };
        Updates { batch_key: Uuid::new_v4(), updates: vec![update], release: Vec::new() }
    }

    #[test]
    fn what_is_written_is_read_also_after_a_cut() {
        let folder = tempfile::tempdir().unwrap();
        let header = SpoolHeader { site_id: SiteId(1), session_id: SessionId(7), batch_job_id: Some(BatchJobId(2)) };
        let batches = [batch(1), batch(2)];
        let mut writer = SpoolWriter::open(folder.path(), &header).unwrap();
        writer.add(&batches[0]).unwrap();
        drop(writer);
        let mut writer = SpoolWriter::open(folder.path(), &header).unwrap();
        writer.add(&batches[1]).unwrap();
        let files = list(folder.path()).unwrap();
        assert_eq!(files, [writer.path()]);
        assert_eq!(read(&files[0]).unwrap(), Some(Spool { header, batches: batches.to_vec() }));

        let length = fs::metadata(&files[0]).unwrap().len();
        let cut = |length| OpenOptions::new().write(true).open(&files[0]).unwrap().set_len(length).unwrap();
        cut(length - 9);
        assert_eq!(read(&files[0]).unwrap().unwrap().batches, batches[..1]);
        // A launcher that has just made the file still writes to it.
        for length in [9, 0] {
            cut(length);
            assert_eq!(read(&files[0]).unwrap(), None);
        }
        fs::write(&files[0], "no header\n{}\n").unwrap();
        assert!(read(&files[0]).is_err());

        writer.discard().unwrap();
        remove(&files[0]).unwrap();
        assert!(list(folder.path()).unwrap().is_empty());
        assert!(list(&folder.path().join("none")).unwrap().is_empty());
    }
}
