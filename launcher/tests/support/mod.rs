//! A head for tests: starts the real worker, tells it things, waits for its reports.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used, reason = "tests only")]

pub mod service;

use std::{
    fs,
    os::{fd::OwnedFd, unix::net::UnixStream, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use copal_client::processes;
use copal_launcher::process::group;
use copal_launcher::protocol::{
    Cause, Ended, Event, FromWorker, Program, RunId, Setup, Slot, SlotId, Task, ToWorker, receive, send,
};
use copal_schemas::{JobId, StringMap, app_file::OutputMode};

/// The longest that anything in these tests may take.
const LIMIT: Duration = Duration::from_secs(30);

pub struct Head {
    worker: Child,
    socket: Option<UnixStream>,
    folder: tempfile::TempDir,
    events: Vec<Event>,
    /// The name of the worker's control group.
    group: String,
}

impl Head {
    pub fn start() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = Command::new(env!("CARGO_BIN_EXE_copal-launcher"))
            .arg("worker")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .unwrap();
        ours.set_read_timeout(Some(LIMIT)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let group = format!("copal-test-{:016x}", rand::random::<u64>());
        let mut head = Self { worker, socket: Some(ours), folder, events: Vec::new(), group: group.clone() };
        let hello = receive::<FromWorker>(head.socket.as_mut().unwrap()).unwrap();
        assert!(matches!(hello, Some(FromWorker::Hello { hardware: None })), "{hello:?}");
        head.tell(&ToWorker::Setup(Setup { kill_grace_sec: 1.0, tail_lines: 10, starts_ranks: false, group }));
        head
    }

    pub fn folder(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn tell(&mut self, message: &ToWorker) {
        send(self.socket.as_mut().unwrap(), message).unwrap();
    }

    pub fn run(&mut self, task: Task) {
        let id = task.run.0;
        self.run_in(id, task);
    }

    pub fn run_in(&mut self, id: u64, task: Task) {
        self.tell(&ToWorker::Start(vec![(slot(id), task)]));
    }

    pub fn kill(&mut self, runs: &[u64], cause: Cause, grace_sec: f64) {
        let runs = runs.iter().map(|run| RunId(*run)).collect();
        self.tell(&ToWorker::Kill { runs, cause, grace_sec });
    }

    /// Takes the first event for which `wanted` has an answer out of what was reported.
    pub fn wait_for<T>(&mut self, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(index) = self.events.iter().position(|event| wanted(event).is_some()) {
                return wanted(&self.events.remove(index)).unwrap();
            }
            assert!(Instant::now() < deadline, "not reported: {:?}", self.events);
            match receive(self.socket.as_mut().unwrap()) {
                Ok(Some(FromWorker::Report(events))) => self.events.extend(events),
                other => panic!("{other:?} after {:?}", self.events),
            }
        }
    }

    pub fn end_of(&mut self, run: u64) -> Ended {
        self.wait_for(|event| match event {
            Event::Ended(ended) if ended.run == RunId(run) => Some((**ended).clone()),
            _ => None,
        })
    }

    /// The processes of the worker: its guard, itself, and what it runs.
    pub fn processes(&self) -> Vec<i32> {
        let guard = i32::try_from(self.worker.id()).unwrap();
        let below = processes::below(&processes::snapshot(), guard);
        std::iter::once(guard).chain(below.iter().map(|process| process.pid)).collect()
    }

    pub fn hang_up(&mut self) {
        self.socket = None;
    }

    pub fn wait_for_exit(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while self.worker.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the worker does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.hang_up();
        if !std::thread::panicking() {
            self.wait_for_exit();
        } else {
            drop(self.worker.wait());
        }
        // A worker that was killed with its guard can't do it.
        group::clear(&self.group);
    }
}

pub fn slot(id: u64) -> Slot {
    Slot { id: SlotId(id), class: 0, env: StringMap::new(), unset: Vec::new(), cpus: Vec::new() }
}

pub fn shell(text: &str) -> Program {
    Program::Shell(text.to_owned())
}

pub fn task(run: u64, workdir: &str, program: Program) -> Task {
    Task {
        run: RunId(run),
        job: JobId(i64::try_from(run).unwrap()),
        class: 0,
        earlier_runs: 0,
        workdir: workdir.to_owned(),
        program,
        env: StringMap::new(),
        unset: Vec::new(),
        output: OutputMode::File,
        limit_sec: None,
        checkpoint: None,
        own_group: false,
    }
}

/// Waits for a condition with a generous limit.
pub fn wait_until(condition: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn wait_for_file(path: &str) {
    wait_until(|| Path::new(path).exists(), path);
}

/// Waits for a file with a process's number.
pub fn read_pid(path: &str) -> i32 {
    let read = || fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    wait_until(|| read().is_some(), path);
    read().unwrap()
}

/// Whether a process is there and not only waits to be reaped.
pub fn is_alive(pid: i32) -> bool {
    processes::find(pid).is_some_and(|process| !process.is_zombie)
}
