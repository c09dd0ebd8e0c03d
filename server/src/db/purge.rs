//! Jobs removed with all that hangs on them: by their owner, or behind a deleted App or Site. Old events
//! too, and the tallies are kept small.

use std::collections::HashSet;

use chrono::TimeDelta;
use copal_schemas::{AppId, JobId, JobState, SiteId, UserId};
use sqlx::{FromRow, PgConnection};

use super::{
    array_limit, dependencies,
    events::{Log, Place},
    job_filter::JobFilter,
    scope::Scope,
    tags,
    transition::{Moves, Which},
};
use crate::error::{ApiError, ApiResult};

/// Jobs removed by one transaction: it holds its locks for a fraction of a second.
const CHUNK: i64 = 2_000;
/// The same for old events.
const EVENTS_CHUNK: i64 = 10_000;

#[derive(FromRow)]
struct Doomed {
    id: JobId,
    owner_id: UserId,
    site_id: SiteId,
    app_id: AppId,
    state: JobState,
    tag_set: i64,
    has_children: bool,
}

/// Deletes one Job of a user. One that a Session holds is left alone, silently.
///
/// # Errors
/// 404 when the user has no such Job.
pub async fn delete_one(conn: &mut PgConnection, scope: Scope, id: JobId) -> ApiResult<()> {
    let filter = JobFilter { ids: vec![id], ..JobFilter::default() };
    if filter.count(&mut *conn, scope).await? == 0 {
        return Err(ApiError::not_found(format!("Job {id}")));
    }
    delete(conn, scope, &filter, &[id]).await
}

/// Deletes some of the Jobs that match, whose ids are above `after`; those that Sessions hold are
/// left alone. Gives the last id that was looked at, `None` when there are no more.
///
/// # Errors
/// The database's.
pub async fn delete_some(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &JobFilter,
    after: JobId,
) -> ApiResult<Option<JobId>> {
    let ids = filter.ids_after(&mut *conn, scope, after, CHUNK).await?;
    delete(conn, scope, filter, &ids).await?;
    Ok(ids.last().copied())
}

/// Removes some of the Jobs of deleted Apps, whoever holds them. Gives whether there may be more.
///
/// # Errors
/// The database's.
pub async fn remove_orphans(conn: &mut PgConnection) -> ApiResult<bool> {
    const APP: &str = "select app_id from deleted_apps order by app_id limit 1 for update skip locked";
    let Some(app) = sqlx::query_scalar::<_, AppId>(APP).fetch_optional(&mut *conn).await? else {
        return Ok(false);
    };
    const JOBS: &str = "select j.id, j.owner_id, j.site_id, j.app_id, j.state, j.tag_set, j.has_children from jobs j \
         where j.id in (select job_id from job_details where app_id = $1 order by job_id limit $2) \
         order by j.id for update of j";
    let doomed: Vec<Doomed> = sqlx::query_as(JOBS).bind(app).bind(CHUNK).fetch_all(&mut *conn).await?;
    if doomed.is_empty() {
        sqlx::query("delete from deleted_apps where app_id = $1").bind(app).execute(conn).await?;
    } else {
        remove(conn, doomed).await?;
    }
    Ok(true)
}

async fn delete(conn: &mut PgConnection, scope: Scope, filter: &JobFilter, ids: &[JobId]) -> ApiResult<()> {
    const JOBS: &str = "select id, owner_id, site_id, app_id, state, tag_set, has_children from jobs \
         where id = any($1) and session_id is null order by id for update";
    let mut doomed: Vec<Doomed> = sqlx::query_as(JOBS).bind(ids).fetch_all(&mut *conn).await?;
    let locked = doomed.iter().map(|job| job.id).collect();
    let still: HashSet<JobId> = filter.still(&mut *conn, scope, locked).await?.into_iter().collect();
    doomed.retain(|job| still.contains(&job.id));
    remove(conn, doomed).await
}

