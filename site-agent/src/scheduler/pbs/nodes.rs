//! Reading what PBS prints about queues and nodes. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::{
    resources::NodeShape,
    settings::QueueLimits,
    site::{BackfillWindow, NodeStates},
};

use super::parse::blocks;
use crate::scheduler::inventory::{MANY, UNLIMITED_MIN};

fn nodes(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    blocks(text, |line| (!line.starts_with(char::is_whitespace) && !line.is_empty()).then(|| line.trim()))
}

/// How many nodes there are, by `pbsnodes -a`.
#[must_use]
pub fn count(text: &str) -> i32 {
    i32::try_from(nodes(text).len()).unwrap_or(i32::MAX)
}

/// A virtual node: a machine, or one of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualNode {
    /// The machine.
    host: String,
    state: State,
}

/// What a virtual node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no job and could take one.
    Idle,
    /// It has one.
    Allocated,
    /// It takes none.
    Down,
}

/// Reads `pbsnodes -a -v`, which tells of each virtual node by itself.
#[must_use]
pub fn virtual_nodes(text: &str) -> Vec<VirtualNode> {
    let node = |(name, fields): (String, BTreeMap<String, String>)| {
        // Several words may come together: `offline,job-busy`, `down,offline`.
        let state = fields.get("state").map_or("", String::as_str);
        let has = |words: &[&str]| state.split(',').any(|word| words.contains(&word.trim()));
        let with_jobs = fields.get("jobs").is_some_and(|jobs| !jobs.is_empty());
        let state = match () {
            () if has(&[
                "down",
                "offline",
                "stale",
                "state-unknown",
                "unresolvable",
                "maintenance",
                "sleep",
                "provisioning",
            ]) =>
            {
                State::Down
            }
            () if with_jobs || has(&["job-busy", "job-exclusive", "resv-exclusive", "busy"]) => State::Allocated,
            () if has(&["free"]) => State::Idle,
            () => State::Down,
        };
        VirtualNode { host: fields.get("resources_available.host").cloned().unwrap_or(name), state }
    };
    nodes(text).into_iter().map(node).collect()
}

/// How many machines are idle in all of their parts.
#[must_use]
pub fn idle(nodes: &[VirtualNode]) -> i32 {
    let mut hosts: BTreeMap<&str, bool> = BTreeMap::new();
    for node in nodes {
        *hosts.entry(&node.host).or_insert(true) &= node.state == State::Idle;
    }
    i32::try_from(hosts.values().filter(|idle| **idle).count()).unwrap_or(i32::MAX)
}

/// How many virtual nodes are idle, allocated and down.
#[must_use]
pub fn states(nodes: &[VirtualNode]) -> NodeStates {
    let mut states = NodeStates::default();
    for node in nodes {
        let kind = match node.state {
            State::Idle => &mut states.idle,
            State::Allocated => &mut states.allocated,
            State::Down => &mut states.down,
        };
        *kind = kind.saturating_add(1);
    }
    states
}

/// What one node has, by `pbsnodes -a`; `None` when the nodes differ.
#[must_use]
pub fn shape(text: &str) -> Option<NodeShape> {
    let mut shapes = nodes(text).into_iter().map(|(_, fields)| {
        let available = |name: &str| fields.get(&format!("resources_available.{name}"));
        let memory_kb = available("mem")?.trim_end_matches("kb").parse::<u64>().ok()?;
        Some(NodeShape {
            cpus: available("ncpus")?.parse().ok()?,
            gpus: available("ngpus").and_then(|count| count.parse().ok()).unwrap_or(0),
            mem_mb: memory_kb / 1024,
        })
    });
    let first = shapes.next()??;
    shapes.all(|shape| shape == Some(first)).then_some(first)
}

/// The idle nodes as a window of each queue. Which nodes a queue may use, PBS does not tell in one form.
#[must_use]
pub fn windows(idle: i32, queues: &BTreeMap<String, QueueLimits>) -> BTreeMap<String, Vec<BackfillWindow>> {
    let window = |limits: &QueueLimits| BackfillWindow {
        num_nodes: idle.min(limits.max_nodes),
        wall_time_min: limits.max_walltime,
    };
    queues
        .iter()
        .map(|(name, limits)| (name.clone(), (idle > 0).then(|| window(limits)).into_iter().collect()))
        .collect()
}

