//! Databases for tests: one private cluster, one migrated template in it, one copy of that a test.
//!
//! `copal-test-env run -- COMMAND…` starts the cluster for a whole run and tells the tests by
//! [`URL_VARIABLE`]. A test that is run by hand without it starts a cluster of its own, which ends
//! with the test's process.

use std::{
    fs::{self, Permissions},
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use anyhow::Context as _;
use copal_server::{
    db,
    embedded::{EmbeddedPostgres, Options},
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions};
use tempfile::TempDir;

use crate::process::program_dir;

/// The environment variable with the URL of a cluster that has the template.
pub const URL_VARIABLE: &str = "COPAL_TEST_DATABASE_URL";

/// The migrated database that tests copy.
const TEMPLATE: &str = "copal_template";

/// A private cluster with the template, in a folder of its own.
pub struct Cluster {
    postgres: EmbeddedPostgres,
    home: TempDir,
}

impl Cluster {
    /// Starts it, with fsync off.
    ///
    /// # Errors
    /// When Postgres can't be started or the migrations fail.
    pub async fn start() -> anyhow::Result<Self> {
        let home =
            tempfile::Builder::new().prefix("copal-test-pg-").tempdir().context("can't make a temporary folder")?;
        // As root, Postgres runs as another user, who must be able to enter.
        fs::set_permissions(home.path(), Permissions::from_mode(0o711))?;
        let postgres = EmbeddedPostgres::start_with(home.path(), Options { durable: false }).await?;
        let cluster = Self { postgres, home };
        match cluster.make_template().await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.stop().await?;
                Err(error)
            }
        }
    }

    async fn make_template(&self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url()).await?;
        connection.execute(AssertSqlSafe(format!("create database {TEMPLATE}"))).await?;
        connection.close().await?;
        let pool = db::connect(&self.postgres.url_of(TEMPLATE).into()).await?;
        let migrated = db::migrate(&pool).await;
        // A template can only be copied while nobody is connected to it.
        pool.close().await;
        migrated
    }

    /// The URL of its maintenance database.
    #[must_use]
    pub fn url(&self) -> String {
        self.postgres.url_of("postgres")
    }

    /// Stops it and removes its folder.
    ///
    /// # Errors
    /// When Postgres does not end.
    pub async fn stop(self) -> anyhow::Result<()> {
        let stopped = self.postgres.stop().await;
        self.home.close().context("can't remove the cluster's folder")?;
        stopped
    }
}

/// A database of one test. Dropped with all its connections when it goes out of scope.
#[derive(Debug)]
pub struct TestDatabase {
    cluster: PgConnectOptions,
    name: String,
}

impl TestDatabase {
    /// A copy of the template.
    ///
    /// # Panics
    /// When there is no cluster and none can be started.
    pub async fn create() -> Self {
        let cluster: PgConnectOptions = cluster_url().parse().expect("the harness's own URL can be read");
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let mut connection = PgConnection::connect_with(&cluster).await.expect("the test cluster answers");
        let create = format!("create database {name} template {TEMPLATE}");
        connection.execute(AssertSqlSafe(create)).await.expect("the template can be copied");
        connection.close().await.expect("the test cluster answers");
        Self { cluster, name }
    }

    /// The same from a test without a runtime, or within somebody else's.
    ///
    /// # Panics
    /// When there is no cluster and none can be started.
    #[must_use]
    pub fn create_blocking() -> Self {
        let creating = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(Self::create())
        });
        creating.join().expect("the test cluster has a database for each test")
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        use sqlx::ConnectOptions as _;
        self.options().to_url_lossy().into()
    }

    /// A connection to look behind the service's back.
    ///
    /// # Panics
    /// When Postgres does not answer.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options()).await.expect("the test cluster answers")
    }

    fn options(&self) -> PgConnectOptions {
        self.cluster.clone().database(&self.name)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Dropping must wait, and a test's own runtime can't be waited for from within.
        let (cluster, name) = (self.cluster.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = PgConnection::connect_with(&cluster).await?;
                connection.execute(AssertSqlSafe(format!("drop database {name} with (force)"))).await?;
                Ok(connection.close().await?)
            })
        });
        let dropped = dropping.join().expect("the thread does not panic");
        if !std::thread::panicking() {
            dropped.expect("a test's database can be dropped");
        }
    }
}

/// The URL of the run's cluster, or of one for this process alone.
fn cluster_url() -> String {
    static OWN: Mutex<Option<OwnCluster>> = Mutex::new(None);
    if let Ok(url) = std::env::var(URL_VARIABLE) {
        return url;
    }
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.get_or_insert_with(OwnCluster::start).url.clone()
}

/// `copal-test-env serve` as a child. It ends when its standard input does, so when this process
/// ends in whatever way.
struct OwnCluster {
    url: String,
    _process: Child,
}

impl OwnCluster {
    fn start() -> Self {
        let program = program_dir().join("copal-test-env");
        let mut process = Command::new(&program)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} can't be started: {error}", program.display()));
        let mut url = String::new();
        let output = process.stdout.take().expect("stdout is a pipe");
        BufReader::new(output).read_line(&mut url).expect("copal-test-env prints a URL");
        assert!(!url.trim().is_empty(), "copal-test-env could not start a cluster; its message is above");
        Self { url: url.trim().into(), _process: process }
    }
}
