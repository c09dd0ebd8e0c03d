//! Sessions: leases that live by heartbeats, and what their end means to the Jobs they hold.
//!
//! A call on a Session updates its row first, so calls of one Session run one after the other, and
//! none runs beside its end: that is the fence.

use std::time::Duration;

use copal_schemas::{
    BatchJobId, JobId, SessionId, SiteId, Timestamp,
    batch_job::BatchJobState,
    session::{Session, SessionCreate, Signals},
};
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder};

use super::{
    scope::Scope,
    transition::{Moves, Which},
};
use crate::error::{ApiError, ApiResult};

/// Sessions ended by one sweep's transaction; those that are left have their turn at once.
const SWEEP_CHUNK: i64 = 20;

#[derive(FromRow)]
struct SessionRow {
    id: SessionId,
    site_id: SiteId,
    batch_job_id: Option<BatchJobId>,
    heartbeat: Timestamp,
}

impl From<SessionRow> for Session {
    fn from(row: SessionRow) -> Self {
        let SessionRow { id, site_id, batch_job_id, heartbeat } = row;
        Self { id, site_id, batch_job_id, heartbeat }
    }
}

/// A Session that is alive.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Holder {
    /// The Session.
    pub id: SessionId,
    /// The Site whose Jobs it may hold.
    pub site_id: SiteId,
    /// The BatchJob that its launcher runs in.
    pub batch_job_id: Option<BatchJobId>,
    /// Whether there are Jobs that it gave back and must not be given again.
    pub has_refusals: bool,
}

/// Opens a Session.
///
/// # Errors
/// 400 when the Site is not the user's or the BatchJob is not of that Site, or over.
pub async fn create(conn: &mut PgConnection, scope: Scope, new: &SessionCreate) -> ApiResult<Session> {
    // The row lock keeps the Site (and so the Session's cascade) from vanishing meanwhile.
    const SITE: &str =
        "select id from sites where id = $1 and owner_id = $2 and ($3::bigint is null or id = $3) for key share";
    let site: Option<SiteId> = sqlx::query_scalar(SITE)
        .bind(new.site_id)
        .bind(scope.owner)
        .bind(scope.site)
        .fetch_optional(&mut *conn)
        .await?;
    if site.is_none() {
        return Err(ApiError::conflict(format!("Site {} does not exist, or is not yours", new.site_id)));
    }
    if scope.batch_job.is_some() && scope.batch_job != new.batch_job_id {
        return Err(ApiError::forbidden("the token is that of a launcher; name its BatchJob"));
    }
    if let Some(batch_job) = new.batch_job_id {
        // Locked against the end of the BatchJob, which ends its Sessions.
        const BATCH_JOB: &str = "select state from batch_jobs where id = $1 and site_id = $2 for share";
        let known: Option<BatchJobState> =
            sqlx::query_scalar(BATCH_JOB).bind(batch_job).bind(new.site_id).fetch_optional(&mut *conn).await?;
        match known {
            None => return Err(ApiError::conflict(format!("Site {} has no BatchJob {batch_job}", new.site_id))),
            Some(state) if state.is_over() => {
                return Err(ApiError::conflict(format!("BatchJob {batch_job} is over; its launcher must end")));
            }
            Some(_) => {}
        }
    }
    const SQL: &str = "insert into sessions (owner_id, site_id, batch_job_id) values ($1, $2, $3) \
         returning id, site_id, batch_job_id, heartbeat";
    let row: SessionRow =
        sqlx::query_as(SQL).bind(scope.owner).bind(new.site_id).bind(new.batch_job_id).fetch_one(conn).await?;
    Ok(row.into())
}

/// The Sessions of a user, or those among `ids`.
///
/// # Errors
/// The database's.
pub async fn list(conn: &mut PgConnection, scope: Scope, ids: &[SessionId]) -> ApiResult<Vec<Session>> {
    const SQL: &str = "select id, site_id, batch_job_id, heartbeat from sessions \
         where owner_id = $1 and ($2::bigint[] = '{}' or id = any($2)) \
         and ($3::bigint is null or site_id = $3) and ($4::bigint is null or batch_job_id = $4) order by id";
    let rows: Vec<SessionRow> =
        sqlx::query_as(SQL).bind(scope.owner).bind(ids).bind(scope.site).bind(scope.batch_job).fetch_all(conn).await?;
    Ok(rows.into_iter().map(Session::from).collect())
}

