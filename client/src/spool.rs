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

use copal_schemas::{
    BatchJobId, JsonObject, SessionId, SiteId,
    session::{JobUpdate, Updates},
};
use serde::{Deserialize, Serialize};

use crate::{ClientError, site_dir::FileError};

/// What the files' names begin with; the Session's id comes next.
const PREFIX: &str = "session-";
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
    /// Up to here it is whole lines. What a full disk cut short comes after it.
    length: u64,
}

impl SpoolWriter {
    /// Starts the file of this Session in a Site's `spool/`, which is made where it is missing.
    /// A file that is there already is continued, after its last whole line.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn open(folder: &Path, header: &SpoolHeader) -> Result<Self, FileError> {
        let path = folder.join(format!("{PREFIX}{}.{SUFFIX}", header.session_id));
        let failed = |source| FileError::Write { path: path.clone(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        let length = end_of_whole_lines(&file).map_err(failed)?;
        let mut writer = Self { path: path.clone(), file, length };
        if length == 0 {
            writer.write_line(header).map_err(failed)?;
        }
        Ok(writer)
    }

    /// Adds one report and makes sure that it is on the disk.
    ///
    /// # Errors
    /// When it can't be written. It counts as not in the file then, and may be added again, with its batch key: what
    /// there is of it, be it all, is cut off first. Until then a reader may find it.
    pub fn add(&mut self, batch: &Updates) -> Result<(), FileError> {
        self.write_line(batch).map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    fn write_line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        // A line that was cut short would spoil the next one.
        self.file.set_len(self.length)?;
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.length += line.len() as u64;
        Ok(())
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

/// How many bytes of a file are whole lines.
fn end_of_whole_lines(file: &File) -> io::Result<u64> {
    let (mut reader, mut line, mut length) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(length);
        }
        length += line.len() as u64;
    }
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

/// The Session whose reports a file holds, by its name; `None` when no launcher gave it that name.
#[must_use]
pub fn session_of(path: &Path) -> Option<SessionId> {
    path.file_stem()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()
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

/// A report without all that the service could mind, for one that it does not take as it is.
#[must_use]
pub fn bare(update: &JobUpdate, why: &ClientError) -> JobUpdate {
    let mut state_data = JsonObject::new();
    state_data.insert("message".into(), format!("the service does not take the rest of this report: {why}").into());
    JobUpdate { state_data, data: None, usage: None, ..update.clone() }
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
    use copal_schemas::{JobId, JobState};
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
        assert_eq!(session_of(&files[0]), Some(header.session_id));
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

    /// What a full disk does: a write is cut short, and later ones find room again.
    #[test]
    fn pitfall_075_a_line_that_a_full_disk_cut_short_spoils_no_other() {
        use nix::sys::{
            resource::{Resource, getrlimit, setrlimit},
            signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        };
        const ROOM: u64 = 8 << 20;
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: ignoring a signal runs nothing.
        #[expect(unsafe_code, reason = "a signal can't be ignored safely")]
        unsafe { sigaction(Signal::SIGXFSZ, &ignore) }.unwrap();
        let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let header = SpoolHeader { site_id: SiteId(1), session_id: SessionId(7), batch_job_id: None };
        let mut large = batch(2);
        large.updates[0].state_data.insert("error_tail".into(), "x".repeat(ROOM as usize).into());
        let batches = [batch(1), large, batch(3)];
        let mut writer = SpoolWriter::open(folder.path(), &header).unwrap();
        writer.add(&batches[0]).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, ROOM, most).unwrap();
        let cut = writer.add(&batches[1]);
        setrlimit(Resource::RLIMIT_FSIZE, most, most).unwrap();
        assert!(cut.is_err());
        assert_eq!(read(writer.path()).unwrap().unwrap().batches, batches[..1]);
        // There is room again.
        writer.add(&batches[1]).unwrap();
        writer.add(&batches[2]).unwrap();
        assert_eq!(read(writer.path()).unwrap().unwrap().batches, batches);

        // One that continues the file takes away what a cut has left of a line, be it the first.
        let path = writer.path().to_owned();
        let text = fs::read(&path).unwrap();
        let first = text.iter().position(|byte| *byte == b'\n').unwrap();
        for cut in [first + 20, first - 3] {
            fs::write(&path, &text[..cut]).unwrap();
            SpoolWriter::open(folder.path(), &header).unwrap().add(&batches[2]).unwrap();
            assert_eq!(read(&path).unwrap(), Some(Spool { header, batches: batches[2..].to_vec() }));
        }
    }
}
