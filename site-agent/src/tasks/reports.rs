//! Reports of which the service may not take one for what is in it: it must not keep the others from arriving. What is
//! reported, and what is said in the place of such a one, is the caller's.

use copal_client::ClientError;
use copal_schemas::session::JobUpdate;

/// Delivers reports. What the service does not take for what is in it (too large, say) is found by halves, and `instead`
/// of it is sent. One that is taken in no form is given up and logged.
///
/// # Errors
/// The first error that is about something else.
pub(super) async fn deliver<S, F>(
    updates: Vec<JobUpdate>,
    send: S,
    instead: impl Fn(&JobUpdate, &ClientError) -> JobUpdate,
) -> Result<(), ClientError>
where
    S: Fn(Vec<JobUpdate>) -> F,
    F: Future<Output = Result<(), ClientError>>,
{
    let mut open = vec![updates];
    while let Some(mut batch) = open.pop() {
        match send(batch.clone()).await {
            Ok(()) => {}
            Err(error) if is_about_content(&error) && batch.len() > 1 => {
                open.push(batch.split_off(batch.len() / 2));
                open.push(batch);
            }
            Err(error) if is_about_content(&error) => {
                match send(batch.iter().map(|update| instead(update, &error)).collect()).await {
                    Err(error) if is_about_content(&error) => {
                        tracing::error!("the service takes a report in no form; it is given up: {error}");
                    }
                    outcome => outcome?,
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the service refused a call for what is in it.
pub(super) fn is_about_content(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if [400, 413, 422].contains(&problem.status))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use copal_schemas::{
        JobId, JobState, JsonObject,
        problem::{ErrorCode, Problem},
    };

    use super::*;

    fn update(job: i64) -> JobUpdate {
        JobUpdate {
            job_id: JobId(job),
            state: JobState::RunDone,
            state_timestamp: None,
            state_data: JsonObject::new(),
            return_code: None,
            data: None,
            usage: None,
        }
    }

    #[tokio::test]
    async fn one_that_the_service_does_not_take_keeps_no_other_from_arriving() {
        let taken = std::sync::Mutex::new(BTreeMap::new());
        let send = |batch: Vec<JobUpdate>| {
            if batch.iter().any(|update| update.job_id.0 == 7 && update.state != JobState::Failed) {
                let problem = Problem::new(ErrorCode::Invalid, "the data is too large");
                return std::future::ready(Err(ClientError::Problem(problem.into())));
            }
            taken.lock().unwrap().extend(batch.iter().map(|update| (update.job_id.0, update.state)));
            std::future::ready(Ok(()))
        };
        let instead = |update: &JobUpdate, error: &ClientError| {
            assert!(error.to_string().contains("the data is too large"));
            JobUpdate { state: JobState::Failed, ..update.clone() }
        };
        deliver((1..=9).map(update).collect(), send, instead).await.unwrap();
        let expected = (1..=9).map(|job| (job, if job == 7 { JobState::Failed } else { JobState::RunDone }));
        assert_eq!(taken.into_inner().unwrap(), expected.collect());
    }

    #[tokio::test]
    async fn one_that_is_taken_in_no_form_is_given_up_alone() {
        let taken = std::sync::Mutex::new(Vec::new());
        let send = |batch: Vec<JobUpdate>| {
            if batch.iter().any(|update| update.job_id.0 == 2) {
                let problem = Problem::new(ErrorCode::Invalid, "never");
                return std::future::ready(Err(ClientError::Problem(problem.into())));
            }
            taken.lock().unwrap().extend(batch.iter().map(|update| update.job_id.0));
            std::future::ready(Ok(()))
        };
        deliver((1..=4).map(update).collect(), send, |update, _| update.clone()).await.unwrap();
        assert_eq!(taken.into_inner().unwrap(), [1, 3, 4]);
    }

    #[tokio::test]
    async fn an_error_about_something_else_is_the_callers() {
        let away = |_| {
            let problem = Problem::new(ErrorCode::Unavailable, "away");
            std::future::ready(Err(ClientError::Problem(problem.into())))
        };
        let error = deliver(vec![update(1), update(2)], away, |update, _| update.clone()).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    }
}
