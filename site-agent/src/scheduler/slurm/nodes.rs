//! Reading what Slurm prints about partitions, nodes and accounts. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::{
    settings::QueueLimits,
    site::{BackfillWindow, NodeStates},
};

use crate::scheduler::inventory::{MANY, UNLIMITED_MIN};

/// Fields of `sinfo -h -o`: partition, availability, time limit, nodes, state.
pub const SINFO_FORMAT: &str = "%R|%a|%l|%D|%t";
/// Fields of `sacctmgr -n -P show associations`: account, partition, most jobs that are not over.
pub const ASSOCIATION_FORMAT: &str = "format=account,partition,maxsubmitjobs";

/// Nodes of a partition that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    partition: &'a str,
    is_up: bool,
    /// `None` for a limit that is not understood.
    max_minutes: Option<i32>,
    count: i32,
    state: &'a str,
}

/// Reads `sinfo -h -o` [`SINFO_FORMAT`].
#[must_use]
pub fn rows(text: &str) -> Vec<Row<'_>> {
    let row = |line| {
        let fields: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let [partition, availability, limit, nodes, state] = fields[..] else { return None };
        Some(Row {
            partition: partition.trim_end_matches('*'),
            is_up: availability == "up",
            max_minutes: minutes(limit),
            count: nodes.parse().ok()?,
            state,
        })
    };
    text.lines().filter_map(row).collect()
}

/// Idle nodes of each partition that is up.
#[must_use]
pub fn windows(rows: &[Row<'_>]) -> BTreeMap<String, Vec<BackfillWindow>> {
    let mut windows: BTreeMap<String, Vec<BackfillWindow>> = BTreeMap::new();
    for row in rows {
        let entry = windows.entry(row.partition.into()).or_default();
        // A mark behind the state (`idle*`, `idle~`) says that the node does not answer, is off, or will be.
        if row.is_up && row.state == "idle" && row.count > 0 {
            entry.extend(row.max_minutes.map(|wall_time_min| BackfillWindow { num_nodes: row.count, wall_time_min }));
        }
    }
    windows
}

/// What the nodes of each partition do.
#[must_use]
pub fn states(rows: &[Row<'_>]) -> BTreeMap<String, NodeStates> {
    let mut states: BTreeMap<String, NodeStates> = BTreeMap::new();
    for row in rows {
        let entry = states.entry(row.partition.into()).or_default();
        let word = row.state.trim_end_matches(|mark: char| !mark.is_ascii_alphanumeric());
        let marks = &row.state[word.len()..];
        let kind = match word {
            _ if marks.contains('*') => &mut entry.down,
            // A node that drains still runs its job; one that is planned is promised to a job.
            "alloc" | "allocated" | "mix" | "mixed" | "comp" | "completing" | "drng" | "draining" | "failg"
            | "failing" | "plnd" | "planned" => &mut entry.allocated,
            "idle" if marks == "-" => &mut entry.allocated,
            "idle" if marks.is_empty() && row.is_up => &mut entry.idle,
            _ => &mut entry.down,
        };
        *kind = kind.saturating_add(row.count);
    }
    states
}

/// The limit of a partition: `3`, `02:03`, `1:02:03`, `1-02:03:04`, `UNLIMITED`; `None` for other words.
#[must_use]
pub fn minutes(text: &str) -> Option<i32> {
    if ["unlimited", "infinite"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Some(UNLIMITED_MIN);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<i32>().ok()?, clock),
        None => (0, text),
    };
    let parts = clock.split(':').map(|part| part.parse::<i32>().ok()).collect::<Option<Vec<i32>>>()?;
    let clock = match (parts[..].len(), &parts[..], text.contains('-')) {
        (3, [hours, minutes, _], _) => hours.checked_mul(60)?.checked_add(*minutes)?,
        // With days before it the first number is hours.
        (2, [hours, minutes], true) => hours.checked_mul(60)?.checked_add(*minutes)?,
        (1, [hours], true) => hours.checked_mul(60)?,
        (2, [minutes, _], false) | (1, [minutes], false) => *minutes,
        _ => return None,
    };
    days.checked_mul(1_440)?.checked_add(clock).filter(|minutes| *minutes >= 0)
}

/// Partitions that take jobs, from `scontrol show partition -o`.
#[must_use]
pub fn partitions(text: &str) -> BTreeMap<String, QueueLimits> {
    let queues = text.lines().filter_map(|line| {
        let fields: BTreeMap<&str, &str> = line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        if fields.get("State") != Some(&"UP") || fields.get("RootOnly") == Some(&"YES") {
            return None;
        }
        let nodes: i32 = fields.get("TotalNodes")?.parse().ok()?;
        let max_nodes =
            fields.get("MaxNodes").and_then(|most| most.parse().ok()).map_or(nodes, |most: i32| most.min(nodes));
        let max_walltime = fields.get("MaxTime").and_then(|limit| minutes(limit)).unwrap_or(UNLIMITED_MIN);
        let limits = QueueLimits { max_nodes, max_walltime, max_queued_jobs: MANY };
        Some(((*fields.get("PartitionName")?).to_owned(), limits))
    });
    queues.collect()
}

/// Lowers how many BatchJobs may wait to what the user may have submitted at once in each partition, from
/// `sacctmgr -n -P show associations` [`ASSOCIATION_FORMAT`]. Of several accounts the most generous counts.
pub fn limit_submissions(queues: &mut BTreeMap<String, QueueLimits>, associations: &str) {
    let rows: Vec<(&str, Option<i32>)> = associations
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim).skip(1);
            Some((fields.next()?, fields.next()?.parse().ok()))
        })
        .collect();
    for (queue, limits) in queues {
        // An association without a partition is for all of them.
        let most = rows
            .iter()
            .filter(|(partition, _)| partition.is_empty() || partition == queue)
            .map(|(_, limit)| limit.unwrap_or(MANY))
            .max();
        limits.max_queued_jobs = most.unwrap_or(MANY).clamp(0, MANY);
    }
}