/// Notes a sign of life and locks the Session.
///
/// # Errors
/// `session_ended` when the user has no such Session (any more).
pub async fn beat(conn: &mut PgConnection, scope: Scope, id: SessionId) -> ApiResult<Holder> {
    let mut sql = QueryBuilder::new("");
    push_beat(&mut sql, scope, id);
    sql.build_query_as().fetch_optional(conn).await?.ok_or_else(|| ApiError::session_ended(id))
}

/// The statement of a sign of life, which gives a [`Holder`]'s columns.
pub(super) fn push_beat(sql: &mut QueryBuilder<Postgres>, scope: Scope, id: SessionId) {
    sql.push("update sessions set heartbeat = clock_timestamp(), alive_at = clock_timestamp()");
    push_is(sql, scope, id);
    sql.push(" returning id, site_id, batch_job_id, has_refusals");
}

fn push_is(sql: &mut QueryBuilder<Postgres>, scope: Scope, id: SessionId) {
    sql.push(" where id = ").push_bind(id).push(" and ");
    scope.push(sql, "sessions");
    if let Some(batch_job) = scope.batch_job {
        sql.push(" and batch_job_id = ").push_bind(batch_job);
    }
}

/// A Session that is alive, without a sign of life and without locking it.
///
/// # Errors
/// `session_ended` when the user has no such Session (any more).
pub async fn get(conn: &mut PgConnection, scope: Scope, id: SessionId) -> ApiResult<Holder> {
    let mut sql = QueryBuilder::new("select id, site_id, batch_job_id, has_refusals from sessions");
    push_is(&mut sql, scope, id);
    sql.build_query_as().fetch_optional(conn).await?.ok_or_else(|| ApiError::session_ended(id))
}

/// How long Sessions are held that nothing is heard of.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Any.
    pub usual: Duration,
    /// Those of BatchJobs that run by the agent's latest report, or ran before somebody wanted them gone: their launchers
    /// may only be cut off.
    pub cut_off: Duration,
}

/// Whether the BatchJob `b` may have a launcher that is only cut off.
macro_rules! may_be_cut_off {
    () => {
        "coalesce(b.state in ('running', 'pending_deletion'), false)"
    };
}

/// What the holder must do now.
///
/// # Errors
/// The database's.
pub async fn signals(conn: &mut PgConnection, holder: Holder, lease: Lease) -> ApiResult<Signals> {
    const SQL: &str = concat!(
        "select array(select id from jobs where session_id = $1 and cancel_requested order by id), \
         coalesce(b.state = 'pending_deletion', false), ",
        may_be_cut_off!(),
        " from (values (1)) as one left join batch_jobs b on b.id = $2"
    );
    let (cancel, stop, may_be_cut_off): (Vec<JobId>, bool, bool) =
        sqlx::query_as(SQL).bind(holder.id).bind(holder.batch_job_id).fetch_one(conn).await?;
    let held = if may_be_cut_off { lease.cut_off.max(lease.usual) } else { lease.usual };
    Ok(Signals { cancel, stop, held_sec: Some(held.as_secs_f64()) })
}

/// Holds the Sessions of a BatchJob, whose record is about to be deleted, for as long as if it stayed: their launchers
/// were told so.
///
/// # Errors
/// The database's.
pub async fn outlive_batch_job(conn: &mut PgConnection, batch_job: BatchJobId, lease: Lease) -> ApiResult<()> {
    const SQL: &str = concat!(
        "update sessions s set alive_at = s.alive_at + make_interval(secs => $2) from batch_jobs b \
         where s.batch_job_id = $1 and b.id = $1 and ",
        may_be_cut_off!()
    );
    let longer = lease.cut_off.saturating_sub(lease.usual);
    sqlx::query(SQL).bind(batch_job).bind(longer.as_secs_f64()).execute(conn).await?;
    Ok(())
}

/// Ends a Session of a user and frees its Jobs.
///
/// # Errors
/// `session_ended` when the user has no such Session (any more).
pub async fn delete(conn: &mut PgConnection, scope: Scope, id: SessionId) -> ApiResult<()> {
    const LOCK: &str = "select id from sessions where id = $1 and owner_id = $2 and ($3::bigint is null or site_id = $3) and ($4::bigint is null or batch_job_id = $4) for update";
    let found: Option<SessionId> = sqlx::query_scalar(LOCK)
        .bind(id)
        .bind(scope.owner)
        .bind(scope.site)
        .bind(scope.batch_job)
        .fetch_optional(&mut *conn)
        .await?;
    if found.is_none() {
        return Err(ApiError::session_ended(id));
    }
    end(conn, &[id]).await
}

