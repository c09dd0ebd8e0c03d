//! The real programs, run as a user runs them: from the folder the build put them in, with a
//! `$COPAL_HOME` of their own. A [`Programs`] that goes out of scope checks that nothing it started,
//! however deep, is left.

use std::{
    fs::{self, File, Permissions},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    postgres::TestDatabase,
    wait::{LIMIT, wait_blocking},
};

/// Every process of a [`Programs`] carries this variable, with a value of its own, down to the last grandchild.
const MARK: &str = "COPAL_TEST_MARK";

/// How long a command in the foreground may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The folder in which the build left Copal's programs.
///
/// # Panics
/// When the running test was not built by cargo.
#[must_use]
pub fn program_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let dir = test.parent().expect("a program is in a folder");
    // Tests are built into `deps/`, the programs one folder above.
    if dir.ends_with("deps") { dir.parent().expect("deps is in a folder").into() } else { dir.into() }
}

/// A TCP port on which nobody listens now.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}

/// Programs with one `$COPAL_HOME` between them.
#[derive(Debug)]
pub struct Programs {
    home: TempDir,
    mark: String,
    database: Option<TestDatabase>,
}

impl Default for Programs {
    fn default() -> Self {
        Self::new()
    }
}

impl Programs {
    /// A new, empty home.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn new() -> Self {
        let home = tempfile::Builder::new().prefix("copal-test-").tempdir().expect("a temporary folder");
        // As root, the embedded Postgres runs as another user, who must be able to enter.
        fs::set_permissions(home.path(), Permissions::from_mode(0o711)).expect("the folder is this test's own");
        Self { home, mark: uuid::Uuid::new_v4().to_string(), database: None }
    }

    /// The same; services that are started have a database of the tests' cluster instead of an embedded one, which takes
    /// seconds to make and to stop.
    ///
    /// # Panics
    /// When no temporary folder or no database can be made.
    #[must_use]
    pub fn with_database() -> Self {
        let mut programs = Self::new();
        programs.database = Some(TestDatabase::create_blocking());
        programs
    }

    /// The folder that stands for the user's home; `$COPAL_HOME` is `.copal` in it.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A program (`copal`, `copal-server`, …), or any other by its path, ready to be given arguments.
    ///
    /// # Panics
    /// When it was not built.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let path = if program.contains('/') { PathBuf::from(program) } else { program_dir().join(program) };
        assert!(path.exists(), "{} is missing; run `cargo build --workspace` first", path.display());
        let mut command = Command::new(path);
        // What the developer has set for an own installation must not reach the tests.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COPAL_")) {
            command.env_remove(name);
        }
        command.env("HOME", self.home()).env("COPAL_HOME", self.home().join(".copal")).env(MARK, &self.mark);
        command.current_dir(self.home()).stdin(Stdio::null());
        command
    }

    /// Runs a program to its end and gives what it wrote.
    ///
    /// # Panics
    /// When it can't be started or takes longer than two minutes.
    #[must_use]
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("{program} can't be started: {error}"));
        let pid = Pid::from_raw(child.id() as i32);
        let (done, watch) = std::sync::mpsc::channel::<()>();
        let name = format!("{program} {}", arguments.join(" "));
        let guard = std::thread::spawn(move || {
            let late = watch.recv_timeout(COMMAND_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if late {
                let _ = kill(pid, Signal::SIGKILL);
            }
            late
        });
        let output = child.wait_with_output().unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(done);
        assert!(!guard.join().unwrap_or(true), "{name} took longer than {COMMAND_LIMIT:?}: {}", describe(&output));
        output
    }

    /// Runs a program that must succeed, and gives its standard output.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn run_ok(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {}", describe(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a program that goes on in the background, its output in `<home>/<program>.log`.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn start(&self, program: &str, arguments: &[&str]) -> Running {
        let log = self.home().join(format!("{}.log", program.rsplit('/').next().unwrap_or(program)));
        let file = File::options().create(true).append(true).open(&log).expect("a log file in the test's own home");
        let mut command = self.command(program);
        command.args(arguments).stdout(file.try_clone().expect("a file can be shared")).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{program} can't be started: {error}"));
        Running { child, log, name: program.into() }
    }

    /// A service on these programs' database, else on the embedded Postgres of this home, ready for requests, with its base
    /// URL.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start_server(&self, port: u16, arguments: &[&str]) -> (Running, String) {
        let listen = format!("127.0.0.1:{port}");
        let database = self.database.as_ref().map(TestDatabase::url);
        let mut all = vec!["--listen", listen.as_str()];
        all.extend(database.iter().flat_map(|url| ["--database-url", url.as_str()]));
        all.extend(arguments);
        let mut server = self.start("copal-server", &all);
        server.wait_ready(&listen);
        (server, format!("http://{listen}"))
    }

    /// The command lines of processes that this home's programs left behind.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        marked(MARK, &self.mark).into_iter().map(|(_, line)| line).collect()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // Processes that were just told to stop get the time to do it.
        let start = Instant::now();
        while !self.left().is_empty() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = self.left();
        for (pid, _) in marked(MARK, &self.mark) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if std::thread::panicking() {
            keep_logs(self.home());
        } else {
            assert!(left.is_empty(), "processes are left: {left:#?}");
        }
    }
}

/// A program in the background. Killed when it goes out of scope.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    name: String,
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// What it wrote so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until the service that this is answers at this address that it is ready.
    ///
    /// # Panics
    /// When it ends, or does not become ready.
    pub fn wait_ready(&mut self, address: &str) {
        wait_blocking("the service to be ready", LIMIT * 2, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{} ended with {status}: {}", self.name, self.log());
            }
            if is_ready(address).unwrap_or(false) { Ok(()) } else { Err(self.log()) }
        });
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap_or_else(|error| panic!("{}: {signal}: {error}", self.name));
    }

    /// Waits for its end and gives the exit code, or minus the signal that ended it.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait(&mut self, limit: Duration) -> i32 {
        let (child, log, name) = (&mut self.child, &self.log, &self.name);
        wait_blocking(&format!("{name} to end"), limit, || match child.try_wait() {
            Ok(Some(status)) => Ok(status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())),
            _ => Err(String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()),
        })
    }

    /// SIGTERM, and its exit code.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn stop(mut self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.wait(LIMIT)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
            let start = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether `GET /readyz` answers 200. A port that takes connections may belong to a service whose
/// database is not there yet.
fn is_ready(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// Exit code and both outputs, for a failure's text.
#[must_use]
pub fn describe(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", output.status)
}

/// Processes whose environment has the variable with this value, with their command lines; without this process.
#[must_use]
pub fn marked(variable: &str, value: &str) -> Vec<(Pid, String)> {
    let wanted = format!("{variable}={value}");
    let own = std::process::id().to_string();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in processes.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse::<i32>() else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if name != own && environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
            found.push((Pid::from_raw(pid), format!("{pid}: {line}")));
        }
    }
    found
}

/// Prints the logs of a failed test, since their folder goes away.
fn keep_logs(home: &Path) {
    let Ok(files) = fs::read_dir(home) else { return };
    let mut out = std::io::stderr().lock();
    for path in files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "log"))
    {
        let text = fs::read(&path).unwrap_or_default();
        let start = text.len().saturating_sub(8_000);
        let _ = writeln!(out, "--- {}\n{}", path.display(), String::from_utf8_lossy(&text[start..]));
    }
}
