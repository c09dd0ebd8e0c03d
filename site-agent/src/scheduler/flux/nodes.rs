//! Reading what Flux prints about nodes and queues. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::{
    resources::NodeShape,
    settings::QueueLimits,
    site::{BackfillWindow, NodeStates},
};

use crate::scheduler::inventory::{MANY, UNLIMITED_MIN, Windows};

/// Fields of `flux queue list -n -o`.
pub const QUEUE_FORMAT: &str = "{queue}|{submission}|{scheduling}|{limits.timelimit}|{limits.max.nnodes}";
/// Fields of `flux resource list -n -o`: what some nodes do, the queues that may use them, and how many these are.
pub const FORMAT: &str = "{state}|{queue}|{nnodes}";
/// The same without what they do.
pub const BY_QUEUE: &str = "{queue}|{nnodes}";

/// Reads `flux resource list -n -o "{nnodes}|{ncores}|{ngpus}"`; `None` when the nodes can't be alike.
#[must_use]
pub fn shape(text: &str) -> Option<NodeShape> {
    let mut sums = [0_u32; 3];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut fields = line.split('|').map(|field| field.trim().parse::<u32>().ok());
        for sum in &mut sums {
            *sum += fields.next()??;
        }
    }
    let [nodes, cores, gpus] = sums;
    let alike = nodes > 0 && cores % nodes == 0 && gpus % nodes == 0;
    alike.then(|| NodeShape { cpus: cores / nodes, gpus: gpus / nodes, mem_mb: 0 })
}

/// Nodes that do the same and that the same queues may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    state: &'a str,
    /// With commas; empty for any queue.
    queues: &'a str,
    count: i32,
}

/// Reads `flux resource list -n -o` [`FORMAT`]: a line for each state and each set of queues.
#[must_use]
pub fn groups(text: &str) -> Vec<Group<'_>> {
    let group = |line| {
        let fields: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let [state, queues, count] = fields[..] else { return None };
        Some(Group { state, queues, count: count.parse().ok()? })
    };
    text.lines().filter_map(group).collect()
}

/// How many nodes are idle, allocated and down. A node with a job on some of its cores is listed as free, too.
#[must_use]
pub fn states(groups: &[Group<'_>]) -> NodeStates {
    let mut states = NodeStates::default();
    for group in groups {
        let kind = match group.state {
            "free" => &mut states.idle,
            "allocated" => &mut states.allocated,
            _ => &mut states.down,
        };
        *kind = kind.saturating_add(group.count);
    }
    states
}

/// How many nodes are free, by queue; those that any queue may use are without a name.
#[must_use]
pub fn free(groups: &[Group<'_>]) -> BTreeMap<String, i32> {
    sums(groups.iter().filter(|group| group.state == "free").map(|group| (group.queues, group.count)))
}

/// A queue that takes and starts jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    name: String,
    max_minutes: i32,
    /// `None` for as many as there are.
    max_nodes: Option<i32>,
}

/// Reads `flux queue list -n -o` [`QUEUE_FORMAT`]. The one queue of an instance that has set up none has no name, and
/// is left out.
#[must_use]
pub fn queues(text: &str) -> Vec<Queue> {
    let queue = |line: &str| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, "enabled", "started", limit, nodes] = fields[..] else { return None };
        let queue = Queue {
            name: name.to_owned(),
            max_minutes: minutes(limit).unwrap_or(UNLIMITED_MIN),
            max_nodes: nodes.parse().ok(),
        };
        (!name.is_empty()).then_some(queue)
    };
    text.lines().filter_map(queue).collect()
}

/// Seconds, or a number with its unit (`90s`, `1.5h`), in whole minutes; `None` for no limit.
fn minutes(text: &str) -> Option<i32> {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().ok()?;
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    // Flux says 0 for a limit that nobody set.
    let minutes = number * seconds / 60.0;
    (minutes > 0.0).then_some(minutes.min(f64::from(UNLIMITED_MIN)) as i32)
}

/// Nodes by queue, from [`BY_QUEUE`]; those that any queue may use are without a name.
#[must_use]
pub fn by_queue(text: &str) -> BTreeMap<String, i32> {
    sums(text.lines().filter_map(|line| {
        let (queues, count) = line.split_once('|')?;
        Some((queues, count.trim().parse().ok()?))
    }))
}

