//! Running a command of the scheduler: in the C locale, with a time-out, with bounded output, its
//! whole process group killed when it hangs, and bytes that are not UTF-8 repaired.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
};

use crate::process::send_group;

/// The most bytes that are read of each stream. A queue of 100,000 jobs needs a tenth of it.
const MAX_OUTPUT: u64 = 64 * 1024 * 1024;

/// What a command said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
}

impl Output {
    /// Its standard output, if its exit code is 0.
    ///
    /// # Errors
    /// When it is another.
    pub fn success(self, program: &str) -> Result<String, CommandError> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => Err(CommandError::Failed {
                command: program.into(),
                status: code.map_or_else(|| "a signal".into(), |code| format!("exit code {code}")),
                text: self.complaint(),
            }),
        }
    }

    /// What it said, for people: standard error, or where that is empty standard output.
    #[must_use]
    pub fn complaint(&self) -> String {
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        text.trim().chars().take(2_000).collect()
    }
}

/// A command that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started.
    #[error("can't run {command}; is it installed and on the agent's PATH?")]
    Start {
        /// The command.
        command: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It did not end in time.
    #[error("{command} did not answer within {seconds} s")]
    TimedOut {
        /// The command.
        command: String,
        /// The limit.
        seconds: u64,
    },
    /// It ended with an error.
    #[error("{command} failed with {status}: {text}")]
    Failed {
        /// The command.
        command: String,
        /// Exit code or signal.
        status: String,
        /// What it said.
        text: String,
    },
}

/// How the commands of one kind of scheduler are run.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    /// How long one may take.
    pub limit: Duration,
    /// Variables that they get.
    pub env: &'static [(&'static str, &'static str)],
    /// Which variables of the agent's own environment they must not see: an agent that itself runs in an
    /// allocation would hand that allocation's limits on.
    pub scrub: fn(&str) -> bool,
}

impl Runner {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it can't be started or does not end in time. Any exit code is an answer here.
    pub async fn run(&self, program: &str, args: &[&str]) -> Result<Output, CommandError> {
        self.run_with(program, args, Stdio::null()).await
    }

    /// Runs a command to its end, with `input` as its standard input.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub async fn run_with(&self, program: &str, args: &[&str], input: Stdio) -> Result<Output, CommandError> {
        run(self, program, args, input).await
    }

    /// Runs a command that must end with exit code 0; gives its standard output.
    ///
    /// # Errors
    /// As [`Runner::run`], and when the exit code is another.
    pub async fn run_ok(&self, program: &str, args: &[&str]) -> Result<String, CommandError> {
        self.run(program, args).await?.success(program)
    }
}

async fn run(runner: &Runner, program: &str, args: &[&str], input: Stdio) -> Result<Output, CommandError> {
    let limit = runner.limit;
    let scrubbed = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(runner.scrub));
    let mut command = Command::new(program);
    for name in scrubbed {
        command.env_remove(name);
    }
    let mut child = command
        .args(args)
        .envs(runner.env.iter().copied())
        .env("LC_ALL", "C")
        .env("LANG", "C")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| CommandError::Start { command: program.into(), source })?;
    let group = child.id();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
        (child.wait().await, stdout, stderr)
    };
    let failed = |status: String, text: String| CommandError::Failed { command: program.into(), status, text };
    match tokio::time::timeout(limit, work).await {
        Ok((Ok(status), stdout, stderr)) => Ok(output(status, stdout, stderr)),
        Ok((Err(error), ..)) => Err(failed("no exit code".into(), error.to_string())),
        Err(_) => {
            if let Some(group) = group {
                send_group(group, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            Err(CommandError::TimedOut { command: program.into(), seconds: limit.as_secs() })
        }
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What could be read before an error is still what the command said.
        let _ = (&mut stream).take(MAX_OUTPUT).read_to_end(&mut bytes).await;
        // The rest is taken and dropped, or the command would hang on a full pipe.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    bytes
}

fn output(status: ExitStatus, stdout: Vec<u8>, stderr: Vec<u8>) -> Output {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output { stdout: text(stdout), stderr: text(stderr), code: status.code() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNER: Runner = Runner { limit: Duration::from_secs(20), env: &[], scrub: |_| false };

    #[tokio::test]
    async fn pitfall_052_072_bytes_that_are_not_utf8_are_repaired() {
        let output = RUNNER.run("printf", &["caf\\351"]).await.unwrap();
        assert_eq!(output.stdout, "caf\u{fffd}");
    }

    #[tokio::test]
    async fn pitfall_072_a_command_that_hangs_is_cut_off_with_its_children() {
        let mark = format!("{}.25", 31_000 + std::process::id());
        let started = std::time::Instant::now();
        let script = format!("sleep {mark} & sleep {mark}");
        let error =
            Runner { limit: Duration::from_millis(300), ..RUNNER }.run("sh", &["-c", &script]).await.unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
        let left = RUNNER.run("pgrep", &["-f", &format!("^sleep {mark}")]).await.unwrap();
        assert_eq!(left.stdout, "");
    }

    #[tokio::test]
    async fn pitfall_081_an_allocation_around_the_agent_is_not_handed_on() {
        let runner = Runner { env: &[("COPAL_TEST_GIVEN", "1")], scrub: |name| name == "PATH", ..RUNNER };
        let output = runner.run("/usr/bin/env", &[]).await.unwrap();
        assert!(
            output.stdout.contains("COPAL_TEST_GIVEN=1") && output.stdout.contains("LC_ALL=C"),
            "{}",
            output.stdout
        );
        assert!(!output.stdout.lines().any(|line| line.starts_with("PATH=")), "{}", output.stdout);
    }

    #[tokio::test]
    async fn a_failure_carries_what_the_command_said() {
        let error = RUNNER.run_ok("sh", &["-c", "echo no such queue >&2; exit 3"]).await.unwrap_err();
        assert_eq!(error.to_string(), "sh failed with exit code 3: no such queue");
        let error = RUNNER.run_ok("no-such-program", &[]).await.unwrap_err();
        assert!(matches!(error, CommandError::Start { .. }));
    }
}
