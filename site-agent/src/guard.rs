//! What the agent runs does not outlive it. A process group ends with its [`Group`]; where the agent is killed
//! and can't do that, the guard does: a small process beside it that learns of every group by a pipe and sees the
//! agent's end as the end of that pipe. What is run and why is the caller's.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::process::{ProcessId, send_group};

/// The subcommand of `copal-agent` that is the guard.
pub const COMMAND: &str = "guard";
/// How long a group may take to save what it has.
const GRACE: Duration = Duration::from_secs(2);

/// The agent's end of the guard. Without a process (the default) groups end with their owner alone.
#[derive(Debug, Default)]
pub struct Guard {
    process: Mutex<Option<Child>>,
}

impl Guard {
    /// Starts the guard of this process, which is `copal-agent`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start() -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            // Whoever looks for the agent by its name does not mean this.
            .arg0("copal-guard")
            .arg(COMMAND)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A signal from the terminal is for the agent.
            .process_group(0)
            .spawn()?;
        Ok(Self { process: Mutex::new(Some(child)) })
    }

    /// Takes a process group, named by its first process, which was just started.
    #[must_use]
    pub fn hold(self: &Arc<Self>, leader: Option<u32>) -> Group {
        if let Some(leader) = leader {
            self.tell(&format!("+{leader}\n"));
        }
        Group { leader, guard: Arc::clone(self) }
    }

    fn tell(&self, line: &str) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pipe) = process.as_mut().and_then(|child| child.stdin.as_mut()) else { return };
        if let Err(error) = pipe.write_all(line.as_bytes()) {
            // Somebody killed it. The agent goes on, and ends its groups itself.
            tracing::warn!("the guard of the agent's programs is gone: {error}");
            reap(&mut process);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        reap(self.process.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Closes the pipe and waits for the guard, which ends at that.
fn reap(process: &mut Option<Child>) {
    if let Some(mut child) = process.take() {
        // `wait` closes the pipe first.
        let _ = child.wait();
    }
}

/// A process group that is killed when this is dropped, or when the agent ends.
#[derive(Debug)]
pub struct Group {
    leader: Option<u32>,
    guard: Arc<Guard>,
}

impl Group {
    /// Sends a signal to all of it.
    pub fn send(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            send_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send(Signal::SIGKILL);
        if let Some(leader) = self.leader {
            self.guard.tell(&format!("-{leader}\n"));
        }
    }
}

/// The guard itself: reads which groups there are, and ends those that are left when the agent has ended.
///
/// # Errors
/// The operating system's.
pub fn run() -> anyhow::Result<()> {
    // The name that `pkill` and `ps` go by.
    let _ = fs::write(Path::new("/proc/self/comm"), "copal-guard");
    let left = read_groups(io::stdin().lock());
    if left.is_empty() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(end_groups(&left));
    Ok(())
}

/// The groups that are held when the input ends.
fn read_groups(input: impl BufRead) -> BTreeSet<u32> {
    let mut groups = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        match (line.strip_prefix('+'), line.strip_prefix('-')) {
            (Some(leader), _) => groups.extend(leader.parse::<u32>().ok()),
            (None, Some(leader)) => groups.retain(|held| leader.parse() != Ok(*held)),
            (None, None) => {}
        }
    }
    groups
}

async fn end_groups(groups: &BTreeSet<u32>) {
    let leaders: Vec<ProcessId> = groups.iter().filter_map(|leader| ProcessId::of(*leader)).collect();
    groups.iter().for_each(|group| send_group(*group, Signal::SIGTERM));
    let ended = async {
        for leader in &leaders {
            leader.ended().await;
        }
    };
    let _ = tokio::time::timeout(GRACE, ended).await;
    groups.iter().for_each(|group| send_group(*group, Signal::SIGKILL));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_were_let_go_are_not_meant() {
        assert_eq!(read_groups("+12\n+13\n-12\nx\n+\n-99\n+14\n".as_bytes()), BTreeSet::from([13, 14]));
    }

    #[tokio::test]
    async fn a_group_ends_whole() {
        // The first process ends at once, the second takes no SIGTERM.
        let script = "trap '' TERM; sleep 1000 & echo; trap - TERM; wait";
        let mut child =
            Command::new("sh").args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let other = crate::process::descendants(child.id());
        assert_eq!(other.len(), 1);
        let other = ProcessId::of(other[0]).unwrap();
        end_groups(&BTreeSet::from([child.id()])).await;
        child.wait().unwrap();
        tokio::time::timeout(Duration::from_secs(30), other.ended()).await.unwrap();
    }
}
