//! The pool, the migrations and the transaction that everything runs in. All SQL is in the files
//! of this folder, one file a table family; functions take `&mut PgConnection`, so that callers
//! compose transactions.

pub mod acquire;
pub mod apps;
pub mod array_limit;
pub mod batch_jobs;
pub mod dependencies;
pub mod events;
pub mod idempotency;
pub mod job_array;
pub mod job_checks;
pub mod job_create;
pub mod job_filter;
pub mod job_patch;
pub mod jobs;
pub mod kinds;
pub(crate) mod logins;
mod pooler;
pub mod purge;
pub mod refusals;
pub mod scope;
pub mod sessions;
pub mod sites;
pub mod staging;
pub mod tag_sets;
pub mod tags;
pub mod transfers;
pub mod transition;
pub mod updates;
pub mod users;
pub mod why;

use std::time::Duration;

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool,
    migrate::Migrator,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::error::{ApiError, ApiResult};

/// The migrations, compiled in.
pub static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// Connections of one process. A request holds one only while its statements run, so a few a core
/// keep Postgres busy; more only make its backends wait for each other. A listener and the tasks
/// hold their own.
const MAX_CONNECTIONS: u32 = 16;

/// How long to wait for a connection, new or of the pool.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a transaction that met another one is run again before the client hears of it.
const MAX_TRIES: u32 = 6;

/// The settings of every connection: no statement and no forgotten transaction may hold others up for long, and JIT
/// compilation costs more than it gives for statements of milliseconds. They are set by a statement and not with the
/// connection, since a pooler in between would refuse what it does not know.
const SETTINGS: &str = "\
    set statement_timeout = '120s'; \
    set lock_timeout = '20s'; \
    set idle_in_transaction_session_timeout = '60s'; \
    set timezone = 'UTC'; \
    set jit = off; \
    /* Values decide about plans here: how common a tag is, how long a list of ids. */ \
    set plan_cache_mode = force_custom_plan; \
    /* Many short statements at once: workers for one of them only get into the others' way. */ \
    set max_parallel_workers_per_gather = 0; \
    /* One begins at the smallest id, however far that is from the few rows that are asked for: tags and ids go \
       together, which the planner can't know. */ \
    set enable_mergejoin = off";

/// How to reach the database.
///
/// # Errors
/// When the URL can't be read.
pub fn connect_options(url: &SecretString) -> anyhow::Result<PgConnectOptions> {
    let options: PgConnectOptions = url
        .expose_secret()
        .parse()
        .context("the database URL can't be read; it looks like postgres://user:password@host:5432/name")?;
    // Numbers travel in binary, and poolers do not know the setting.
    Ok(options.application_name("copal-server").extra_float_digits(None))
}

/// Opens the pool and makes sure that the database answers.
///
/// # Errors
/// When it can't be reached, or only through a pooler that changes connections between transactions.
pub async fn connect(url: &SecretString) -> anyhow::Result<PgPool> {
    let options = connect_options(url)?;
    let place = format!("{} (database {})", options.get_host(), options.get_database().unwrap_or_default());
    let unreachable =
        || format!("can't reach Postgres at {place}; check that it runs and that COPAL_DATABASE_URL is right");
    // The pool would try again until its time is up, and then only say that it is.
    let first = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&options));
    let first = first.await.with_context(unreachable)?.with_context(unreachable)?;
    pooler::refuse_by_transaction(first, &options).await?;
    PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .min_connections(2)
        .acquire_timeout(CONNECT_TIMEOUT)
        .idle_timeout(Duration::from_secs(600))
        .max_lifetime(Duration::from_secs(3600))
        // A ping before each use costs a round trip a request; one after a pause finds the
        // connections that a restart of Postgres broke.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > Duration::from_secs(1) {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(sqlx::raw_sql(SETTINGS)).await.map(|_| ()) })
        })
        .connect_with(options)
        .await
        .with_context(unreachable)
}

/// Brings the schema up to date. Several processes may do it at once: one does, the others wait.
///
/// # Errors
/// When a migration fails, or the database has one that this program does not know.
pub async fn migrate(pool: &PgPool) -> anyhow::Result<()> {
    MIGRATIONS.run(pool).await.context(
        "the database's schema can't be brought up to date; is it one of a newer copal-server, or not Copal's at all?",
    )
}

