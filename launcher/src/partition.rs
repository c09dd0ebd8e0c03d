//! Partitions: parts of the allocation, each with a launcher of its own, in a process of its own, with a
//! Session of its own. The crash of one leaves the others running. The parent only starts them, hands
//! on signals, and waits.

use std::{
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use copal_client::launcher_exit::ExitReason;
use copal_schemas::batch_job::Partition;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};
use tracing::{error, info, warn};

use crate::{
    args::PilotArgs,
    logs,
    pilot::{exit_record, forget_earlier_exit, nodes_of, site_of},
};

/// The variable by which a partition's launcher knows that standard input is a pipe from its parent.
pub const PARENT_PIPE: &str = "COPAL_PARTITION_PIPE";

/// Runs all partitions to their ends.
///
/// # Errors
/// When the partitions do not make up the allocation, or none of them did its work.
pub fn run(args: &PilotArgs) -> Result<()> {
    let (site, settings) = site_of(args)?;
    let log = args.batch_job_id.map(|id| site.log().join(format!("launcher-{id}.log")));
    logs::init(log.as_deref(), &settings.logging.level);
    forget_earlier_exit(args, &site);
    let nodes = nodes_of(args, &settings)?.nodes.len();
    let ranges = split(&args.partitions, nodes)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start")?;
    let failed = runtime.block_on(fly(args, &ranges))?;
    let (reason, message) = match failed {
        0 => (ExitReason::EndOfTime, format!("all {} partitions ended", ranges.len())),
        failed => (ExitReason::Failed, format!("{failed} of {} partitions failed", ranges.len())),
    };
    if let Some(id) = args.batch_job_id
        && let Err(error) = exit_record(reason, &message, 0).write(&site.qsubmit(), id)
    {
        warn!(%error, "can't leave an exit record");
    }
    if failed > 0 {
        bail!(message);
    }
    Ok(())
}

/// The first node and the number of nodes of each partition.
fn split(partitions: &[Partition], nodes: usize) -> Result<Vec<(usize, usize)>> {
    let mut ranges = Vec::new();
    let mut first = 0;
    for partition in partitions {
        let count = usize::try_from(partition.num_nodes).context("a partition has no nodes")?;
        ranges.push((first, count));
        first += count;
    }
    if first != nodes {
        bail!("the partitions have {first} nodes together, the allocation has {nodes}; make both the same");
    }
    Ok(ranges)
}

/// Starts a launcher for each and waits for all. Says how many failed.
async fn fly(args: &PilotArgs, ranges: &[(usize, usize)]) -> Result<usize> {
    let mut children = Vec::new();
    for (partition, (first, count)) in args.partitions.iter().zip(ranges) {
        let child = command(args, partition, *first, *count)?.spawn();
        info!(%partition, first, "partition starts");
        children
            .push((partition.to_string(), child.with_context(|| format!("can't start the partition {partition}"))?));
    }
    let pids: Vec<Pid> = children
        .iter()
        .filter_map(|(_, child)| child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw))
        .collect();
    let forwarder = tokio::spawn(forward_signals(pids));
    // Dropped with the parent, however that ends: then the partitions stop too.
    let pipes: Vec<_> = children.iter_mut().map(|(_, child)| child.stdin.take()).collect();
    let mut failed = 0;
    for (partition, child) in &mut children {
        failed += usize::from(!wait(partition, child).await);
    }
    drop(pipes);
    forwarder.abort();
    Ok(failed)
}

fn command(args: &PilotArgs, partition: &Partition, first: usize, count: usize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("can't find this program's own file")?);
    if let Some(site) = &args.site {
        command.arg("--site").arg(site);
    }
    if let Some(id) = args.batch_job_id {
        command.arg("--batch-job-id").arg(id.to_string());
    }
    command.args(["-j", &partition.job_mode.to_string()]);
    command.arg("-t").arg(args.wall_time_min.context("-t is missing")?.to_string());
    // A partition's own tags come on top of the launcher's.
    let mut tags = args.filter_tags();
    tags.extend(partition.filter_tags.clone());
    for (key, value) in tags {
        command.arg("--tag").arg(format!("{key}={value}"));
    }
    command.arg("--nodes").arg(format!("{first}:{count}"));
    // Not in the parent's group: a signal to that one comes by the parent, once.
    command.process_group(0).stdin(Stdio::piped()).env(PARENT_PIPE, "1");
    Ok(command)
}

async fn wait(partition: &str, child: &mut Child) -> bool {
    match child.wait().await {
        Ok(status) if status.success() => {
            info!(partition, "partition ended");
            true
        }
        Ok(status) => {
            error!(partition, code = status.code(), signal = status.signal(), "partition failed; the others go on");
            false
        }
        Err(error) => {
            error!(partition, %error, "can't wait for a partition");
            false
        }
    }
}

async fn forward_signals(pids: Vec<Pid>) {
    let kinds = [
        (SignalKind::terminate(), Signal::SIGTERM),
        (SignalKind::user_defined1(), Signal::SIGUSR1),
        (SignalKind::interrupt(), Signal::SIGINT),
        (SignalKind::hangup(), Signal::SIGHUP),
    ];
    let tasks = kinds.map(|(kind, signal_to_send)| {
        let pids = pids.clone();
        async move {
            let Ok(mut stream) = signal(kind) else { return };
            while stream.recv().await.is_some() {
                info!(signal = signal_to_send.as_str(), "handing on a signal to the partitions");
                for pid in &pids {
                    let _ = kill(*pid, signal_to_send);
                }
            }
        }
    });
    futures_util::future::join_all(tasks).await;
}

/// Ends when the parent of this partition is gone; never in a launcher without one.
pub async fn parent_is_gone() {
    if std::env::var_os(PARENT_PIPE).is_none() {
        std::future::pending::<()>().await;
    }
    let pipe = std::io::stdin().as_fd().try_clone_to_owned().and_then(pipe::Receiver::from_owned_fd);
    let Ok(mut pipe) = pipe else {
        warn!("standard input is no pipe; the end of the parent will not be noticed");
        return std::future::pending().await;
    };
    let mut byte = [0];
    // The parent writes nothing: whatever ends the wait is the end of the pipe.
    while pipe.read(&mut byte).await.is_ok_and(|count| count > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_must_make_up_the_allocation() {
        let partitions: Vec<Partition> =
            ["mpi:2:role=leader", "serial:6"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(split(&partitions, 8).unwrap(), [(0, 2), (2, 6)]);
        let text = split(&partitions, 9).unwrap_err().to_string();
        assert!(text.contains('8') && text.contains('9'), "{text}");
    }
}
