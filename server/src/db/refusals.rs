//! Jobs that a launcher gave back because none of its nodes can hold them. Its Session is not given them
//! again, others may be; `why` names the reason. Which node can hold what is the launcher's judgement.

use copal_schemas::{BatchJobId, JobId, session::Release};
use sqlx::{FromRow, PgConnection};

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
    let why = |release: &&Release| Some((release.job_id, message(release.message.as_ref()?)));
    let (jobs, messages): (Vec<JobId>, Vec<String>) = refused.iter().filter_map(why).unzip();
    if jobs.is_empty() {
        return Ok(());
    }
    const SQL: &str = "with refuser as (update sessions set has_refusals = true where id = $1 and not has_refusals) \
         insert into job_refusals (session_id, job_id, batch_job_id, message) \
         select $1, job_id, $2, message from unnest($3::bigint[], $4::text[]) as u(job_id, message) \
         on conflict (session_id, job_id) do update set message = excluded.message, refused_at = excluded.refused_at";
    sqlx::query(SQL).bind(holder.id).bind(holder.batch_job_id).bind(jobs).bind(messages).execute(conn).await?;
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
