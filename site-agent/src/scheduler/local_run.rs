//! `copal-agent local-run`: the supervisor of one script of the `local` scheduler. A process and a
//! session of its own, so that neither the agent's end nor a closed terminal touches the script. It enforces the walltime,
//! passes a cancel on, leaves no process of the script behind, and writes the exit record.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context;
use chrono::Utc;
use nix::{
    sys::{
        prctl,
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, dup2_stdout, setsid},
};
use tokio::{
    signal::unix::{Signal as SignalStream, SignalKind, signal},
    time::{Instant, sleep_until},
};

use super::{
    EndReason, Ending,
    local::{JobFiles, LocalJob, LocalRun, MARK, node_list},
};
use crate::{
    process::{ProcessId, descendants, marked, send, send_group},
    records,
};

/// Between TERM and KILL when the walltime is over or the job was cancelled: time for the launcher to end its Jobs
/// well. As Slurm's KillWait.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// Between TERM and KILL for what a script leaves behind at its end.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);
/// How often leftovers are looked for while they are being killed.
const KILL_PERIOD: Duration = Duration::from_millis(20);

/// Runs the script of one job to its end.
///
/// # Errors
/// When the job's files can't be used, or another supervisor has the job already.
pub fn run(folder: &Path, key: &str, nodes: BTreeSet<u32>) -> anyhow::Result<()> {
    // Fails only for the leader of a process group, which is then not in anybody's way.
    let _ = setsid();
    prctl::set_child_subreaper(true).context("can't adopt orphans")?;
    let files = JobFiles::new(folder, key);
    let job: LocalJob =
        records::read(&files.job())?.with_context(|| format!("{} does not exist", files.job().display()))?;
    let supervisor = ProcessId::of(std::process::id()).context("/proc is not mounted")?;
    let start = Utc::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (reason, status) = runtime.block_on(async {
        // Before anybody knows of this process, so that no cancel kills it, and before the script starts, so that
        // no end is missed.
        let signals = Signals::register().context("can't receive signals")?;
        // Only one supervisor gets past this line.
        records::write(&files.run(), &LocalRun { supervisor, start, nodes: nodes.clone() }, true)?;
        anyhow::Ok(supervise(&job, &files.mark(), &nodes, signals).await)
    })?;
    let (exit_code, signal) = match status {
        Some(WaitStatus::Exited(_, code)) => (Some(code), None),
        Some(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal.as_str().to_owned())),
        _ => (None, None),
    };
    let reason = match (reason, exit_code) {
        (Some(reason), _) => reason,
        (None, Some(0)) => EndReason::Completed,
        (None, _) => EndReason::Failed,
    };
    records::write(
        &files.exit(),
        &Ending { start: Some(start), end: Some(Utc::now()), reason, exit_code, signal },
        true,
    )?;
    Ok(())
}

struct Signals {
    child_ended: SignalStream,
    term: SignalStream,
    interrupt: SignalStream,
}

impl Signals {
    fn register() -> io::Result<Self> {
        Ok(Self {
            child_ended: signal(SignalKind::child())?,
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// Why it was ended, where not by itself, and how its script ended.
async fn supervise(
    job: &LocalJob,
    mark: &str,
    nodes: &BTreeSet<u32>,
    mut signals: Signals,
) -> (Option<EndReason>, Option<WaitStatus>) {
    let script = match spawn(job, mark, nodes) {
        Ok(script) => script,
        Err(error) => {
            complain(job, &format!("copal: can't run {}: {error}\n", job.script.display()));
            hand_over();
            return (Some(EndReason::Failed), None);
        }
    };
    hand_over();
    let wall_time = Duration::from_secs(u64::from(job.wall_time_min) * 60);
    let mut reason = None;
    // When the script is told to stop, and when it is killed.
    let mut deadline = Instant::now() + wall_time;
    let mut status = None;
    while status.is_none() {
        tokio::select! {
            _ = signals.child_ended.recv() => status = reap(script),
            _ = signals.term.recv(), if reason.is_none() => {
                reason = Some(EndReason::Cancelled);
                send_group(script, Signal::SIGTERM);
                deadline = Instant::now() + STOP_GRACE;
            }
            _ = signals.interrupt.recv() => {}
            () = sleep_until(deadline) => {
                if reason.is_none() {
                    reason = Some(EndReason::TimeLimit);
                    send_group(script, Signal::SIGTERM);
                    deadline = Instant::now() + STOP_GRACE;
                } else {
                    left(mark).into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
                    deadline = Instant::now() + KILL_PERIOD;
                }
            }
        }
    }
    clear_up(mark, script).await;
    (reason, status)
}

/// Ends what the script has left behind.
async fn clear_up(mark: &str, script: u32) {
    let kill_at = Instant::now() + LEFTOVER_GRACE;
    left(mark).into_iter().for_each(|pid| send(pid, Signal::SIGTERM));
    loop {
        reap(script);
        let left = left(mark);
        if left.is_empty() {
            return;
        }
        if Instant::now() >= kill_at {
            left.into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
        }
        tokio::time::sleep(KILL_PERIOD).await;
    }
}

/// The living processes of the job: the tree below this process, which adopts orphans, and what carries its mark.
fn left(mark: &str) -> Vec<u32> {
    let mut left = descendants(std::process::id());
    left.extend(marked(MARK, mark).into_iter().filter(|pid| !left.contains(pid)).collect::<Vec<_>>());
    left
}

/// Takes every child that has ended; the script's status when it is among them.
fn reap(script: u32) -> Option<WaitStatus> {
    let mut status = None;
    while let Ok(ended) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        match ended.pid() {
            Some(pid) if pid.as_raw().unsigned_abs() == script => status = Some(ended),
            Some(_) => {}
            // None has ended that was not taken yet.
            None => break,
        }
    }
    status
}

fn spawn(job: &LocalJob, mark: &str, nodes: &BTreeSet<u32>) -> io::Result<u32> {
    let output = OpenOptions::new().create(true).append(true).open(&job.output)?;
    let error = output.try_clone()?;
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command
            .env("COPAL_LOCAL_JOBID", job.id.to_string())
            .env("COPAL_LOCAL_NODELIST", node_list(nodes))
            .env(MARK, mark)
            .stdin(Stdio::null())
            .process_group(0);
        if let Some(folder) = job.script.parent() {
            command.current_dir(folder);
        }
        command
    };
    let direct = fs::read(&job.script)?.starts_with(b"#!");
    let mut command = if direct {
        command(&job.script)
    } else {
        let mut shell = command(Path::new("/bin/bash"));
        shell.arg(&job.script);
        shell
    };
    // The child is waited for with all the others in `reap`.
    Ok(command.stdout(output).stderr(error).spawn()?.id())
}

fn complain(job: &LocalJob, text: &str) {
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(&job.output) {
        let _ = io::Write::write_all(&mut file, text.as_bytes());
    }
}

/// Tells the agent that the job runs, by closing the standard output that it reads.
fn hand_over() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stdout(null);
    }
}
