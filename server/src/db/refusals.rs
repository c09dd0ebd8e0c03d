//! Jobs that a launcher gave back because none of its nodes can hold them. Its Session is not given them
//! again, others may be; `why` names the reason. Which node can hold what is the launcher's judgement.

use copal_schemas::{BatchJobId, JobId, Timestamp, UserId, session::Release};
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder};

use super::sessions::Holder;
use crate::error::ApiResult;

/// The most characters that are kept of a reason.
const MAX_MESSAGE: usize = 1_000;
/// The most refusals that are named one by one.
const NAMED: i64 = 5;

/// One refusal of a Job.
#[derive(Clone, Debug, FromRow)]
pub struct Refusal {
    /// The allocation whose nodes can't hold it.
    pub batch_job_id: Option<BatchJobId>,
    /// Why.
    pub message: String,
}

/// Notes that the holder has refused these Jobs: those of them that it gave back with a reason.
///
/// # Errors
/// The database's.
pub async fn note(conn: &mut PgConnection, holder: Holder, refused: &[&Release]) -> ApiResult<()> {
    let message = |text: &String| text.chars().take(MAX_MESSAGE).collect::<String>();
    let why = |release: &&Release| Some((release.job_id, (message(release.message.as_ref()?), release.for_now)));
    let (jobs, reasons): (Vec<JobId>, Vec<(String, bool)>) = refused.iter().filter_map(why).unzip();
    let (messages, for_now): (Vec<String>, Vec<bool>) = reasons.into_iter().unzip();
    if jobs.is_empty() {
        return Ok(());
    }
    const SQL: &str = "with refuser as (update sessions set has_refusals = true where id = $1 and not has_refusals) \
         insert into job_refusals (session_id, job_id, batch_job_id, message, for_now) \
         select $1, job_id, $2, message, for_now \
         from unnest($3::bigint[], $4::text[], $5::boolean[]) as u(job_id, message, for_now) \
         on conflict (session_id, job_id) do update set message = excluded.message, for_now = excluded.for_now, \
         refused_at = excluded.refused_at";
    sqlx::query(SQL)
        .bind(holder.id)
        .bind(holder.batch_job_id)
        .bind(jobs)
        .bind(messages)
        .bind(for_now)
        .execute(conn)
        .await?;
    Ok(())
}

/// The latest refusals of a Job, one for each allocation.
///
/// # Errors
/// The database's.
pub async fn of(conn: &mut PgConnection, job: JobId) -> ApiResult<Vec<Refusal>> {
    const SQL: &str = "select batch_job_id, message from (select distinct on (batch_job_id) batch_job_id, message, \
         refused_at from job_refusals where job_id = $1 order by batch_job_id, refused_at desc) as latest \
         order by refused_at desc limit $2";
    Ok(sqlx::query_as(SQL).bind(job).bind(NAMED).fetch_all(conn).await?)
}

/// Jobs that an owner's allocations in a queue gave back for good since `since`, as a subquery: each at least twice, for
/// the nodes of a queue may differ.
pub fn push_unfit(sql: &mut QueryBuilder<Postgres>, owner: UserId, queue: &str, since: Option<Timestamp>) {
    sql.push("(select r.job_id from job_refusals r join batch_jobs b on b.id = r.batch_job_id where b.owner_id = ");
    sql.push_bind(owner).push(" and b.queue = ").push_bind(queue.to_owned()).push(" and not r.for_now");
    if let Some(since) = since {
        sql.push(" and r.refused_at >= ").push_bind(since);
    }
    sql.push(" group by r.job_id having count(distinct b.id) >= 2)");
}

/// Forgets the refusals of Jobs that ask for something else now, or are gone.
///
/// # Errors
/// The database's.
pub async fn forget(conn: &mut PgConnection, jobs: &[JobId]) -> ApiResult<()> {
    if !jobs.is_empty() {
        sqlx::query("delete from job_refusals where job_id = any($1)").bind(jobs).execute(conn).await?;
    }
    Ok(())
}

/// Forgets refusals of Sessions that ended some time ago.
///
/// # Errors
/// The database's.
pub async fn prune(conn: &mut PgConnection) -> ApiResult<u64> {
    const SQL: &str = "delete from job_refusals where refused_at < statement_timestamp() - interval '7 days' \
         and not exists (select from sessions where sessions.id = job_refusals.session_id)";
    Ok(sqlx::query(SQL).execute(conn).await?.rows_affected())
}
