//! Why a Job is not running: one answer from what the service knows. It reads the Job, what it
//! waits for, and its Site's BatchJobs; nothing is changed.

use chrono::TimeDelta;
use copal_schemas::{
    BatchJobId, JobId, JobState, StringMap, Timestamp,
    batch_job::{BatchJobState, JobMode, Partition},
    job::{DependencyKind, Job},
    resources::NodeShape,
    transfer::TransferState,
    why::{Why, WhyCode, WhyReason},
};
use sqlx::{FromRow, PgConnection, types::Json};

use super::{jobs, refusals, refusals::Refusal, scope::Scope};
use crate::error::{ApiError, ApiResult};

/// An agent that has said nothing for so long is probably not there.
const AGENT_SILENCE: TimeDelta = TimeDelta::minutes(10);
/// The most parents and BatchJobs that are named one by one.
const NAMED: i64 = 10;
/// How far Jobs that come first are counted.
const COUNTED: i64 = 10_000;

/// Why a Job of the user is not running.
///
/// # Errors
/// 404 when the user has no such Job.
pub async fn explain(conn: &mut PgConnection, scope: Scope, id: JobId) -> ApiResult<Why> {
    let job = jobs::get(&mut *conn, scope, id).await?;
    let site = read_site(&mut *conn, &job).await?;
    let mut reasons = match job.state {
        JobState::Created | JobState::AwaitingParents => dependencies(&mut *conn, &job).await?,
        JobState::Ready | JobState::Postprocessed | JobState::StagedOut => staging(&mut *conn, &job).await?,
        JobState::StagedIn | JobState::RunDone | JobState::RunError | JobState::RunTimeout => vec![hook(&job)],
        JobState::Running => vec![held(&job, "it is running")],
        JobState::JobFinished | JobState::Failed => vec![end(&mut *conn, &job).await?],
        JobState::Preprocessed | JobState::RestartReady => match job.session_id {
            Some(_) => vec![held(&job, "a launcher has it and runs it as soon as there is room")],
            None => runnable(&mut *conn, &job, &site).await?,
        },
    };
    if !job.state.is_terminal() && job.state != JobState::Running {
        // It comes first: nothing else helps.
        reasons.splice(0..0, refused_app(&mut *conn, &job).await?);
    }
    let on_agent = reasons.iter().any(|reason| {
        matches!(reason.code, WhyCode::Staging | WhyCode::Hook)
            || (reason.code == WhyCode::Queued && reason.message.contains("not submitted"))
    });
    if on_agent && site.now - site.last_refresh > AGENT_SILENCE {
        let minutes = (site.now - site.last_refresh).num_minutes();
        let message = format!(
            "the agent of Site {} has said nothing for {minutes} minutes; see `copal site status`, start it with `copal site start`",
            site.name
        );
        reasons.insert(0, WhyReason { code: WhyCode::AgentSilent, message });
    }
    Ok(Why { job_id: id, state: job.state, reasons })
}

fn reason(code: WhyCode, message: impl Into<String>) -> WhyReason {
    WhyReason { code, message: message.into() }
}

#[derive(FromRow)]
struct SiteRow {
    name: String,
    last_refresh: Timestamp,
    node_shape: Option<Json<NodeShape>>,
    now: Timestamp,
}

async fn read_site(conn: &mut PgConnection, job: &Job) -> ApiResult<SiteRow> {
    const SQL: &str = "select s.name, s.last_refresh, s.node_shape, clock_timestamp() as now \
         from jobs j join sites s on s.id = j.site_id where j.id = $1";
    let row: Option<SiteRow> = sqlx::query_as(SQL).bind(job.id).fetch_optional(conn).await?;
    row.ok_or_else(|| ApiError::not_found(format!("Job {}", job.id)))
}

/// What the Site's agent says of an App that is made through the API and that it does not run.
async fn refused_app(conn: &mut PgConnection, job: &Job) -> ApiResult<Option<WhyReason>> {
    const SQL: &str = "select name, refusal from apps where id = $1 and refusal is not null";
    let refused: Option<(String, String)> = sqlx::query_as(SQL).bind(job.app_id).fetch_optional(conn).await?;
    Ok(refused
        .map(|(name, refusal)| reason(WhyCode::RemoteApp, format!("the Site does not run the App {name}: {refusal}"))))
}

