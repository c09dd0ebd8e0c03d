//! Arrays that hold themselves to so many Jobs at once.
//!
//! Every Job of such an array has an edge to the array itself, beside those to its parents: to the
//! negative of the array's id. The edge is open until it is the Job's turn, so that a Job that waits
//! is in AWAITING_PARENTS, where acquire never meets it. `array_limits.room` says how many more may
//! go on; a Job whose turn has come gives its place back when it comes to an end.

use std::collections::BTreeMap;

use copal_schemas::{JobId, UserId};
use sqlx::PgConnection;

use super::dependencies::Ended;
use crate::error::{ApiError, ApiResult};

/// Places given back (or taken, below 0), by array.
pub type Places = BTreeMap<i64, i64>;

/// Makes a new array's limit.
///
/// # Errors
/// The database's.
pub async fn create(conn: &mut PgConnection, owner: UserId, array: i64, at_once: i64) -> ApiResult<()> {
    const SQL: &str = "insert into array_limits (array_id, owner_id, at_once, room) values ($1, $2, $3, $3)";
    sqlx::query(SQL).bind(array).bind(owner).bind(at_once).execute(conn).await?;
    Ok(())
}

/// Whether an array of the user's has a limit.
///
/// # Errors
/// 404 when the user has no such array.
pub async fn has_limit(conn: &mut PgConnection, owner: UserId, array: i64) -> ApiResult<bool> {
    const SQL: &str = "select exists (select from array_limits where array_id = $2 and owner_id = $1) \
         where exists (select from job_details where owner_id = $1 and array_id = $2)";
    let limited: Option<bool> = sqlx::query_scalar(SQL).bind(owner).bind(array).fetch_optional(conn).await?;
    limited.ok_or_else(|| ApiError::not_found(format!("array {array}")))
}

/// What Jobs that came to an end, or left one, mean to the limits of their arrays.
///
/// # Errors
/// The database's.
pub async fn places_of(conn: &mut PgConnection, ended: &[Ended]) -> ApiResult<Places> {
    let ids: Vec<JobId> = ended.iter().map(|end| end.parent).collect();
    let edges = edges_of(&mut *conn, &ids).await?;
    let mut places = Places::new();
    let mut late = Vec::new();
    let ends: BTreeMap<JobId, &Ended> = ended.iter().map(|end| (end.parent, end)).collect();
    for (job, array, waits) in edges {
        let Some(end) = ends.get(&job) else { continue };
        match (waits, end.was_at_end, end.finished.is_some()) {
            // It ended before its turn, and needs none any more.
            (true, ..) => late.push(job),
            (false, false, true) => *places.entry(array).or_default() += 1,
            (false, true, false) => *places.entry(array).or_default() -= 1,
            (false, ..) => {}
        }
    }
    if !late.is_empty() {
        const SQL: &str = "update job_edges set met = true where child_id = any($1) and parent_id < 0";
        sqlx::query(SQL).bind(late).execute(conn).await?;
    }
    Ok(places)
}

/// The places that Jobs give back which are about to be deleted; `alive`: those at no end.
///
/// # Errors
/// The database's.
pub async fn places_of_deleted(conn: &mut PgConnection, alive: &[JobId]) -> ApiResult<Places> {
    let mut places = Places::new();
    for (_, array, waits) in edges_of(conn, alive).await? {
        if !waits {
            *places.entry(array).or_default() += 1;
        }
    }
    Ok(places)
}

/// Jobs, the limited arrays that they are of, and whether their turn is yet to come.
async fn edges_of(conn: &mut PgConnection, jobs: &[JobId]) -> ApiResult<Vec<(JobId, i64, bool)>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    const SQL: &str =
        "select child_id, -parent_id, met is null from job_edges where child_id = any($1) and parent_id < 0";
    Ok(sqlx::query_as(SQL).bind(jobs).fetch_all(conn).await?)
}

/// Gives places back, and gives the Jobs whose turn has come, in the order of their ids.
///
/// # Errors
/// The database's.
pub async fn turns(conn: &mut PgConnection, places: &Places) -> ApiResult<Vec<JobId>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    // Whoever changes an array's room holds its row to the end of the transaction, so that the next
    // statement sees every turn that others gave.
    const GIVE: &str = "with mine as materialized (select array_id from array_limits where array_id = any($1) \
         order by array_id for no key update) \
         update array_limits l set room = room + u.places from unnest($1::bigint[], $2::bigint[]) as u(array_id, places), \
         mine m where l.array_id = u.array_id and m.array_id = u.array_id returning l.array_id, l.room";
    let (arrays, given): (Vec<i64>, Vec<i64>) = places.iter().unzip();
    let rooms: Vec<(i64, i64)> = sqlx::query_as(GIVE).bind(arrays).bind(given).fetch_all(&mut *conn).await?;
    let (arrays, rooms): (Vec<i64>, Vec<i64>) = rooms.into_iter().filter(|(_, room)| *room > 0).unzip();
    if arrays.is_empty() {
        return Ok(Vec::new());
    }
    const TAKE: &str = "with turn as materialized (select e.child_id, e.parent_id \
         from unnest($1::bigint[], $2::bigint[]) as u(array_id, room) cross join lateral (select child_id, parent_id \
         from job_edges where parent_id = -u.array_id and parent_id < 0 and met is null order by child_id limit u.room) e), \
         taken as (update array_limits l set room = room - t.jobs from (select -parent_id as array_id, count(*) as jobs \
         from turn group by 1) t where l.array_id = t.array_id) \
         update job_edges e set met = true from turn t where e.child_id = t.child_id and e.parent_id = t.parent_id \
         returning e.child_id";
    let mut jobs: Vec<JobId> = sqlx::query_scalar(TAKE).bind(arrays).bind(rooms).fetch_all(conn).await?;
    jobs.sort_unstable();
    Ok(jobs)
}

/// Forgets the limits of arrays whose Jobs are all deleted.
///
/// # Errors
/// The database's.
pub async fn forget(conn: &mut PgConnection) -> ApiResult<()> {
    const SQL: &str = "delete from array_limits l where not exists \
         (select from job_details d where d.owner_id = l.owner_id and d.array_id = l.array_id)";
    sqlx::query(SQL).execute(conn).await?;
    Ok(())
}
