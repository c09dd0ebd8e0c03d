//! Reading Cobalt's `qstat -Q`. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::settings::QueueLimits;

use super::nodes::{Node, minutes};
use crate::scheduler::inventory::{MANY, UNLIMITED_MIN};

/// A queue that takes and starts jobs of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    name: String,
    max_minutes: i32,
    /// `None` for as many as there are.
    max_nodes: Option<i32>,
    max_queued: i32,
}

/// Reads `qstat -Q`: a line of names (`Name Users … MaxTime … State`), a line of `=`, a queue a line, with `None` for what
/// has no limit. Without a known `user` every queue counts, else those that are closed to others only.
#[must_use]
pub fn queues(text: &str, user: Option<&str>) -> Vec<Queue> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let headings: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let queue = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let field = |name: &str| fields.get(headings.iter().position(|heading| *heading == name)?).copied();
        // A value with a blank or none at all would put each that follows under another heading.
        if fields.len() != headings.len() || field("State")? != "running" {
            return None;
        }
        let is_open = |users: &str| {
            ["None", "*"].contains(&users) || user.is_none_or(|user| users.split(':').any(|name| name == user))
        };
        let number = |name: &str| field(name)?.parse::<i32>().ok().filter(|limit| *limit >= 0);
        field("Users").is_none_or(is_open).then(|| Queue {
            name: field("Name").unwrap_or_default().to_owned(),
            max_minutes: field("MaxTime").and_then(minutes).unwrap_or(UNLIMITED_MIN),
            // What all jobs of the queue, or of the user in it, may have at a time.
            max_nodes: [number("TotalNodes"), number("MaxUserNodes")].into_iter().flatten().min(),
            max_queued: number("MaxQueued").map_or(MANY, |limit| limit.min(MANY)),
        })
    };
    lines.filter_map(queue).filter(|queue| !queue.name.is_empty()).collect()
}

/// The limits of each queue, given all nodes.
#[must_use]
pub fn limits(queues: &[Queue], nodes: &[Node<'_>]) -> BTreeMap<String, QueueLimits> {
    let limits = |queue: &Queue| {
        let own = nodes.iter().filter(|node| node.serves(&queue.name)).count();
        // A queue that passes its jobs on has no nodes of its own.
        let all = i32::try_from(if own == 0 { nodes.len() } else { own }).unwrap_or(i32::MAX);
        QueueLimits {
            max_nodes: queue.max_nodes.unwrap_or(all).min(all).max(1),
            max_walltime: queue.max_minutes,
            max_queued_jobs: queue.max_queued,
        }
    };
    queues.iter().map(|queue| (queue.name.clone(), limits(queue))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::cobalt::nodes;

    // In the form that Cobalt's client prints.
    const QUEUES: &str = "\
Name            Users      Groups  MinTime   MaxTime    MaxRunning  MaxQueued  MaxUserNodes  MaxNodeHours  TotalNodes  State
============================================================================================================================
default         None       None    00:30:00  24:00:00   10          20         None          None          4392        running
debug-cache     *          None    None      01:00:00   1           1          None          None          16          running
R.theirs        mike:john  None    None      None       None        None       None          None          None        running
R.ours          mike:ann   None    None      168:00:00  None        None       2             None          None        running
maintenance     None       None    None      None       None        None       None          None          None        stopped
ended           None       None    None      None       None        None       None          None          None        draining
no room         None       None    None      None       None        None       None          None          None        running
";
    const NODES: &str = "\
Host         Queue                State  Backfill
=================================================
thetagpu01   default:debug-cache  idle   00:30:00
thetagpu02   default:R.ours       idle   -
thetagpu03   default:R.ours       busy   -
thetagpu04   R.ours               down   -
";

    #[test]
    fn queues_that_are_open_to_the_user_are_found_with_their_limits() {
        let nodes = nodes::nodes(NODES).unwrap();
        let found = limits(&queues(QUEUES, Some("ann")), &nodes);
        let limit = |max_nodes, max_walltime, max_queued_jobs| QueueLimits { max_nodes, max_walltime, max_queued_jobs };
        let wanted = [
            ("default".to_owned(), limit(3, 1_440, 20)),
            ("debug-cache".to_owned(), limit(1, 60, 1)),
            ("R.ours".to_owned(), limit(2, 10_080, MANY)),
        ];
        assert_eq!(found, wanted.into());
        let all = limits(&queues(QUEUES, None), &nodes);
        assert_eq!(all["R.theirs"], limit(4, UNLIMITED_MIN, MANY));
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn another_text_has_no_queue() {
        for text in ["", "Failed to connect to queue-manager\n", "Name State\n====\n", "Name Users\ndefault None\n"] {
            assert_eq!(queues(text, None), [], "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_line_that_is_cut_or_broken_hides_no_other(broken in "[^\n]{0,60}", place in 2_usize..8) {
            let known = queues(QUEUES, None);
            let mut lines: Vec<&str> = QUEUES.lines().collect();
            lines.insert(place, &broken);
            let found = queues(&lines.join("\n"), None);
            prop_assert!(known.iter().all(|queue| found.contains(queue)), "{:?}", found);
        }
    }
}
