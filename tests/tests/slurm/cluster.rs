//! A Slurm cluster of this test's own, a service, and a Site whose scheduler it is.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use copal_tests::{
    at_site::AtSite,
    laptop::refused,
    process::{Programs, Running, describe, free_port},
};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The folder and the name of the second Site, where a test makes one.
pub(crate) const LAPTOP: &str = "laptop";

pub(crate) struct Cluster {
    // Dropped in this order: service, nodes, the check that nothing is left.
    _server: Running,
    bed: Bed,
    programs: Programs,
}

/// The simulated cluster; taken down when dropped.
struct Bed {
    folder: tempfile::TempDir,
    ports: Ports,
    cpus: u32,
    accounting: bool,
}

/// Ports of a bed's own: the first, one for each node behind it, and the thousandth. Below the range from which the system
/// gives ports to connections, which come and go at any time.
struct Ports {
    first: u16,
    /// Keeps other tests' beds off, which choose theirs at the same time.
    _lock: Flock<fs::File>,
}

impl Ports {
    fn take() -> Self {
        let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        let block = |thousand: u16| {
            let first = thousand * 1_000;
            let file = fs::File::create(format!("{}/slurm-ports-{first}", env!("CARGO_TARGET_TMPDIR"))).ok()?;
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
            (0..5).chain([999]).all(|offset| is_free(first + offset)).then_some(Self { first, _lock: lock })
        };
        (11..32).find_map(block).expect("a block of free ports below 32000")
    }
}

impl Bed {
    fn up(cpus: u32, accounting: bool) -> Self {
        // Slurm's sockets are in it, and their paths must be short.
        let folder = tempfile::Builder::new().prefix("copal-slurm-").tempdir_in("/tmp").expect("a temporary folder");
        let ports = Ports::take();
        let bed = Self { folder, ports, cpus, accounting };
        let output = bed.script("up", &["4"]);
        assert!(output.status.success(), "tests/slurm-cluster up: {}", describe(&output));
        bed
    }

    fn script(&self, verb: &str, arguments: &[&str]) -> Output {
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm-cluster"))
            .arg(verb)
            .args(arguments)
            .env("SLURM_BED_DIR", self.folder.path())
            .env("SLURM_BED_PORT", self.ports.first.to_string())
            .env("SLURM_BED_ACCT", if self.accounting { "1" } else { "0" })
            .env("SLURM_BED_CPUS", self.cpus.to_string())
            .output()
            .expect("tests/slurm-cluster can be run")
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("etc/slurm.conf")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let output = self.script("wipe", &[]);
        if !output.status.success() && !std::thread::panicking() {
            panic!("tests/slurm-cluster wipe: {}", describe(&output));
        }
    }
}

impl Cluster {
    /// The cluster, a service, a user, and a Site with its agent.
    pub(crate) fn new() -> Self {
        Self::up(4, false)
    }

    /// The same with so many CPUs a node.
    pub(crate) fn with_cpus(cpus: u32) -> Self {
        Self::up(cpus, false)
    }

    /// The same with accounts, associations and the history of jobs.
    pub(crate) fn with_accounting() -> Self {
        Self::up(4, true)
    }

