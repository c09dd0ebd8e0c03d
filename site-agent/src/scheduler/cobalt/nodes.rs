//! Reading Cobalt's `nodelist`. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::site::{BackfillWindow, NodeStates};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    queues: Vec<&'a str>,
    status: &'a str,
    /// For how many minutes Cobalt leaves it free.
    backfill_min: i32,
}

/// Reads `nodelist`: a line of names (`Node_id Name Queues Status … Backfill` on a Cray, `Host Queue State Backfill` on a
/// cluster), a line of `=`, a node a line. `None` for another text.
#[must_use]
pub fn nodes(text: &str) -> Option<Vec<Node<'_>>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let headings: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = |names: &[&str]| headings.iter().position(|heading| names.contains(heading));
    let (queues, status) = (column(&["Queues", "Queue"])?, column(&["Status", "State"])?);
    let backfill = column(&["Backfill"]);
    let rows = lines.filter(|line| !line.starts_with('=')).map(|line| line.split_whitespace().collect::<Vec<&str>>());
    // Of a node that is in no queue the state would be taken for one.
    let nodes = rows.filter(|fields| fields.len() == headings.len()).filter_map(|fields| {
        Some(Node {
            queues: fields.get(queues)?.split(':').collect(),
            status: fields.get(status)?,
            backfill_min: backfill.and_then(|place| minutes(fields.get(place)?)).unwrap_or(0),
        })
    });
    Some(nodes.collect())
}

impl Node<'_> {
    /// Whether jobs of the queue may get it.
    pub(super) fn serves(&self, queue: &str) -> bool {
        self.queues.contains(&queue)
    }
}

/// How many nodes of each queue are idle, allocated and down.
#[must_use]
pub fn states(nodes: &[Node<'_>]) -> BTreeMap<String, NodeStates> {
    let mut all: BTreeMap<String, NodeStates> = BTreeMap::new();
    for node in nodes {
        for queue in &node.queues {
            let states = all.entry((*queue).into()).or_default();
            let kind = match node.status {
                "idle" => &mut states.idle,
                "busy" | "allocated" | "cleanup" | "cleanup-pending" | "starting" => &mut states.allocated,
                _ => &mut states.down,
            };
            *kind = kind.saturating_add(1);
        }
    }
    all
}

/// Idle nodes of each queue by how long they stay free: of those that stay free for longer, a shorter window has them,
/// too.
#[must_use]
pub fn windows(nodes: &[Node<'_>]) -> BTreeMap<String, Vec<BackfillWindow>> {
    let mut free: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for node in nodes {
        for queue in &node.queues {
            let times = free.entry(queue).or_default();
            if node.status == "idle" && node.backfill_min > 0 {
                times.push(node.backfill_min);
            }
        }
    }
    let windows = |mut times: Vec<i32>| {
        times.sort_unstable_by(|a, b| b.cmp(a));
        let ends = (0..times.len()).filter(|place| times.get(place + 1) != Some(&times[*place]));
        ends.map(|place| BackfillWindow {
            num_nodes: i32::try_from(place + 1).unwrap_or(i32::MAX),
            wall_time_min: times[place],
        })
        .collect()
    };
    free.into_iter().map(|(queue, times)| (queue.to_owned(), windows(times))).collect()
}

/// `HH:MM:SS` in whole minutes.
pub(super) fn minutes(text: &str) -> Option<i32> {
    let parts = text.split(':').map(|part| part.parse::<i32>().ok()).collect::<Option<Vec<i32>>>()?;
    let [hours, minutes, _] = parts[..] else { return None };
    hours.checked_mul(60)?.checked_add(minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODELIST: &str = "\
Node_id  Name         Queues            Status   MCDRAM  NUMA  Backfill
==========================================================================
20       c0-0c0s5n0   default           idle     cache   quad  4:29:12
21       c0-0c0s5n1   default:backfill  idle     cache   quad  4:29:12
22       c0-0c0s5n2   default           idle     flat    quad  0:59:00
23       c0-0c0s5n3   default           busy     cache   quad  -
24       c0-0c0s6n0   default           down     cache   quad  -
25       c0-0c0s6n1   default           a-word   cache   quad  4:29:12
";

    #[test]
    fn every_node_is_idle_allocated_or_down() {
        let states = states(&nodes(NODELIST).unwrap());
        assert_eq!(states["default"], NodeStates { idle: 3, allocated: 1, down: 2 });
        assert_eq!(states["backfill"], NodeStates { idle: 1, allocated: 0, down: 0 });
        assert_eq!(nodes("Failed to connect to system component\n"), None);
    }

    #[test]
    fn a_cluster_lists_its_nodes_under_other_names() {
        let text = "Host      Queue           State      Backfill\n============================================\n\
                    gpu01     single:default  idle       01:30:00\ngpu02     default         allocated  -\n\
                    gpu03                     idle       -\n";
        let nodes = nodes(text).unwrap();
        assert_eq!(states(&nodes)["default"], NodeStates { idle: 1, allocated: 1, down: 0 });
        assert_eq!(windows(&nodes)["single"], [BackfillWindow { num_nodes: 1, wall_time_min: 90 }]);
        assert_eq!(nodes.len(), 2);
    }

    #[test]
    fn idle_nodes_are_windows_for_as_long_as_they_stay_free() {
        let windows = windows(&nodes(NODELIST).unwrap());
        let window = |num_nodes, wall_time_min| BackfillWindow { num_nodes, wall_time_min };
        assert_eq!(windows["default"], [window(2, 269), window(3, 59)]);
        assert_eq!(windows["backfill"], [window(1, 269)]);
    }
}