/// Ends the Sessions of BatchJobs that are over and frees their Jobs.
///
/// # Errors
/// The database's.
pub async fn end_for_batch_jobs(conn: &mut PgConnection, batch_jobs: &[BatchJobId]) -> ApiResult<()> {
    const LOCK: &str = "select id from sessions where batch_job_id = any($1) order by id for update";
    let ids: Vec<SessionId> = sqlx::query_scalar(LOCK).bind(batch_jobs).fetch_all(&mut *conn).await?;
    end(conn, &ids).await
}

/// Ends locked Sessions: their RUNNING Jobs become RUN_TIMEOUT and go on by their policy, all
/// others keep their state, and all are free.
async fn end(conn: &mut PgConnection, ids: &[SessionId]) -> ApiResult<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let mut moves = Moves::lock(&mut *conn, Which::HeldBy(ids)).await?;
    for (now, job) in moves.iter_mut() {
        job.lose_session(now);
    }
    moves.apply(&mut *conn).await?;
    sqlx::query("delete from sessions where id = any($1)").bind(ids).execute(conn).await?;
    Ok(())
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// Sessions that were ended.
    pub ended: usize,
    /// Whether another sweep is worth while at once.
    pub more: bool,
    /// How long no process of the service had swept, where that was so long that it was down.
    pub was_down: Option<Duration>,
}

/// Ends Sessions that are silent for longer than `lease`, and those whose BatchJob is over. Only one process does at a time;
/// the others find nothing. A gap of more than `pause` since the last sweep was an outage of the
/// service, which counts for no lease.
///
/// # Errors
/// The database's.
pub async fn sweep(conn: &mut PgConnection, lease: Lease, pause: Duration) -> ApiResult<Swept> {
    // Of all processes on this database; released at the transaction's end.
    const LOCK: &str = "select pg_try_advisory_xact_lock(hashtext('copal sweep'))";
    if !sqlx::query_scalar::<_, bool>(LOCK).fetch_one(&mut *conn).await? {
        return Ok(Swept::default());
    }
    let was_down = skip_downtime(&mut *conn, pause).await?;
    const LAPSED: &str = concat!(
        "select s.id from sessions s left join batch_jobs b on b.id = s.batch_job_id \
         where (s.alive_at < clock_timestamp() - make_interval(secs => $1) and not (",
        may_be_cut_off!(),
        " and s.alive_at >= clock_timestamp() - make_interval(secs => $2))) \
         or coalesce(b.state in ('finished', 'submit_failed'), false) \
         order by s.id limit $3 for update of s skip locked"
    );
    let ids: Vec<SessionId> = sqlx::query_scalar(LAPSED)
        .bind(lease.usual.as_secs_f64())
        .bind(lease.cut_off.max(lease.usual).as_secs_f64())
        .bind(SWEEP_CHUNK)
        .fetch_all(&mut *conn)
        .await?;
    end(conn, &ids).await?;
    Ok(Swept { ended: ids.len(), more: ids.len() as i64 == SWEEP_CHUNK, was_down })
}

/// Moves all leases on by the time in which no process of the service was there to hear heartbeats.
async fn skip_downtime(conn: &mut PgConnection, pause: Duration) -> ApiResult<Option<Duration>> {
    const CLOCK: &str = "update service_clock c set swept_at = clock_timestamp() from service_clock old \
         returning extract(epoch from c.swept_at - old.swept_at)::float8";
    let gap_sec: f64 = sqlx::query_scalar(CLOCK).fetch_one(&mut *conn).await?;
    let Ok(gap) = Duration::try_from_secs_f64(gap_sec) else { return Ok(None) };
    if gap <= pause {
        return Ok(None);
    }
    // Never back: one whose BatchJob's record was deleted is alive until later than now.
    const SHIFT: &str = "update sessions set \
         alive_at = greatest(alive_at, least(alive_at + make_interval(secs => $1), clock_timestamp()))";
    sqlx::query(SHIFT).bind(gap_sec).execute(conn).await?;
    Ok(Some(gap))
}