async fn dependencies(conn: &mut PgConnection, job: &Job) -> ApiResult<Vec<WhyReason>> {
    const SQL: &str = "select e.parent_id, e.kind, p.state from job_edges e left join jobs p on p.id = e.parent_id \
         where e.child_id = $1 and e.parent_id > 0 and e.met is not true order by e.parent_id limit $2";
    let open: Vec<(JobId, DependencyKind, Option<JobState>)> =
        sqlx::query_as(SQL).bind(job.id).bind(NAMED).fetch_all(&mut *conn).await?;
    let mut reasons: Vec<WhyReason> = open
        .into_iter()
        .map(|(parent, kind, state)| {
            let wanted = match kind {
                DependencyKind::AfterOk => "JOB_FINISHED",
                DependencyKind::AfterNotOk => "FAILED",
                DependencyKind::AfterAny => "at an end",
            };
            let state = state.map_or("gone", JobState::as_str);
            reason(WhyCode::Dependency, format!("it waits until Job {parent} is {wanted}; that one is {state}"))
        })
        .collect();
    const TURN: &str = "select l.at_once from job_edges e join array_limits l on l.array_id = -e.parent_id \
         where e.child_id = $1 and e.parent_id < 0 and e.met is null";
    let turn: Option<i64> = sqlx::query_scalar(TURN).bind(job.id).fetch_optional(conn).await?;
    reasons.extend(turn.map(|at_once| {
        let jobs = if at_once == 1 { "1 Job".to_owned() } else { format!("{at_once} Jobs") };
        reason(WhyCode::ArrayLimit, format!("it waits for its turn: its array runs {jobs} at once"))
    }));
    if reasons.is_empty() {
        reasons
            .push(reason(WhyCode::Dependency, "its owner put it into this state; nothing takes it further by itself"));
    }
    Ok(reasons)
}

async fn staging(conn: &mut PgConnection, job: &Job) -> ApiResult<Vec<WhyReason>> {
    const SQL: &str = "select state, count(*), min(location_alias || ':' || remote_path), \
         min(coalesce(transfer_info ->> 'error', '')) from transfers where job_id = $1 and state <> 'done' \
         and (direction = 'in') = $2 group by state order by state";
    let inwards = job.state == JobState::Ready;
    let open: Vec<(TransferState, i64, String, String)> =
        sqlx::query_as(SQL).bind(job.id).bind(inwards).fetch_all(conn).await?;
    let way = if inwards { "in" } else { "out" };
    let mut reasons: Vec<WhyReason> = open
        .into_iter()
        .map(|(state, count, example, error)| {
            let files = if count == 1 { "file is" } else { "files are" };
            let how = match state {
                TransferState::Error => "failed",
                TransferState::Active => "on its way",
                TransferState::Inactive => "held up",
                _ => "to be started",
            };
            let error = if error.is_empty() { String::new() } else { format!(": {error}") };
            reason(WhyCode::Staging, format!("{count} {files} not staged {way} yet ({how}, such as {example}){error}"))
        })
        .collect();
    if reasons.is_empty() {
        reasons.push(reason(WhyCode::Staging, "its owner put it into this state; nothing takes it further by itself"));
    }
    Ok(reasons)
}

fn hook(job: &Job) -> WhyReason {
    let hook = match job.state {
        JobState::StagedIn => "preprocess",
        JobState::RunDone => "postprocess",
        JobState::RunError => "handle_error",
        _ => "handle_timeout",
    };
    match job.session_id {
        Some(_) => reason(WhyCode::Hook, format!("the Site's agent runs its {hook} hook")),
        None => reason(WhyCode::Hook, format!("it waits for the Site's agent to run its {hook} hook")),
    }
}

fn held(job: &Job, what: &str) -> WhyReason {
    let place = job.batch_job_id.map_or_else(String::new, |id| format!(", in BatchJob {id}"));
    reason(WhyCode::Running, format!("{what}{place}"))
}

