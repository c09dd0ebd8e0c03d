//! The agent's own memory of submissions, `qsubmit/KEY.submit.json`: an intent is written before the
//! scheduler is asked and its id right after, so that a crash or a lost answer at any point leaves
//! a name to look for instead of a second allocation.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use chrono::Utc;
use copal_schemas::{BatchJobId, Timestamp, batch_job::SchedulerId, site::Site};
use serde::{Deserialize, Serialize};

use crate::records::{self, RecordError};

/// What the agent did about one BatchJob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The BatchJob.
    pub batch_job_id: BatchJobId,
    /// Its key.
    pub key: String,
    /// When the agent was about to submit it.
    #[serde(with = "copal_schemas::time::naive")]
    pub intent: Timestamp,
    /// The scheduler's id, once that is known.
    pub scheduler_id: Option<SchedulerId>,
}

/// The submissions of one Site.
#[derive(Clone, Debug)]
pub struct Ledger {
    folder: PathBuf,
    site_mark: u64,
}

impl Ledger {
    /// The ledger of a Site in its `qsubmit/`.
    #[must_use]
    pub fn new(folder: &Path, site: &Site) -> Self {
        // FNV-1a. The time tells the Site from one with its id at another service.
        let text = format!("{}@{}", site.id, site.creation_date.timestamp_micros());
        let mark = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self { folder: folder.into(), site_mark: mark % 36_u64.pow(5) }
    }

    /// The key of a BatchJob: the name of its job at the scheduler and of its files in `qsubmit/`. The same whenever
    /// it is asked for, another for every BatchJob of every Site. Small letters and digits, a letter first; 15 at
    /// most for the first two billion BatchJobs, which is what PBS takes.
    #[must_use]
    pub fn key(&self, id: BatchJobId) -> String {
        format!("cp{}x{:0>5}", base36(id.0.unsigned_abs()), base36(self.site_mark))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.submit.json"))
    }

    /// What was done about the BatchJob with this key.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn get(&self, key: &str) -> Result<Option<Submission>, RecordError> {
        records::read(&self.path(key))
    }

    /// Writes down that the BatchJob is about to be submitted.
    ///
    /// # Errors
    /// When the file can't be written; then nothing may be submitted.
    pub fn intend(&self, id: BatchJobId) -> Result<Submission, RecordError> {
        let key = self.key(id);
        let submission = Submission { batch_job_id: id, key: key.clone(), intent: Utc::now(), scheduler_id: None };
        records::write(&self.path(&key), &submission, false)?;
        Ok(submission)
    }

    /// Writes down the scheduler's id.
    ///
    /// # Errors
    /// When the file can't be written; the name is looked for then.
    pub fn confirm(&self, submission: &Submission, id: &SchedulerId) -> Result<Submission, RecordError> {
        let submission = Submission { scheduler_id: Some(id.clone()), ..submission.clone() };
        records::write(&self.path(&submission.key), &submission, false)?;
        Ok(submission)
    }

    /// Takes an intent back that came to nothing.
    ///
    /// # Errors
    /// When the file can't be deleted.
    pub fn withdraw(&self, key: &str) -> Result<(), RecordError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordError { path, source }),
            _ => Ok(()),
        }
    }
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        // A digit below 36 is always one.
        digits.push(char::from_digit((number % 36) as u32, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use copal_schemas::{SiteId, site::SiteDetails};

    use super::*;

    pub(crate) fn a_site(id: i64, created: i64) -> Site {
        Site {
            name: "s".into(),
            path: "/s".into(),
            details: SiteDetails::default(),
            id: SiteId(id),
            last_refresh: chrono::DateTime::UNIX_EPOCH,
            creation_date: chrono::DateTime::from_timestamp_micros(created).unwrap(),
        }
    }

    #[test]
    fn keys_suit_every_scheduler_and_are_never_shared() {
        let folder = Path::new("/tmp");
        let ledger = Ledger::new(folder, &a_site(3, 1_700_000_000_000_000));
        for id in [1, 35, 36, 2_000_000_000] {
            let key = ledger.key(BatchJobId(id));
            assert!(key.len() <= 15 && key.starts_with("cp"), "{key}");
            assert!(key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{key}");
            assert_eq!(key, Ledger::new(folder, &a_site(3, 1_700_000_000_000_000)).key(BatchJobId(id)));
            assert_ne!(key, Ledger::new(folder, &a_site(3, 1_700_000_000_000_001)).key(BatchJobId(id)));
            assert_ne!(key, Ledger::new(folder, &a_site(4, 1_700_000_000_000_000)).key(BatchJobId(id)));
        }
        assert_ne!(ledger.key(BatchJobId(1)), ledger.key(BatchJobId(2)));
    }

    #[test]
    fn pitfall_035_an_intent_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Ledger::new(folder.path(), &a_site(3, 0));
        let key = open().key(BatchJobId(7));
        assert_eq!(open().get(&key).unwrap(), None);
        open().intend(BatchJobId(7)).unwrap();
        let submission = open().get(&key).unwrap().unwrap();
        assert_eq!(submission.scheduler_id, None);
        open().confirm(&submission, &SchedulerId("41".into())).unwrap();
        assert_eq!(open().get(&key).unwrap().unwrap().scheduler_id, Some(SchedulerId("41".into())));
        open().withdraw(&key).unwrap();
        open().withdraw(&key).unwrap();
        assert_eq!(open().get(&key).unwrap(), None);
    }
}
