//! The surroundings of a test run: a private Postgres cluster with a migrated template.
//!
//! `copal-test-env run -- COMMAND…` starts it, runs the command with `COPAL_TEST_DATABASE_URL` set,
//! stops it, and exits with the command's code, or 1 when the command left a process behind. SIGINT
//! and SIGTERM go on to the command, and the cluster is stopped then too. `copal-test-env serve`
//! prints the URL and stops when its standard input ends.

use std::{
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use copal_tests::{
    postgres::{Cluster, URL_VARIABLE},
    process::marked,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

/// All processes of a run inherit this variable, with a value of the run's own.
const RUN_VARIABLE: &str = "COPAL_TEST_RUN";

/// How long processes of the run may take to end after the command.
const LEFT_LIMIT: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: copal-test-env run -- COMMAND [ARGUMENT…]  or  copal-test-env serve";

#[tokio::main]
async fn main() -> ExitCode {
    match work().await {
        Ok(code) => code,
        Err(error) => {
            // Where stderr is closed, nobody is told.
            let _ = writeln!(std::io::stderr(), "copal-test-env: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn work() -> anyhow::Result<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    match words.iter().map(AsRef::as_ref).collect::<Vec<&str>>()[..] {
        ["serve"] => serve().await,
        ["run", "--", _, ..] => run(Command::new(&arguments[2]).args(&arguments[3..])).await,
        _ => bail!("{USAGE}"),
    }
}

async fn serve() -> anyhow::Result<ExitCode> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let cluster = Cluster::start().await?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", cluster.url()).and_then(|()| out.flush()).context("can't print the URL")?;
    let mut nothing = Vec::new();
    let mut input = tokio::io::stdin();
    tokio::select! {
        _ = input.read_to_end(&mut nothing) => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    cluster.stop().await?;
    // Leave now: the thread that reads standard input may be held up in it.
    std::process::exit(0);
}

async fn run(command: &mut Command) -> anyhow::Result<ExitCode> {
    // From here on signals are answered, so that none leaves the cluster behind.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let cluster = Cluster::start().await?;
    let run = uuid::Uuid::new_v4().to_string();
    let ended = match command.env(URL_VARIABLE, cluster.url()).env(RUN_VARIABLE, &run).spawn() {
        Ok(mut child) => loop {
            tokio::select! {
                status = child.wait() => break status.context("can't wait for the command"),
                // A terminal's Ctrl-C has reached the command as well; a second one does no harm.
                _ = interrupt.recv() => pass_on(&child, Signal::SIGINT),
                _ = terminate.recv() => pass_on(&child, Signal::SIGTERM),
            }
        },
        Err(error) => Err(error).context("can't start the command"),
    };
    cluster.stop().await?;
    let code = exit_code(ended?);
    match left_over(&run).await {
        left if left.is_empty() => Ok(code),
        left => bail!("processes were left behind, and killed now:\n{}", left.join("\n")),
    }
}

/// Processes of the run that do not end by themselves; kills them.
async fn left_over(run: &str) -> Vec<String> {
    let start = Instant::now();
    while !marked(RUN_VARIABLE, run).is_empty() && start.elapsed() < LEFT_LIMIT {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let left = marked(RUN_VARIABLE, run);
    for (pid, _) in &left {
        // Where this fails it is gone already.
        let _ = kill(*pid, Signal::SIGKILL);
    }
    left.into_iter().map(|(_, line)| line).collect()
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id() {
        // Where this fails the command is gone already.
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

/// The command's code, or 128 and the signal, as shells say it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