/// Queues that take and start jobs, by `qstat -Q -f`; `nodes` is how many there are.
#[must_use]
pub fn queues(text: &str, nodes: i32) -> BTreeMap<String, QueueLimits> {
    blocks(text, |line| line.strip_prefix("Queue: ").map(str::trim))
        .into_iter()
        .filter(|(_, fields)| {
            ["enabled", "started"].iter().all(|flag| fields.get(*flag).is_some_and(|on| on == "True"))
        })
        .map(|(name, fields)| {
            let most = |what: &str| fields.get(&format!("resources_max.{what}"));
            let limits = QueueLimits {
                max_nodes: most("nodect").and_then(|count| count.parse().ok()).unwrap_or(nodes.max(1)),
                max_walltime: most("walltime").and_then(|limit| minutes(limit)).unwrap_or(UNLIMITED_MIN),
                max_queued_jobs: fields.get("max_queued").and_then(|limit| per_user(limit)).unwrap_or(MANY),
            };
            (name, limits)
        })
        .collect()
}

/// `HH:MM:SS`, `MM:SS` or seconds, in whole minutes.
fn minutes(text: &str) -> Option<i32> {
    let parts = text.trim().split(':').map(|part| part.parse::<i32>().ok()).collect::<Option<Vec<i32>>>()?;
    match parts[..] {
        [hours, minutes, _] => hours.checked_mul(60)?.checked_add(minutes),
        [minutes, _] => Some(minutes),
        [seconds] => Some(seconds / 60),
        _ => None,
    }
}

/// The limit for any one user in `[u:PBS_GENERIC=20]`.
fn per_user(text: &str) -> Option<i32> {
    let (_, rest) = text.split_once("u:PBS_GENERIC=")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: &str = "Queue: workq\n    queue_type = Execution\n    total_jobs = 8\n    resources_default.walltime = 00:30:00\n    \
        enabled = True\n    started = True\n\nQueue: debug\n    queue_type = Execution\n    resources_max.nodect = 2\n    \
        resources_max.walltime = 01:00:00\n    max_queued = [u:PBS_GENERIC=5]\n    enabled = True\n    started = True\n\n\
        Queue: closed\n    enabled = False\n    started = False\n\nQueue: stopped\n    enabled = True\n    started = False\n";

    #[test]
    fn queues_that_are_open_are_found_with_their_limits() {
        let found = queues(QUEUES, 16);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["debug", "workq"]);
        assert_eq!(found["debug"], QueueLimits { max_nodes: 2, max_walltime: 60, max_queued_jobs: 5 });
        assert_eq!(found["workq"], QueueLimits { max_nodes: 16, max_walltime: UNLIMITED_MIN, max_queued_jobs: MANY });
    }

    const PBSNODES: &str = include_str!("../fixtures/pbs/pbsnodes-a.txt");

    #[test]
    fn a_server_of_like_nodes_has_a_shape() {
        assert_eq!(shape(PBSNODES), Some(NodeShape { cpus: 16, gpus: 8, mem_mb: 4096 }));
        let other = "\nother\n     resources_available.mem = 4194304kb\n     resources_available.ncpus = 4\n";
        assert_eq!(shape(&format!("{PBSNODES}{other}")), None);
        assert_eq!(shape(""), None);
    }

    #[test]
    fn every_node_is_idle_allocated_or_down() {
        let node = |state: &str, jobs: &str| format!("n\n     state = {state}\n{jobs}");
        let text = [
            node("free", ""),
            node("free", "     jobs = 1.head/0\n"),
            node("job-exclusive", "     jobs = 1.head/0\n"),
            node("job-busy", ""),
            node("down", ""),
            node("offline,job-busy", "     jobs = 1.head/0\n"),
            node("state-unknown,down", ""),
            node("a-word-from-the-future", ""),
        ];
        assert_eq!(states(&virtual_nodes(&text.join("\n"))), NodeStates { idle: 1, allocated: 3, down: 4 });
        assert_eq!(states(&[]), NodeStates::default());
    }

    #[test]
    fn nodes_without_jobs_are_windows() {
        let found = |text: &str| (count(text), idle(&virtual_nodes(text)));
        assert_eq!(found(PBSNODES), (1, 0));
        let two = "n1\n     state = free\n     pcpus = 2\nn2\n     state = free\n     jobs = 1.head/0\nn3\n     state = down\n";
        assert_eq!(found(two), (3, 1));
        let windows = windows(1, &queues(QUEUES, 3));
        assert_eq!(windows["debug"], [BackfillWindow { num_nodes: 1, wall_time_min: 60 }]);
    }

    #[test]
    fn a_machine_is_idle_when_all_of_its_parts_are() {
        let part = |name: &str, host: &str, state: &str| {
            format!("{name}\n     state = {state}\n     resources_available.host = {host}\n")
        };
        let text = [
            part("a[0]", "a", "free"),
            part("a[1]", "a", "free"),
            part("b[0]", "b", "free"),
            part("b[1]", "b", "job-busy"),
            part("c", "c", "free"),
        ];
        let nodes = virtual_nodes(&text.join("\n"));
        assert_eq!(idle(&nodes), 2);
        assert_eq!(states(&nodes), NodeStates { idle: 4, allocated: 1, down: 0 });
    }
}
