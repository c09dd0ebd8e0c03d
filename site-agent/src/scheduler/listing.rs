//! The jobs in an answer of a scheduler, and which of them are the agent's. A record that can't be read
//! hides no other, and where one could not be read no absence means anything.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use copal_schemas::batch_job::SchedulerId;

use super::{Status, Tracked};

/// One job in an answer.
pub trait Record {
    /// Its id.
    fn id(&self) -> &str;
    /// Its name.
    fn name(&self) -> &str;
    /// What the record says about it.
    fn status(&self) -> Status;
}

/// The jobs in an answer, the newest last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<R> {
    /// Those that could be read.
    pub rows: Vec<R>,
    /// How many could not.
    pub skipped: usize,
}

impl<R> Default for Listing<R> {
    fn default() -> Self {
        Self { rows: Vec::new(), skipped: 0 }
    }
}

impl<R: Record> Listing<R> {
    /// Reads records; `None` stands for one that can't be read.
    pub fn of(records: impl IntoIterator<Item = Option<R>>) -> Self {
        let mut listing = Self::default();
        for record in records {
            match record {
                Some(row) => listing.rows.push(row),
                None => listing.skipped += 1,
            }
        }
        if listing.skipped > 0 {
            say_once(&format!("{} records of the scheduler's answer can't be read", listing.skipped));
        }
        listing
    }

    /// Adds another part of the same answer.
    pub fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.skipped += other.skipped;
    }

    /// The job of that name; of several, the last.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<SchedulerId> {
        self.rows.iter().rfind(|row| row.name() == key).map(|row| SchedulerId(row.id().into()))
    }

    /// What there is to say about a job. Names must be wholly alike; of several with one name that counts
    /// which has the id, else the last.
    #[must_use]
    pub fn status(&self, job: &Tracked) -> Status {
        let named = || self.rows.iter().filter(|row| row.name() == job.key);
        match named().find(|row| same_id(row.id(), &job.id.0)).or_else(|| named().last()) {
            Some(row) => row.status(),
            None if self.skipped > 0 => Status::Unknown,
            None => Status::Absent,
        }
    }

    /// What there is to say about each of these jobs, in their order.
    #[must_use]
    pub fn statuses(&self, jobs: &[Tracked]) -> Vec<Status> {
        jobs.iter().map(|job| self.status(job)).collect()
    }
}

/// Whether two ids mean the same job: `123.host-pbs*` is what a narrow column leaves of `123.host-pbs-01.site`,
/// `41;cluster` and `41.batch` are job 41. Elements of an array (`41_7`, `41[7].srv`) and components of a heterogeneous
/// job (`93+1`) are jobs of their own.
#[must_use]
pub fn same_id(a: &str, b: &str) -> bool {
    significant(a) == significant(b)
}

/// The part of an id that tells jobs apart.
fn significant(id: &str) -> String {
    let id = id.trim().trim_end_matches('*');
    let end = id.find(['.', ';']).unwrap_or(id.len());
    // Flux writes `ƒ` or `f`.
    id[..end].trim_end_matches("[]").replacen('ƒ', "f", 1)
}

/// Logs a warning the first time that it is given in the agent's life: what is wrong with an answer is wrong with
/// the next one, too.
pub fn say_once(warning: &str) {
    /// So many different ones are remembered.
    const MOST: usize = 200;
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < MOST && said.insert(warning.to_owned()) {
        tracing::warn!("{warning}");
    }
}

/// Says once that a state's word is not known: alive is the safe reading of it.
pub fn unknown_state(scheduler: &str, word: &str) {
    say_once(&format!("{scheduler}'s state {word:?} is not known; such a job counts as running"));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row(&'static str, &'static str);

    impl Record for Row {
        fn id(&self) -> &str {
            self.0
        }
        fn name(&self) -> &str {
            self.1
        }
        fn status(&self) -> Status {
            Status::Queued { reason: Some(self.0.into()) }
        }
    }

    fn job(key: &str, id: &str) -> Tracked {
        Tracked { key: key.into(), id: SchedulerId(id.into()) }
    }

    #[test]
    fn pitfall_009_012_024_what_cant_be_read_hides_no_other_and_makes_none_absent() {
        let listing = Listing::of([Some(Row("41", "cp1")), None, Some(Row("43", "cp3"))]);
        let statuses = listing.statuses(&[job("cp1", "41"), job("cp2", "42"), job("cp3", "43")]);
        assert!(
            matches!(statuses[..], [Status::Queued { .. }, Status::Unknown, Status::Queued { .. }]),
            "{statuses:?}"
        );
        let whole = Listing::of([Some(Row("41", "cp1"))]);
        assert_eq!(whole.status(&job("cp2", "42")), Status::Absent);
    }

    #[test]
    fn pitfall_015_a_name_that_contains_another_is_another() {
        let listing = Listing::of([Some(Row("40", "cp1annual")), Some(Row("41", "xcp1")), Some(Row("42", "CP1"))]);
        assert_eq!((listing.find("cp1"), listing.status(&job("cp1", "40"))), (None, Status::Absent));
    }

    #[test]
    fn of_two_with_one_name_the_one_with_the_id_counts() {
        let listing = Listing::of([Some(Row("41.srv", "cp1")), Some(Row("42.srv", "cp1"))]);
        assert_eq!(listing.status(&job("cp1", "41.srv")), Status::Queued { reason: Some("41.srv".into()) });
        assert_eq!(listing.status(&job("cp1", "")), Status::Queued { reason: Some("42.srv".into()) });
        assert_eq!(listing.find("cp1"), Some(SchedulerId("42.srv".into())));
    }

    #[test]
    fn pitfall_010_019_020_ids_of_one_job_are_alike_in_all_their_forms() {
        for (a, b) in [
            ("123.host-pbs*", "123.host-pbs-01.site"),
            ("41", "41;gpuc"),
            ("41.batch", "41"),
            ("41.extern", "41.0"),
            ("41.srv", "41"),
            ("41[].srv", "41[]"),
            ("41[7].srv", "41[7]"),
            ("ƒ2SEG", "f2SEG"),
            (" 41 ", "41"),
        ] {
            assert!(same_id(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("41", "411"),
            ("41_7", "41_8"),
            ("41_7", "41"),
            ("93+0", "93+1"),
            ("41[7].srv", "41[8].srv"),
            ("f2SEG", "f2SEH"),
        ] {
            assert!(!same_id(a, b), "{a} {b}");
        }
    }
}
