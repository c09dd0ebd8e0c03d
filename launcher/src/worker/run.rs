//! The life of a run in the worker: a thread makes the workdir, starts the program, sleeps until it
//! ends, clears up what it left, reports, and goes on with the follower.

use std::{path::Path, sync::Arc, sync::PoisonError, thread, time::Instant};

use chrono::Utc;
use copal_schemas::app_file::OutputMode;
use nix::{sys::signal::Signal, unistd::Pid};
use tracing::error;

use super::table::{Shared, never_started, seconds};
use crate::{
    process::{
        end::{self, Exit},
        group::Group,
        spawn::{self, SpawnError, Spec},
        tail::tail,
        tree::{MARKER, Tree},
    },
    protocol::{Ended, Event, Outcome, Program, Slot, Task},
};

/// A thread sleeps in the kernel nearly all of its life and calls little.
const STACK_BYTES: usize = 256 << 10;

/// Starts tasks now, each in its slot.
pub(super) fn start(shared: &Arc<Shared>, tasks: Vec<(Slot, Task)>) {
    let mut table = shared.table();
    for (slot, task) in tasks {
        table.accept(&task, shared.setup.kill_grace_sec);
        table.ready.push_back((slot, task));
    }
    let missing = table.ready.len().saturating_sub(table.idle_threads);
    drop(table);
    shared.work.notify_all();
    for _ in 0..missing {
        let thread_shared = shared.clone();
        let thread = thread::Builder::new().name("run".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || work(&thread_shared)) {
            // A thread that is busy now takes the work later, if there is any; else the runs fail.
            error!(%error, "can't start a thread");
            fail_ready(shared, &error);
            return;
        }
    }
}

/// Starts a follower in a slot that the head thinks vacant, or says that there is none.
pub(super) fn reoffer(shared: &Arc<Shared>, slot: Slot) {
    let mut table = shared.table();
    match table.next_follower(slot.class) {
        Some(task) => {
            drop(table);
            start(shared, vec![(slot, task)]);
        }
        None => table.report(Event::Vacant(slot.id)),
    }
}

/// Reports work for which there is no thread as not started.
fn fail_ready(shared: &Shared, error: &std::io::Error) {
    let ready = std::mem::take(&mut shared.table().ready);
    for (slot, task) in ready {
        let outcome =
            Outcome::NotStarted { reason: "no_process".into(), message: format!("can't start a thread: {error}") };
        let mut next = shared.finish(&slot, never_started(task.run, Some(&slot), outcome, None));
        while let Some(task) = next {
            let outcome = Outcome::NotStarted { reason: "no_process".into(), message: "no thread is left".into() };
            next = shared.finish(&slot, never_started(task.run, Some(&slot), outcome, None));
        }
    }
}

/// What a thread does: ready work, one after the other, and whatever follows each in its slot.
fn work(shared: &Shared) {
    let mut is_bound = false;
    while let Some((slot, mut task)) = next_ready(shared) {
        // What a thread starts inherits its CPUs. To set them between fork and exec would cost a fork.
        if is_bound || !slot.cpus.is_empty() {
            is_bound = shared.cpus.bind(&slot.cpus);
        }
        loop {
            let ended = run(shared, &slot, task);
            match shared.finish(&slot, ended) {
                Some(next) => task = next,
                None => break,
            }
        }
    }
}

/// Waits for work; `None` when there will be none.
fn next_ready(shared: &Shared) -> Option<(Slot, Task)> {
    let mut table = shared.table();
    loop {
        if let Some(work) = table.ready.pop_front() {
            return Some(work);
        }
        if table.closing {
            return None;
        }
        table.idle_threads += 1;
        table = shared.work.wait(table).unwrap_or_else(PoisonError::into_inner);
        table.idle_threads -= 1;
    }
}

