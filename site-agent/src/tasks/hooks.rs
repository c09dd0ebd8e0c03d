//! Runs the hooks of Apps: holds Jobs by a Session of its own, runs what their state asks for with
//! some workers, and reports what follows. Only Copal Apps that declare a hook are acquired: the hooks of
//! Balsam's Apps are Python classes, which a Balsam site runs.

use std::{collections::BTreeMap, fs, path::PathBuf, pin::Pin, time::Duration};

use copal_client::{ClientError, app_file::App};
use copal_schemas::{
    AppId, JobState, JsonObject, SessionId,
    job::Job,
    job_state::{Actor, PROCESSABLE, check},
    problem::ErrorCode,
    session::{Acquire, JobUpdate, Updates},
};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use super::{Context, MAX_BACKOFF, mend_login, reports};
use crate::{
    api::Backoff,
    hook::{HookFailure, HookResult, HookRun, hook_for},
};

/// How long an acquire waits at the service. Apps that appear meanwhile are asked for by the next.
const POLL_SEC: f64 = 5.0;
/// How often the Apps are looked at while none has a hook.
const APPS_PERIOD: Duration = Duration::from_secs(2);
/// The longest time between two signs of life of the Session.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// The most reports of one call.
const MAX_BATCH: usize = 1_000;
/// How long the end of the agent waits for reports that are under way.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    let mut backoff = Backoff::new(MAX_BACKOFF);
    while !context.stop.is_cancelled() {
        match session(&context, &mut backoff).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                context.board.failure("hooks", &context.api.explain(&error));
                mend_login(&context, &error).await;
                let wait = backoff.next_wait();
                tokio::select! {
                    () = context.stop.cancelled() => {}
                    // The event stream is back, and with it the service.
                    () = context.wakes.hooks.notified() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        }
    }
}

/// Waits until an App has a hook, then works with one Session until that ends.
async fn session(context: &Context, backoff: &mut Backoff) -> Result<(), ClientError> {
    while apps_with_hooks(context).await?.is_empty() {
        backoff.reset();
        context.board.success("hooks", "no App has a hook");
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = context.wakes.hooks.notified() => {}
            () = tokio::time::sleep(APPS_PERIOD) => {}
        }
    }
    end_earlier_session(context).await?;
    let id = context.api.client().create_session(context.site.id, None).await?.id;
    // Without the note only the lease frees the Jobs of a killed agent: later, but as surely.
    if let Err(error) = fs::write(session_note(context), id.to_string()) {
        tracing::warn!(%error, "can't note the Session's id");
    }
    context.board.success("hooks", "waits for Jobs");
    let outcome = work(context, id, backoff).await;
    // A Session that can't be deleted now is deleted by the next agent, or lapses by itself.
    if let Ok(Ok(())) = tokio::time::timeout(FLUSH_LIMIT, context.api.client().delete_session(id)).await {
        let _ = fs::remove_file(session_note(context));
    }
    match outcome {
        Err(error) if error.code() == Some(ErrorCode::SessionEnded) => {
            context.board.failure("hooks", "the Session lapsed; its Jobs are taken again by a new one");
            Ok(())
        }
        outcome => outcome,
    }
}

/// Where the id of the Session is noted for the next agent.
fn session_note(context: &Context) -> PathBuf {
    context.dir.root().join("agent.session")
}

/// Ends the Session of an agent that was killed: this one holds the Site's lock, so nobody works with
/// that Session any more, and its Jobs need not wait for the lease to lapse.
async fn end_earlier_session(context: &Context) -> Result<(), ClientError> {
    let note = session_note(context);
    let Some(id) = fs::read_to_string(&note).ok().and_then(|text| text.trim().parse::<SessionId>().ok()) else {
        return Ok(());
    };
    match context.api.client().delete_session(id).await {
        Err(error) if error.is_transient() => return Err(error),
        // Gone already, or of another service: none of ours in either case.
        _ => drop(fs::remove_file(note)),
    }
    Ok(())
}

/// The Apps of the Site that have a hook, by id.
async fn apps_with_hooks(context: &Context) -> Result<BTreeMap<AppId, String>, ClientError> {
    let apps = context.api.client().list_apps(&[context.site.id]).await?;
    Ok(apps
        .into_iter()
        .filter(|app| app.command.is_some())
        .filter(|app| {
            let hooks = app.hooks;
            hooks.preprocess || hooks.postprocess || hooks.handle_error || hooks.handle_timeout
        })
        .map(|app| (app.id, app.name))
        .collect())
}

