//! Nodes that are set aside for a while, with the reason: on which Jobs or launchers fail at once, while
//! the same goes well elsewhere. The rule is pure; what was set aside stands in `qsubmit/nodes.json`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use chrono::TimeDelta;
use copal_schemas::{AppId, Timestamp, site::NodeAside};

use crate::records::{self, RecordError};

/// What ends sooner than this after its start, and badly, failed at once.
pub const AT_ONCE: TimeDelta = TimeDelta::seconds(10);
/// Only what happened within this time counts.
pub const WINDOW: TimeDelta = TimeDelta::hours(1);
/// For how long a node is set aside.
const ASIDE_FOR: TimeDelta = TimeDelta::minutes(30);

/// What was tried on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A Job of this App.
    App(AppId),
    /// A launcher.
    Launcher,
}

impl Subject {
    /// So many failures in a row, one after the other, set a node aside.
    fn most(self) -> usize {
        match self {
            Self::App(_) => 3,
            Self::Launcher => 2,
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::App(_) => "Jobs",
            Self::Launcher => "launchers",
        }
    }
}

/// Something that was tried on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// What.
    pub subject: Subject,
    /// Whose run it was: `Job 7`, `BatchJob 3`.
    pub who: String,
    /// The node.
    pub node: String,
    /// When it ended.
    pub time: Timestamp,
    /// How it failed at once; `None` when it went well.
    pub failure: Option<String>,
}

/// Which nodes are to be set aside now. `known` are those that were before; what led to that does not count again.
#[must_use]
pub fn judge(trials: &[Trial], known: &[NodeAside], now: Timestamp) -> Vec<NodeAside> {
    let counts = |trial: &&Trial| {
        let forgiven = known.iter().any(|aside| aside.node == trial.node && trial.time <= aside.until);
        now - trial.time <= WINDOW && !forgiven
    };
    let mut by_place: BTreeMap<(&str, Subject), Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(counts) {
        by_place.entry((&trial.node, trial.subject)).or_default().push(trial);
    }
    // Whatever fails on two nodes is not one node's fault.
    let fails_elsewhere = |bad: &Trial| {
        trials.iter().any(|other| other.who == bad.who && other.node != bad.node && other.failure.is_some())
    };
    let goes_well_elsewhere = |subject: Subject, node: &str| {
        trials.iter().any(|other| {
            other.subject == subject && other.node != node && other.failure.is_none() && now - other.time <= WINDOW
        })
    };
    let mut aside: Vec<NodeAside> = Vec::new();
    for ((node, subject), mut tried) in by_place {
        tried.sort_by_key(|trial| trial.time);
        let last_good = tried.iter().rposition(|trial| trial.failure.is_none()).map_or(0, |place| place + 1);
        let streak: Vec<&Trial> = tried[last_good..].iter().copied().filter(|bad| !fails_elsewhere(bad)).collect();
        let whose: BTreeSet<&str> = streak.iter().map(|trial| trial.who.as_str()).collect();
        let Some(first) = streak.first().filter(|_| whose.len() >= subject.most()) else { continue };
        if !goes_well_elsewhere(subject, node) || aside.iter().any(|other| other.node == node) {
            continue;
        }
        let reason = format!(
            "{} {} in a row failed at once there and not elsewhere; first {} at {} UTC: {}",
            whose.len(),
            subject.plural(),
            first.who,
            first.time.format("%H:%M"),
            first.failure.as_deref().unwrap_or_default()
        );
        aside.push(NodeAside { node: node.into(), until: now + ASIDE_FOR, reason });
    }
    aside
}

/// The file of what was set aside.
#[must_use]
pub fn path(qsubmit: &Path) -> PathBuf {
    qsubmit.join("nodes.json")
}

/// What was set aside, within the time that still matters.
///
/// # Errors
/// When the file can't be read.
pub fn read(qsubmit: &Path, now: Timestamp) -> Result<Vec<NodeAside>, RecordError> {
    let mut known: Vec<NodeAside> = records::read(&path(qsubmit))?.unwrap_or_default();
    known.retain(|aside| now - aside.until <= WINDOW);
    Ok(known)
}

/// What is set aside now.
///
/// # Errors
/// When the file can't be read.
pub fn current(qsubmit: &Path, now: Timestamp) -> Result<Vec<NodeAside>, RecordError> {
    let mut known = read(qsubmit, now)?;
    known.retain(|aside| aside.until > now);
    Ok(known)
}

/// The names of nodes that no BatchJob should get now.
///
/// # Errors
/// When the file can't be read.
pub fn avoided(qsubmit: &Path, now: Timestamp) -> Result<Vec<String>, RecordError> {
    let names = current(qsubmit, now)?.into_iter().map(|aside| aside.node);
    Ok(names.filter(|name| is_name(name)).collect())
}