/// One run from start to end.
fn run(shared: &Shared, slot: &Slot, mut task: Task) -> Ended {
    if let Some(cause) = shared.table().runs.get(&task.run).and_then(|entry| entry.cause) {
        return never_started(task.run, Some(slot), Outcome::Withdrawn, Some(cause));
    }
    let groups = shared.groups.as_ref().filter(|_| task.own_group);
    let group = groups.and_then(|groups| groups.group(task.run.0)).map(Arc::new);
    let leader = match launch(shared, slot, &mut task, group.as_deref()) {
        Ok(leader) => leader,
        Err(error) => {
            let outcome = Outcome::NotStarted { reason: error.reason().into(), message: error.sentence() };
            return never_started(task.run, Some(slot), outcome, None);
        }
    };
    // Now its program is there.
    let start = Utc::now();
    let mut table = shared.table();
    table.report(Event::Started { run: task.run, slot: slot.id, time: start });
    let grace = seconds(shared.setup.kill_grace_sec);
    let is_due =
        table.runs.get_mut(&task.run).is_some_and(|entry| entry.started(leader, group.clone(), task.limit_sec, grace));
    drop(table);
    if is_due {
        shared.warden.notify_all();
    }

    // The zombie keeps the number of its group until the tree is cleared.
    if let Err(error) = end::wait_without_reaping(leader) {
        error!(%error, run = task.run.0, "can't wait for a run");
    }
    let finish = Utc::now();
    let (cause, kill_at, is_last) = {
        let mut table = shared.table();
        let entry = table.runs.get_mut(&task.run);
        let (cause, kill_at) = entry.map_or((None, None), |entry| {
            entry.leader = None;
            entry.is_over = true;
            (entry.cause, entry.kill_at)
        });
        (cause, kill_at, table.runs.len() == 1)
    };
    let mut tree = Tree::new(leader, shared.marker(task.run)).with_group(group.clone());
    match cause {
        // What a run leaves when it ends by itself holds CPUs that are not its own any more. Nearly every run leaves nothing.
        None => {
            if shared.orphans.pids().is_some_and(|orphans| tree.has_left(&orphans)) {
                tree.end(Instant::now());
            }
            let _ = nix::sys::signal::killpg(leader, Signal::SIGKILL);
            if let Some(group) = &group {
                group.kill();
            }
        }
        // A shell dies of TERM before the program that it runs: that one keeps its grace.
        Some(_) => {
            if is_last {
                tree.take_unmarked();
            }
            tree.end(kill_at.unwrap_or_else(Instant::now));
        }
    }
    let reaped = end::reap(leader);
    let (outcome, usage) = match reaped {
        Ok(reaped) => match reaped.exit {
            Exit::Code(code) => (Outcome::Exited(code), Some(reaped)),
            Exit::Signal(signal) => (Outcome::Signaled(signal), Some(reaped)),
        },
        Err(error) => {
            let message = format!("how it ended is not known: {error}");
            (Outcome::NotStarted { reason: "lost".into(), message }, None)
        }
    };
    let used = group.map(|group| group.used()).unwrap_or_default();
    let failed = outcome != Outcome::Exited(0) || cause.is_some();
    let tail = match task.output {
        OutputMode::File if failed => {
            tail(&Path::new(&task.workdir).join("job.out"), shared.setup.tail_lines).unwrap_or_default()
        }
        _ => String::new(),
    };
    Ended {
        run: task.run,
        slot: Some(slot.id),
        vacant: false,
        outcome,
        cause,
        start,
        end: finish,
        // A group knows all of its processes, the system's account only those that were waited for.
        peak_memory_bytes: used.peak_memory_bytes.max(usage.map(|usage| usage.peak_memory_bytes)),
        cpu_sec: usage.map(|usage| used.cpu_sec.unwrap_or_default().max(usage.cpu_sec)),
        tail,
    }
}

/// Starts the run's first process. The task's environment becomes that of the process.
fn launch(shared: &Shared, slot: &Slot, task: &mut Task, group: Option<&Group>) -> Result<Pid, SpawnError> {
    let workdir = Path::new(&task.workdir);
    spawn::make_workdir(workdir)?;
    let output = match task.output {
        OutputMode::File => Some(spawn::open_output(workdir, task.earlier_runs)?.0),
        OutputMode::None => None,
    };
    task.env.extend(slot.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    task.env.insert(MARKER.into(), shared.marker(task.run));
    let shell;
    let argv = match &task.program {
        Program::Direct(argv) => argv,
        Program::Shell(text) => {
            shell = ["bash".to_owned(), "-c".to_owned(), text.clone()].to_vec();
            &shell
        }
    };
    let unset: Vec<&str> = task.unset.iter().chain(&slot.unset).map(String::as_str).collect();
    spawn::spawn(&Spec {
        argv,
        workdir,
        env: &task.env,
        unset: &unset,
        output,
        group,
        is_bound: !shared.setup.starts_ranks,
    })
}
