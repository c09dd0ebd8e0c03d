//! Following Jobs to their end: the event stream says when something changed, and then the service
//! is asked how many Jobs are in which state. Many changes at once are one question.

use std::time::Duration;

use copal_client::{Client, ClientError, api::ChangeStream};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    failure::Result,
    selection::{Counts, Jobs},
};

/// The shortest time between two questions.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Asked at least this often, should the stream be silent for no good reason.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between tries to reach a service that is away.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How following ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All Jobs are at an end.
    Settled(Counts),
    /// The time ran out; so it stood then.
    TimedOut(Counts),
}

/// Whether no Job changes any more by itself.
pub(crate) fn is_settled(counts: &Counts) -> bool {
    counts.iter().all(|(state, count)| *count == 0 || state.is_terminal())
}

/// Tells `report` how the Jobs stand, at once and after each change, until all are at an end. A service
/// that goes away is waited for; `report` is told why. Jobs that come to match are followed, too.
///
/// # Errors
/// When the service refuses, when it is away from the beginning, when no Job matches.
pub(crate) async fn follow(
    client: &Client,
    jobs: &Jobs,
    deadline: Option<Instant>,
    mut report: impl FnMut(std::result::Result<&Counts, &ClientError>) -> Result<()>,
) -> Result<End> {
    // The stream is opened before the first question, so that no change falls between the two.
    let mut stream = Some(client.stream(&jobs.stream_query(), None).await?);
    let mut asked = Instant::now();
    let mut counts = jobs.counts_or_none(client).await?;
    // A service that needs long to count is asked less often.
    let mut pause = LEAST_PAUSE.max(10 * asked.elapsed());
    report(Ok(&counts))?;
    while !is_settled(&counts) {
        let round = async {
            next_change(client, jobs, &mut stream, asked + pause).await?;
            asked = Instant::now();
            let now = jobs.counts(client).await?;
            pause = LEAST_PAUSE.max(10 * asked.elapsed());
            Ok::<_, ClientError>(now)
        };
        let outcome = match deadline {
            Some(deadline) => timeout_at(deadline, round).await,
            None => Ok(round.await),
        };
        match outcome {
            Err(_) => return Ok(End::TimedOut(counts)),
            Ok(Ok(now)) => {
                counts = now;
                report(Ok(&counts))?;
            }
            Ok(Err(error)) if error.is_transient() => {
                report(Err(&error))?;
                stream = None;
                sleep(RETRY_PAUSE).await;
            }
            Ok(Err(error)) => return Err(error.into()),
        }
    }
    Ok(End::Settled(counts))
}

/// Waits for a change, or for the longest pause, and then takes all changes until `not_before`: one
/// question answers them all. A stream that ended is opened again, and then something may have changed.
async fn next_change(
    client: &Client,
    jobs: &Jobs,
    stream: &mut Option<ChangeStream>,
    not_before: Instant,
) -> std::result::Result<(), ClientError> {
    let Some(open) = stream else {
        *stream = Some(client.stream(&jobs.stream_query(), None).await?);
        return Ok(());
    };
    let mut until = Instant::now() + LONGEST_PAUSE;
    loop {
        match timeout_at(until, open.next()).await {
            Ok(Ok(Some(_))) => until = not_before,
            Err(_) => return Ok(()),
            Ok(Ok(None)) => break,
            Ok(Err(error)) if error.is_transient() => break,
            Ok(Err(error)) => return Err(error),
        }
    }
    *stream = None;
    sleep_until(not_before).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use copal_schemas::JobState;

    use super::*;

    #[test]
    fn jobs_are_settled_when_all_are_at_an_end() {
        assert!(is_settled(&Counts::from([(JobState::JobFinished, 3), (JobState::Failed, 1), (JobState::Running, 0)])));
        assert!(!is_settled(&Counts::from([(JobState::JobFinished, 3), (JobState::RunTimeout, 1)])));
    }
}