/// Whether a text can be a node's name. Names come from reports, and what is none must not reach a command line.
fn is_name(text: &str) -> bool {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    !text.is_empty() && text.len() <= 253 && text.chars().all(letters) && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        chrono::DateTime::from_timestamp(1_796_300_000, 0).unwrap()
    }

    const APP: Subject = Subject::App(AppId(1));

    fn trial(subject: Subject, who: &str, node: &str, minutes_ago: i64, failure: Option<&str>) -> Trial {
        let time = now() - TimeDelta::minutes(minutes_ago);
        Trial { subject, who: who.into(), node: node.into(), time, failure: failure.map(Into::into) }
    }

    fn three_on_n7() -> Vec<Trial> {
        vec![
            trial(APP, "Job 1", "n7", 5, Some("exit code 1: no GPU")),
            trial(APP, "Job 2", "n7", 4, Some("exit code 1: bus error")),
            trial(APP, "Job 3", "n7", 3, Some("exit code 1: bus error")),
            trial(APP, "Job 4", "n1", 4, None),
        ]
    }

    fn names(trials: &[Trial], known: &[NodeAside]) -> Vec<String> {
        judge(trials, known, now()).into_iter().map(|aside| aside.node).collect()
    }

    #[test]
    fn pitfall_063_070_a_node_on_which_everything_fails_is_set_aside_with_the_first_cause() {
        let aside = judge(&three_on_n7(), &[], now());
        assert_eq!(aside.len(), 1);
        assert_eq!((aside[0].node.as_str(), aside[0].until), ("n7", now() + ASIDE_FOR));
        let first = (now() - TimeDelta::minutes(5)).format("%H:%M").to_string();
        let reason = "3 Jobs in a row failed at once there and not elsewhere; first Job 1 at ";
        assert_eq!(aside[0].reason, format!("{reason}{first} UTC: exit code 1: no GPU"));
    }

    #[test]
    fn what_is_not_the_nodes_fault_sets_none_aside() {
        let with = |more: Trial| {
            let mut trials = three_on_n7();
            trials.push(more);
            names(&trials, &[])
        };
        // It went well there since.
        assert!(with(trial(APP, "Job 5", "n7", 1, None)).is_empty());
        // One of the three fails on any node.
        assert!(with(trial(APP, "Job 1", "n2", 1, Some("exit code 1"))).is_empty());
        // It goes well nowhere, or only that of another kind does.
        assert!(names(&three_on_n7()[..3], &[]).is_empty());
        let mut other = three_on_n7();
        other[3].subject = Subject::App(AppId(2));
        assert!(names(&other, &[]).is_empty());
        // Two are a coincidence, and one that was tried three times is its own fault.
        assert!(names(&three_on_n7()[1..], &[]).is_empty());
        let mut one = three_on_n7();
        one[..3].iter_mut().for_each(|trial| trial.who = "Job 1".into());
        assert!(names(&one, &[]).is_empty());
        // It was long ago.
        let mut old = three_on_n7();
        old[0].time = now() - TimeDelta::minutes(61);
        assert!(names(&old, &[]).is_empty());
    }

    #[test]
    fn launchers_count_for_themselves() {
        let trials = [
            trial(Subject::Launcher, "BatchJob 1", "n7", 9, Some("can't find the nodes")),
            trial(Subject::Launcher, "BatchJob 2", "n7", 5, Some("can't find the nodes")),
            trial(Subject::Launcher, "BatchJob 3", "n2", 4, None),
        ];
        assert_eq!(names(&trials, &[]), ["n7"]);
        assert!(names(&trials[1..], &[]).is_empty());
    }

    #[test]
    fn pitfall_070_it_is_released_after_a_while_and_gets_another_chance() {
        let folder = tempfile::tempdir().unwrap();
        let aside = judge(&three_on_n7(), &[], now());
        records::write(&path(folder.path()), &aside, false).unwrap();
        let avoided = |minutes| avoided(folder.path(), now() + TimeDelta::minutes(minutes)).unwrap();
        assert_eq!(avoided(29), ["n7"]);
        assert!(avoided(31).is_empty());
        let names = ["n7' || rm -rf /", "a\nb", "-x", "", "n[1-4]", "n-7.example_1"];
        let odd: Vec<NodeAside> =
            names.iter().map(|node| NodeAside { node: (*node).into(), ..aside[0].clone() }).collect();
        let other = tempfile::tempdir().unwrap();
        records::write(&path(other.path()), &odd, false).unwrap();
        assert_eq!(super::avoided(other.path(), now()).unwrap(), ["n-7.example_1"]);
        // What led to it does not count again; three new failures do.
        let later = now() + TimeDelta::minutes(31);
        let known = read(folder.path(), later).unwrap();
        assert!(judge(&three_on_n7(), &known, later).is_empty());
        let mut again = three_on_n7();
        again.iter_mut().for_each(|trial| trial.time = later);
        assert_eq!(judge(&again, &known, later).len(), 1);
        assert!(read(folder.path(), now() + TimeDelta::hours(2)).unwrap().is_empty());
    }
}
