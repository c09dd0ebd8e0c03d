//! Jobs made in bulk: checked, then written by a fixed number of statements, all or nothing.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SiteId, StringMap, Timestamp, UserId,
    app::{AppHooks, AppParameter, TransferSlot, fill_parameters},
    job::{Job, JobCreate},
    job_state::{self, Step},
    lenient,
    problem::FieldError,
    resources::NodeShape,
    transfer::{Direction, TransferState},
};
use sqlx::{FromRow, PgConnection, types::Json};

use super::{
    dependencies::{self, Status},
    events::{Log, LoggedEvent, NewEvent, Place, log_parts},
    job_checks,
    scope::Scope,
    tag_sets, tags,
    transition::AppPolicy,
};
use crate::error::{ApiError, ApiResult};

/// What an App and its Site say about new Jobs.
#[derive(FromRow)]
pub(super) struct AppRow {
    pub(super) id: AppId,
    pub(super) site_id: SiteId,
    pub(super) parameters: Json<BTreeMap<String, AppParameter>>,
    transfers: Json<BTreeMap<String, TransferSlot>>,
    hooks_hidden: bool,
    hooks: Json<AppHooks>,
    max_restarts: Option<i32>,
    gone: bool,
    refusal: Option<String>,
    node_shape: Option<Json<NodeShape>>,
    transfer_locations: Json<StringMap>,
    /// Those of the new Jobs' tag sets that its Site has.
    known_sets: Vec<i64>,
    /// Numbers for the new Jobs, and the time: the same in each row.
    new_ids: Vec<JobId>,
    now: Timestamp,
}

/// What new Jobs are made from.
pub(super) struct Ground {
    pub(super) apps: BTreeMap<AppId, AppRow>,
    ids: Vec<JobId>,
    now: Timestamp,
}

/// A Job that is about to be written.
pub(super) struct New<'a> {
    pub(super) job: JobCreate,
    pub(super) app: &'a AppRow,
    pub(super) steps: Vec<Step>,
    status: Status,
    /// In the order of the Job's.
    pub(super) transfers: Vec<NewTransfer>,
}

pub(super) struct NewTransfer {
    pub(super) direction: Direction,
    pub(super) local_path: String,
    remote_path: String,
    pub(super) location_alias: String,
    pub(super) recursive: bool,
}

/// Where a Job stands in the request, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot {
    /// In a list.
    Item(usize),
    /// The template of an array.
    Template,
}

impl Spot {
    fn invalid(self, field: &str, msg: String) -> ApiError {
        let place = match self {
            Self::Item(index) => index.into(),
            Self::Template => "job".into(),
        };
        ApiError::invalid(vec![FieldError { loc: vec!["body".into(), place, field.into()], msg }])
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Item(index) => write!(f, "item {index}"),
            Self::Template => f.pad("the template"),
        }
    }
}

impl New<'_> {
    pub(super) fn state(&self) -> JobState {
        self.steps.last().map_or(JobState::Created, |step| step.to)
    }

    /// Whether the Job waits for this transfer from its first moment.
    pub(super) fn is_due(&self, transfer: &NewTransfer) -> bool {
        transfer.direction == Direction::In && self.state() == JobState::Ready
    }

    pub(super) fn event_data(&self, step: &Step) -> JsonObject {
        let mut data = JsonObject::new();
        if let Some(message) = step.message {
            data.insert("message".into(), message.into());
        }
        if step.to == JobState::Failed {
            data.extend(self.status.reason());
        }
        data
    }
}

