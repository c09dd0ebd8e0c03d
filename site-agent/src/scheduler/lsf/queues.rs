//! Reading what LSF prints about queues and the holes in them. Pure functions over text.

use std::collections::BTreeMap;

use copal_schemas::{settings::QueueLimits, site::BackfillWindow};

use super::nodes::{Host, State};
use crate::scheduler::inventory::{MANY, UNLIMITED_MIN, Windows};

/// A queue that takes and starts jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    name: String,
    max_minutes: i32,
    /// The most tasks that a job can have; `None` for no limit.
    max_tasks: Option<i32>,
    /// Hosts that it may use; `None` for all, or where groups of hosts are named.
    hosts: Option<Vec<String>>,
}

/// So many slots that stay free for so many minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    slots: i32,
    minutes: i32,
}

/// Reads `bqueues -l`: a block for each queue that begins with `QUEUE: name`.
#[must_use]
pub fn queues(text: &str) -> Vec<Queue> {
    text.split("QUEUE:").skip(1).filter_map(queue).collect()
}

fn queue(block: &str) -> Option<Queue> {
    let lines: Vec<&str> = block.lines().map(str::trim).collect();
    let place = |heading: &str, column: &str| {
        let has = |line: &&str| line.split_whitespace().any(|word| word == column) && line.starts_with(heading);
        lines.iter().position(has)
    };
    let statistics = place("PRIO", "STATUS")?;
    let column = lines[statistics].split_whitespace().position(|word| word == "STATUS")?;
    let status = lines.get(statistics + 1)?.split_whitespace().nth(column)?;
    if status != "Open:Active" {
        return None;
    }
    // Defaults have the same headings, and come first.
    let limits = lines.iter().position(|line| *line == "MAXIMUM LIMITS:").map_or(&[][..], |start| &lines[start + 1..]);
    let limits = limits.split(|line| line.ends_with(':') && !line.contains("LIMIT")).next().unwrap_or_default();
    let below = |name: &str| {
        limits.windows(2).find_map(|pair| Some((pair[0].split_whitespace().position(|word| word == name)?, pair[1])))
    };
    let max_minutes = below("RUNLIMIT").and_then(|(column, values)| minutes(values, column)).unwrap_or(UNLIMITED_MIN);
    // One number is the most; of two or three the last is.
    let tasks = below("TASKLIMIT").or_else(|| below("PROCLIMIT"));
    let most_of_a_job = tasks.and_then(|(_, values)| values.split_whitespace().last()?.parse().ok());
    // What all jobs of the queue, and those of one user in it, may have at a time; `-` for no limit.
    let slots = |name: &str| -> Option<i32> {
        let column = lines[statistics].split_whitespace().position(|word| word == name)?;
        lines.get(statistics + 1)?.split_whitespace().nth(column)?.parse().ok()
    };
    let max_tasks = [most_of_a_job, slots("MAX"), slots("JL/U")].into_iter().flatten().min();
    let hosts = lines.iter().find_map(|line| line.strip_prefix("HOSTS:")).map_or_else(Vec::new, |names| {
        // `host+2` is preferred to others.
        names.split_whitespace().map(|name| name.split('+').next().unwrap_or(name).to_owned()).collect()
    });
    let are_hosts =
        !hosts.is_empty() && hosts.iter().all(|name| name != "all" && !name.ends_with('/') && name != "none");
    let name = lines.first()?.to_string();
    Some(Queue { name, max_minutes, max_tasks, hosts: are_hosts.then_some(hosts) })
}

/// The limit in a column of a line such as `250.0 min of hostA  2000.0 min`, in whole minutes.
fn minutes(values: &str, column: usize) -> Option<i32> {
    let words: Vec<&str> = values.split_whitespace().collect();
    let numbers = words.windows(2).filter(|pair| pair[1] == "min").map(|pair| pair[0].parse::<f64>().ok());
    let minutes = numbers.flatten().nth(column)?;
    Some(minutes.clamp(0.0, f64::from(UNLIMITED_MIN)) as i32)
}

