//! What a Session's holder reports about its Jobs: any number of state changes, judged one by one,
//! idempotent by a batch key.

use std::collections::BTreeMap;

use copal_schemas::{
    JobId, JobState, SessionId,
    job_state::{self, Actor},
    session::{JobUpdate, Rejected, Rejection, Release, Updates, UpdatesAnswer},
};
use sqlx::{PgConnection, types::Json};

use super::{
    refusals,
    scope::Scope,
    sessions,
    transition::{Ask, Moves, Moving, Which},
};
use crate::error::ApiResult;

/// Makes the changes that may be made and lists the others.
///
/// # Errors
/// `session_ended` when the Session is gone: nothing of the report counts.
pub async fn report(
    conn: &mut PgConnection,
    scope: Scope,
    session: SessionId,
    report: Updates,
) -> ApiResult<UpdatesAnswer> {
    // Locks the Session, so that a repeated report waits for the first one's answer.
    let holder = sessions::beat(&mut *conn, scope, session).await?;
    const KNOWN: &str = "select answer from update_batches where session_id = $1 and batch_key = $2";
    let known: Option<Json<UpdatesAnswer>> =
        sqlx::query_scalar(KNOWN).bind(session).bind(report.batch_key).fetch_optional(&mut *conn).await?;
    if let Some(Json(answer)) = known {
        return Ok(answer);
    }
    let released = report.release.iter().map(|release| release.job_id);
    let mut ids: Vec<JobId> = report.updates.iter().map(|update| update.job_id).chain(released).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut moves = Moves::lock(&mut *conn, Which::Owned(scope, &ids)).await?;
    let mut answer = UpdatesAnswer::default();
    let mut data = BTreeMap::new();
    for (index, update) in report.updates.into_iter().enumerate() {
        let JobUpdate { job_id, .. } = update;
        let judged = match moves.get_mut(job_id) {
            // Whatever the run came to, it is over, and its owner has decided what becomes of the Job.
            Some((now, job))
                if job.row.session_id == Some(session) && job.is_taken_away() && update.state != JobState::Running =>
            {
                let state = update.state;
                job.end_taken_away(now, state, ask_of(update));
                Ok(())
            }
            Some((now, job)) if job.row.session_id == Some(session) => {
                let new_data = update.data.clone();
                take(now, job, update).inspect(|()| data.extend(new_data.map(|data| (job_id, data))))
            }
            _ => Err((Rejection::NotHeld, format!("Session {session} does not hold Job {job_id}"))),
        };
        match judged {
            Ok(()) => answer.accepted += 1,
            Err((reason, detail)) => answer.rejected.push(Rejected { index, job_id, reason, detail }),
        }
    }
    let given_back = release(&mut moves, session, &report.release);
    moves.apply(&mut *conn).await?;
    refusals::note(&mut *conn, holder, &given_back).await?;
    if !data.is_empty() {
        const DATA: &str = "update job_details d set data = u.data from unnest($1::bigint[], $2::jsonb[]) \
             as u(id, data) where d.job_id = u.id";
        sqlx::query(DATA)
            .bind(data.keys().copied().collect::<Vec<_>>())
            .bind(data.values().map(Json).collect::<Vec<_>>())
            .execute(&mut *conn)
            .await?;
    }
    const KEEP: &str = "insert into update_batches (session_id, batch_key, answer) values ($1, $2, $3)";
    sqlx::query(KEEP).bind(session).bind(report.batch_key).bind(Json(&answer)).execute(conn).await?;
    Ok(answer)
}

/// Frees the Jobs that the holder gives back and that still wait for it; says which these are.
fn release<'a>(moves: &mut Moves, session: SessionId, releases: &'a [Release]) -> Vec<&'a Release> {
    let mut given_back = Vec::new();
    for release in releases {
        if let Some((now, job)) = moves.get_mut(release.job_id)
            && job.row.session_id == Some(session)
            && job.row.state.is_runnable()
        {
            job.lose_session(now);
            given_back.push(release);
        }
    }
    given_back
}

fn take(now: copal_schemas::Timestamp, job: &mut Moving, update: JobUpdate) -> Result<(), (Rejection, String)> {
    let actor = actor_of(job.row.state, update.state);
    let state = update.state;
    job.ask(now, actor, state, ask_of(update)).map_err(|illegal| {
        let detail = format!("Job {} is {}; it can't become {} from there", job.row.id, illegal.from, illegal.to);
        (Rejection::IllegalTransition, detail)
    })
}

fn ask_of(update: JobUpdate) -> Ask {
    Ask { at: update.state_timestamp, data: update.state_data, return_code: update.return_code, usage: update.usage }
}

/// A Session may be a launcher's or an agent's: whoever of them may make the step makes it.
fn actor_of(from: JobState, to: JobState) -> Actor {
    if job_state::check(from, to, Actor::Launcher).is_ok() { Actor::Launcher } else { Actor::Agent }
}

/// Forgets answers that nobody will ask for again.
///
/// # Errors
/// The database's.
pub async fn prune(conn: &mut PgConnection) -> ApiResult<u64> {
    const SQL: &str = "delete from update_batches where created_at < statement_timestamp() - interval '1 day'";
    Ok(sqlx::query(SQL).execute(conn).await?.rows_affected())
}
