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
/// The most bytes of ids on one command line. The system takes more; a scheduler's own buffers may not.
const MAX_BATCH: usize = 16 * 1024;

/// Splits words that go on command lines, such as ids, so that each line stays short.
pub fn batches<'a, 'b>(words: &'a [&'b str]) -> impl Iterator<Item = &'a [&'b str]> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let mut length = 0;
        let fits = |word: &&&str| {
            length += word.len() + 1;
            length <= MAX_BATCH
        };
        // One word goes alone, however long it is.
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, after) = rest.split_at(count);
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

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
    /// It printed more than is read: what is missing, nobody knows.
    #[error("{command} printed more than {} MiB", MAX_OUTPUT / 1_048_576)]
    TooLong {
        /// The command.
        command: String,
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
        Ok((Ok(_), Stream { is_whole: false, .. }, _)) => Err(CommandError::TooLong { command: program.into() }),
        Ok((Ok(status), stdout, stderr)) => Ok(output(status, stdout.bytes, stderr.bytes)),
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

/// What was read of a stream.
struct Stream {
    bytes: Vec<u8>,
    is_whole: bool,
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Stream {
    let mut bytes = Vec::new();
    let mut is_whole = true;
    if let Some(mut stream) = stream {
        // What could be read before an error is still what the command said.
        let _ = (&mut stream).take(MAX_OUTPUT).read_to_end(&mut bytes).await;
        // The rest is taken and dropped, or the command would hang on a full pipe.
        is_whole = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.is_ok_and(|dropped| dropped == 0);
    }
    Stream { bytes, is_whole }
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
    async fn pitfall_071_a_flood_of_output_is_bounded_and_no_answer() {
        let error = RUNNER.run("head", &["-c", "100000000", "/dev/zero"]).await.unwrap_err();
        assert_eq!(error.to_string(), "head printed more than 64 MiB");
        // A flood of complaints is no reason to doubt the answer.
        let output = RUNNER.run("sh", &["-c", "echo 41; head -c 100000000 /dev/zero >&2"]).await.unwrap();
        assert_eq!((output.stdout.as_str(), output.code), ("41\n", Some(0)));
        assert!(output.complaint().len() <= 4 * 2_000);
    }

    #[test]
    fn pitfall_050_no_command_line_grows_with_the_number_of_jobs() {
        let ids: Vec<String> = (1_000_000..1_010_000).map(|id| format!("{id}.a-server.example.org")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let parts: Vec<&[&str]> = batches(&ids).collect();
        assert!(parts.len() < 25, "10,000 jobs are cancelled by {} commands", parts.len());
        assert!(parts.iter().all(|part| part.iter().map(|id| id.len() + 1).sum::<usize>() <= MAX_BATCH));
        assert_eq!(parts.concat(), ids);
        assert_eq!(batches(&[]).count(), 0);
        let long = "x".repeat(MAX_BATCH * 2);
        assert_eq!(batches(&["a", &long, "b"]).collect::<Vec<_>>(), [&["a"][..], &[&long], &["b"]]);
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
