//! The only writer of `jobs.state`.
//!
//! A bulk of state changes is: lock the Jobs in the order of their ids, work out every step in
//! memory (`steps.rs`), then write (`write.rs`): one UPDATE, one INSERT of attempts where
//! runs ended, and one statement that writes events and tallies and wakes whoever waits. Where
//! parents came to an end, their children follow in the same way, one level of the graph at a time.
//!
//! What is not here: which Jobs an owner, a Session or the sweeper means, and fields other than
//! those that a state change implies.

use std::collections::BTreeMap;

use copal_schemas::{AppId, JobId, SessionId, Timestamp, TransferId, app::AppHooks};
use sqlx::{FromRow, PgConnection, types::Json};

use self::steps::NO_APP;
pub use self::steps::{AppPolicy, Ask, Moving, Row};
use super::{
    dependencies::{self, Ended},
    events::{self, Place},
    scope::Scope,
};
use crate::error::ApiResult;

mod steps;
mod write;

/// Which Jobs a bulk is about.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// These, as far as they are within the scope.
    Owned(Scope, &'a [JobId]),
    /// Those of these transfers, as far as they are within the scope.
    OfTransfers(Scope, &'a [TransferId]),
    /// These, whoever owns them: the service acts.
    Any(&'a [JobId]),
    /// Those that these Sessions hold.
    HeldBy(&'a [SessionId]),
}

/// The columns of a [`Row`].
macro_rules! row_columns {
    () => {
        "id, owner_id, site_id, app_id, session_id, batch_job_id, started_at, state, return_code, \
     max_restarts, num_attempts, error_restarts, timeout_restarts, cancel_requested, dependency_failed, \
     tag_set, has_transfers, has_parents, has_children"
    };
}

/// Jobs that are locked, of which nothing but their rows is read.
pub struct Locked(Vec<Row>);

impl Locked {
    /// Locks Jobs, in the order of their ids. What is written of other tables from here on counts for their steps.
    ///
    /// # Errors
    /// The database's.
    pub async fn take(conn: &mut PgConnection, which: Which<'_>) -> ApiResult<Self> {
        let rows: Vec<Row> = match which {
            Which::Owned(scope, ids) => {
                const SQL: &str = concat!(
                    "select ",
                    row_columns!(),
                    " from jobs where id = any($1) and owner_id = $2 and ($3::bigint is null or site_id = $3) \
                      and app_id <> all(array(select app_id from deleted_apps where owner_id = $2)) \
                      order by id for no key update"
                );
                sqlx::query_as(SQL).bind(ids).bind(scope.owner).bind(scope.site).fetch_all(&mut *conn).await?
            }
            Which::OfTransfers(scope, transfers) => {
                // By the ids of the Jobs and by nothing else: the planner would take so few rows for those of the owner that
                // are not of a gone App that it would look at all of them. So those conditions are hidden from it.
                const SQL: &str = concat!(
                    "select ",
                    row_columns!(),
                    " from jobs where id = any(array(select job_id from transfers where id = any($1))) \
                      and coalesce(owner_id = $2, false) and ($3::bigint is null or site_id = $3) \
                      and app_id <> all(array(select app_id from deleted_apps where owner_id = $2)) \
                      order by id for no key update"
                );
                sqlx::query_as(SQL).bind(transfers).bind(scope.owner).bind(scope.site).fetch_all(&mut *conn).await?
            }
            Which::Any(ids) => {
                const SQL: &str =
                    concat!("select ", row_columns!(), " from jobs where id = any($1) order by id for no key update");
                sqlx::query_as(SQL).bind(ids).fetch_all(&mut *conn).await?
            }
            Which::HeldBy(sessions) => {
                const SQL: &str = concat!(
                    "select ",
                    row_columns!(),
                    " from jobs where session_id = any($1) order by id for no key update"
                );
                sqlx::query_as(SQL).bind(sessions).fetch_all(&mut *conn).await?
            }
        };
        Ok(Self(rows))
    }
}

/// Locked Jobs and what is to be written of them.
pub struct Moves {
    now: Timestamp,
    jobs: Vec<Moving>,
}

impl Moves {
    /// Locks Jobs, in the order of their ids, and reads what decides about their steps. Those that
    /// do not exist (or are not that user's) are missing from the result.
    ///
    /// # Errors
    /// The database's.
    pub async fn lock(conn: &mut PgConnection, which: Which<'_>) -> ApiResult<Self> {
        let locked = Locked::take(conn, which).await?;
        Self::read(conn, locked).await
    }

    /// Reads what decides about the steps of locked Jobs: now, so that it is what the last writer left.
    ///
    /// # Errors
    /// The database's.
    pub async fn read(conn: &mut PgConnection, Locked(rows): Locked) -> ApiResult<Self> {
        let mut app_ids: Vec<AppId> = rows.iter().map(|row| row.app_id).collect();
        app_ids.sort_unstable();
        app_ids.dedup();
        let (now, policies) = read_policies(conn, &app_ids).await?;
        let with =
            |flag: fn(&Row) -> bool| -> Vec<JobId> { rows.iter().filter(|row| flag(row)).map(|row| row.id).collect() };
        let open = open_transfers(conn, &with(|row| row.has_transfers)).await?;
        let statuses = dependencies::statuses(conn, &with(|row| row.has_parents)).await?;
        let jobs = rows
            .into_iter()
            .map(|row| {
                let (stage_in_open, stage_out_open) = open.get(&row.id).copied().unwrap_or_default();
                Moving {
                    policy: policies.get(&row.app_id).copied().unwrap_or(NO_APP),
                    dependencies: statuses.get(&row.id).copied().unwrap_or_default(),
                    stage_in_open,
                    stage_out_open,
                    was: row.state,
                    was_in: row.tag_set,
                    last_at: None,
                    attempts: Vec::new(),
                    events: Vec::new(),
                    touched: false,
                    row,
                }
            })
            .collect();
        Ok(Self { now, jobs })
    }

    /// The locked Jobs in the order of their ids.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Timestamp, &mut Moving)> {
        let now = self.now;
        self.jobs.iter_mut().map(move |job| (now, job))
    }

    /// One of the locked Jobs, and the time.
    pub fn get_mut(&mut self, id: JobId) -> Option<(Timestamp, &mut Moving)> {
        let at = self.jobs.binary_search_by_key(&id, |job| job.row.id).ok()?;
        Some((self.now, &mut self.jobs[at]))
    }

    /// Writes everything, then lets children follow. Gives the number of Jobs that were changed by
    /// the caller's asks.
    ///
    /// # Errors
    /// The database's.
    pub async fn apply(self, conn: &mut PgConnection) -> ApiResult<usize> {
        let touched = self.jobs.iter().filter(|job| job.touched).count();
        let mut ended = self.write(conn).await?;
        while !ended.is_empty() {
            let children = dependencies::record(conn, &ended).await?;
            if children.is_empty() {
                break;
            }
            let mut moves = Self::lock(conn, Which::Any(&children)).await?;
            for (now, child) in moves.iter_mut() {
                child.follow_dependencies(now);
            }
            ended = moves.write(conn).await?;
        }
        Ok(touched)
    }

    /// Writes the Jobs, their attempts and events; gives those whose children must follow.
    async fn write(self, conn: &mut PgConnection) -> ApiResult<Vec<Ended>> {
        let touched: Vec<&Moving> = self.jobs.iter().filter(|job| job.touched).collect();
        if touched.is_empty() {
            return Ok(Vec::new());
        }
        write::update_jobs(conn, &touched).await?;
        write::update_transfers(conn, &touched).await?;
        write::insert_attempts(conn, &touched).await?;
        let ended = touched.iter().filter(|job| job.row.has_children).filter_map(|job| job.ended()).collect();
        let mut log = events::Log::default();
        for job in &touched {
            let Row { owner_id: owner, site_id: site, app_id: app, tag_set, state, .. } = job.row;
            let place = Place { owner, site, app, tag_set };
            log.moved((Place { tag_set: job.was_in, ..place }, job.was), (place, state), job.row.session_id);
            if job.row.cancel_requested {
                log.signal(job.row.owner_id, job.row.site_id);
            }
        }
        for job in self.jobs {
            let Row { id, owner_id, site_id, app_id, batch_job_id, .. } = job.row;
            log.events.extend(job.events.into_iter().map(|event| events::LoggedEvent {
                job_id: id,
                owner_id,
                site_id,
                app_id,
                batch_job_id,
                event,
            }));
        }
        log.write(conn).await?;
        Ok(ended)
    }
}

/// The time of the database's clock, and what these Apps say.
///
/// # Errors
/// The database's.
pub async fn read_policies(
    conn: &mut PgConnection,
    app_ids: &[AppId],
) -> ApiResult<(Timestamp, BTreeMap<AppId, AppPolicy>)> {
    #[derive(FromRow)]
    struct PolicyRow {
        now: Timestamp,
        id: Option<AppId>,
        hooks_hidden: bool,
        hooks: Option<Json<AppHooks>>,
        max_restarts: Option<i32>,
    }
    const SQL: &str = "select clock_timestamp() as now, a.id, a.command is null as hooks_hidden, a.hooks, \
         a.max_restarts from (values (1)) as one left join apps a on a.id = any($1)";
    let rows: Vec<PolicyRow> = sqlx::query_as(SQL).bind(app_ids).fetch_all(conn).await?;
    let now = rows.first().map_or_else(chrono::Utc::now, |row| row.now);
    let policies = rows.into_iter().filter_map(|row| {
        let hooks = row.hooks.map(|Json(hooks)| hooks).unwrap_or_default();
        Some((row.id?, AppPolicy { hooks_hidden: row.hooks_hidden, hooks, max_restarts: row.max_restarts }))
    });
    Ok((now, policies.collect()))
}

/// Whether Jobs have transfers in and out that are not done.
async fn open_transfers(conn: &mut PgConnection, ids: &[JobId]) -> ApiResult<BTreeMap<JobId, (bool, bool)>> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    // A Job at a time, behind `offset 0`, so that the index by Job is used also where the planner knows nothing of the
    // transfers yet: it would look through all of them.
    const SQL: &str = "select u.id, bool_or(t.direction = 'in'), bool_or(t.direction = 'out') from unnest($1::bigint[]) as u(id) \
         cross join lateral (select direction from transfers where job_id = u.id and state <> 'done' offset 0) t \
         group by u.id";
    let rows: Vec<(JobId, bool, bool)> = sqlx::query_as(SQL).bind(ids).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, stage_in, stage_out)| (id, (stage_in, stage_out))).collect())
}
