//! The head's side of its workers: starting them, talking to them, noticing that one is gone. What they
//! are told and what their reports mean is the pilot's.
//!
//! The worker of this machine is a child with a socket pair. A worker on another node is started by the
//! platform's MPI command and connects back; both sides prove that they know the launcher's key, which
//! lies in a file that only the user can read.

use std::{
    io::Write,
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, net::UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::BytesMut;
use futures_util::StreamExt;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    process::{Child, Command},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tracing::{info, warn};

use crate::{
    hardware::NodeHardware,
    mpi::LaunchCommand,
    partition::PARENT_PIPE,
    protocol::{self, Event, FromWorker, HEAD_PATIENCE, Key, MAX_FRAME, Nonce, Proof, Setup, Side, ToWorker},
};

/// How long a connection may take to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);

/// What comes from the workers.
#[derive(Debug)]
pub enum FromFleet {
    /// A worker of another node is there: its connection, and what its node has.
    Arrived(usize, Connection, Option<NodeHardware>),
    /// What happened at a worker.
    Report(usize, Vec<Event>),
    /// A worker's connection closed: it is gone. The number tells it from its successor.
    Gone(usize, u64),
    /// The command that started a worker on another node has ended, whether the worker had arrived or not.
    CommandEnded(usize),
}

/// A worker's way to be told things.
#[derive(Debug)]
pub struct Connection {
    to: UnboundedSender<ToWorker>,
    number: u64,
}

/// One worker.
#[derive(Debug, Default)]
struct Member {
    connection: Option<Connection>,
    process: Option<Process>,
}

/// The process that this machine has for a worker: its guard, or the command that started it elsewhere. It leads a group
/// of its own.
#[derive(Debug)]
struct Process {
    pid: i32,
    reaped: JoinHandle<()>,
}

impl Process {
    /// Sends its group a signal, unless it has ended.
    fn signal(&self, signal: Signal) {
        if !self.reaped.is_finished() {
            let _ = killpg(Pid::from_raw(self.pid), signal);
        }
    }
}

/// All workers of a launcher, numbered by the pilot.
#[derive(Debug)]
pub struct Fleet {
    program: PathBuf,
    setup: Setup,
    members: Vec<Member>,
    connections: u64,
    /// Tells this launcher's things from those of any other.
    nonce: u64,
    events: UnboundedSender<FromFleet>,
    key_file: Option<PathBuf>,
    listener: Option<JoinHandle<()>>,
}

impl Fleet {
    /// A fleet of `count` workers, none of which is started. `program` is this program.
    #[must_use]
    pub fn new(program: PathBuf, setup: Setup, count: usize, events: UnboundedSender<FromFleet>) -> Self {
        let members = (0..count).map(|_| Member::default()).collect();
        Self { program, setup, members, connections: 0, nonce: rand::random(), events, key_file: None, listener: None }
    }

    /// Starts a worker on this machine.
    ///
    /// # Errors
    /// When no process can be made.
    pub fn start_here(&mut self, worker: usize) -> Result<()> {
        let (ours, theirs) = StdUnixStream::pair().context("can't make a pair of sockets")?;
        ours.set_nonblocking(true).context("can't use a socket")?;
        let child = Command::new(&self.program)
            .arg("worker")
            .env_remove(PARENT_PIPE)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("can't start a worker by {}", self.program.display()))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        self.members[worker].process = Some(Process { pid, reaped: tokio::spawn(reap(child, worker)) });
        let stream = UnixStream::from_std(ours).context("can't use a socket")?;
        self.connections += 1;
        let (input, output) = stream.into_split();
        let to = talk(worker, self.connections, input, output, self.events.clone());
        let connection = Connection { to, number: self.connections };
        self.admit(worker, connection);
        Ok(())
    }

    /// Tells a worker that is there how to work; from now on it gets tasks.
    pub fn admit(&mut self, worker: usize, connection: Connection) {
        let setup = Setup { group: self.group(connection.number), ..self.setup.clone() };
        drop(connection.to.send(ToWorker::Setup(setup)));
        self.members[worker].connection = Some(connection);
    }

    /// Begins to listen for workers of other nodes; `folder`, which all nodes see, gets the file with the
    /// key. Returns what a worker must be told: arguments of this program.
    ///
    /// # Errors
    /// When no socket or file can be had.
    pub async fn listen(&mut self, folder: &Path, own_names: &[String]) -> Result<Vec<String>> {
        let key = Key::generate();
        let path = folder.join(format!("worker-{:016x}.key", rand::random::<u64>()));
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(key.to_hex().as_bytes()))
            .with_context(|| format!("can't write {}", path.display()))?;
        self.key_file = Some(path.clone());
        let listener = TcpListener::bind(("0.0.0.0", 0)).await.context("can't listen for workers")?;
        let port = listener.local_addr().context("can't listen for workers")?.port();
        let mut arguments = vec!["worker".to_owned(), "--key-file".to_owned(), path.display().to_string()];
        for name in own_names {
            arguments.extend(["--connect".to_owned(), format!("{name}:{port}")]);
        }
        self.listener = Some(tokio::spawn(accept(listener, key, self.members.len(), self.events.clone())));
        Ok(arguments)
    }

    /// Runs the command that starts a worker on another node; the worker then arrives by itself.
    ///
    /// # Errors
    /// When no process can be made.
    pub fn start_elsewhere(&mut self, worker: usize, launch: &LaunchCommand) -> Result<()> {
        let (name, arguments) = launch.argv.split_first().context("the command that starts ranks is empty")?;
        let mut command = Command::new(name);
        command.args(arguments).envs(&launch.env).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        command.env_remove(PARENT_PIPE);
        for variable in &launch.unset {
            command.env_remove(variable);
        }
        let child = command.spawn().with_context(|| format!("can't start a worker by {name}"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let events = self.events.clone();
        let reaped = async move {
            reap(child, worker).await;
            drop(events.send(FromFleet::CommandEnded(worker)));
        };
        self.members[worker].process = Some(Process { pid, reaped: tokio::spawn(reaped) });
        Ok(())
    }

    /// Ends the command that should start a worker on another node. One that comes all the same is not admitted.
    pub fn give_up(&self, worker: usize) {
        if let Some(command) = &self.members[worker].process {
            command.signal(Signal::SIGTERM);
        }
    }

    /// Says something to a worker; to one that is gone nothing, since the pilot will hear that it is.
    pub fn tell(&self, worker: usize, message: ToWorker) {
        if let Some(connection) = &self.members[worker].connection {
            drop(connection.to.send(message));
        }
    }

    /// Whether any worker is there.
    #[must_use]
    pub fn any(&self) -> bool {
        self.members.iter().any(|member| member.connection.is_some())
    }

    /// Notes that a worker is gone. Whether that is news, and not about a predecessor.
    pub fn lost(&mut self, worker: usize, number: u64) -> bool {
        let is_current = self.members[worker].connection.as_ref().is_some_and(|connection| connection.number == number);
        if is_current {
            self.members[worker].connection = None;
        }
        is_current
    }

    /// The name of a worker's control group, by the number of its connection.
    #[must_use]
    pub fn group(&self, number: u64) -> String {
        format!("copal-{:016x}-{number}", self.nonce)
    }

    /// The processes that this machine has for all workers but one, also for those that have not come yet.
    #[must_use]
    pub fn pids_but(&self, lost: usize) -> Vec<i32> {
        let others = self.members.iter().enumerate().filter(|(worker, _)| *worker != lost);
        let processes = others.filter_map(|(_, member)| member.process.as_ref());
        processes.filter(|process| !process.reaped.is_finished()).map(|process| process.pid).collect()
    }

    /// Tells all workers to end and waits until they have, at most so long. One whose runs hang in the kernel goes on
    /// to wait for them, and exits by itself. Commands whose workers have not come are killed.
    pub async fn close(&mut self, time: Duration) {
        if let Some(listener) = self.listener.take() {
            listener.abort();
        }
        for member in &self.members {
            match (&member.connection, &member.process) {
                (Some(connection), _) => drop(connection.to.send(ToWorker::Exit)),
                (None, Some(command)) => command.signal(Signal::SIGTERM),
                (None, None) => {}
            }
        }
        let deadline = tokio::time::Instant::now() + time;
        for (worker, member) in self.members.iter_mut().enumerate() {
            let is_there = member.connection.take().is_some();
            let Some(process) = &mut member.process else { continue };
            if tokio::time::timeout_at(deadline, &mut process.reaped).await.is_ok() {
                continue;
            }
            if is_there {
                // Without the guard nobody would clear up after the worker.
                warn!(worker, "a worker still waits for its runs to end; it exits by itself");
            } else {
                warn!(worker, "the command that starts a worker does not end; it is killed");
                process.signal(Signal::SIGKILL);
            }
        }
        if let Some(path) = self.key_file.take() {
            drop(std::fs::remove_file(path));
        }
    }
}

/// Waits for a child, so that it does not stay a zombie.
async fn reap(mut child: Child, worker: usize) {
    match child.wait().await {
        Ok(status) if status.success() => {}
        Ok(status) => warn!(worker, %status, "a worker's process ended"),
        Err(error) => warn!(worker, %error, "can't wait for a worker's process"),
    }
}

/// Two tasks that carry messages to and from a worker.
fn talk(
    worker: usize,
    number: u64,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin + Send + 'static,
    events: UnboundedSender<FromFleet>,
) -> UnboundedSender<ToWorker> {
    let (to, messages) = unbounded_channel();
    tokio::spawn(write(output, messages));
    tokio::spawn(async move {
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME).new_codec();
        let mut frames = FramedRead::new(input, codec);
        while let Some(Ok(frame)) = frames.next().await {
            match parse(&frame) {
                Some(FromWorker::Report(report)) => drop(events.send(FromFleet::Report(worker, report))),
                Some(FromWorker::Hello { .. }) => {}
                None => break,
            }
        }
        drop(events.send(FromFleet::Gone(worker, number)));
    });
    to
}