/// Creates Jobs and gives them in the order of the call, with increasing ids.
///
/// # Errors
/// 422 with item and field for a bad value, 404 for an unknown App or parent, 400 for a workdir
/// that is named twice, an unknown slot or location. Nothing is created then.
pub async fn create(conn: &mut PgConnection, scope: Scope, mut jobs: Vec<JobCreate>) -> ApiResult<Vec<Job>> {
    check(&mut jobs)?;
    let owner = scope.owner;
    let ground = read_ground(&mut *conn, scope, &jobs, jobs.len()).await?;
    let edges = dependencies::prepare(&mut *conn, scope, &jobs).await?;
    let mut new = Vec::with_capacity(jobs.len());
    for (index, (job, status)) in jobs.into_iter().zip(&edges.statuses).enumerate() {
        new.push(plan(Spot::Item(index), job, &ground.apps, *status)?);
    }
    let sets = sets_of(&mut *conn, owner, &ground, &new).await?;
    let Ground { ref ids, now, .. } = ground;
    insert_transfers(&mut *conn, owner, &new, ids, now).await?;
    edges.insert(&mut *conn, ids).await?;
    insert_jobs(conn, owner, &new, &sets, ids, now).await?;
    let ids = ids.clone();
    Ok(new.into_iter().zip(ids).map(|(new, id)| answer(new, id, now)).collect())
}

/// The rules that need no database. Workdirs are left in their normal form.
fn check(jobs: &mut [JobCreate]) -> ApiResult<()> {
    let mut errors = Vec::new();
    for (index, job) in jobs.iter_mut().enumerate() {
        let before = errors.len();
        job_checks::check_create(job, &mut errors);
        for error in &mut errors[before..] {
            error.loc.splice(0..0, ["body".into(), index.into()]);
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(errors));
    }
    let mut seen = HashSet::with_capacity(jobs.len());
    match jobs.iter().find(|job| !seen.insert(job.workdir.as_str())) {
        Some(job) => Err(ApiError::conflict(format!(
            "the workdir {:?} is named twice in this call; give each Job its own",
            job.workdir
        ))),
        None => Ok(()),
    }
}

