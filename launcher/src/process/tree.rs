//! Finding and killing all processes that came of one: also those that left their process group and
//! session and whose parents are gone. How `/proc` is read is `copal_client::processes`.
//!
//! A process that becomes an orphan is adopted by the nearest ancestor that asked for it
//! ([`adopt_orphans`]), so whatever a run starts stays below its worker. Which run an orphan belongs to
//! tells a variable in its environment ([`MARKER`]).

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, Instant},
};

use copal_client::processes::{self, Descent, Process, below, snapshot, variable};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use super::{end, group::Group};

/// The variable that says to which run a process belongs.
pub const MARKER: &str = "COPAL_RUN";

/// Commands that start ranks on other nodes. Killed outright they can't end these: ranks of an `srun` go on then to the end
/// of the allocation.
const LAUNCH_COMMANDS: &[&str] =
    &["srun", "mpiexec", "mpiexec.hydra", "mpirun", "orterun", "prterun", "aprun", "jsrun", "flux"];
/// How long such a command, once interrupted, may take to kill its ranks.
pub const LAUNCH_PATIENCE: Duration = Duration::from_millis(1_500);
/// How long a killed process may hang in the kernel before it is left behind.
pub const HANG: Duration = Duration::from_secs(12);
/// What `srun` needs to tell one interruption from the next.
const INTERRUPTION_GAP: Duration = Duration::from_millis(20);

/// Makes this process the parent of all orphans below it.
///
/// # Errors
/// When the system refuses.
pub fn adopt_orphans() -> nix::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)
}

/// To which run a process says that it belongs.
#[must_use]
pub fn marker(pid: i32) -> Option<String> {
    variable(pid, MARKER)
}

/// The children of this process's first thread, which is the one that adopts orphans, without looking
/// at every process of the machine: a call of the system where there are none.
#[derive(Debug)]
pub struct Orphans {
    list: Option<File>,
}

impl Orphans {
    /// Those of this process, which must not be copied from then on.
    #[must_use]
    pub fn watch() -> Self {
        Self { list: File::open(format!("/proc/self/task/{}/children", std::process::id())).ok() }
    }

