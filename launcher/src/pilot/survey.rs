//! What the other nodes have, in mpi mode. There no worker is on them to tell, and nodes are taken to be like this one;
//! but each MIG slice has an id of its own, so a node with slices is asked, by the command that starts ranks.

use std::{
    collections::HashSet,
    io,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    process::{Child, Command},
    sync::{Semaphore, mpsc::UnboundedSender},
};

use super::posts::one_process;
use crate::{
    hardware::NodeHardware,
    mpi::{LaunchCommand, MpiLaunch},
    nodes::{Node, Rules},
    partition::PARENT_PIPE,
};

/// How long a node may take to answer: commands that start ranks are slow on large allocations.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How many are asked at the same time.
const AT_ONCE: usize = 32;

/// What a node has, or why that is not known.
pub(super) type Found = (usize, Result<NodeHardware>);

/// The commands that ask, while they run.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands(Arc<Mutex<HashSet<i32>>>);

/// One of them.
struct Running {
    commands: Commands,
    pid: i32,
}

impl Commands {
    /// Their processes. Whoever asks after a look at all processes is told of each that was there.
    pub(super) fn pids(&self) -> Vec<i32> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, command: &mut Command) -> io::Result<(Child, Running)> {
        // Locked before there is a process.
        let mut pids = self.lock();
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        pids.insert(pid);
        drop(pids);
        Ok((child, Running { commands: self.clone(), pid }))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.commands.lock().remove(&self.pid);
    }
}

/// The nodes that must be asked before anything runs there.
pub(super) fn unknown(nodes: &[Node], rules: &Rules) -> Vec<usize> {
    let has_slices = nodes.iter().any(|node| node.gpus.iter().any(|gpu| gpu.mig));
    if !has_slices || rules.names_gpus() {
        return Vec::new();
    }
    (0..nodes.len()).filter(|node| !nodes[*node].is_local).collect()
}

/// Asks these nodes, each by a task; the answers come one by one.
///
/// # Errors
/// When there is no command line that could ask one.
pub(super) fn ask(
    unknown: &[usize],
    nodes: &[Node],
    mpi: &(dyn MpiLaunch + Send + Sync),
    answers: &UnboundedSender<Found>,
    commands: &Commands,
) -> Result<()> {
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for node in unknown.iter().copied() {
        let words = vec![program.display().to_string(), "hardware".into()];
        let launch = mpi.command(&one_process(&nodes[node], words))?;
        let (turns, answers, commands) = (turns.clone(), answers.clone(), commands.clone());
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            let found = match tokio::time::timeout(TIMEOUT, run(&launch, &commands)).await {
                Ok(found) => found,
                Err(_) => Err(anyhow::anyhow!("no answer in {} s", TIMEOUT.as_secs())),
            };
            drop(answers.send((node, found)));
        });
    }
    Ok(())
}

async fn run(launch: &LaunchCommand, commands: &Commands) -> Result<NodeHardware> {
    let (name, arguments) = launch.argv.split_first().context("the command that starts ranks is empty")?;
    let mut command = Command::new(name);
    command.args(arguments).envs(&launch.env).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove(PARENT_PIPE);
    for variable in &launch.unset {
        command.env_remove(variable);
    }
    let (child, _running) = commands.start(&mut command).with_context(|| format!("can't run {name}"))?;
    let output = child.wait_with_output().await.with_context(|| format!("can't run {name}"))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        bail!("{name} ended with {}: {last}", output.status);
    }
    // What a login script prints comes before it.
    let answer = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    answer.with_context(|| format!("{name} gave no answer: {:?}", text.trim()))
}