/// Accounts, each once, from `sacctmgr -n -P show associations` [`ASSOCIATION_FORMAT`].
#[must_use]
pub fn accounts(text: &str) -> Vec<String> {
    let mut accounts: Vec<String> = text
        .lines()
        .filter_map(|line| line.split('|').next())
        .map(str::trim)
        .filter(|account| !account.is_empty())
        .map(Into::into)
        .collect();
    accounts.sort();
    accounts.dedup();
    accounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_026_027_limits_in_all_their_forms() {
        let table = [
            ("3", Some(3)),
            ("02:03", Some(2)),
            ("1:02:03", Some(62)),
            ("1-02:03:04", Some(1_563)),
            ("7-00:00:00", Some(10_080)),
            ("1-12", Some(2_160)),
            ("UNLIMITED", Some(UNLIMITED_MIN)),
            ("infinite", Some(UNLIMITED_MIN)),
            ("NOT_SET", None),
            ("INVALID", None),
            ("Partition_Limit", None),
            ("", None),
        ];
        for (text, wanted) in table {
            assert_eq!(minutes(text), wanted, "{text}");
        }
    }

    #[test]
    fn idle_nodes_are_windows() {
        let text =
            "debug|up|2:00:00|1|drain\ndebug|up|2:00:00|2|idle\ndebug|up|2:00:00|1|idle*\nclosed|down|1:00:00|2|idle\n";
        let windows = windows(&rows(text));
        assert_eq!(windows["debug"], [BackfillWindow { num_nodes: 2, wall_time_min: 120 }]);
        assert_eq!(windows["closed"], []);
    }

    #[test]
    fn every_node_is_idle_allocated_or_down() {
        let text = "debug*|up|2:00:00|1|drain\ndebug*|up|2:00:00|2|idle\ndebug*|up|2:00:00|3|mix\ndebug*|up|2:00:00|4|alloc#\n\
            debug*|up|2:00:00|5|idle~\ndebug*|up|2:00:00|6|drng\ndebug*|up|2:00:00|7|alloc*\ndebug*|up|2:00:00|8|idle-\n\
            debug*|up|2:00:00|9|nobodyknows\nshort|up|5:00|0|n/a\nclosed|down|1:00:00|4|idle\nshift|ed|row\n";
        let states = states(&rows(text));
        assert_eq!(states["debug"], NodeStates { idle: 2, allocated: 3 + 4 + 6 + 8, down: 1 + 5 + 7 + 9 });
        assert_eq!(states["short"], NodeStates::default());
        assert_eq!(states["closed"], NodeStates { idle: 0, allocated: 0, down: 4 });
        assert_eq!(states.len(), 3);
    }

    #[test]
    fn partitions_that_are_up_become_queues() {
        // Recorded, then put on one line each, as -o prints them.
        let recorded = include_str!("../fixtures/slurm/scontrol-show-partition.txt");
        let one_line: Vec<String> = recorded.split("\n\n").map(|block| block.replace('\n', " ")).collect();
        let queues = partitions(&one_line.join("\n"));
        assert_eq!(queues.keys().collect::<Vec<_>>(), ["debug", "short"]);
        assert_eq!(queues["debug"], QueueLimits { max_nodes: 4, max_walltime: 120, max_queued_jobs: MANY });
        assert_eq!(queues["short"], QueueLimits { max_nodes: 2, max_walltime: 5, max_queued_jobs: MANY });
        assert_eq!(accounts("proj||\nroot||\nproj|debug|\n\n"), ["proj", "root"]);
    }

    #[test]
    fn what_a_user_may_submit_limits_what_may_wait() {
        let limits = QueueLimits { max_nodes: 4, max_walltime: 60, max_queued_jobs: MANY };
        let limited = |associations: &str| {
            let mut queues = [("debug".to_owned(), limits), ("short".to_owned(), limits)].into();
            limit_submissions(&mut queues, associations);
            (queues["debug"].max_queued_jobs, queues["short"].max_queued_jobs)
        };
        assert_eq!(limited(""), (MANY, MANY));
        assert_eq!(limited("proj||5\nother||20\n"), (20, 20));
        assert_eq!(limited("proj|debug|5\nother|short|\n"), (5, MANY));
        assert_eq!(limited("proj||100000\n"), (MANY, MANY));
    }
}