/// The nodes of each queue, given nodes and the queues that may use them, with commas.
fn sums<'a>(nodes: impl Iterator<Item = (&'a str, i32)>) -> BTreeMap<String, i32> {
    let mut sums: BTreeMap<String, i32> = BTreeMap::new();
    for (queues, count) in nodes {
        for queue in queues.split(',') {
            let sum = sums.entry(queue.trim().to_owned()).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    sums
}

/// How many nodes a queue may use.
fn nodes_of(queue: &Queue, nodes: &BTreeMap<String, i32>) -> i32 {
    let of = |name: &str| nodes.get(name).copied().unwrap_or(0);
    let all = of(&queue.name).saturating_add(of(""));
    queue.max_nodes.map_or(all, |most| most.min(all))
}

/// The limits of each queue, given all nodes.
#[must_use]
pub fn limits(queues: &[Queue], nodes: &BTreeMap<String, i32>) -> BTreeMap<String, QueueLimits> {
    let limits = |queue: &Queue| QueueLimits {
        max_nodes: nodes_of(queue, nodes).max(1),
        max_walltime: queue.max_minutes,
        max_queued_jobs: MANY,
    };
    queues.iter().map(|queue| (queue.name.clone(), limits(queue))).collect()
}

/// What each queue could start on the nodes that are free.
#[must_use]
pub fn windows(queues: &[Queue], free: &BTreeMap<String, i32>) -> Windows {
    let window = |queue: &Queue| {
        let num_nodes = nodes_of(queue, free);
        (num_nodes > 0).then_some(BackfillWindow { num_nodes, wall_time_min: queue.max_minutes })
    };
    queues.iter().map(|queue| (queue.name.clone(), window(queue).into_iter().collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: &str = "\
batch|enabled|started|28800.0|inf
debug|enabled|started|1h|4
system|disabled|started|inf|inf
paused|enabled|stopped|inf|inf
free|enabled|started|inf|infinity
|enabled|started|inf|inf
";

    #[test]
    fn nodes_are_alike_or_not() {
        assert_eq!(shape("3|144|12\n1|48|4\n"), Some(NodeShape { cpus: 48, gpus: 4, mem_mb: 0 }));
        assert_eq!(shape("3|145|12\n"), None);
        assert_eq!(shape("0|0|0\n"), None);
    }

    #[test]
    fn every_node_is_idle_allocated_or_down() {
        let text = "free|batch|2\nfree|batch,debug|1\nallocated||2\ndown|debug|1\na-new-word||4\nfree||x\nnonsense\n";
        assert_eq!(states(&groups(text)), NodeStates { idle: 3, allocated: 2, down: 5 });
        assert_eq!(states(&groups("")), NodeStates::default());
    }

    fn limit(max_nodes: i32, max_walltime: i32) -> QueueLimits {
        QueueLimits { max_nodes, max_walltime, max_queued_jobs: MANY }
    }

    #[test]
    fn queues_that_are_open_are_found_with_their_limits() {
        let nodes = by_queue("batch,free|90\ndebug|10\nbatch|2\n");
        let found = limits(&queues(QUEUES), &nodes);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["batch", "debug", "free"]);
        assert_eq!(found["batch"], limit(92, 480));
        assert_eq!(found["debug"], limit(4, 60));
        assert_eq!(found["free"], limit(90, UNLIMITED_MIN));
        // Without queues of their own, nodes are for all.
        assert_eq!(limits(&queues(QUEUES), &by_queue("|8\n"))["debug"], limit(4, 60));
        assert!(queues("").is_empty());
    }

    #[test]
    fn free_nodes_are_windows() {
        let text = "free|batch|2\nfree|batch,debug|1\nfree|debug|6\nallocated|batch|9\n";
        let windows = windows(&queues(QUEUES), &free(&groups(text)));
        let window = |num_nodes, wall_time_min| BackfillWindow { num_nodes, wall_time_min };
        assert_eq!(windows["batch"], [window(3, 480)]);
        assert_eq!(windows["debug"], [window(4, 60)]);
        assert_eq!(windows["free"], []);
    }

    #[test]
    fn limits_in_all_their_forms() {
        let forms = [("90", Some(1)), ("90s", Some(1)), ("1.5h", Some(90)), ("2d", Some(2_880)), ("30m", Some(30))];
        forms.into_iter().for_each(|(text, wanted)| assert_eq!(minutes(text), wanted, "{text}"));
        for text in ["inf", "infinity", "0", "0.0", "", "unlimited", "1y"] {
            assert_eq!(minutes(text), None, "{text}");
        }
    }
}