type Poll = Pin<Box<dyn Future<Output = Result<(Vec<Job>, BTreeMap<AppId, String>), ClientError>> + Send>>;

/// Acquires, runs and reports. Ends well when the agent stops or when the Session must be renewed.
async fn work(context: &Context, id: SessionId, backoff: &mut Backoff) -> Result<(), ClientError> {
    let (reports, inbox) = mpsc::unbounded_channel();
    let mut reporter = tokio::spawn(report(context.clone(), id, inbox));
    let mut running: JoinSet<JobUpdate> = JoinSet::new();
    let mut waiting: std::collections::VecDeque<(Job, String)> = std::collections::VecDeque::new();
    let mut poll: Option<Poll> = None;
    let mut done = 0_u64;
    // An acquire whose answer got lost may hold Jobs that this agent does not know: what it does hold is
    // finished, then the Session is renewed, which frees them.
    let mut doubtful: Option<ClientError> = None;
    loop {
        let settings = context.settings.current().0.processing.clone();
        while running.len() < settings.num_workers.max(1)
            && let Some((job, app)) = waiting.pop_front()
        {
            running.spawn(process(context.clone(), job, app));
        }
        let held = running.len() + waiting.len();
        if let Some(error) = &doubtful
            && held == 0
        {
            context.board.failure("hooks", &context.api.explain(error));
            break;
        }
        let room = settings.prefetch_depth.max(1).saturating_sub(held);
        if poll.is_none() && room > 0 && doubtful.is_none() {
            poll = Some(Box::pin(acquire(context.clone(), id, room, settings.filter_tags)));
        }
        tokio::select! {
            () = context.stop.cancelled() => break,
            answer = async { match &mut poll { Some(poll) => poll.await, None => std::future::pending().await } } => {
                poll = None;
                match answer {
                    Ok((jobs, apps)) => {
                        backoff.reset();
                        waiting.extend(jobs.into_iter().map(|job| {
                            let app = apps.get(&job.app_id).cloned().unwrap_or_default();
                            (job, app)
                        }));
                        let count = waiting.len() + running.len();
                        context.board.success("hooks", format!("{count} to do, {done} done"));
                    }
                    Err(error) if error.code() == Some(ErrorCode::SessionEnded) => return Err(error),
                    Err(error) => doubtful = Some(error),
                }
            }
            Some(update) = running.join_next() => {
                done += 1;
                match update {
                    // The reporter ends before this side only when the Session is gone, which is seen below.
                    Ok(update) => drop(reports.send(update)),
                    Err(error) => tracing::error!("a hook's task failed: {error}"),
                }
            }
            outcome = &mut reporter => {
                return outcome.unwrap_or(Ok(()));
            }
        }
    }
    // Hooks that still run are killed with their tasks; their Jobs keep their state and are taken again.
    running.shutdown().await;
    drop(reports);
    match tokio::time::timeout(FLUSH_LIMIT, reporter).await {
        Ok(Ok(outcome)) => outcome,
        _ => Ok(()),
    }
}

async fn acquire(
    context: Context,
    id: SessionId,
    room: usize,
    filter_tags: copal_schemas::StringMap,
) -> Result<(Vec<Job>, BTreeMap<AppId, String>), ClientError> {
    let apps = apps_with_hooks(&context).await?;
    if apps.is_empty() {
        // An empty list would mean all Apps.
        tokio::time::sleep(APPS_PERIOD).await;
        return Ok((Vec::new(), apps));
    }
    let wanted = Acquire {
        max_num_jobs: i64::try_from(room).unwrap_or(1).min(copal_schemas::session::MAX_ACQUIRE),
        filter_tags,
        sort_by: Some("fifo".into()),
        states: PROCESSABLE.to_vec(),
        app_ids: apps.keys().copied().collect(),
        wait_sec: POLL_SEC,
        ..Acquire::default()
    };
    let jobs = context.api.client().acquire(id, &wanted).await?;
    Ok((jobs, apps))
}

/// Sends reports, several at once when they come fast, and signs of life when none come.
async fn report(
    context: Context,
    id: SessionId,
    mut inbox: mpsc::UnboundedReceiver<JobUpdate>,
) -> Result<(), ClientError> {
    loop {
        let mut updates = Vec::new();
        match tokio::time::timeout(HEARTBEAT, inbox.recv_many(&mut updates, MAX_BATCH)).await {
            Err(_) => match context.api.client().tick_session(id).await {
                Err(error)
                    if error.code() == Some(ErrorCode::SessionEnded) || error.code() == Some(ErrorCode::NotFound) =>
                {
                    return Err(error);
                }
                // The next report or acquire shows an outage.
                _ => {}
            },
            Ok(0) => return Ok(()),
            Ok(_) => reports::deliver(updates, |batch| send(context.clone(), id, batch), not_taken).await?,
        }
    }
}