async fn end(conn: &mut PgConnection, job: &Job) -> ApiResult<WhyReason> {
    if job.state == JobState::JobFinished {
        return Ok(reason(WhyCode::Ended, "it ran and is finished"));
    }
    const SQL: &str = "select coalesce(data ->> 'reason', ''), coalesce(data ->> 'message', '') from events \
         where job_id = $1 and to_state = 'FAILED' order by id desc limit 1";
    let last: Option<(String, String)> = sqlx::query_as(SQL).bind(job.id).fetch_optional(conn).await?;
    let told: Vec<String> = last
        .map(|(reason, message)| vec![reason, message])
        .unwrap_or_default()
        .into_iter()
        .filter(|t| !t.is_empty())
        .collect();
    let code =
        job.return_code.filter(|code| *code != 0).map_or_else(String::new, |code| format!(", with exit code {code}"));
    let told = if told.is_empty() { String::new() } else { format!(": {}", told.join("; ")) };
    let message = format!("it failed{code}{told}; `copal job show {}` has more", job.id);
    Ok(reason(WhyCode::Ended, message))
}

/// An allocation that has not ended, or one partition of it.
#[derive(Clone, Debug)]
struct Allocation {
    id: BatchJobId,
    state: BatchJobState,
    num_nodes: i32,
    mode: JobMode,
    tags: StringMap,
    minutes_left: i64,
    /// The scheduler's reason.
    reason: Option<String>,
    has_launcher: bool,
    /// Why its launcher gave the Job back.
    refused: Option<String>,
}

impl Allocation {
    /// Why it will never take this Job.
    fn misfit(&self, job: &Job) -> Option<WhyReason> {
        let id = self.id;
        if let Some(told) = &self.refused {
            return Some(reason(WhyCode::Shape, format!("no node of BatchJob {id} can hold it: {told}")));
        }
        if let Some((key, value)) = self.tags.iter().find(|(key, value)| job.tags.get(*key) != Some(value)) {
            return Some(reason(
                WhyCode::Tags,
                format!("BatchJob {id} takes only Jobs with the tag {key}={value}, which this one has not"),
            ));
        }
        if job.num_nodes > self.num_nodes {
            let (wanted, has) = (job.num_nodes, self.num_nodes);
            return Some(reason(WhyCode::Nodes, format!("it needs {wanted} nodes; BatchJob {id} has {has}")));
        }
        if self.mode == JobMode::Serial && (job.num_nodes > 1 || job.ranks_per_node > 1) {
            let message = format!("BatchJob {id} is in serial mode, which takes Jobs of one rank; use mpi mode");
            return Some(reason(WhyCode::Nodes, message));
        }
        if i64::from(job.wall_time_min) > self.minutes_left {
            let (wanted, left) = (job.wall_time_min, self.minutes_left);
            let message = format!("it expects to run {wanted} minutes; BatchJob {id} has {left} left");
            return Some(reason(WhyCode::Walltime, message));
        }
        None
    }
}

async fn runnable(conn: &mut PgConnection, job: &Job, site: &SiteRow) -> ApiResult<Vec<WhyReason>> {
    if let Some(Json(node)) = &site.node_shape
        && let Some((_, why)) = job.shape().misfit(node)
    {
        return Ok(vec![reason(WhyCode::Shape, format!("no node of Site {} can hold it: {why}", site.name))]);
    }
    let refusals = refusals::of(&mut *conn, job.id).await?;
    let allocations = read_allocations(&mut *conn, job, &refusals).await?;
    let ahead = match allocations.iter().any(|open| open.state == BatchJobState::Running && open.misfit(job).is_none())
    {
        true => count_ahead(conn, job).await?,
        false => 0,
    };
    let mut reasons = judge(job, &site.name, &allocations, ahead);
    // Those that have ended, too: another one like them would not run it either.
    let is_told = |refusal: &&Refusal| {
        allocations.iter().any(|open| Some(open.id) == refusal.batch_job_id && open.refused.is_some())
    };
    reasons.extend(refusals.iter().filter(|refusal| !is_told(refusal)).map(|refusal| {
        let who = refusal.batch_job_id.map_or_else(|| "a launcher".to_owned(), |id| format!("BatchJob {id}"));
        reason(WhyCode::Shape, format!("{who} gave it back: {}", refusal.message))
    }));
    Ok(reasons)
}

