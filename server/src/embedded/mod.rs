//! A private Postgres for a service that was given no database URL: its own cluster, on a Unix
//! socket only, started and stopped with the service.
//!
//! The postmaster runs in its own process group, so that Ctrl-C reaches it through the service's
//! orderly stop and not before. When the service dies by SIGKILL the postmaster goes on, and the
//! next start takes it over. The test harness runs its private cluster with this too.

mod binaries;
mod cluster;
mod postmaster;

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use nix::fcntl::{Flock, FlockArg};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use cluster::Cluster;
use postmaster::{PidFile, Postmaster};

/// The database that the service uses, and the superuser that owns it.
const DATABASE: &str = "copal";
const USER: &str = "copal";

/// How long a start may take, recovery after a crash included.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an orderly stop may take before the backends are cut off.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks at a postmaster that starts, stops or is not our child: for none of
/// these is there an event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// After a kill -9 of the postmaster its backends hold the shared memory for a moment longer, and
/// the next one does not start: it is tried again for this long.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Pause before a postmaster that died is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// How the cluster is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether commits survive a crash of the machine. Tests have no need of it.
    pub durable: bool,
}

/// A running Postgres of our own. [`EmbeddedPostgres::stop`] ends it; when dropped, it is told to
/// stop and not waited for.
pub struct EmbeddedPostgres {
    cluster: Cluster,
    socket_dir: PathBuf,
    stop: CancellationToken,
    supervisor: Option<JoinHandle<anyhow::Result<()>>>,
    /// Held while this process lives: one service for one folder.
    _lock: Flock<File>,
}

impl EmbeddedPostgres {
    /// Starts the cluster under `home/postgres`; makes it where there is none; takes over one that
    /// a killed service left running.
    ///
    /// # Errors
    /// One sentence with the remedy: no Postgres binaries, another service uses the folder, a
    /// cluster of another version, a start that failed (with the end of its log).
    pub async fn start(home: &Path) -> anyhow::Result<Self> {
        Self::start_with(home, Options { durable: true }).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`EmbeddedPostgres::start`].
    pub async fn start_with(home: &Path, options: Options) -> anyhow::Result<Self> {
        cluster::make_home(home)?;
        let lock = lock_home(home)?;
        let cluster = Cluster::open_or_make(home, options).await?;
        let (postmaster, socket_dir) = bring_up(&cluster).await?;
        create_database(&socket_dir).await?;
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervise(cluster.clone(), postmaster, stop.clone()));
        Ok(Self { cluster, socket_dir, stop, supervisor: Some(supervisor), _lock: lock })
    }

    /// The URL of the service's database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// The URL of another database of the cluster.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        url_at(&self.socket_dir, database)
    }

    /// Stops Postgres: ends its connections, writes a checkpoint, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        match self.supervisor.take() {
            Some(supervisor) => supervisor.await.context("the task that watches Postgres broke")?,
            None => Ok(()),
        }
    }
}

impl Drop for EmbeddedPostgres {
    fn drop(&mut self) {
        if self.supervisor.take().is_some()
            && let Some(running) = PidFile::read(self.cluster.data_dir()).filter(PidFile::is_running)
        {
            running.signal_fast_stop();
        }
    }
}

/// The URL of the embedded database under `home`, for psql and backups.
///
/// # Errors
/// When it does not run.
pub fn running_url(home: &Path) -> anyhow::Result<String> {
    let data_dir = home.join("postgres");
    let running = PidFile::read(&data_dir).filter(PidFile::is_running);
    let Some(running) = running else {
        bail!("the embedded database under {} does not run; start copal-server first", home.display());
    };
    Ok(url_at(&running.socket_dir, DATABASE))
}

fn url_at(socket_dir: &Path, database: &str) -> String {
    let host: String = url::form_urlencoded::byte_serialize(socket_dir.as_os_str().as_encoded_bytes()).collect();
    format!("postgresql:///{database}?user={USER}&host={host}")
}

