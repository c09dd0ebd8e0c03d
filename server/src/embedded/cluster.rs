//! The cluster's files: where they lie, who owns them, how they are made, and the command that
//! serves them.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use nix::unistd::{Uid, User, geteuid, syncfs};
use tokio::process::Command;

use super::{Options, USER, binaries::Binaries, postmaster::Postmaster};

/// Where clusters lie whose user can't enter `$COPAL_HOME`.
const SYSTEM_DIR: &str = "/var/lib/copal";
/// The longest socket address on Linux is 107 bytes; `/.s.PGSQL.5432` takes 14 of them.
const MAX_SOCKET_DIR_BYTES: usize = 107 - 14;
/// `initdb` takes a second or two; a slow parallel file system takes longer.
const INITDB_TIMEOUT: Duration = Duration::from_secs(300);
/// Several test clusters may run side by side.
const TEST_BUFFERS_MIB: u64 = 128;
/// The log is started anew beyond this size.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// How much of the log an error shows.
const LOG_TAIL_BYTES: u64 = 2 << 10;

/// A cluster on disk.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    /// Canonical.
    data_dir: PathBuf,
    log: PathBuf,
    binaries: Binaries,
    /// Whom Postgres runs as where we are root, which it refuses to be.
    run_as: Option<User>,
    options: Options,
}

/// Makes `$COPAL_HOME` where it does not exist.
pub(super) fn make_home(home: &Path) -> anyhow::Result<()> {
    // As root, Postgres runs as another user that must be able to pass through. Secrets in the
    // folder are files that only their owner can read.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(home).with_context(|| {
        format!("can't make the folder {}; set COPAL_HOME to a folder that you can write", home.display())
    })
}

impl Cluster {
    /// The cluster of `home/postgres`, made where there is none.
    pub(super) async fn open_or_make(home: &Path, options: Options) -> anyhow::Result<Self> {
        let home = fs::canonicalize(home).with_context(|| format!("can't enter {}", home.display()))?;
        let place = home.join("postgres");
        let run_as = unprivileged_user()?;
        let log = home.join("postgres.log");
        let major = major_version_of(&place)?;
        let binaries = Binaries::find(major)?;
        if major.is_none() {
            make(&place, &binaries, run_as.as_ref(), options).await?;
        }
        let data_dir = fs::canonicalize(&place).with_context(|| format!("can't enter {}", place.display()))?;
        Ok(Self { data_dir, log, binaries, run_as, options })
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log.
    pub(super) fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            let start = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(can't be read: {error})"))
    }

    /// The folder of the Unix socket: the data folder, which nobody else can enter, or a private
    /// one with a short name where its path is too long for a socket.
    pub(super) fn make_socket_dir(&self) -> anyhow::Result<PathBuf> {
        if self.data_dir.as_os_str().len() <= MAX_SOCKET_DIR_BYTES {
            return Ok(self.data_dir.clone());
        }
        let dir = self.short_dir();
        let owner = self.run_as.as_ref().map_or_else(geteuid, |user| user.uid);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => give_to(&dir, self.run_as.as_ref())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("can't make {}", dir.display())),
        }
        let meta = fs::symlink_metadata(&dir).with_context(|| format!("can't look at {}", dir.display()))?;
        ensure!(
            meta.is_dir() && Uid::from_raw(meta.uid()) == owner && meta.mode() & 0o077 == 0,
            "{} belongs to somebody else; remove it, or set COPAL_HOME to a folder with a shorter path",
            dir.display()
        );
        Ok(dir)
    }

    /// Removes the short folder again, where there is one.
    pub(super) fn remove_socket_dir(&self) {
        if self.data_dir.as_os_str().len() > MAX_SOCKET_DIR_BYTES {
            // Postgres has removed the socket; where it has not, the folder stays and is used again.
            let _ = fs::remove_dir(self.short_dir());
        }
    }

    fn short_dir(&self) -> PathBuf {
        let mut hash = DefaultHasher::new();
        self.data_dir.hash(&mut hash);
        PathBuf::from(format!("/tmp/copal-{:016x}", hash.finish()))
    }

    /// Starts the postmaster in its own process group.
    pub(super) fn spawn_postmaster(&self, socket_dir: &Path) -> anyhow::Result<Postmaster> {
        let too_long = fs::metadata(&self.log).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES);
        let log = File::options()
            .create(true)
            .append(!too_long)
            .write(true)
            .truncate(too_long)
            .open(&self.log)
            .with_context(|| format!("can't write {}", self.log.display()))?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.data_dir);
        for (name, value) in self.settings(socket_dir) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let errors = log.try_clone().context("can't share the log with Postgres")?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        Ok(Postmaster::Child(command.spawn().context("can't start postgres")?))
    }

    fn settings(&self, socket_dir: &Path) -> Vec<(&'static str, String)> {
        let yes_no = |yes| if yes { "on".to_owned() } else { "off".to_owned() };
        let durable = self.options.durable;
        vec![
            // A socket that only its owner can reach is the whole access control.
            ("listen_addresses", String::new()),
            ("unix_socket_directories", quoted(socket_dir)),
            ("unix_socket_permissions", "0700".into()),
            ("port", "5432".into()),
            ("max_connections", "200".into()),
            ("shared_buffers", format!("{}MB", if durable { shared_buffers_mib() } else { TEST_BUFFERS_MIB })),
            ("work_mem", "16MB".into()),
            ("maintenance_work_mem", "256MB".into()),
            ("effective_io_concurrency", "100".into()),
            ("random_page_cost", "1.1".into()),
            ("fsync", yes_no(durable)),
            ("synchronous_commit", yes_no(durable)),
            ("full_page_writes", yes_no(durable)),
            // Fewer and smoother checkpoints: bulk writes come in bursts.
            ("max_wal_size", "4GB".into()),
            ("checkpoint_timeout", "15min".into()),
            ("wal_compression", "on".into()),
            // Jobs change state often: clean up little and often.
            ("autovacuum_naptime", "10s".into()),
            ("autovacuum_vacuum_cost_limit", "2000".into()),
            ("jit", "off".into()),
            ("timezone", "UTC".into()),
            ("log_timezone", "UTC".into()),
            ("log_line_prefix", "%m [%p] ".into()),
        ]
    }

    fn command(&self, program: &str) -> Command {
        base_command(&self.binaries.program(program), self.run_as.as_ref())
    }
}