/// What allocations say of a runnable Job that nobody holds. `ahead`: Jobs that come before it.
fn judge(job: &Job, site: &str, allocations: &[Allocation], ahead: i64) -> Vec<WhyReason> {
    if allocations.is_empty() {
        let message =
            format!("Site {site} has no allocation and none is asked for; ask for one with `copal queue submit`");
        return vec![reason(WhyCode::NoAllocation, message)];
    }
    let mut reasons = Vec::new();
    let mut misfits = Vec::new();
    for allocation in allocations {
        if let Some(misfit) = allocation.misfit(job) {
            misfits.push(misfit);
            continue;
        }
        let id = allocation.id;
        let (code, message) = match allocation.state {
            BatchJobState::Running if !allocation.has_launcher => (
                WhyCode::NoLauncher,
                format!("BatchJob {id} runs, but its launcher has not reported yet; its log is in log/"),
            ),
            BatchJobState::Running => {
                let others = match ahead {
                    0 => "it is the next that fits a free place".to_owned(),
                    1 => "1 Job of the same or a higher priority is older".to_owned(),
                    COUNTED.. => format!("{COUNTED} Jobs or more of the same or a higher priority are older"),
                    _ => format!("{ahead} Jobs of the same or a higher priority are older"),
                };
                (WhyCode::Order, format!("BatchJob {id} can run it when there is room: {others}"))
            }
            BatchJobState::Queued => {
                let told = allocation.reason.as_ref().map_or_else(String::new, |told| format!(": {told}"));
                (WhyCode::Queued, format!("BatchJob {id} waits in the scheduler's queue{told}"))
            }
            _ => (WhyCode::Queued, format!("BatchJob {id} is not submitted to the scheduler yet")),
        };
        reasons.push(reason(code, message));
    }
    // One that could run it outweighs all that could not.
    reasons.sort_by_key(|reason| !matches!(reason.code, WhyCode::Order | WhyCode::NoLauncher));
    reasons.extend(misfits);
    reasons
}

async fn read_allocations(conn: &mut PgConnection, job: &Job, refusals: &[Refusal]) -> ApiResult<Vec<Allocation>> {
    #[derive(FromRow)]
    struct BatchJobRow {
        id: BatchJobId,
        state: BatchJobState,
        num_nodes: i32,
        job_mode: JobMode,
        filter_tags: Json<StringMap>,
        partitions: Option<Json<Vec<Partition>>>,
        minutes_left: i64,
        reason: Option<String>,
        has_launcher: bool,
    }
    const SQL: &str = "select b.id, b.state, b.num_nodes, b.job_mode, b.filter_tags, b.partitions, \
         status_info ->> 'reason' as reason, exists (select from sessions s where s.batch_job_id = b.id) as has_launcher, \
         case when b.state = 'running' and b.start_time is not null then greatest(0, b.wall_time_min \
         - floor(extract(epoch from clock_timestamp() - b.start_time) / 60))::bigint \
         else b.wall_time_min::bigint end as minutes_left \
         from batch_jobs b where b.site_id = (select site_id from jobs where id = $1) \
         and b.state in ('running', 'queued', 'pending_submission') order by b.state = 'running' desc, b.id limit $2";
    let rows: Vec<BatchJobRow> = sqlx::query_as(SQL).bind(job.id).bind(NAMED).fetch_all(conn).await?;
    let mut allocations = Vec::new();
    for row in rows {
        let whole = Allocation {
            id: row.id,
            state: row.state,
            num_nodes: row.num_nodes,
            mode: row.job_mode,
            tags: row.filter_tags.0,
            minutes_left: row.minutes_left,
            reason: row.reason.filter(|reason| !reason.is_empty()),
            has_launcher: row.has_launcher,
            refused: None,
        };
        let refusal = refusals.iter().find(|refusal| refusal.batch_job_id == Some(whole.id));
        let refused = refusal.map(|refusal| refusal.message.clone());
        match row.partitions.map(|Json(partitions)| partitions).filter(|partitions| !partitions.is_empty()) {
            None => allocations.push(Allocation { refused, ..whole }),
            // One partition's refusal says nothing about the others.
            Some(partitions) => allocations.extend(partitions.into_iter().map(|partition| Allocation {
                num_nodes: partition.num_nodes,
                mode: partition.job_mode,
                tags: partition.filter_tags,
                ..whole.clone()
            })),
        }
    }
    Ok(allocations)
}

