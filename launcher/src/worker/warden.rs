//! Ends runs whose time is over: checkpoint signal, TERM, KILL, each when it is due. Sleeps until then.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::Pid};
use tracing::info;

use super::table::{Blow, Shared, seconds, signal_group};
use crate::{
    process::{
        group::Group,
        tree::{self, Look, Tree},
    },
    protocol::{Cause, RunId},
};

/// How often KILL is repeated against a tree that starts new processes.
const REPEAT: Duration = Duration::from_secs(1);

/// Works as long as the worker does.
pub(super) fn watch(shared: &Shared) {
    loop {
        // Interrupting takes a while, which nobody's TERM or KILL must wait for.
        let (interruptions, strikes): (Vec<_>, Vec<_>) =
            wait_for_blows(shared).into_iter().partition(|strike| strike.signal == Signal::SIGINT);
        let look = Look::now();
        for Strike { run, leader, group, signal } in strikes {
            info!(run = run.0, signal = signal.as_str(), "ending a run");
            if let (Some(group), Signal::SIGKILL) = (&group, signal) {
                group.kill();
            }
            let mut tree = Tree::new(leader, shared.marker(run)).with_group(group);
            tree.signal(&look, signal);
            if signal == Signal::SIGTERM {
                // A stopped process would sleep through it.
                tree.signal(&look, Signal::SIGCONT);
            }
        }
        let tree = |Strike { run, leader, group, .. }| Tree::new(leader, shared.marker(run)).with_group(group);
        tree::interrupt(&mut interruptions.into_iter().map(tree).collect::<Vec<_>>(), &look);
    }
}

/// A signal that is due. SIGINT is only for what started ranks elsewhere.
struct Strike {
    run: RunId,
    leader: Pid,
    group: Option<Arc<Group>>,
    signal: Signal,
}

/// Sleeps until something is due; says whom to send what. Checkpoint signals are sent here.
fn wait_for_blows(shared: &Shared) -> Vec<Strike> {
    let mut table = shared.table();
    loop {
        let now = Instant::now();
        let mut blows = Vec::new();
        let mut next: Option<Instant> = None;
        for (run, entry) in &mut table.runs {
            let (Some((at, blow)), Some(leader)) = (entry.due, entry.leader) else { continue };
            if at <= now {
                let (due, signal) = match blow {
                    Blow::Limit => {
                        entry.cause = Some(Cause::Limit);
                        let grace = entry.checkpoint.map_or(Duration::ZERO, |checkpoint| {
                            signal_group(leader, checkpoint.signal);
                            seconds(checkpoint.grace_sec)
                        });
                        entry.kill_at = Some(now + grace + entry.grace);
                        ((now + grace, Blow::Term), None)
                    }
                    Blow::Term => ((now + entry.grace - entry.patience(), Blow::Interrupt), Some(Signal::SIGTERM)),
                    Blow::Interrupt => ((now + entry.patience(), Blow::Kill), Some(Signal::SIGINT)),
                    Blow::Kill => ((now + REPEAT, Blow::Kill), Some(Signal::SIGKILL)),
                };
                entry.due = Some(due);
                let group = entry.group.clone();
                blows.extend(signal.map(|signal| Strike { run: *run, leader, group, signal }));
            }
            next = entry.due.map(|(at, _)| at).into_iter().chain(next).min();
        }
        if !blows.is_empty() {
            return blows;
        }
        table = match next.map(|at| at.saturating_duration_since(Instant::now())) {
            Some(time) => {
                shared.warden.wait_timeout(table, time).map_or_else(|error| error.into_inner().0, |pair| pair.0)
            }
            None => shared.warden.wait(table).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