fn parse(frame: &BytesMut) -> Option<FromWorker> {
    serde_json::from_slice(frame).inspect_err(|error| warn!(%error, "a worker says what is not understood")).ok()
}

async fn write(mut output: impl AsyncWrite + Unpin, mut messages: UnboundedReceiver<ToWorker>) {
    while let Some(message) = messages.recv().await {
        let mut frame = Vec::new();
        // All that waits goes out by one write.
        let mut next = Some(message);
        while let Some(message) = next {
            if let Err(error) = protocol::send(&mut frame, &message) {
                warn!(%error, "can't say something to a worker");
            }
            next = messages.try_recv().ok();
        }
        if output.write_all(&frame).await.is_err() {
            // The reader notices too, and tells the pilot.
            return;
        }
    }
}

/// Takes connections of workers that prove themselves.
async fn accept(listener: TcpListener, key: Key, workers: usize, events: UnboundedSender<FromFleet>) {
    // Numbers of this listener's connections must differ from those of the local worker.
    let mut number = 1 << 32;
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "can't accept a worker's connection");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        number += 1;
        let (key, events) = (key.clone(), events.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(PROOF_TIMEOUT, greet(stream, &key)).await {
                Ok(Ok((stream, worker, hardware))) if worker < workers => {
                    info!(worker, %address, "a worker arrived");
                    let (input, output) = stream.into_split();
                    let to = talk(worker, number, input, output, events.clone());
                    drop(events.send(FromFleet::Arrived(worker, Connection { to, number }, hardware)));
                }
                Ok(Err(error)) => warn!(%address, error = format!("{error:#}"), "refused a connection"),
                Ok(Ok(_)) | Err(_) => warn!(%address, "refused a connection"),
            }
        });
    }
}

/// The head's half of the proof; then the worker's first frame.
async fn greet(mut stream: TcpStream, key: &Key) -> Result<(TcpStream, usize, Option<NodeHardware>)> {
    stream.set_nodelay(true)?;
    protocol::miss(&stream, HEAD_PATIENCE)?;
    let head: Nonce = rand::random();
    stream.write_all(&head).await?;
    let (mut worker, mut proof): (Nonce, Proof) = ([0; 32], [0; 32]);
    stream.read_exact(&mut worker).await?;
    stream.read_exact(&mut proof).await?;
    let node = stream.read_u32().await?;
    anyhow::ensure!(key.accepts(&proof, Side::Worker, &head, &worker), "it does not know the key");
    stream.write_all(&key.prove(Side::Head, &head, &worker)).await?;
    let length = stream.read_u32().await? as usize;
    anyhow::ensure!(length <= MAX_FRAME, "its first frame is too long");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    match serde_json::from_slice(&frame)? {
        FromWorker::Hello { hardware } => Ok((stream, usize::try_from(node)?, hardware)),
        FromWorker::Report(_) => anyhow::bail!("its first frame is no greeting"),
    }
}