async fn count_ahead(conn: &mut PgConnection, job: &Job) -> ApiResult<i64> {
    // By the index of the oldest first; other orders begin with the priority, too.
    const SQL: &str = "select count(*) from (select from jobs where session_id is null \
         and state in ('PREPROCESSED', 'RESTART_READY') and site_id = (select site_id from jobs where id = $1) \
         and (priority > $2 or priority = $2 and id < $1) order by priority desc, id limit $3) as ahead";
    Ok(sqlx::query_scalar(SQL).bind(job.id).bind(job.priority).bind(COUNTED).fetch_one(conn).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(fields: serde_json::Value) -> Job {
        let mut job = serde_json::json!({
            "id": 5, "workdir": "w", "tags": {}, "app_id": 1, "session_id": null, "serialized_parameters": "",
            "serialized_return_value": "", "serialized_exception": "", "batch_job_id": null, "state": "PREPROCESSED",
            "last_update": "2026-11-30T10:00:00+00:00", "data": {}, "return_code": null,
            "pending_file_cleanup": true, "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1,
            "threads_per_rank": 1, "threads_per_core": 1, "gpus_per_rank": 0.0, "node_packing_count": 1,
            "wall_time_min": 0, "launch_params": {}
        });
        for (key, value) in fields.as_object().unwrap() {
            job[key] = value.clone();
        }
        serde_json::from_value(job).unwrap()
    }

    fn running() -> Allocation {
        Allocation {
            id: BatchJobId(7),
            state: BatchJobState::Running,
            num_nodes: 2,
            mode: JobMode::Mpi,
            tags: StringMap::new(),
            minutes_left: 20,
            reason: None,
            has_launcher: true,
            refused: None,
        }
    }

    fn codes(job: &Job, allocations: &[Allocation]) -> Vec<WhyCode> {
        judge(job, "laptop", allocations, 3).into_iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn each_obstacle_has_its_code() {
        let plain = job(serde_json::json!({}));
        assert_eq!(codes(&plain, &[]), [WhyCode::NoAllocation]);
        assert_eq!(codes(&plain, &[running()]), [WhyCode::Order]);
        assert_eq!(codes(&plain, &[Allocation { has_launcher: false, ..running() }]), [WhyCode::NoLauncher]);
        let tagged = Allocation { tags: [("a".to_owned(), "b".to_owned())].into(), ..running() };
        assert_eq!(codes(&plain, std::slice::from_ref(&tagged)), [WhyCode::Tags]);
        assert_eq!(codes(&job(serde_json::json!({"tags": {"a": "b"}})), &[tagged]), [WhyCode::Order]);
        assert_eq!(codes(&job(serde_json::json!({"num_nodes": 3})), &[running()]), [WhyCode::Nodes]);
        let serial = Allocation { mode: JobMode::Serial, ..running() };
        assert_eq!(codes(&job(serde_json::json!({"ranks_per_node": 2})), &[serial]), [WhyCode::Nodes]);
        assert_eq!(codes(&job(serde_json::json!({"wall_time_min": 21})), &[running()]), [WhyCode::Walltime]);
        let refused = Allocation { refused: Some("a node has 4 GPUs".into()), ..running() };
        assert_eq!(codes(&plain, &[refused]), [WhyCode::Shape]);
    }

    #[test]
    fn what_could_run_it_comes_first() {
        let queued =
            Allocation { state: BatchJobState::Queued, reason: Some("Priority".into()), num_nodes: 4, ..running() };
        let wide = job(serde_json::json!({"num_nodes": 3}));
        let reasons = judge(&wide, "laptop", &[running(), queued.clone()], 0);
        assert_eq!(reasons[0].code, WhyCode::Queued);
        assert!(reasons[0].message.ends_with(": Priority"), "{reasons:?}");
        assert_eq!(reasons[1].code, WhyCode::Nodes);
        assert_eq!(codes(&job(serde_json::json!({})), &[queued, running()]), [WhyCode::Order, WhyCode::Queued]);
    }
}
