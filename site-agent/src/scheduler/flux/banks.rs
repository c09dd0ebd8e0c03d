//! Reading what flux-accounting prints about a user. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::settings::QueueLimits;
use serde::Deserialize;

use crate::scheduler::inventory::MANY;

/// A bank that pays for the user, with what the user may have at its expense.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Association {
    bank: String,
    /// 0 for one that was taken away.
    #[serde(default = "active")]
    active: i64,
    /// The most jobs that wait or run.
    max_active_jobs: Option<i64>,
    /// The most nodes of all jobs that run.
    max_nodes: Option<i64>,
}

fn active() -> i64 {
    1
}

/// Reads `flux account view-user NAME`: a list of associations in JSON. None in another text, such as the table of releases
/// that print no JSON.
#[must_use]
pub fn associations(text: &str) -> Vec<Association> {
    let records: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    let known = records.into_iter().filter_map(|record| serde_json::from_value::<Association>(record).ok());
    known.filter(|association| association.active != 0).collect()
}

/// The banks, each once.
#[must_use]
pub fn names(associations: &[Association]) -> Vec<String> {
    let mut names: Vec<String> = associations.iter().map(|association| association.bank.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Lowers the limits of queues to what the user may have. Of several banks the most generous counts.
pub fn limit(queues: &mut BTreeMap<String, QueueLimits>, associations: &[Association]) {
    let most = |limit: fn(&Association) -> Option<i64>| {
        let limits = associations.iter().map(|association| limit(association).unwrap_or(i64::MAX));
        i32::try_from(limits.max().unwrap_or(i64::MAX)).unwrap_or(i32::MAX).max(0)
    };
    let (jobs, nodes) = (most(|of| of.max_active_jobs), most(|of| of.max_nodes));
    for limits in queues.values_mut() {
        limits.max_queued_jobs = limits.max_queued_jobs.min(jobs).min(MANY);
        limits.max_nodes = limits.max_nodes.min(nodes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // The fields that its manual names, in the form in which it prints a row of its table.
    const USER: &str = r#"[
  {"creation_time": 1, "active": 1, "username": "ann", "bank": "physics", "default_bank": "physics", "shares": 1,
   "max_running_jobs": 5, "max_active_jobs": 7, "max_nodes": 2147483647, "queues": "", "projects": "*"},
  {"active": 1, "bank": "chemistry", "max_active_jobs": 3, "max_nodes": 16},
  {"active": 0, "bank": "history", "max_active_jobs": 900, "max_nodes": 900},
  {"active": 1, "bank": 7}
]"#;

    fn queues() -> BTreeMap<String, QueueLimits> {
        [("batch".to_owned(), QueueLimits { max_nodes: 90, max_walltime: 60, max_queued_jobs: MANY })].into()
    }

    fn limited(associations: &[Association]) -> (i32, i32) {
        let mut queues = queues();
        limit(&mut queues, associations);
        (queues["batch"].max_queued_jobs, queues["batch"].max_nodes)
    }

    #[test]
    fn banks_that_pay_for_the_user_are_found_with_their_limits() {
        let associations = associations(USER);
        assert_eq!(names(&associations), ["chemistry", "physics"]);
        assert_eq!(limited(&associations), (7, 90));
        assert_eq!(limited(&associations[1..]), (3, 16));
        assert_eq!(limited(&[]), (MANY, 90));
        let open = Association { max_active_jobs: None, max_nodes: None, ..associations[0].clone() };
        assert_eq!(limited(&[open]), (MANY, 90));
    }

    #[test]
    fn another_text_has_no_bank() {
        for text in ["", "{}", "[7]", "username | bank\nann | physics\n", "[{\"bank\": \"cut"] {
            assert_eq!(associations(text), [], "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_printed_limits_stay_limits(jobs in any::<i64>(), nodes in any::<i64>(), text in ".{0,40}") {
            prop_assert!(associations(&text).is_empty());
            let record = format!(r#"[{{"bank": "b", "max_active_jobs": {jobs}, "max_nodes": {nodes}}}]"#);
            let (jobs, nodes) = limited(&associations(&record));
            prop_assert!((0..=MANY).contains(&jobs) && (0..=90).contains(&nodes));
        }
    }
}
