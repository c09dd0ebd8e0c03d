//! What head and workers say to each other, and how: JSON frames with their length before them, and the
//! proof by which each knows that the other belongs to the same launcher. Sockets are opened elsewhere.

use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
    time::Duration,
};

use copal_schemas::{JobId, StringMap, Timestamp, app_file::OutputMode};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::hardware::NodeHardware;

/// The longest frame in bytes. A frame above it is a fault, not work.
pub const MAX_FRAME: usize = 64 << 20;

/// How long head and worker bear the silence of the other's node, which may have lost its power or its network without
/// a word. The worker's patience ends first: its runs are gone before the head has them run elsewhere.
pub const WORKER_PATIENCE: Duration = Duration::from_secs(40);
/// See [`WORKER_PATIENCE`].
pub const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// One run of one Job. Numbers are given by the head and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub u64);

/// A place on a worker's node that runs one Job after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u64);

/// A place, as the worker needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Its number.
    pub id: SlotId,
    /// Jobs of the same class may follow each other in it without asking.
    pub class: u64,
    /// Variables of whatever runs in it: its GPUs.
    pub env: StringMap,
    /// Variables that nothing in it must inherit.
    pub unset: Vec<String>,
    /// The hardware threads that its Jobs may use, by the system's numbers; empty for all of the node.
    pub cpus: Vec<u32>,
}

/// What is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// A program and its arguments.
    Direct(Vec<String>),
    /// A text for `bash -c`.
    Shell(String),
}

/// What a run is sent before it is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSignal {
    /// The signal's number.
    pub signal: i32,
    /// Seconds it has after that.
    pub grace_sec: f64,
}

/// One run of a Job, ready to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The run.
    pub run: RunId,
    /// Its Job.
    pub job: JobId,
    /// Its class, see [`Slot::class`].
    pub class: u64,
    /// Earlier runs of the Job.
    pub earlier_runs: i32,
    /// The folder to run in, absolute; made when it is missing.
    pub workdir: String,
    /// What is executed.
    pub program: Program,
    /// Variables set besides what the worker inherited.
    pub env: StringMap,
    /// Variables that it must not inherit.
    pub unset: Vec<String>,
    /// What becomes of its output.
    pub output: OutputMode,
    /// Seconds after which it is cut off.
    pub limit_sec: Option<f64>,
    /// What it is sent before that.
    pub checkpoint: Option<CheckpointSignal>,
    /// Whether it gets a control group of its own, where one may be made.
    pub own_group: bool,
}

/// Why a run was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its owner cancelled the Job.
    Cancelled,
    /// The launcher's time is over, or the launcher was told to stop.
    EndOfTime,
    /// The Job's own `walltime_limit_min` is over.
    Limit,
    /// The Session does not hold the Job any more.
    LeaseLost,
    /// The head is gone.
    HeadLost,
}

/// How a worker is to work: the first frame it gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Seconds between TERM and KILL, where nothing else is said.
    pub kill_grace_sec: f64,
    /// Lines of output kept from a run that failed.
    pub tail_lines: usize,
    /// Whether runs are commands that start ranks on other nodes, which must not be killed without a word.
    pub starts_ranks: bool,
    /// The name of the control group below which its runs have theirs. No other worker has it.
    pub group: String,
}

/// From the head to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// How to work.
    Setup(Setup),
    /// Start this now, in this slot.
    Start(Vec<(Slot, Task)>),
    /// Start each of these in the next slot of its class that becomes free.
    Follow(Vec<Task>),
    /// The worker said that this slot is vacant, but has followers for it: use it for one.
    Reoffer(Slot),
    /// Give back up to so many followers that have not started, last first.
    Recall(usize),
    /// End these runs. What has not started is withdrawn.
    Kill {
        /// The runs.
        runs: Vec<RunId>,
        /// Why.
        cause: Cause,
        /// Seconds between TERM and KILL.
        grace_sec: f64,
    },
    /// End everything and exit.
    Exit,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// It could not be started.
    NotStarted {
        /// A word for programs: `missing_program`, `workdir`, `disk_full`…
        reason: String,
        /// A sentence for people.
        message: String,
    },
    /// It was ended from outside before it had started.
    Withdrawn,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The run.
    pub run: RunId,
    /// Where it ran; `None` for a follower that never had a slot.
    pub slot: Option<SlotId>,
    /// Whether nothing follows it in its slot.
    pub vacant: bool,
    /// How.
    pub outcome: Outcome,
    /// Why, when it was ended from outside.
    pub cause: Option<Cause>,
    /// When its first process started.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// The largest resident set of one of its processes in bytes.
    pub peak_memory_bytes: Option<i64>,
    /// CPU time of all its processes in seconds.
    pub cpu_sec: Option<f64>,
    /// The last lines of its output, when it failed.
    pub tail: String,
}

/// What a worker reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A run started.
    Started {
        /// The run.
        run: RunId,
        /// Where.
        slot: SlotId,
        /// When.
        time: Timestamp,
    },
    /// A run ended.
    Ended(Box<Ended>),
    /// There is no follower for this reoffered slot.
    Vacant(SlotId),
    /// A recalled follower, which has not started.
    Returned(RunId),
}