/// Sends one batch for as long as the service is away.
async fn send(context: Context, id: SessionId, batch: Vec<JobUpdate>) -> Result<(), ClientError> {
    let updates = Updates { batch_key: Uuid::new_v4(), updates: batch, release: Vec::new() };
    let mut backoff = Backoff::new(MAX_BACKOFF);
    loop {
        match context.api.client().send_updates(id, &updates).await {
            Ok(answer) => {
                for rejected in answer.rejected {
                    tracing::warn!(job.id = rejected.job_id.0, "a hook's result was refused: {}", rejected.detail);
                }
                return Ok(());
            }
            Err(error) if error.is_transient() || error.code() == Some(ErrorCode::Unauthenticated) => {
                context.board.failure("hooks", &context.api.explain(&error));
                mend_login(&context, &error).await;
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is reported of a Job whose hook's result the service does not take.
fn not_taken(update: &JobUpdate, why: &ClientError) -> JobUpdate {
    let mut data = JsonObject::new();
    data.insert("reason".into(), json!(format!("the service does not take the hook's result: {why}")));
    JobUpdate {
        state: JobState::Failed,
        state_data: data,
        return_code: None,
        data: None,
        usage: None,
        ..update.clone()
    }
}

/// Does what the state of one Job asks for.
async fn process(context: Context, job: Job, app: String) -> JobUpdate {
    let outcome = run_hook(&context, &job, &app).await;
    let go_on = match &outcome {
        Ok(result) if result.state.is_none() => {
            let of_app = || load_app(&context, &app).ok()?.spec().max_restarts;
            next_state(&job, job.max_restarts.or_else(of_app))
        }
        _ => JobState::Failed,
    };
    conclude(&job, outcome, go_on)
}

async fn run_hook(context: &Context, job: &Job, app_name: &str) -> Result<HookResult, HookFailure> {
    let failure = |reason: String| HookFailure { reason, return_code: None, tail: String::new() };
    let settings = context.settings.current().0;
    let app = match load_app(context, app_name) {
        Ok(app) => app,
        Err(reason) => return Err(failure(reason)),
    };
    let Some((name, program)) = hook_for(&app.spec().hooks, job.state) else {
        return Err(failure(format!("a Job in {} has no hook", job.state)));
    };
    let Some(program) = program else {
        // An App may have hooks for some states only; the service hands out those with a hook alone, so
        // here its index and the file differ.
        return Err(failure(format!(
            "the service knows of a {name} hook of App {app_name} that apps/{app_name}.yml does not declare; run `copal app sync`"
        )));
    };
    let limit = Duration::try_from_secs_f64(settings.processing.hook_timeout_sec).unwrap_or(Duration::MAX);
    let run = HookRun {
        site: &context.dir,
        programs: &context.programs,
        guard: &context.guard,
        name,
        program,
        job,
        limit,
        tail_lines: settings.launcher.error_tail_num_lines,
    };
    run.run().await
}

fn load_app(context: &Context, name: &str) -> Result<App, String> {
    context.dir.load_app(name).map_err(|error| format!("App {name}: {:#}", anyhow::Error::from(error)))
}

/// Where a Job goes when its hook only said "go on". After an error or a time-out that is what the retry policy says, as
/// the service has it for Jobs without a hook. Pure.
fn next_state(job: &Job, max_restarts: Option<i32>) -> JobState {
    let is_left = match job.state {
        JobState::StagedIn => return JobState::Preprocessed,
        JobState::RunDone => return JobState::Postprocessed,
        JobState::RunTimeout => max_restarts.is_none_or(|most| job.timeout_restarts < most),
        _ => job.error_restarts < max_restarts.unwrap_or(0),
    };
    if is_left { JobState::RestartReady } else { JobState::Failed }
}

/// The report about one Job, from what its hook did. Pure.
fn conclude(job: &Job, outcome: Result<HookResult, HookFailure>, go_on: JobState) -> JobUpdate {
    let update = |state, state_data, data| JobUpdate {
        job_id: job.id,
        state,
        state_timestamp: Some(chrono::Utc::now()),
        state_data,
        return_code: None,
        data,
        usage: None,
    };
    let failed = |reason: String, more: JsonObject| {
        let mut data = more;
        data.insert("reason".into(), json!(reason));
        update(JobState::Failed, data, None)
    };
    match outcome {
        Ok(result) => {
            let state = result.state.unwrap_or(go_on);
            if let Err(error) = check(job.state, state, Actor::Agent) {
                return failed(format!("the hook asked for {state}: {error}"), result.state_data);
            }
            let data = (!result.data.is_empty()).then(|| {
                let mut data = job.data.clone();
                data.extend(result.data);
                data
            });
            update(state, result.state_data, data)
        }
        Err(HookFailure { reason, return_code, tail }) => {
            let mut data = JsonObject::new();
            if let Some(code) = return_code {
                data.insert("return_code".into(), json!(code));
            }
            if !tail.is_empty() {
                data.insert("error_tail".into(), json!(tail));
            }
            failed(reason, data)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: &str) -> Job {
        serde_json::from_value(json!({
            "id": 5, "workdir": "a", "tags": {}, "app_id": 1, "session_id": 2, "serialized_parameters": "",
            "serialized_return_value": "", "serialized_exception": "", "batch_job_id": null, "state": state,
            "last_update": "2026-01-01T00:00:00+00:00", "data": {"old": 1, "x": 0}, "return_code": 0,
            "pending_file_cleanup": true, "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1,
            "threads_per_core": 1, "gpus_per_rank": 0.0, "node_packing_count": 1, "wall_time_min": 0, "launch_params": {}
        }))
        .unwrap()
    }

    #[test]
    fn the_retry_policy_counts_errors_and_time_outs_apart() {
        let job = Job { error_restarts: 1, timeout_restarts: 2, ..job("RUN_ERROR") };
        assert_eq!(next_state(&job, None), JobState::Failed);
        assert_eq!([1, 2].map(|most| next_state(&job, Some(most))), [JobState::Failed, JobState::RestartReady]);
        let job = Job { state: JobState::RunTimeout, ..job };
        assert_eq!(next_state(&job, None), JobState::RestartReady);
        assert_eq!([2, 3].map(|most| next_state(&job, Some(most))), [JobState::Failed, JobState::RestartReady]);
    }

    #[test]
    fn a_result_that_the_service_does_not_take_fails_its_job() {
        let result = HookResult { data: json!({"x": 2}).as_object().cloned().unwrap(), ..HookResult::default() };
        let update = conclude(&job("RUN_DONE"), Ok(result), JobState::Postprocessed);
        let why = copal_schemas::problem::Problem::new(ErrorCode::Invalid, "the data is too large");
        let instead = not_taken(&update, &ClientError::Problem(why.into()));
        assert_eq!((instead.state, instead.data), (JobState::Failed, None));
        assert!(instead.state_data["reason"].as_str().unwrap().contains("the data is too large"));
    }

    #[test]
    fn a_hooks_data_is_laid_over_the_jobs() {
        let result = HookResult { data: json!({"x": 2}).as_object().cloned().unwrap(), ..HookResult::default() };
        let update = conclude(&job("RUN_DONE"), Ok(result), JobState::Postprocessed);
        assert_eq!(update.state, JobState::Postprocessed);
        assert_eq!(json!(update.data), json!({"old": 1, "x": 2}));
        let update = conclude(&job("RUN_DONE"), Ok(HookResult::default()), JobState::Postprocessed);
        assert_eq!(update.data, None);
    }

    #[test]
    fn a_hook_may_only_ask_for_what_the_table_has() {
        let asks = |state| HookResult { state: Some(state), ..HookResult::default() };
        let update = conclude(&job("RUN_ERROR"), Ok(asks(JobState::RestartReady)), JobState::Failed);
        assert_eq!(update.state, JobState::RestartReady);
        let update = conclude(&job("STAGED_IN"), Ok(asks(JobState::RunDone)), JobState::Failed);
        assert_eq!(update.state, JobState::Failed);
        assert!(update.state_data["reason"].as_str().unwrap().contains("RUN_DONE"));
    }

    #[test]
    fn a_failure_carries_reason_code_and_tail() {
        let failure = HookFailure { reason: "no".into(), return_code: Some(3), tail: "bad".into() };
        let update = conclude(&job("STAGED_IN"), Err(failure), JobState::Failed);
        assert_eq!(update.state, JobState::Failed);
        assert_eq!(json!(update.state_data), json!({"reason": "no", "return_code": 3, "error_tail": "bad"}));
    }
}