    fn up(cpus: u32, accounting: bool) -> Self {
        let programs = Programs::new();
        // The embedded Postgres may run as another user, who must get to its folder.
        fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).unwrap();
        let bed = Bed::up(cpus, accounting);
        let (server, url) = programs.start_server(free_port(), &[]);
        let cluster = Self { _server: server, bed, programs };
        let output = cluster
            .command("copal")
            .env("COPAL_PASSWORD", "correct horse")
            .args(["register", "--url", &url, "--username", "ann"])
            .output()
            .expect("copal starts");
        assert!(output.status.success(), "{}", describe(&output));
        let path = cluster.site_path();
        let path_text = path.to_str().unwrap();
        cluster.outside(&["site", "init", path_text, "--name", "hpc", "--platform", "slurm", "-y"]);
        let settings = path.join("settings.yml");
        let text = fs::read_to_string(&settings).unwrap().replace("sync_period: 10", "sync_period: 1");
        fs::write(&settings, text).unwrap();
        cluster.copal(&["site", "start"]);
        cluster
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.programs.command(program);
        command.env("SLURM_CONF", self.bed.conf());
        command
    }

    pub(crate) fn site_path(&self) -> PathBuf {
        self.programs.home().join("site")
    }

    /// The folder that all Sites of this user are in, and which is none.
    pub(crate) fn home(&self) -> &Path {
        self.programs.home()
    }

    /// A command in a folder that is no Site's, which must succeed.
    #[track_caller]
    pub(crate) fn outside(&self, arguments: &[&str]) -> String {
        let output = self.command("copal").args(arguments).output().expect("copal starts");
        assert!(output.status.success(), "copal {}: {}", arguments.join(" "), describe(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What a command in a folder that is no Site's writes on stderr when it is refused with this exit code.
    #[track_caller]
    pub(crate) fn refused_outside(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command("copal").args(arguments).output().expect("copal starts");
        refused(&output, code)
    }

    /// What a command in the Site's folder writes on stderr when it is refused.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        refused(&self.try_copal(arguments), 1)
    }

    /// A client of Slurm that must succeed.
    #[track_caller]
    pub(crate) fn slurm(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.bed.conf())
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{program} {arguments:?}: {}", describe(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The ids of Slurm's jobs in these states.
    pub(crate) fn jobs_of_slurm(&self, states: &str) -> Vec<String> {
        self.slurm("squeue", &["-h", "-o", "%i", "-t", states]).lines().map(str::to_owned).collect()
    }

    /// Changes the Site's `settings.yml` and lets the agent take note.
    pub(crate) fn change_settings(&self, change: impl FnOnce(String) -> String) {
        let path = self.site_path().join("settings.yml");
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
        self.copal(&["site", "sync"]);
    }

    /// Takes the queues out of `settings.yml`, so that Slurm alone says what is allowed.
    pub(crate) fn allow_any_queue(&self) {
        self.change_settings(|text| {
            let line = |line: &str| match line.starts_with("  allowed_queues:") {
                true => "  allowed_queues: {}\n".to_owned(),
                false => format!("{line}\n"),
            };
            text.lines().map(line).collect()
        });
    }

    /// Sets lines of the `launcher:` section of `settings.yml`, in place of all that were there.
    pub(crate) fn launcher_settings(&self, lines: &str) {
        let path = self.site_path().join("settings.yml");
        let text = fs::read_to_string(&path).unwrap();
        let start = text.find("launcher:").unwrap_or(text.len());
        let rest = text[start..].split_inclusive('\n').skip(1);
        let after: String = rest.skip_while(|line| line.starts_with([' ', '#', '\n'])).collect();
        fs::write(&path, format!("{}launcher:\n  {lines}\n{after}", &text[..start])).unwrap();
    }

    #[track_caller]
    pub(crate) fn job(&self, arguments: &[&str]) -> i64 {
        self.json(&[&["job", "create", "-y"], arguments].concat())[0]["id"].as_i64().unwrap()
    }

    /// Asks for an allocation in the `debug` partition in mpi mode, unless the arguments say otherwise.
    #[track_caller]
    pub(crate) fn submit(&self, arguments: &[&str]) -> i64 {
        let queue: &[&str] = if arguments.contains(&"-q") { &[] } else { &["-q", "debug"] };
        let mode: &[&str] = if arguments.contains(&"-j") { &[] } else { &["-j", "mpi"] };
        let all = [&["queue", "submit", "-t", "10", "-A", "proj"], mode, queue, arguments].concat();
        self.json(&all)["id"].as_i64().unwrap()
    }

    /// Starts an agent whose sbatch submits, says nothing and takes the agent down.
    pub(crate) fn start_agent_that_dies_after_sbatch(&self) {
        let folder = self.programs.home().join("deadly");
        fs::create_dir_all(&folder).unwrap();
        let real = self.slurm("sh", &["-c", "command -v sbatch"]);
        let script = folder.join("sbatch");
        fs::write(&script, format!("#!/bin/sh\n{} \"$@\" >/dev/null\nkill -9 $PPID\n", real.trim())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        let output = self
            .command("copal")
            .current_dir(self.site_path())
            .env("PATH", path)
            .args(["site", "start"])
            .output()
            .expect("copal starts");
        assert!(output.status.success(), "{}", describe(&output));
    }

    pub(crate) fn freeze_controller(&self) {
        self.signal_controller(Signal::SIGSTOP);
    }

    pub(crate) fn thaw_controller(&self) {
        self.signal_controller(Signal::SIGCONT);
    }

    fn signal_controller(&self, signal: Signal) {
        let conf = self.bed.conf();
        let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let meant = line.contains("slurmctld") && line.contains(conf.to_str()?);
            meant.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
        });
        let pids: Vec<i32> = pids.collect();
        assert!(!pids.is_empty(), "no slurmctld of {}", conf.display());
        pids.into_iter().for_each(|pid| kill(Pid::from_raw(pid), signal).unwrap());
    }
}

impl AtSite for Cluster {
    fn site_folder(&self) -> PathBuf {
        self.site_path()
    }

    fn copal_command(&self) -> Command {
        self.command("copal")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A frozen controller would take nobody down.
        if std::thread::panicking() {
            eprintln!("{}", self.ends_of_logs());
        }
        for site in ["site", LAPTOP] {
            let _ = self.command("copal").args(["site", "stop", site]).output();
        }
    }
}
