//! Writes the Jobs of a bulk, each table by one statement.

use copal_schemas::{JobId, JobState, transfer::Direction};
use sqlx::{PgConnection, types::Json};

use super::steps::{Moving, NewAttempt, Row};
use crate::error::ApiResult;

pub(super) async fn update_jobs(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    // UNNEST is joined straight to the primary key: anything in between plans badly.
    const SQL: &str = "update jobs j set state = u.state, session_id = u.session_id, \
         return_code = u.return_code, started_at = u.started_at, num_attempts = u.num_attempts, \
         error_restarts = u.error_restarts, timeout_restarts = u.timeout_restarts, \
         cancel_requested = u.cancel_requested, dependency_failed = u.dependency_failed, \
         last_update = greatest(clock_timestamp(), j.last_update + interval '1 microsecond') \
         from unnest($1::bigint[], $2::job_state[], $3::bigint[], $4::int[], $5::timestamptz[], $6::int[], \
         $7::int[], $8::int[], $9::bool[], $10::bool[]) \
         as u(id, state, session_id, return_code, started_at, num_attempts, error_restarts, timeout_restarts, \
         cancel_requested, dependency_failed) where j.id = u.id";
    fn column<T>(jobs: &[&Moving], field: impl Fn(&Row) -> T) -> Vec<T> {
        jobs.iter().map(|job| field(&job.row)).collect()
    }
    sqlx::query(SQL)
        .bind(column(jobs, |row| row.id))
        .bind(column(jobs, |row| row.state))
        .bind(column(jobs, |row| row.session_id))
        .bind(column(jobs, |row| row.return_code))
        .bind(column(jobs, |row| row.started_at))
        .bind(column(jobs, |row| row.num_attempts))
        .bind(column(jobs, |row| row.error_restarts))
        .bind(column(jobs, |row| row.timeout_restarts))
        .bind(column(jobs, |row| row.cancel_requested))
        .bind(column(jobs, |row| row.dependency_failed))
        .execute(conn)
        .await?;
    Ok(())
}

/// Transfers are due from when their Job comes to the step that waits for them until it leaves the step.
pub(super) async fn update_transfers(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    // What is open in a state that waits for it. Jobs that go on because nothing is open need no statement.
    let open = |job: &Moving, state: JobState| match state {
        JobState::Ready if job.stage_in_open => Some(Direction::In),
        JobState::Postprocessed if job.stage_out_open => Some(Direction::Out),
        _ => None,
    };
    let left: Vec<JobId> = jobs
        .iter()
        .filter(|job| job.was != job.row.state && open(job, job.was).is_some())
        .map(|job| job.row.id)
        .collect();
    if !left.is_empty() {
        const SQL: &str = "update transfers set due_at = null where job_id = any($1) and due_at is not null";
        sqlx::query(SQL).bind(left).execute(&mut *conn).await?;
    }
    let waiting: Vec<(JobId, Direction, bool)> =
        jobs.iter().filter_map(|job| Some((job.row.id, open(job, job.row.state)?, job.was != job.row.state))).collect();
    if !waiting.is_empty() {
        // What failed is tried again when its Job is taken back to the step.
        const SQL: &str = "update transfers t set state = 'pending', due_at = statement_timestamp() \
             from unnest($1::bigint[], $2::transfer_direction[], $3::bool[]) as u(job_id, direction, again) \
             where t.job_id = u.job_id and t.direction = u.direction \
             and (t.state = 'awaiting_job' or (t.state = 'pending' and t.due_at is null) or (t.state = 'error' and u.again))";
        sqlx::query(SQL)
            .bind(waiting.iter().map(|(id, ..)| *id).collect::<Vec<_>>())
            .bind(waiting.iter().map(|(_, direction, _)| *direction).collect::<Vec<_>>())
            .bind(waiting.iter().map(|(.., again)| *again).collect::<Vec<_>>())
            .execute(conn)
            .await?;
    }
    Ok(())
}

pub(super) async fn insert_attempts(conn: &mut PgConnection, jobs: &[&Moving]) -> ApiResult<()> {
    let runs: Vec<(&Row, &NewAttempt)> =
        jobs.iter().flat_map(|job| job.attempts.iter().map(|attempt| (&job.row, attempt))).collect();
    if runs.is_empty() {
        return Ok(());
    }
    const SQL: &str = "insert into job_attempts (job_id, number, batch_job_id, state, return_code, started_at, \
         ended_at, signal, peak_memory_bytes, cpu_sec, nodes, gpus) \
         select * from unnest($1::bigint[], $2::int[], $3::bigint[], $4::job_state[], $5::int[], \
         $6::timestamptz[], $7::timestamptz[], $8::text[], $9::bigint[], $10::float8[], $11::jsonb[], $12::jsonb[])";
    fn column<'a, T>(runs: &[(&'a Row, &'a NewAttempt)], field: impl Fn(&'a Row, &'a NewAttempt) -> T) -> Vec<T> {
        runs.iter().map(|(row, attempt)| field(row, attempt)).collect()
    }
    sqlx::query(SQL)
        .bind(column(&runs, |row, _| row.id))
        .bind(column(&runs, |_, attempt| attempt.number))
        .bind(column(&runs, |row, _| row.batch_job_id))
        .bind(column(&runs, |_, attempt| attempt.state))
        .bind(column(&runs, |_, attempt| attempt.return_code))
        .bind(column(&runs, |_, attempt| attempt.usage.start.or(attempt.started_at)))
        .bind(column(&runs, |_, attempt| attempt.usage.end.unwrap_or(attempt.ended_at)))
        .bind(column(&runs, |_, attempt| attempt.usage.signal.as_deref()))
        .bind(column(&runs, |_, attempt| attempt.usage.peak_memory_bytes))
        .bind(column(&runs, |_, attempt| attempt.usage.cpu_sec))
        .bind(column(&runs, |_, attempt| Json(&attempt.usage.nodes)))
        .bind(column(&runs, |_, attempt| Json(&attempt.usage.gpus)))
        .execute(conn)
        .await?;
    Ok(())
}