/// Reads `bslots`: a line of headings, then slots and how long they stay free: `UNLIMITED`, `1 hour 20 minutes 5 seconds`.
/// Nothing where it says that there is none, which it also does where no queue backfills.
#[must_use]
pub fn holes(text: &str) -> Vec<Hole> {
    let hole = |line: &str| {
        let mut words = line.split_whitespace();
        let slots: i32 = words.next()?.parse().ok()?;
        let words: Vec<&str> = words.collect();
        if words == ["UNLIMITED"] {
            return Some(Hole { slots, minutes: UNLIMITED_MIN });
        }
        let mut seconds = 0_i64;
        for pair in words.chunks(2) {
            let [number, unit] = pair else { return None };
            let unit = ["second", "minute", "hour", "day"].iter().position(|name| unit.starts_with(name))?;
            let length = [1, 60, 3_600, 86_400][unit];
            seconds = seconds.saturating_add(number.parse::<i64>().ok()?.saturating_mul(length));
        }
        let minutes = i32::try_from(seconds / 60).unwrap_or(UNLIMITED_MIN).min(UNLIMITED_MIN);
        (!words.is_empty()).then_some(Hole { slots, minutes })
    };
    text.lines().filter_map(hole).collect()
}

/// How many jobs of the user may wait, by `busers -w`: a line of headings, then the user. The column is `MPJOBS`, before
/// LSF counted slots and jobs apart `MPEND`; `-` for no limit.
#[must_use]
pub fn max_pending(text: &str) -> Option<i32> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let headings = lines.next()?;
    let column = |name: &str| headings.iter().position(|heading| *heading == name);
    let column = column("MPJOBS").or_else(|| column("MPEND"))?;
    let limit: i32 = lines.next()?.get(column)?.parse().ok()?;
    Some(limit.clamp(0, MANY))
}

impl Queue {
    /// How many of these hosts it may use.
    fn count<'a>(&self, hosts: impl Iterator<Item = &'a Host>) -> i32 {
        let may_use = |host: &&Host| self.hosts.as_ref().is_none_or(|names| names.contains(&host.name));
        i32::try_from(hosts.filter(may_use).count()).unwrap_or(i32::MAX)
    }
}

/// The limits of each queue. A job of the template has at least a task on each node.
#[must_use]
pub fn limits(queues: &[Queue], hosts: &[Host]) -> BTreeMap<String, QueueLimits> {
    let limits = |queue: &Queue| {
        let all = queue.count(hosts.iter());
        let max_nodes = queue.max_tasks.map_or(all, |tasks| tasks.min(all)).max(1);
        QueueLimits { max_nodes, max_walltime: queue.max_minutes, max_queued_jobs: MANY }
    };
    queues.iter().map(|queue| (queue.name.clone(), limits(queue))).collect()
}

