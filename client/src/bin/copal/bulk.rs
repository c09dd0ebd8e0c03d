//! Many Jobs created by few calls. What a call creates it creates wholly or not at all, and a
//! repeated one creates nothing again. Ctrl-C ends it between two calls, so that it is known what was created.

use std::{cell::Cell, fmt::Write, time::Duration};

use copal_client::{Client, ClientError, api::JobQuery};
use copal_schemas::{
    JobId,
    job::{Job, JobCreate},
    job_array::JobArrayCreate,
    page::MAX_BULK,
    problem::FieldError,
};
use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use uuid::Uuid;

use crate::{
    array::ArraySpec,
    failure::{Failure, INTERRUPTED, Result},
    ids::Shortest,
    interrupt::Interrupt,
    selection::Pages,
};

/// Calls under way at the same time: the service works on one while the next is on its way.
const CALLS: usize = 4;
/// Jobs of one call where there are several: less than the most, so that the calls overlap.
const JOBS_A_CALL: usize = MAX_BULK / 2;
/// Jobs of one call of an array, which the service makes by one statement: few enough for a bar to move.
const ARRAY_JOBS_A_CALL: i64 = 25_000;
/// Tries of one call while the service is away; the same key makes a second success impossible.
const TRIES: u32 = 6;

/// An array that was made.
pub(crate) struct NewArray {
    /// By which its Jobs are found.
    pub(crate) id: i64,
    /// Its Jobs.
    pub(crate) ids: Shortest,
}

/// Creates the Jobs of an array, in the order of its indices. `rest` says how those after the first so many are made.
///
/// # Errors
/// When the service refuses or is away, and on Ctrl-C; the failure says what was created before.
pub(crate) async fn create_array(
    client: &Client,
    template: &JobCreate,
    array: &ArraySpec,
    rest: impl Fn(i64) -> String,
) -> Result<NewArray> {
    let total = usize::try_from(array.len()).unwrap_or(usize::MAX);
    let bar = progress(total);
    let interrupt = Interrupt::new();
    let mut ids = Shortest::default();
    let mut id = None;
    let part = |id: i64, ids: &Shortest| Part {
        created: format!("{} of {total} Jobs were created: array {id}, Jobs {ids}", ids.len()),
        undo: format!("`copal job rm --array {id}` deletes them"),
        rest: Some(rest(ids.len())),
    };
    for slice in array.slices(ARRAY_JOBS_A_CALL) {
        if let Some(id) = id.filter(|_| interrupt.was_pressed()) {
            bar.finish_and_clear();
            return Err(part(id, &ids).interrupted());
        }
        let wanted = JobArrayCreate {
            first: slice.first,
            last: slice.last,
            step: slice.step,
            max_at_once: if id.is_none() { array.at_once.map(i64::from) } else { None },
            array_id: id,
            job: template.clone(),
        };
        let key = Uuid::new_v4();
        let made = match patiently(async || client.create_job_array(&wanted, key).await).await {
            Ok(made) => made,
            Err(error) => {
                bar.finish_and_clear();
                let failure = describe(error, 0, &|_| None);
                return Err(match id {
                    None => failure,
                    Some(id) => part(id, &ids).failed(failure),
                });
            }
        };
        id = Some(made.array_id);
        if made.last_job_id.0 - made.first_job_id.0 + 1 == made.count {
            ids.add(made.first_job_id.0..=made.last_job_id.0);
        } else {
            // Others made Jobs at the same time, so that there are gaps.
            let query = JobQuery {
                array_id: id,
                id_from: Some(made.first_job_id),
                id_to: Some(made.last_job_id),
                ..JobQuery::default()
            };
            let mut pages = Pages::of(std::slice::from_ref(&query), None, None);
            while let Some(page) = pages.next(client).await? {
                page.iter().for_each(|job| ids.add(job.id.0..=job.id.0));
            }
        }
        bar.inc(made.count.unsigned_abs());
    }
    bar.finish_and_clear();
    let id = id.ok_or_else(|| Failure::new("the array has no Job"))?;
    Ok(NewArray { id, ids })
}