/// From a worker to the head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWorker {
    /// The first frame.
    Hello {
        /// What its node has; left out where the head knows.
        hardware: Option<NodeHardware>,
    },
    /// What happened, in order.
    Report(Vec<Event>),
}

/// Has the system ask a connected node all the while whether it is there, and break the connection when it was silent
/// for so long.
///
/// # Errors
/// When it is no TCP connection.
pub fn miss(stream: &impl AsFd, patience: Duration) -> io::Result<()> {
    const QUESTIONS: u32 = 4;
    let seconds = u32::try_from(patience.as_secs()).unwrap_or(u32::MAX) / QUESTIONS;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds)?;
    setsockopt(stream, sockopt::TcpKeepCount, &(QUESTIONS - 1))?;
    // The same for what was sent and is not acknowledged, which stops the questions.
    setsockopt(stream, sockopt::TcpUserTimeout, &u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Writes one frame.
///
/// # Errors
/// When the other side is gone.
pub fn send(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    // One write for both, so that no packet waits for an answer to the other.
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length as usize <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::other("a frame is too long to send"))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    out.write_all(&frame)
}

/// Reads one frame; `None` when the other side closed the connection between frames.
///
/// # Errors
/// When the connection breaks within a frame or the frame is not understood.
pub fn receive<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut frame = vec![0; length];
    input.read_exact(&mut frame)?;
    Ok(Some(serde_json::from_slice(&frame)?))
}

/// The secret that head and workers of one launcher share. It never travels and is never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

/// The length of a [`Nonce`] and of a [`Proof`] in bytes.
pub const PROOF_LENGTH: usize = 32;
/// A number used once.
pub type Nonce = [u8; PROOF_LENGTH];
/// What only a holder of the key can say about two nonces.
pub type Proof = [u8; PROOF_LENGTH];

/// Who proves itself.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The head.
    Head,
    /// A worker.
    Worker,
}

impl Key {
    /// A new key.
    #[must_use]
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// The key in the text form of its file.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the text form; `None` for any other text.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut key = [0; 32];
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(key))
    }

    /// What this side says about the two nonces. The parts have fixed lengths, so a plain hash suffices.
    #[must_use]
    pub fn prove(&self, side: Side, head: &Nonce, worker: &Nonce) -> Proof {
        let role: &[u8] = match side {
            Side::Head => b"copal head  ",
            Side::Worker => b"copal worker",
        };
        Sha256::new().chain_update(self.0).chain_update(role).chain_update(head).chain_update(worker).finalize().into()
    }

    /// Whether the other side said that, in a time that tells nothing.
    #[must_use]
    pub fn accepts(&self, proof: &Proof, side: Side, head: &Nonce, worker: &Nonce) -> bool {
        self.prove(side, head, worker).ct_eq(proof).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_end_cleanly() {
        let mut wire = Vec::new();
        let messages = [ToWorker::Recall(3), ToWorker::Exit];
        for message in &messages {
            send(&mut wire, message).unwrap();
        }
        let mut input = wire.as_slice();
        for message in messages {
            assert_eq!(receive::<ToWorker>(&mut input).unwrap(), Some(message));
        }
        assert_eq!(receive::<ToWorker>(&mut input).unwrap(), None);
        assert!(receive::<ToWorker>(&mut &wire[..6]).is_err());
        assert!(receive::<ToWorker>(&mut &[255, 255, 255, 255, 0][..]).is_err());
    }

    #[test]
    fn a_silent_node_is_missed_whether_something_was_sent_or_not() {
        use nix::sys::socket::getsockopt;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        miss(&stream, WORKER_PATIENCE).unwrap();
        let seconds = |questions: u32, idle: u32, interval: u32| idle + questions * interval;
        let patience = seconds(
            getsockopt(&stream, sockopt::TcpKeepCount).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(),
            getsockopt(&stream, sockopt::TcpKeepInterval).unwrap(),
        );
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!((patience, getsockopt(&stream, sockopt::TcpUserTimeout).unwrap()), (40, 40_000));
        assert!(WORKER_PATIENCE < HEAD_PATIENCE);
    }

    #[test]
    fn only_the_key_s_holder_is_accepted() {
        let (key, other) = (Key::generate(), Key::generate());
        let (head, worker) = ([1; 32], [2; 32]);
        let proof = key.prove(Side::Worker, &head, &worker);
        assert!(key.accepts(&proof, Side::Worker, &head, &worker));
        assert!(!key.accepts(&proof, Side::Head, &head, &worker));
        assert!(!key.accepts(&proof, Side::Worker, &worker, &head));
        assert!(!other.accepts(&proof, Side::Worker, &head, &worker));
        let copy = Key::from_hex(&key.to_hex()).unwrap();
        assert!(copy.accepts(&proof, Side::Worker, &head, &worker));
        assert!(Key::from_hex("xy").is_none());
    }
}