/// The Apps of the new Jobs, kept from being deleted until this transaction ends, and all else that has to be known
/// before they are written: few round trips make a single Job cheap. Takes numbers for so many Jobs.
pub(super) async fn read_ground(
    conn: &mut PgConnection,
    scope: Scope,
    jobs: &[JobCreate],
    count: usize,
) -> ApiResult<Ground> {
    let mut ids: Vec<AppId> = jobs.iter().map(|job| job.app_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut sets: Vec<i64> = jobs.iter().map(|job| tag_sets::number(&job.tags)).collect();
    sets.sort_unstable();
    sets.dedup();
    const SQL: &str = "select a.id, a.site_id, a.parameters, a.transfers, a.command is null as hooks_hidden, a.hooks, \
         a.max_restarts, a.gone, a.refusal, s.node_shape, s.transfer_locations, \
         array(select t.tag_set from tag_sets t where t.site_id = a.site_id and t.tag_set = any($4) \
         and t.closed_at is null) as known_sets, \
         array(select nextval('jobs_id_seq') from generate_series(1, $5)) as new_ids, clock_timestamp() as now \
         from apps a join sites s on s.id = a.site_id \
         where a.id = any($1) and a.owner_id = $2 and ($3::bigint is null or a.site_id = $3) order by a.id for key share of a";
    let rows: Vec<AppRow> = sqlx::query_as(SQL)
        .bind(&ids)
        .bind(scope.owner)
        .bind(scope.site)
        .bind(&sets)
        .bind(i32::try_from(count).unwrap_or(i32::MAX))
        .fetch_all(conn)
        .await?;
    let now = rows.first().map_or_else(chrono::Utc::now, |row| row.now);
    let new_ids = rows.first().map(|row| row.new_ids.clone()).unwrap_or_default();
    let apps: BTreeMap<AppId, AppRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    match ids.iter().find(|id| !apps.contains_key(id)) {
        Some(unknown) => Err(ApiError::not_found(format!("App {unknown}"))),
        None => Ok(Ground { apps, ids: new_ids, now }),
    }
}

/// The tag sets of the new Jobs.
pub(super) async fn sets_of(
    conn: &mut PgConnection,
    owner: UserId,
    ground: &Ground,
    new: &[New<'_>],
) -> ApiResult<Vec<i64>> {
    let known: HashSet<(SiteId, i64)> =
        ground.apps.values().flat_map(|app| app.known_sets.iter().map(|set| (app.site_id, *set))).collect();
    let places: Vec<(SiteId, &StringMap)> = new.iter().map(|new| (new.app.site_id, &new.job.tags)).collect();
    tag_sets::of_new(conn, owner, &known, &places).await
}

/// Checks a Job against its App and Site, and works out its first steps.
pub(super) fn plan(
    spot: Spot,
    mut job: JobCreate,
    apps: &BTreeMap<AppId, AppRow>,
    status: Status,
) -> ApiResult<New<'_>> {
    let Some(app) = apps.get(&job.app_id) else {
        return Err(ApiError::not_found(format!("App {}", job.app_id)));
    };
    if app.gone {
        let msg = "the App's file is gone from its Site; put it back and run `copal app sync`";
        return Err(spot.invalid("app_id", msg.into()));
    }
    if let Some(refusal) = &app.refusal {
        return Err(spot.invalid("app_id", format!("the Site does not run this App: {refusal}")));
    }
    if !app.hooks_hidden {
        job.parameters =
            fill_parameters(&app.parameters, &job.parameters).map_err(|msg| spot.invalid("parameters", msg))?;
    }
    if let Some(Json(node)) = &app.node_shape
        && let Some((field, why)) = job.shape().misfit(node)
    {
        return Err(spot.invalid(field, format!("no node of the Site can hold it: {why}")));
    }
    let mut transfers = Vec::with_capacity(job.transfers.len());
    for (name, location) in &job.transfers {
        let Some(slot) = app.transfers.get(name) else {
            return Err(ApiError::conflict(format!("{spot}: the App has no transfer slot {name:?}")));
        };
        if !app.transfer_locations.contains_key(&location.location_alias) {
            return Err(ApiError::conflict(format!(
                "{spot}: the Site has no transfer location {:?}; its settings list those it has",
                location.location_alias
            )));
        }
        transfers.push(NewTransfer {
            direction: slot.direction,
            local_path: slot.local_path.clone(),
            remote_path: lenient::normal_path(&location.path),
            location_alias: location.location_alias.clone(),
            recursive: slot.recursive,
        });
    }
    let has = |direction| transfers.iter().any(|transfer| transfer.direction == direction);
    let policy = AppPolicy { hooks_hidden: app.hooks_hidden, hooks: app.hooks.0, max_restarts: app.max_restarts };
    let facts = policy.facts(status.as_dependencies(), has(Direction::In), has(Direction::Out));
    Ok(New { job, app, steps: job_state::settle_new(&facts), status, transfers })
}

fn column<'a, T>(new: &'a [New<'_>], field: impl Fn(&'a New<'_>) -> T) -> Vec<T> {
    new.iter().map(field).collect()
}

/// Writes both halves of the Jobs, their tags and events, and wakes whoever waits for them, in one statement.
async fn insert_jobs(
    conn: &mut PgConnection,
    owner: UserId,
    new: &[New<'_>],
    sets: &[i64],
    ids: &[JobId],
    now: Timestamp,
) -> ApiResult<()> {
    // Arrays of arrays must be rectangular in Postgres, so parent_ids travel as JSON.
    const SQL: &str = concat!(
        "with hot as (insert into jobs (owner_id, last_update, id, site_id, app_id, state, priority, \
         num_nodes, ranks_per_node, node_packing_count, wall_time_min, return_code, max_restarts, dependency_failed, \
         has_transfers, has_parents, tags, tag_set) \
         select $18, $19, * from unnest($20::bigint[], $21::bigint[], $22::bigint[], $23::job_state[], $24::int[], \
         $25::int[], $26::int[], $27::int[], $28::int[], $29::int[], $30::int[], $31::bool[], $32::bool[], \
         $33::bool[], $34::jsonb[], $35::bigint[])), \
         cold as (insert into job_details (owner_id, job_id, site_id, app_id, threads_per_rank, \
         threads_per_core, gpus_per_rank, mem_mb, walltime_limit_min, workdir, account, serialized_parameters, \
         parent_ids, dependencies, data, launch_params, parameters, checkpoint) \
         select $18, u.job_id, u.site_id, u.app_id, u.threads_per_rank, u.threads_per_core, u.gpus_per_rank, \
         u.mem_mb, u.walltime_limit_min, u.workdir, u.account, u.serialized_parameters, \
         case when u.parent_ids = '[]' then '{}'::bigint[] \
         else array(select e::bigint from jsonb_array_elements_text(u.parent_ids) as e) end, \
         u.dependencies, u.data, u.launch_params, u.parameters, u.checkpoint \
         from unnest($20::bigint[], $21::bigint[], $22::bigint[], $36::int[], $37::int[], $38::float8[], $39::bigint[], \
         $40::int[], $41::text[], $42::text[], $43::text[], $44::jsonb[], $45::jsonb[], $46::jsonb[], $47::jsonb[], \
         $48::jsonb[], $49::jsonb[]) as u(job_id, site_id, app_id, threads_per_rank, threads_per_core, \
         gpus_per_rank, mem_mb, walltime_limit_min, workdir, account, serialized_parameters, parent_ids, \
         dependencies, data, launch_params, parameters, checkpoint)), \
         tagged as (insert into job_tags (owner_id, tag, job_id) \
         select $18, * from unnest($50::bigint[], $51::bigint[])), ",
        log_parts!()
    );
    let Some(log) = log(owner, new, sets, ids, now).into_columns() else { return Ok(()) };
    let (tags, tagged) = tags::rows(ids.iter().copied().zip(new.iter().map(|new| &new.job.tags)));
    log.bind_to(SQL)
        .bind(owner)
        .bind(now)
        .bind(ids)
        .bind(column(new, |new| new.app.site_id))
        .bind(column(new, |new| new.app.id))
        .bind(column(new, |new| new.state()))
        .bind(column(new, |new| new.job.priority))
        .bind(column(new, |new| new.job.num_nodes))
        .bind(column(new, |new| new.job.ranks_per_node))
        .bind(column(new, |new| new.job.node_packing_count))
        .bind(column(new, |new| new.job.wall_time_min))
        .bind(column(new, |new| new.job.return_code))
        .bind(column(new, |new| new.job.max_restarts))
        .bind(column(new, |new| new.state() == JobState::Failed))
        .bind(column(new, |new| !new.transfers.is_empty()))
        .bind(column(new, |new| !new.job.parent_ids.is_empty() || !new.job.dependencies.is_empty()))
        .bind(column(new, |new| Json(&new.job.tags)))
        .bind(sets)
        .bind(column(new, |new| new.job.threads_per_rank))
        .bind(column(new, |new| new.job.threads_per_core))
        .bind(column(new, |new| new.job.gpus_per_rank))
        .bind(column(new, |new| new.job.mem_mb))
        .bind(column(new, |new| new.job.walltime_limit_min))
        .bind(column(new, |new| new.job.workdir.as_str()))
        .bind(column(new, |new| new.job.account.as_deref()))
        .bind(column(new, |new| new.job.serialized_parameters.as_str()))
        .bind(column(new, |new| Json(&new.job.parent_ids)))
        .bind(column(new, |new| Json(&new.job.dependencies)))
        .bind(column(new, |new| Json(&new.job.data)))
        .bind(column(new, |new| Json(&new.job.launch_params)))
        .bind(column(new, |new| Json(&new.job.parameters)))
        .bind(column(new, |new| new.job.checkpoint.as_ref().map(Json)))
        .bind(tags)
        .bind(tagged)
        .execute(conn)
        .await?;
    Ok(())
}

async fn insert_transfers(
    conn: &mut PgConnection,
    owner: UserId,
    new: &[New<'_>],
    ids: &[JobId],
    now: Timestamp,
) -> ApiResult<()> {
    let rows: Vec<(JobId, &New<'_>, &NewTransfer)> = new
        .iter()
        .zip(ids)
        .flat_map(|(new, id)| new.transfers.iter().map(move |transfer| (*id, new, transfer)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    const SQL: &str = "insert into transfers (owner_id, job_id, site_id, app_id, direction, state, recursive, local_path, \
         remote_path, location_alias, due_at) select $1, * from unnest($2::bigint[], $3::bigint[], \
         $4::bigint[], $5::transfer_direction[], $6::transfer_state[], $7::bool[], $8::text[], $9::text[], $10::text[], \
         $11::timestamptz[])";
    let born = |direction| match direction {
        Direction::In => TransferState::Pending,
        Direction::Out => TransferState::AwaitingJob,
    };
    sqlx::query(SQL)
        .bind(owner)
        .bind(rows.iter().map(|(id, ..)| *id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, new, _)| new.app.site_id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, new, _)| new.app.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| transfer.direction).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| born(transfer.direction)).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| transfer.recursive).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| transfer.local_path.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| transfer.remote_path.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(.., transfer)| transfer.location_alias.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, new, transfer)| new.is_due(transfer).then_some(now)).collect::<Vec<_>>())
        .execute(conn)
        .await?;
    Ok(())
}