/// What each queue could start on hosts that are idle.
#[must_use]
pub fn windows(queues: &[Queue], hosts: &[Host], holes: &[Hole]) -> Windows {
    let slots = hosts.iter().filter_map(|host| host.slots).max().unwrap_or(1).max(1);
    let windows = |queue: &Queue| -> Vec<BackfillWindow> {
        let idle = queue.count(hosts.iter().filter(|host| host.state == State::Idle));
        let most = queue.max_tasks.map_or(idle, |tasks| tasks.min(idle));
        let free_for_ever = [Hole { slots: most.saturating_mul(slots), minutes: UNLIMITED_MIN }];
        let holes = if holes.is_empty() { &free_for_ever[..] } else { holes };
        let windows = holes.iter().map(|hole| BackfillWindow {
            num_nodes: (hole.slots / slots).min(most),
            wall_time_min: hole.minutes.min(queue.max_minutes),
        });
        windows.filter(|window| window.num_nodes > 0).collect()
    };
    queues.iter().map(|queue| (queue.name.clone(), windows(queue))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::lsf::nodes;

    // In the form that the manual of LSF 10.1 shows.
    const QUEUES: &str = "\
QUEUE: batch
  -- For everybody. This is the default queue.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -    24     8    16     0     0    0     8

 DEFAULT LIMITS:
 RUNLIMIT
 30.0 min of h1

 MAXIMUM LIMITS:
 CPULIMIT                 RUNLIMIT
 250.0 min of h1          1440.0 min of h1

 TASKLIMIT
 1 1 3

SCHEDULING PARAMETERS
           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem
 loadSched   -     -     -     -       -     -    -     -     -      -      -

SCHEDULING POLICIES:  BACKFILL EXCLUSIVE
USERS: all
HOSTS:  all
------------------------------------------------------------------------------

QUEUE: debug

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 50    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

USERS: all
HOSTS:  h1+2 h2
------------------------------------------------------------------------------

QUEUE: night

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 20    0  Open:Inact_Win    -    -    -    -     0     0     0     0     0    0     0
";
    const HOSTS: &str = "\
HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV
h1                 ok                 -     42      0      0      0      0      0
h2                 ok                 -     42      7      7      0      0      0
h3                 ok                 -     42      0      0      0      0      0
h4                 ok                 -     42      0      0      0      0      0
h5                 ok                 -     42      0      0      0      0      0
";

    #[test]
    fn queues_that_are_open_are_found_with_their_limits() {
        let found = limits(&queues(QUEUES), &nodes::hosts(HOSTS).unwrap());
        let limit = |max_nodes, max_walltime| QueueLimits { max_nodes, max_walltime, max_queued_jobs: MANY };
        assert_eq!(
            found,
            [("batch".to_owned(), limit(3, 1_440)), ("debug".to_owned(), limit(2, UNLIMITED_MIN))].into()
        );
        assert!(queues("LSF is down. Please wait ...").is_empty());
        assert_eq!(minutes("inf min", 0), Some(UNLIMITED_MIN));
        assert_eq!(minutes("-", 0), None);
    }

    #[test]
    fn what_a_queue_and_a_user_may_have_at_a_time_limits_a_job() {
        let limited = |most: &str, of_user: &str| {
            let row = " 30    0  Open:Active       -    -    -    -    24";
            let other = format!(" 30    0  Open:Active       {most}    {of_user}    -    -    24");
            limits(&queues(&QUEUES.replace(row, &other)), &nodes::hosts(HOSTS).unwrap())["batch"].max_nodes
        };
        assert_eq!((limited("-", "-"), limited("2", "-"), limited("40", "1")), (3, 2, 1));
    }

    #[test]
    fn what_a_user_may_have_pending_is_found() {
        let old = |limit: &str| {
            let headings = "USER/GROUP          JL/P    MAX  NJOBS   PEND    RUN  SSUSP  USUSP    RSV  MPEND";
            max_pending(&format!(
                "{headings}\nann                    -      -     12      4      8      0      0      0 {limit}\n"
            ))
        };
        assert_eq!((old("10"), old("2147483647")), (Some(10), Some(MANY)));
        assert_eq!((old("-"), old("")), (None, None));
        let new = "USER/GROUP JL/P MAX NJOBS PEND RUN SSUSP USUSP RSV NJOBS PJOBS MPEND MPJOBS\n\
                   ann - - 12 4 8 0 0 0 3 1 640 20\n";
        assert_eq!(max_pending(new), Some(20));
        assert_eq!((max_pending(""), max_pending("ann: No such user.\n")), (None, None));
    }

    #[test]
    fn idle_hosts_are_windows_for_as_long_as_they_stay_free() {
        let (queues, hosts) = (queues(QUEUES), nodes::hosts(HOSTS).unwrap());
        let window = |num_nodes, wall_time_min| BackfillWindow { num_nodes, wall_time_min };
        let all = windows(&queues, &hosts, &[]);
        assert_eq!(all["batch"], [window(3, 1_440)]);
        assert_eq!(all["debug"], [window(1, UNLIMITED_MIN)]);
        let text = "SLOTS          RUNTIME\n84             1 hour 20 minutes 5 seconds\n42             UNLIMITED\n10 25 minutes 0 seconds\n";
        let all = windows(&queues, &hosts, &holes(text));
        assert_eq!(all["batch"], [window(2, 80), window(1, 1_440)]);
        assert_eq!(all["debug"], [window(1, 80), window(1, UNLIMITED_MIN)]);
        assert_eq!(holes("No backfill window exists at this time\n"), []);
        assert_eq!(holes("SLOTS RUNTIME\n4 soon\n4 x hours\n4\n"), []);
    }
}