/// Removes locked Jobs. Children that wait for one of them can never run: they fail.
async fn remove(conn: &mut PgConnection, doomed: Vec<Doomed>) -> ApiResult<()> {
    if doomed.is_empty() {
        return Ok(());
    }
    let parents: Vec<JobId> = doomed.iter().filter(|job| job.has_children).map(|job| job.id).collect();
    let ids: Vec<JobId> = doomed.iter().map(|job| job.id).collect();
    let alive: Vec<JobId> =
        doomed.iter().filter(|job| job.has_children && !job.state.is_terminal()).map(|job| job.id).collect();
    let places = array_limit::places_of_deleted(&mut *conn, &alive).await?;
    let mut log = Log::default();
    for job in &doomed {
        let Doomed { owner_id: owner, site_id: site, app_id: app, tag_set, state, .. } = *job;
        log.deleted(Place { owner, site, app, tag_set }, state);
    }
    if let Some(owner) = doomed.first().map(|job| job.owner_id) {
        // All Jobs of one call have one owner.
        tags::delete(&mut *conn, owner, &ids).await?;
    }
    const EVENTS: &str = "with gone as (delete from events where job_id = any($1) returning owner_id, site_id, app_id, to_state) \
         insert into job_tallies (owner_id, site_id, app_id, state, jobs, events) \
         select owner_id, site_id, app_id, to_state, 0, -count(*) from gone group by 1, 2, 3, 4";
    sqlx::query(EVENTS).bind(&ids).execute(&mut *conn).await?;
    for sql in [
        "delete from job_attempts where job_id = any($1)",
        "delete from job_refusals where job_id = any($1)",
        "delete from transfers where job_id = any($1)",
        "delete from job_edges where child_id = any($1)",
        "delete from job_details where job_id = any($1)",
        "delete from jobs where id = any($1)",
    ] {
        sqlx::query(sql).bind(&ids).execute(&mut *conn).await?;
    }
    log.write(&mut *conn).await?;
    if !parents.is_empty() {
        let mut children = dependencies::record_deleted(&mut *conn, &parents).await?;
        children.extend(array_limit::turns(&mut *conn, &places).await?);
        let mut moves = Moves::lock(&mut *conn, Which::Any(&children)).await?;
        for (now, child) in moves.iter_mut() {
            child.follow_dependencies(now);
        }
        moves.apply(conn).await?;
    }
    Ok(())
}

/// Deletes some of the events that are older than `keep`. Gives whether there may be more.
///
/// # Errors
/// The database's.
pub async fn prune_events(conn: &mut PgConnection, keep: TimeDelta) -> ApiResult<bool> {
    // Owner by owner, so that the index of lists serves this, too: another one would cost every
    // state change. Rows that another process deletes at the moment are left to it. The time is that of the
    // statement: one that moves on meanwhile is no condition of an index, and all events would be read.
    const SQL: &str = "with old as (select e.id from users u cross join lateral (select id from events \
         where owner_id = u.id and \"timestamp\" < statement_timestamp() - make_interval(secs => $1) \
         order by \"timestamp\", id limit $2 for update skip locked) e limit $2), \
         gone as (delete from events using old where events.id = old.id \
         returning owner_id, site_id, app_id, to_state), \
         tallied as (insert into job_tallies (owner_id, site_id, app_id, state, jobs, events) \
         select owner_id, site_id, app_id, to_state, 0, -count(*) from gone group by 1, 2, 3, 4) \
         select count(*) from gone";
    let gone: i64 = sqlx::query_scalar(SQL).bind(keep.as_seconds_f64()).bind(EVENTS_CHUNK).fetch_one(conn).await?;
    Ok(gone == EVENTS_CHUNK)
}

/// Folds the tallies' rows together, where there are many. Readers see the same sums at any time.
///
/// # Errors
/// The database's.
pub async fn fold_tallies(conn: &mut PgConnection) -> ApiResult<()> {
    // One process at a time: two would fold each other's rows twice.
    const LOCK: &str = "select pg_try_advisory_xact_lock(hashtext('copal tallies'))";
    if !sqlx::query_scalar::<_, bool>(LOCK).fetch_one(&mut *conn).await? {
        return Ok(());
    }
    const SQL: &str = "with many as (select owner_id, site_id, app_id, state, tag_set from job_tallies \
         group by 1, 2, 3, 4, 5 having count(*) > 8), \
         gone as (delete from job_tallies t using many m where t.owner_id = m.owner_id and t.site_id = m.site_id \
         and t.app_id = m.app_id and t.state = m.state and t.tag_set = m.tag_set \
         returning t.owner_id, t.site_id, t.app_id, t.state, t.tag_set, t.jobs, t.events) \
         insert into job_tallies (owner_id, site_id, app_id, state, tag_set, jobs, events) \
         select owner_id, site_id, app_id, state, tag_set, sum(jobs), sum(events) from gone group by 1, 2, 3, 4, 5 \
         having sum(jobs) <> 0 or sum(events) <> 0";
    sqlx::query(SQL).execute(conn).await?;
    Ok(())
}