    /// Who they are now. `None` where the system does not list them.
    #[must_use]
    pub fn pids(&self) -> Option<Vec<i32>> {
        let list = self.list.as_ref()?;
        let (mut text, mut part) = (Vec::new(), [0; 1024]);
        loop {
            match list.read_at(&mut part, text.len() as u64).ok()? {
                0 => break,
                length => text.extend_from_slice(&part[..length]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        Some(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }
}

/// Interrupts those of these processes that start ranks elsewhere, which has them kill these and end. Who they are.
fn interrupt_those_of(pids: &[i32]) -> Vec<i32> {
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let named = pids.iter().map(|pid| (*pid, name(*pid).trim_end().to_owned()));
    let told: Vec<(i32, String)> = named.filter(|(_, name)| LAUNCH_COMMANDS.contains(&name.as_str())).collect();
    // At the first srun shows how its tasks are, the second it passes on, at the third it kills them.
    for round in 0..3 {
        let meant: Vec<i32> =
            told.iter().filter(|(_, name)| round == 0 || name == "srun").map(|(pid, _)| *pid).collect();
        if round > 0 && !meant.is_empty() {
            std::thread::sleep(INTERRUPTION_GAP);
        }
        for pid in meant {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
    }
    told.into_iter().map(|(pid, _)| pid).collect()
}

/// One look at all processes, which serves as many trees as there are: looking takes longer than all that is done with it.
#[derive(Debug)]
pub struct Look {
    descent: Descent,
    /// All below this process.
    ours: Vec<Process>,
    /// Of the children of this process, among which the orphans are.
    markers: HashMap<i32, Option<String>>,
}

impl Look {
    /// At the processes that there are now.
    #[must_use]
    pub fn now() -> Self {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let descent = Descent::of(&snapshot());
        let ours = descent.below(own);
        let markers = descent.children(own).map(|process| (process.pid, marker(process.pid))).collect();
        Self { descent, ours, markers }
    }
}

/// A number that no process has.
const NOBODY: i32 = -1;

/// The processes of one run.
#[derive(Debug)]
pub struct Tree {
    leader: i32,
    marker: String,
    takes_unmarked: bool,
    known: HashSet<i32>,
    group: Option<Arc<Group>>,
}

impl Tree {
    /// The tree of the run whose first process is `leader`, which leads a process group, and whose
    /// environment has `marker`.
    #[must_use]
    pub fn new(leader: Pid, marker: impl Into<String>) -> Self {
        Self {
            leader: leader.as_raw(),
            marker: marker.into(),
            takes_unmarked: false,
            known: HashSet::new(),
            group: None,
        }
    }

    /// An orphan of this process and what is below it, without a leader.
    #[must_use]
    pub fn of_orphan(pid: i32) -> Self {
        let mut tree = Self::new(Pid::from_raw(NOBODY), String::new());
        tree.known.insert(pid);
        tree
    }

    /// Counts in what is in the run's control group, where it has one.
    #[must_use]
    pub fn with_group(mut self, group: Option<Arc<Group>>) -> Self {
        self.group = group;
        self
    }

    /// Counts orphans without a marker in too: right where no other run can have started them.
    pub fn take_unmarked(&mut self) {
        self.takes_unmarked = true;
    }

    /// Whether one of these orphans of this process belongs to it.
    #[must_use]
    pub fn has_left(&self, orphans: &[i32]) -> bool {
        let in_group = || self.group.iter().flat_map(|group| group.pids());
        let lives = |pid: i32| processes::find(pid).is_some_and(|process| !process.is_zombie);
        // What the system tells at once comes first. The environment of what has ended is empty.
        orphans.iter().any(|pid| group_of(*pid) == Some(self.leader) && lives(*pid))
            || orphans.iter().any(|pid| self.is_meant(marker(*pid).as_deref()))
            || (!orphans.is_empty() && in_group().any(|pid| orphans.contains(&pid)))
    }

    /// Those of its processes that live, without its leader. A process once seen in the tree stays in
    /// it, also when its parent is gone and it has cleared its environment.
    pub fn members(&mut self, look: &Look) -> Vec<i32> {
        let in_group: HashSet<i32> = self.group.iter().flat_map(|group| group.pids()).collect();
        let mut found: HashSet<i32> = look.descent.below(self.leader).iter().map(|process| process.pid).collect();
        let is_root = |process: &&Process| {
            process.pid != self.leader
                && (process.group == self.leader
                    || self.known.contains(&process.pid)
                    || in_group.contains(&process.pid)
                    || look.markers.get(&process.pid).is_some_and(|marker| self.is_meant(marker.as_deref())))
        };
        let roots: Vec<i32> = look.ours.iter().filter(is_root).map(|process| process.pid).collect();
        for root in roots {
            found.insert(root);
            found.extend(look.descent.below(root).iter().map(|process| process.pid));
        }
        self.known = found;
        let lives = |process: &&Process| !process.is_zombie && self.known.contains(&process.pid);
        look.ours.iter().filter(lives).map(|process| process.pid).collect()
    }

    /// Whether an orphan with this marker is one of this tree.
    fn is_meant(&self, marker: Option<&str>) -> bool {
        match marker {
            // A tree of one orphan has no marker.
            Some(marker) => marker == self.marker && !marker.is_empty(),
            None => self.takes_unmarked,
        }
    }

    /// Sends a signal to the process group and to every other process of the tree.
    pub fn signal(&mut self, look: &Look, signal: Signal) {
        let members = self.members(look);
        let _ = nix::sys::signal::killpg(Pid::from_raw(self.leader), signal);
        for pid in members {
            // The group got it already; twice would end a program that counts signals.
            if group_of(pid) != Some(self.leader) {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }

    /// Waits until all but the leader are gone, until `kill_at`; then kills them, again and again,
    /// since they may start others meanwhile, and reaps those that became ours. Gives up 10 s later:
    /// a process that hangs in the kernel can't be killed.
    pub fn end(&mut self, mut kill_at: Instant) {
        let give_up = kill_at.max(Instant::now()) + LAUNCH_PATIENCE + Duration::from_secs(10);
        // Once it was done there is no time for it any more.
        let mut interrupt_at = Some(kill_at.checked_sub(LAUNCH_PATIENCE).unwrap_or(kill_at));
        loop {
            let members = self.members(&Look::now());
            reap_zombies(&self.known);
            let now = Instant::now();
            if interrupt_at.is_some_and(|time| now >= time) {
                interrupt_at = None;
                if !interrupt_those_of(&members).is_empty() {
                    kill_at = kill_at.max(now + LAUNCH_PATIENCE);
                }
            }
            if members.is_empty() || now >= give_up {
                return;
            }
            if now >= kill_at {
                if let Some(group) = &self.group {
                    group.kill();
                }
                for pid in &members {
                    let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                }
            }
            let next = interrupt_at.unwrap_or(kill_at);
            end::wait_for_any(&members, if now >= kill_at { now + Duration::from_millis(200) } else { next });
        }
    }
}

/// Has what started ranks on other nodes in these trees kill these, [`LAUNCH_PATIENCE`] before it is killed itself: in
/// all of them at once, however many there are.
pub fn interrupt(trees: &mut [Tree], look: &Look) {
    let mut pids: Vec<i32> = trees.iter().map(|tree| tree.leader).collect();
    trees.iter_mut().for_each(|tree| pids.extend(tree.members(look)));
    interrupt_those_of(&pids);
}

fn group_of(pid: i32) -> Option<i32> {
    nix::unistd::getpgid(Some(Pid::from_raw(pid))).ok().map(Pid::as_raw)
}

/// Reaps those that are our children and have ended; the others are left alone.
fn reap_zombies(pids: &HashSet<i32>) {
    for pid in pids {
        let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Kills everything below this process except the trees of those that `spared` names, and reaps it. It is asked after
/// each look at what there is. What started ranks on other nodes has [`LAUNCH_PATIENCE`] to kill these. Returns how many
/// processes were killed.
pub fn kill_all_below(spared: impl Fn() -> Vec<i32>) -> usize {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let start = Instant::now();
    let give_up = start + LAUNCH_PATIENCE + Duration::from_secs(10);
    let mut killed: HashSet<i32> = HashSet::new();
    let mut interrupted: Option<Vec<i32>> = None;
    loop {
        let all = snapshot();
        let with_trees = |roots: &[i32]| -> HashSet<i32> {
            let below = roots.iter().flat_map(|root| below(&all, *root)).map(|process| process.pid);
            below.chain(roots.iter().copied()).collect()
        };
        let kept = with_trees(&spared());
        let found: Vec<Process> = below(&all, own).into_iter().filter(|process| !kept.contains(&process.pid)).collect();
        reap_zombies(&found.iter().map(|process| process.pid).collect());
        let living: Vec<i32> = found.iter().filter(|process| !process.is_zombie).map(|process| process.pid).collect();
        let now = Instant::now();
        if living.is_empty() || now >= give_up {
            return killed.len();
        }
        let interrupted = interrupted.get_or_insert_with(|| interrupt_those_of(&living));
        let patient = if now < start + LAUNCH_PATIENCE { with_trees(interrupted) } else { HashSet::new() };
        for pid in living.iter().filter(|pid| !patient.contains(pid)) {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        killed.extend(&living);
        end::wait_for_any(&living, now + Duration::from_millis(200));
    }
}