/// A Postgres program, run as the cluster's user, without what the caller's environment would say
/// to it.
fn base_command(program: &Path, run_as: Option<&User>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    // The user may not be able to enter the caller's folder.
    command.env("LC_ALL", "C").current_dir("/");
    if let Some(user) = run_as {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// A value in a list of paths, where quotes keep commas and spaces.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('"', "\"\""))
}

/// A quarter of the memory would be usual; the service shares its machine, so less.
fn shared_buffers_mib() -> u64 {
    let memory_mib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib >> 10)
    });
    (memory_mib.unwrap_or(1024) / 16).clamp(64, 2048)
}

/// The user to run Postgres as: nobody special where we are not root.
fn unprivileged_user() -> anyhow::Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name).context("can't read the user database")? {
            return Ok(Some(user));
        }
    }
    bail!("Postgres refuses to run as root, and there is no user postgres or nobody; make one, or give --database-url")
}

/// The version of the cluster at `place`, where there is one.
fn major_version_of(place: &Path) -> anyhow::Result<Option<u32>> {
    match fs::read_to_string(place.join("PG_VERSION")) {
        Ok(text) => text.trim().parse().map(Some).with_context(|| {
            format!("{} is no cluster that this version knows: PG_VERSION is {:?}", place.display(), text.trim())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let empty = fs::read_dir(place).map_or(true, |mut entries| entries.next().is_none());
            ensure!(empty, "{} has files but is no Postgres cluster; move it away", place.display());
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("can't read {}", place.display())),
    }
}

/// Makes a cluster at `place`, or elsewhere with a link at `place` where the user that runs it
/// can't get there. Half a cluster of an interrupted start is never taken for a whole one.
async fn make(place: &Path, binaries: &Binaries, run_as: Option<&User>, options: Options) -> anyhow::Result<()> {
    let home = place.parent().unwrap_or(place);
    let elsewhere = match run_as {
        Some(user) => !can_enter(home, user).await?,
        None => false,
    };
    let made = if elsewhere {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(SYSTEM_DIR)
            .with_context(|| format!("can't make {SYSTEM_DIR}"))?;
        Path::new(SYSTEM_DIR).join(format!("{:016x}", rand::random::<u64>()))
    } else {
        home.join("postgres.new")
    };
    if made.exists() {
        fs::remove_dir_all(&made).with_context(|| format!("can't remove the half-made {}", made.display()))?;
    }
    DirBuilder::new().mode(0o700).create(&made).with_context(|| format!("can't make {}", made.display()))?;
    give_to(&made, run_as)?;
    let written = async {
        initdb(&made, binaries, run_as).await?;
        if options.durable { to_disk(&made).await } else { Ok(()) }
    };
    if let Err(error) = written.await {
        // What is left is removed by the next start, or is empty.
        let _ = fs::remove_dir_all(&made);
        return Err(error);
    }
    if let Ok(meta) = fs::symlink_metadata(place) {
        // An empty folder, or a link to nowhere.
        let removed = if meta.is_dir() { fs::remove_dir(place) } else { fs::remove_file(place) };
        removed.with_context(|| format!("can't replace {}", place.display()))?;
    }
    let placed = if elsewhere { symlink(&made, place) } else { fs::rename(&made, place) };
    placed.with_context(|| format!("can't make {}", place.display()))
}

async fn initdb(dir: &Path, binaries: &Binaries, run_as: Option<&User>) -> anyhow::Result<()> {
    tracing::info!(folder = %dir.display(), version = binaries.major, "making the embedded database");
    let mut command = base_command(&binaries.program("initdb"), run_as);
    // No password: the socket's folder is closed to others. C collation: the order of texts does
    // not change with the machine's libraries.
    command.arg("-D").arg(dir).args(["-U", USER, "--auth=trust", "-E", "UTF8", "--locale=C", "--no-instructions"]);
    // It would wait for the disk once for each of a thousand files; `to_disk` waits once.
    command.arg("--no-sync");
    // Ctrl-C is for the service, which ends in order.
    command.process_group(0);
    let output = tokio::time::timeout(INITDB_TIMEOUT, command.kill_on_drop(true).output())
        .await
        .with_context(|| format!("initdb did not end within {} s", INITDB_TIMEOUT.as_secs()))?
        .context("can't run initdb")?;
    ensure!(
        output.status.success(),
        "initdb failed in {}:\n{}",
        dir.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Waits until what was written is on the disk: a cluster that is in its place must be whole, whatever happens to the machine.
async fn to_disk(dir: &Path) -> anyhow::Result<()> {
    let folder = File::open(dir).with_context(|| format!("can't enter {}", dir.display()))?;
    let synced = tokio::task::spawn_blocking(move || syncfs(&folder)).await.context("can't wait for the disk")?;
    synced.with_context(|| format!("can't write {} to the disk", dir.display()))
}

/// Whether the user can get through to the folder; asks the system, which knows of access lists.
async fn can_enter(folder: &Path, user: &User) -> anyhow::Result<bool> {
    let mut command = base_command(Path::new("/bin/sh"), Some(user));
    command.args(["-c", "cd -- \"$0\""]).arg(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().await.context("can't run /bin/sh")?;
    Ok(status.success())
}

fn give_to(dir: &Path, user: Option<&User>) -> anyhow::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o700))
        .with_context(|| format!("can't close {}", dir.display()))?;
    match user {
        Some(user) => chown(dir, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .with_context(|| format!("can't give {} to {}", dir.display(), user.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_a_list_are_quoted() {
        assert_eq!(quoted(Path::new("/a b,\"c")), "\"/a b,\"\"c\"");
    }

    #[test]
    fn buffers_are_bounded() {
        assert!((64..=2048).contains(&shared_buffers_mib()));
    }
}
