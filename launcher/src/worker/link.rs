//! The worker's connection to its head: the socket that it was started with, or a TCP connection on
//! which both sides prove that they know the launcher's key.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    os::unix::net::UnixStream,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::WorkerArgs;
use crate::protocol::{self, Key, Nonce, Proof, Side, WORKER_PATIENCE};

/// How long a connection and its proof may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The connection to the head.
pub(super) struct Link {
    /// What the head says.
    pub(super) input: Box<dyn Read + Send>,
    /// What is said to it.
    pub(super) output: Box<dyn Write + Send>,
    /// To hang up.
    pub(super) socket: OwnedFd,
}

/// Has whoever listens on a connection hear its end.
pub(super) fn hang_up(socket: &OwnedFd) {
    // One that is closed already is heard to be.
    let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Read);
}

/// Connects to the head.
pub(super) fn open(args: &WorkerArgs) -> Result<Link> {
    if args.connect.is_empty() { inherited() } else { connected(args) }
}

/// The socket on standard input, which is closed for everybody else: what a Job inherits must not keep
/// the head from being missed.
fn inherited() -> Result<Link> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("there is no socket on standard input")?;
    let nothing: OwnedFd = File::open("/dev/null").context("can't open /dev/null")?.into();
    nix::unistd::dup2_stdin(&nothing).context("can't replace standard input")?;
    let stream = UnixStream::from(socket);
    stream.peer_addr().context("standard input is no socket; only a launcher starts a worker")?;
    let (input, output) = (Box::new(stream.try_clone()?), Box::new(stream.try_clone()?));
    Ok(Link { input, output, socket: stream.into() })
}

fn connected(args: &WorkerArgs) -> Result<Link> {
    let path = args.key_file.as_ref().context("--key-file is missing")?;
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read the key {}", path.display()))?;
    let key = Key::from_hex(&text).with_context(|| format!("{} holds no key", path.display()))?;
    let mut errors = Vec::new();
    for address in &args.connect {
        match connect(address).and_then(|stream| prove(stream, &key, args.node)) {
            Ok(stream) => {
                let (input, output) = (Box::new(stream.try_clone()?), Box::new(stream.try_clone()?));
                return Ok(Link { input, output, socket: stream.into() });
            }
            Err(error) => errors.push(format!("{address}: {error:#}")),
        }
    }
    bail!("can't reach the head: {}", errors.join("; "))
}

fn connect(address: &str) -> Result<TcpStream> {
    let mut last = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("the name has no address"), Into::into))
}

/// Answers the head's nonce with a proof, its node and a nonce, and checks the head's proof.
fn prove(mut stream: TcpStream, key: &Key, node: u32) -> Result<TcpStream> {
    // Small frames go both ways: without this each would wait 40 ms for the other side's acknowledgement.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut head: Nonce = [0; 32];
    stream.read_exact(&mut head)?;
    let worker: Nonce = rand::random();
    stream.write_all(&worker)?;
    stream.write_all(&key.prove(Side::Worker, &head, &worker))?;
    stream.write_all(&node.to_be_bytes())?;
    let mut proof: Proof = [0; 32];
    stream.read_exact(&mut proof).context("the head refused this worker")?;
    if !key.accepts(&proof, Side::Head, &head, &worker) {
        bail!("this is not our head");
    }
    stream.set_read_timeout(None)?;
    protocol::miss(&stream, WORKER_PATIENCE)?;
    Ok(stream)
}
