//! The worker: a small process of its own on a node that starts, awaits and ends the runs of Jobs for the
//! head. It knows no service and decides nothing. It has no async runtime: a thread for each run sleeps in
//! the kernel until its process ends, then starts the next at once.
//!
//! When the head is gone, the worker kills everything and exits, so a killed launcher leaves nothing. When the worker
//! itself is killed, its guard does that.

mod cpus;
mod guard;
mod janitor;
mod link;
mod report;
mod run;
mod table;
mod warden;

use std::{path::PathBuf, sync::Arc, thread};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use tracing::{info, warn};

use crate::{
    hardware,
    process::tree,
    protocol::{Cause, FromWorker, Setup, ToWorker, receive, send},
};
use link::Link;
use report::Outbox;
use table::Shared;

/// `copal-launcher worker`: started by a launcher, never by people.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkerArgs {
    /// Addresses of the head, `host:port`, tried in turn; without any, the head is at the other end of
    /// standard input, a socket.
    #[arg(long)]
    pub connect: Vec<String>,
    /// The file with the launcher's key, to prove who this is.
    #[arg(long, requires = "connect")]
    pub key_file: Option<PathBuf>,
    /// Which of the head's nodes this is.
    #[arg(long, default_value_t = 0)]
    pub node: u32,
}

/// Works until the head says that it is enough, or is gone.
///
/// # Errors
/// When the head can't be reached or does not prove that it is the head.
pub fn run(args: &WorkerArgs) -> Result<()> {
    // The scheduler signals every process of an allocation; what it means is the head's decision.
    disregard_signals().context("can't set up signals")?;
    // The guard holds the connection too: it is made before.
    let Link { mut input, mut output, socket } = link::open(args)?;
    let guard = guard::part().context("can't part from the guard")?;
    // The head knows its own machine.
    let hardware = (!args.connect.is_empty()).then(|| hardware::detect(&|name| std::env::var(name).ok()));
    send(&mut output, &FromWorker::Hello { hardware }).context("can't greet the head")?;
    let Some(ToWorker::Setup(setup)) = receive(&mut input).context("the head does not answer")? else {
        bail!("the head said something else than how to work");
    };

    let outbox = Arc::new(Outbox::default());
    let shared = Arc::new(Shared::new(outbox.clone(), setup.clone()));
    let group = if shared.groups.is_some() { setup.group.as_str() } else { "" };
    guard.watch(group, move || link::hang_up(&socket)).context("can't start a thread")?;
    let reporter = {
        let outbox = outbox.clone();
        thread::Builder::new().name("report".into()).spawn(move || report::send_all(&outbox, output))
    };
    let reporter = reporter.context("can't start a thread")?;
    {
        let shared = shared.clone();
        thread::Builder::new().name("warden".into()).spawn(move || warden::watch(&shared))?;
    }
    {
        let shared = shared.clone();
        thread::Builder::new().name("janitor".into()).spawn(move || janitor::clean(&shared))?;
    }
    obey(&shared, &mut input, &setup);
    let hanging = shared.wait_until_empty();
    if hanging > 0 {
        warn!(runs = hanging, "runs do not end though they were killed; leaving them behind");
    }
    let strays = tree::kill_all_below(Vec::new);
    if strays > 0 {
        warn!(strays, "killed processes that outlived their Jobs");
    }
    if let Some(groups) = &shared.groups {
        groups.remove();
    }
    // The last reports are on their way when the reporter has ended.
    outbox.close();
    drop(reporter.join());
    Ok(())
}

/// Lets signals come to nothing. They are caught and neither ignored nor blocked, since a Job would
/// inherit that.
#[expect(unsafe_code, reason = "a signal handler can't be set safely")]
fn disregard_signals() -> nix::Result<()> {
    extern "C" fn nothing(_signal: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        // SAFETY: the handler does nothing, which is safe at any point of any thread.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Does what the head says until it says that it is enough or is gone. All runs are told to end then.
fn obey(shared: &Arc<Shared>, input: &mut impl std::io::Read, setup: &Setup) {
    loop {
        match receive(input) {
            Ok(Some(ToWorker::Start(tasks))) => run::start(shared, tasks),
            Ok(Some(ToWorker::Follow(tasks))) => shared.table().follow(tasks),
            Ok(Some(ToWorker::Reoffer(slot))) => run::reoffer(shared, slot),
            Ok(Some(ToWorker::Recall(count))) => shared.table().recall(count),
            Ok(Some(ToWorker::Kill { runs, cause, grace_sec })) => shared.kill(&runs, cause, grace_sec),
            Ok(Some(ToWorker::Setup(_))) => warn!("the head said twice how to work"),
            Ok(Some(ToWorker::Exit)) => {
                shared.kill_all(Cause::EndOfTime, setup.kill_grace_sec);
                return;
            }
            Ok(None) => {
                info!("the head is gone");
                shared.kill_all(Cause::HeadLost, setup.kill_grace_sec.min(3.0));
                return;
            }
            Err(error) => {
                warn!(%error, "the connection to the head broke");
                shared.kill_all(Cause::HeadLost, setup.kill_grace_sec.min(3.0));
                return;
            }
        }
    }
}