fn log(owner: UserId, new: &[New<'_>], sets: &[i64], ids: &[JobId], now: Timestamp) -> Log {
    let mut log = Log::default();
    for ((new, tag_set), id) in new.iter().zip(sets).zip(ids) {
        let site = new.app.site_id;
        let app = new.app.id;
        log.created(Place { owner, site, app, tag_set: *tag_set }, new.state());
        let mut at = now;
        for step in &new.steps {
            let data = new.event_data(step);
            let event = NewEvent { timestamp: at, from_state: step.from, to_state: step.to, data };
            let (owner_id, site_id, app_id) = (owner, site, app);
            log.events.push(LoggedEvent { job_id: *id, owner_id, site_id, app_id, batch_job_id: None, event });
            at += chrono::TimeDelta::microseconds(1);
        }
    }
    log
}

fn answer(new: New<'_>, id: JobId, now: Timestamp) -> Job {
    let state = new.state();
    let job = new.job;
    Job {
        id,
        workdir: job.workdir,
        tags: job.tags,
        app_id: job.app_id,
        session_id: None,
        serialized_parameters: job.serialized_parameters,
        serialized_return_value: String::new(),
        serialized_exception: String::new(),
        batch_job_id: None::<BatchJobId>,
        state,
        last_update: now,
        data: job.data,
        return_code: job.return_code,
        pending_file_cleanup: true,
        parent_ids: job.parent_ids,
        num_nodes: job.num_nodes,
        ranks_per_node: job.ranks_per_node,
        threads_per_rank: job.threads_per_rank,
        threads_per_core: job.threads_per_core,
        gpus_per_rank: job.gpus_per_rank,
        node_packing_count: job.node_packing_count,
        wall_time_min: job.wall_time_min,
        launch_params: job.launch_params,
        parameters: job.parameters,
        priority: job.priority,
        dependencies: job.dependencies,
        mem_mb: job.mem_mb,
        walltime_limit_min: job.walltime_limit_min,
        max_restarts: job.max_restarts,
        checkpoint: job.checkpoint,
        account: job.account,
        array_id: None,
        array_index: None,
        num_attempts: 0,
        error_restarts: 0,
        timeout_restarts: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_item_is_named_with_its_field() {
        let mut jobs = vec![JobCreate::new(AppId(1), "a"), JobCreate::new(AppId(1), "/b")];
        jobs[1].num_nodes = 0;
        let error = check(&mut jobs).unwrap_err();
        let places: Vec<_> = error.problem().errors.iter().map(|error| serde_json::json!(error.loc)).collect();
        assert_eq!(places, [serde_json::json!(["body", 1, "workdir"]), serde_json::json!(["body", 1, "num_nodes"])]);
    }

    #[test]
    fn a_workdir_is_named_once_in_a_call_whatever_its_spelling() {
        let mut jobs = vec![JobCreate::new(AppId(1), "a/b"), JobCreate::new(AppId(1), "a//./b")];
        assert_eq!(check(&mut jobs).unwrap_err().problem().status, 400);
    }
}