/// Rows up to which a call is a small one.
const FEW: usize = 100;

/// Runs `work` in one transaction, and again when it met another transaction (deadlock,
/// serialization failure), so `work` must have no effect outside the transaction.
///
/// # Errors
/// Those of `work`, and of the database.
pub async fn transact<T>(pool: &PgPool, work: impl AsyncFn(&mut PgConnection) -> ApiResult<T>) -> Result<T, ApiError> {
    transact_begun(pool, "begin", work).await
}

/// The same for a call about so many rows, which its statements name by their ids. Where they are few, each statement is
/// planned once a connection: to plan it for every call, as the service's other statements need it, would take longer
/// than to run it.
///
/// # Errors
/// Those of `work`, and of the database.
pub async fn transact_rows<T>(
    pool: &PgPool,
    rows: usize,
    work: impl AsyncFn(&mut PgConnection) -> ApiResult<T>,
) -> Result<T, ApiError> {
    let begin = if rows <= FEW { "begin; set local plan_cache_mode = force_generic_plan" } else { "begin" };
    transact_begun(pool, begin, work).await
}

/// The same for a look at few rows of many, whose statements name an index for all that they read: what the planner has
/// counted, maybe long ago, is no reason to read a whole table.
///
/// # Errors
/// Those of `work`, and of the database.
pub async fn transact_by_index<T>(
    pool: &PgPool,
    work: impl AsyncFn(&mut PgConnection) -> ApiResult<T>,
) -> Result<T, ApiError> {
    transact_begun(pool, "begin; set local enable_seqscan = off; set local enable_bitmapscan = off", work).await
}

async fn transact_begun<T>(
    pool: &PgPool,
    begin: &'static str,
    work: impl AsyncFn(&mut PgConnection) -> ApiResult<T>,
) -> Result<T, ApiError> {
    let mut tries = 1;
    loop {
        let (outcome, started) = match pool.begin_with(begin).await {
            Ok(mut transaction) => match work(&mut transaction).await {
                Ok(value) => (transaction.commit().await.map(|()| value).map_err(ApiError::from), true),
                Err(error) => {
                    // Dropping would roll back as well, but only when the connection is used next.
                    // Where this fails the connection is gone, and the transaction with it.
                    let _ = transaction.rollback().await;
                    (Err(error), true)
                }
            },
            // Nothing has happened yet.
            Err(error) if is_broken(&error) => (Err(error.into()), false),
            Err(error) => return Err(error.into()),
        };
        match outcome {
            Err(error) if (error.is_retryable() || !started) && tries < MAX_TRIES => pause(&mut tries).await,
            outcome => return outcome,
        }
    }
}

/// Runs `work` without a transaction around it, and again when it met another transaction; so what its statements write
/// before the last one must bear to be written twice.
///
/// # Errors
/// Those of `work`, and of the database.
pub async fn retry<T>(pool: &PgPool, work: impl AsyncFn(&mut PgConnection) -> ApiResult<T>) -> Result<T, ApiError> {
    let mut tries = 1;
    loop {
        let (outcome, started) = match pool.acquire().await {
            Ok(mut connection) => (work(&mut connection).await, true),
            Err(error) if is_broken(&error) => (Err(error.into()), false),
            Err(error) => return Err(error.into()),
        };
        match outcome {
            Err(error) if (error.is_retryable() || !started) && tries < MAX_TRIES => pause(&mut tries).await,
            outcome => return outcome,
        }
    }
}

/// Before the next try: longer each time, and never as long as others wait.
async fn pause(tries: &mut u32) {
    let pause_ms = rand::random_range(1..=10 * u64::from(*tries));
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    *tries += 1;
}

/// Whether a pooled connection broke while it was idle, or Postgres said good-bye on it.
fn is_broken(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(database) => matches!(database.code().as_deref(), Some("57P01" | "57P02")),
        _ => false,
    }
}

/// `None` for an empty list, which filters nothing.
pub(crate) fn unless_empty<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}
