//! Running a program that carries: with its input, a limit on silence, and an orderly end when it is to
//! stop. What it is told and what its words mean is its adapter's.

use std::{
    fs,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::{Instant, interval},
};

use super::{Cause, Run, StagingError};
use crate::guard::Group;

/// In the environment of every program, with the Site's folder: the next agent finds what a killed one left.
pub const MARK: &str = "COPAL_STAGING";
/// How long a program may take to save what it has when it is to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The most bytes that are kept of what it says.
const MAX_OUTPUT: u64 = 64 * 1024 * 1024;
/// How often is looked whether anything moves.
const LOOK: Duration = Duration::from_secs(5);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a program to its end.
///
/// # Errors
/// When it can't be started, when nothing moves for too long, when it is to stop.
pub async fn run(argv: &[String], input: Vec<u8>, run: &Run) -> Result<Ended, StagingError> {
    let [program, arguments @ ..] = argv else {
        return Err(StagingError::new(Cause::Local, "no program"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env(MARK, run.site.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            StagingError::new(Cause::Local, format!("can't run {program}: {error}; is it installed on this machine?"))
        })?;
    let group = run.guard.hold(child.id());
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // One that ends early says why on its standard error.
            let _ = stdin.write_all(&input).await;
        }
    };
    let work = async {
        let ((), stdout, stderr) = tokio::join!(feed, read(stdout), read(stderr));
        (stdout, stderr)
    };
    let stall = Duration::try_from_secs_f64(run.settings.stall_timeout_sec).unwrap_or(Duration::MAX);
    let pid = child.id();
    tokio::select! {
        (stdout, stderr) = work => {
            let status = child.wait().await.map_err(|error| StagingError::new(Cause::Local, error.to_string()))?;
            Ok(ended(status, stdout, stderr))
        }
        () = run.stop.cancelled() => {
            stop(&mut child, &group).await;
            Err(StagingError::stopped())
        }
        () = silence(pid, stall) => {
            stop(&mut child, &group).await;
            let message = format!("{program} moved nothing for {} s", stall.as_secs());
            Err(StagingError::new(Cause::Network, message))
        }
    }
}

async fn stop(child: &mut Child, group: &Group) {
    group.send(Signal::SIGTERM);
    let _ = tokio::time::timeout(STOP_GRACE, child.wait()).await;
}

/// Ends when the process read and wrote nothing for so long.
async fn silence(pid: Option<u32>, limit: Duration) {
    let Some(pid) = pid else { return std::future::pending().await };
    let mut looks = interval(LOOK.min(limit));
    let (mut seen, mut since) = (moved(pid), Instant::now());
    loop {
        looks.tick().await;
        let now = moved(pid);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= limit {
            return;
        }
    }
}

/// The bytes that a process has read and written. `None` where the kernel does not count them.
fn moved(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    Some(text.lines().filter(|line| line.starts_with("rchar") || line.starts_with("wchar")).collect())
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What could be read before an error is still what the program said.
        let _ = (&mut stream).take(MAX_OUTPUT).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    bytes
}

fn ended(status: ExitStatus, stdout: Vec<u8>, stderr: Vec<u8>) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}
