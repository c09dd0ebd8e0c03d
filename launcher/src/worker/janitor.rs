//! Clears up after runs that ended by themselves: orphans that left the run's process group are killed,
//! those that have ended are reaped. Off the way of the runs, and in rounds when many end.

use std::{
    collections::{HashMap, HashSet},
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use copal_client::processes;
use nix::{
    sys::wait::{WaitPidFlag, waitpid},
    unistd::Pid,
};
use tracing::info;

use super::table::Shared;
use crate::{
    process::tree::{self, Tree},
    protocol::RunId,
};

/// The least time between two rounds. Nobody waits for the janitor.
const ROUND: Duration = Duration::from_millis(25);
/// The most time between two rounds: orphans of a long run end without its end.
const PERIOD: Duration = Duration::from_secs(5);

/// Orphans that do not say whose they are, and the runs that may have started them.
type Suspects = HashMap<i32, HashSet<RunId>>;

/// Works as long as the worker does, whenever a run has ended.
pub(super) fn clean(shared: &Shared) {
    let mut suspects = Suspects::new();
    loop {
        let mut table = shared.table();
        let deadline = Instant::now() + PERIOD;
        while !table.is_dirty {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            table = shared.janitor.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        table.is_dirty = false;
        drop(table);
        thread::sleep(ROUND);
        round(shared, &mut suspects);
    }
}

fn round(shared: &Shared, suspects: &mut Suspects) {
    let orphans = orphans(shared);
    suspects.retain(|pid, _| orphans.contains(pid));
    for pid in orphans {
        // It ended, and nobody else waits for it.
        if waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {
            suspects.remove(&pid);
            continue;
        }
        let run = tree::marker(pid).and_then(|marker| shared.run_of(&marker));
        let is_left = match run {
            // As long as a run is not reported, whatever it leaves is its own thread's to end.
            Some(run) => !shared.table().runs.contains_key(&run),
            // It cleared its environment. It is one of the runs that were there when it was first seen; when
            // all of these are over, its own is.
            None => {
                let table = shared.table();
                let running = || table.runs.iter().filter(|(_, entry)| !entry.is_over).map(|(run, _)| *run);
                let owners = suspects.entry(pid).or_insert_with(|| running().collect());
                let running: HashSet<RunId> = running().collect();
                owners.retain(|run| running.contains(run));
                owners.is_empty()
            }
        };
        if is_left {
            info!(run = run.map(|run| run.0), pid, "killing what a run left behind");
            Tree::of_orphan(pid).end(Instant::now());
            suspects.remove(&pid);
        }
    }
}

/// Children of this process that no run started directly.
fn orphans(shared: &Shared) -> HashSet<i32> {
    // Threads start runs, and the first thread is none of them: its children are orphans.
    if let Some(orphans) = shared.orphans.pids() {
        return orphans.into_iter().collect();
    }
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let all = processes::snapshot();
    let table = shared.table();
    // A run that is being started is not known by its process yet: then nothing can be said.
    if table.runs.values().any(|entry| entry.leader.is_none()) {
        return HashSet::new();
    }
    let leaders: HashSet<i32> = table.runs.values().filter_map(|entry| entry.leader.map(Pid::as_raw)).collect();
    let children = all.iter().filter(|process| process.parent == own).map(|process| process.pid);
    children.filter(|pid| !leaders.contains(pid)).collect()
}