/// Creates Jobs, and gives their ids in the order of the Jobs. `created` gets the Jobs as they are
/// made; `place` names a Job for people by its number.
///
/// # Errors
/// When the service refuses or is away, and on Ctrl-C; the failure says what was created before.
pub(crate) async fn create_all(
    client: &Client,
    jobs: &[JobCreate],
    place: impl Fn(usize) -> Option<String>,
    mut created: impl FnMut(Vec<Job>) -> Result<()>,
) -> Result<Vec<JobId>> {
    let total = jobs.len();
    let bar = progress(total);
    let size = if total <= MAX_BULK { MAX_BULK } else { JOBS_A_CALL };
    // After a failure or Ctrl-C no other call is begun; those under way are awaited, to know what they created.
    let interrupt = Interrupt::new();
    let failed = Cell::new(false);
    let chunks = jobs.chunks(size).enumerate().take_while(|_| !failed.get() && !interrupt.was_pressed());
    let calls = stream::iter(chunks).map(|(number, chunk)| async move {
        let key = Uuid::new_v4();
        let outcome = patiently(async || client.create_jobs(chunk, key).await).await;
        outcome.map_err(|error| (number * size, error))
    });
    let mut answers = std::pin::pin!(calls.buffered(CALLS));
    let (mut ids, mut failure) = (Vec::new(), None);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(jobs) => {
                bar.inc(jobs.len() as u64);
                ids.extend(jobs.iter().map(|job| job.id));
                created(jobs)?;
            }
            Err((first, error)) => {
                failed.set(true);
                failure.get_or_insert_with(|| describe(error, first, &place));
            }
        }
    }
    bar.finish_and_clear();
    let all_or_rest = failure.is_none();
    let part = || {
        let which = Shortest::of(ids.iter().map(|id| id.0));
        Part {
            created: format!("{} of {total} Jobs were created: {which}", ids.len()),
            undo: format!("`copal job rm {}` deletes them", which.to_string().replace(',', " ")),
            // Of those under way with the one that failed some may have been created.
            rest: place(ids.len()).filter(|_| all_or_rest).map(|place| format!("the rest begins in {place}")),
        }
    };
    match failure {
        Some(failure) if ids.is_empty() => Err(failure),
        Some(failure) => Err(part().failed(failure)),
        None if ids.len() < total => Err(part().interrupted()),
        None => Ok(ids),
    }
}

/// What was created of more that was to be, for people.
struct Part {
    created: String,
    /// How it is undone.
    undo: String,
    /// How it is gone on with.
    rest: Option<String>,
}

impl Part {
    fn remedy(&self) -> String {
        self.rest.iter().fold(self.undo.clone(), |text, rest| format!("{text}, {rest}"))
    }

    /// After Ctrl-C.
    fn interrupted(self) -> Failure {
        Failure::new(format!("interrupted: {}", self.created)).hint(self.remedy()).exit(INTERRUPTED).after_changes()
    }

    /// After a call that failed.
    fn failed(self, failure: Failure) -> Failure {
        failure.hint(format!("{}; {}", self.created, self.remedy())).after_changes()
    }
}

/// A refusal with the places of the wrong values in the user's own words.
fn describe(error: ClientError, first: usize, place: &impl Fn(usize) -> Option<String>) -> Failure {
    let ClientError::Problem(mut problem) = error else { return error.into() };
    for FieldError { loc, .. } in &mut problem.errors {
        let Some(index) = loc.get(1).and_then(serde_json::Value::as_u64) else { continue };
        match place(first + index as usize) {
            Some(name) => loc[1] = name.into(),
            // Of one Job, or of an array, the number says nothing.
            None => drop(loc.remove(1)),
        }
    }
    ClientError::Problem(problem).into()
}

/// A call that is repeated while the service is away.
async fn patiently<T>(
    mut call: impl AsyncFnMut() -> std::result::Result<T, ClientError>,
) -> std::result::Result<T, ClientError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match call().await {
            // Who can't even connect at first is told at once; what broke after that is repeated.
            Err(error) if error.is_transient() && tries < TRIES && !(tries == 1 && is_away(&error)) => {
                tokio::time::sleep(Duration::from_millis(100 << tries)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Whether nobody listens at the service's address.
fn is_away(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { source, .. } if source.is_connect())
}

fn progress(total: usize) -> ProgressBar {
    if total <= MAX_BULK {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} Jobs, {rate}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{:.0}/s", state.per_sec());
        });
    ProgressBar::new(total as u64).with_style(style)
}

#[cfg(test)]
mod tests {
    use copal_schemas::problem::{ErrorCode, Problem};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_row_is_named_by_its_line() {
        let problem = || {
            let mut problem = Problem::new(ErrorCode::Invalid, "wrong");
            let loc = vec![json!("body"), json!(3), json!("parent_ids")];
            problem.errors.push(FieldError { loc, msg: "there is no Job 9".into() });
            ClientError::Problem(Box::new(problem))
        };
        let lined = describe(problem(), 2500, &|row| Some(format!("line {}", row + 2)));
        insta::assert_snapshot!(lined.lines(), @"error: line 2505.parent_ids: there is no Job 9");
        insta::assert_snapshot!(describe(problem(), 0, &|_| None).lines(), @"error: parent_ids: there is no Job 9");
    }
}