fn lock_home(home: &Path) -> anyhow::Result<Flock<File>> {
    let path = home.join("server.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("can't open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => anyhow::anyhow!(
            "another copal-server already uses {}; stop it, or set COPAL_HOME to another folder",
            home.display()
        ),
        error => anyhow::anyhow!("can't lock {}: {error}", path.display()),
    })
}

/// Takes over a running postmaster of the cluster, or starts one.
async fn bring_up(cluster: &Cluster) -> anyhow::Result<(Postmaster, PathBuf)> {
    let deadline = tokio::time::Instant::now() + START_TIMEOUT;
    if let Some(left) = PidFile::read(cluster.data_dir()) {
        if left.is_running() {
            tracing::info!(postgres.pid = left.pid, "taking over the Postgres that an earlier service left running");
            let socket_dir = left.socket_dir.clone();
            let mut postmaster = Postmaster::adopt(left);
            if wait_until_ready(&mut postmaster, &socket_dir, deadline).await? {
                return Ok((postmaster, socket_dir));
            }
            // It was on its way out.
        } else {
            left.remove_stale()?;
        }
    }
    let socket_dir = cluster.make_socket_dir()?;
    let patience = tokio::time::Instant::now() + RETRY_TIMEOUT;
    loop {
        let mut postmaster = cluster.spawn_postmaster(&socket_dir)?;
        if wait_until_ready(&mut postmaster, &socket_dir, deadline).await? {
            return Ok((postmaster, socket_dir));
        }
        if tokio::time::Instant::now() > patience {
            let log = cluster.log().display();
            bail!("the embedded Postgres did not start; the end of {log}:\n{}", cluster.log_tail());
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Waits until connections are served; false when the postmaster ended.
async fn wait_until_ready(
    postmaster: &mut Postmaster,
    socket_dir: &Path,
    deadline: tokio::time::Instant,
) -> anyhow::Result<bool> {
    let url = url_at(socket_dir, "postgres");
    loop {
        if postmaster.has_ended()? {
            return Ok(false);
        }
        match PgConnection::connect(&url).await {
            Ok(connection) => {
                connection.close().await?;
                return Ok(true);
            }
            Err(error) if tokio::time::Instant::now() > deadline => {
                return Err(error).context("the embedded Postgres does not accept connections");
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

async fn create_database(socket_dir: &Path) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&url_at(socket_dir, "postgres")).await?;
    let exists: bool = sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
        .bind(DATABASE)
        .fetch_one(&mut connection)
        .await?;
    if !exists {
        connection
            .execute("create database copal")
            .await
            .context("can't create the database in the embedded Postgres")?;
    }
    connection.close().await?;
    Ok(())
}

/// Watches the postmaster until told to stop it. One that dies is started again.
async fn supervise(cluster: Cluster, mut postmaster: Postmaster, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => {
                let stopped = postmaster.stop().await;
                cluster.remove_socket_dir();
                return stopped;
            }
            () = postmaster.ended() => {}
        }
        tracing::error!(log = %cluster.log().display(), "the embedded Postgres died; starting it again");
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(RESTART_PAUSE) => {}
            }
            match bring_up(&cluster).await {
                Ok((started, _)) => {
                    postmaster = started;
                    break;
                }
                Err(error) => tracing::error!(error = %format!("{error:#}"), "the embedded Postgres does not start"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_understood_by_sqlx() {
        let url = url_at(Path::new("/tmp/a folder/x"), DATABASE);
        assert_eq!(url, "postgresql:///copal?user=copal&host=%2Ftmp%2Fa+folder%2Fx");
        let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        assert_eq!(options.get_socket().map(PathBuf::as_path), Some(Path::new("/tmp/a folder/x")));
        assert_eq!(options.get_username(), USER);
        assert_eq!(options.get_database(), Some(DATABASE));
    }
}
