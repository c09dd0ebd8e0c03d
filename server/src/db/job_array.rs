//! Arrays of Jobs: the template is checked here, the Jobs are made in the database by one
//! statement, whatever their number.

use copal_schemas::{
    AppId, JobId, JobState, JsonObject, StringMap,
    job::{Dependency, JobCreate},
    job_array::{IndexText, JobArray, JobArrayCreate, MAX_ARRAY, MAX_INDEX, Part},
    problem::FieldError,
    transfer::{Direction, TransferState},
};
use serde_json::Value;
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder, types::Json};

use super::{
    array_limit::{self, Places},
    dependencies,
    events::{Log, Place},
    job_checks,
    job_create::{self, AppRow, New, Spot},
    scope::Scope,
    tag_sets, tags,
    transition::{Moves, Which},
};
use crate::error::{ApiError, ApiResult};

/// Longer than other statements may take: a million Jobs and their events are some gigabytes to write.
const TIME_LIMIT: &str = "set local statement_timeout = '900s'";
/// Postgres functions take a hundred arguments: keys and values by turns.
const PAIRS_A_CALL: usize = 50;

/// Creates the Jobs of an array.
///
/// # Errors
/// 422 with the field for a bad value, 404 for an unknown App or parent, 400 for an unknown slot or
/// location. Nothing is created then.
pub async fn create(conn: &mut PgConnection, scope: Scope, mut array: JobArrayCreate) -> ApiResult<JobArray> {
    let first = check(&mut array)?;
    let ground = job_create::read_ground(&mut *conn, scope, std::slice::from_ref(&first), 0).await?;
    let edges = dependencies::prepare(&mut *conn, scope, std::slice::from_ref(&first)).await?;
    let limited = match array.array_id {
        Some(id) => array_limit::has_limit(&mut *conn, scope.owner, id).await?,
        None => array.max_at_once.is_some(),
    };
    let status = edges.statuses.first().copied().unwrap_or_default();
    let status = if limited { status.before_its_turn() } else { status };
    let new = job_create::plan(Spot::Template, first, &ground.apps, status)?;
    check_choices(&array, new.app)?;
    let tag_set = match has_index_in_tags(&array) {
        true => tag_sets::ODD,
        false => {
            let sets = job_create::sets_of(&mut *conn, scope.owner, &ground, std::slice::from_ref(&new)).await?;
            sets.first().copied().unwrap_or(tag_sets::ODD)
        }
    };
    let row = {
        let mut sql = Statement { array: &array, new: &new, scope, limited, tag_set, sql: QueryBuilder::new("") };
        sql.build(&edges.of(0))?;
        sqlx::query(TIME_LIMIT).execute(&mut *conn).await?;
        sql.sql.build_query_as::<ArrayRow>().fetch_one(&mut *conn).await?
    };
    let mut log = Log::default();
    let place = Place { owner: scope.owner, site: new.app.site_id, app: new.app.id, tag_set };
    log.created_array(place, new.state(), new.steps.iter().map(|step| step.to), row.count);
    log.write(&mut *conn).await?;
    if limited {
        if let Some(at_once) = array.max_at_once {
            array_limit::create(&mut *conn, scope.owner, row.array_id, at_once).await?;
        }
        let first = array_limit::turns(&mut *conn, &Places::from([(row.array_id, 0)])).await?;
        let mut moves = Moves::lock(&mut *conn, Which::Any(&first)).await?;
        for (now, job) in moves.iter_mut() {
            job.follow_dependencies(now);
        }
        moves.apply(conn).await?;
    }
    Ok(row.into())
}

#[derive(FromRow)]
struct ArrayRow {
    array_id: i64,
    count: i64,
    first_job_id: JobId,
    last_job_id: JobId,
}

impl From<ArrayRow> for JobArray {
    fn from(row: ArrayRow) -> Self {
        let ArrayRow { array_id, count, first_job_id, last_job_id } = row;
        Self { array_id, count, first_job_id, last_job_id }
    }
}

/// Checks what needs no database, leaves the workdir in its normal form, and gives the first Job.
fn check(array: &mut JobArrayCreate) -> ApiResult<JobCreate> {
    let wrong = |field: &str, msg: String| ApiError::invalid_at(vec!["body".into(), field.into()], msg);
    if array.step < 1 {
        return Err(wrong("step", format!("{} is not 1 or more", array.step)));
    }
    if !(0..=MAX_INDEX).contains(&array.first) {
        return Err(wrong("first", format!("{} is not between 0 and {MAX_INDEX}", array.first)));
    }
    if !(array.first..=MAX_INDEX).contains(&array.last) {
        return Err(wrong("last", format!("{} is not between first ({}) and {MAX_INDEX}", array.last, array.first)));
    }
    match (array.max_at_once, array.array_id) {
        (Some(most), _) if most < 1 => return Err(wrong("max_at_once", format!("{most} is not 1 or more"))),
        (Some(_), Some(id)) => {
            return Err(wrong("max_at_once", format!("array {id} has the limit that it was made with")));
        }
        _ => {}
    }
    let count = array.count();
    if count > MAX_ARRAY {
        return Err(wrong("last", format!("these are {count} Jobs; {MAX_ARRAY} is the most of one array")));
    }
    let in_job = |field: &str, msg: String| {
        ApiError::invalid(vec![FieldError { loc: vec!["body".into(), "job".into(), field.into()], msg }])
    };
    // Indices have no slashes and no dots, so the template's normal form is that of all its workdirs.
    // A template that is too long may still be short once it is filled.
    let short = array.job.workdir.len() <= copal_schemas::job::MAX_WORKDIR;
    if let (Ok(normal), true) = (copal_schemas::job::check_workdir(&array.job.workdir), short) {
        array.job.workdir = normal;
    }
    let mut filled = [array.first, array.last_met()]
        .into_iter()
        .map(|index| array.job_of(index).map_err(|(field, msg)| in_job(field, msg)))
        .collect::<ApiResult<Vec<JobCreate>>>()?;
    for job in &mut filled {
        let mut errors = Vec::new();
        job_checks::check_create(job, &mut errors);
        if !errors.is_empty() {
            for error in &mut errors {
                error.loc.splice(0..0, ["body".into(), "job".into()]);
            }
            return Err(ApiError::invalid(errors));
        }
    }
    let has_index = IndexText::parse(&array.job.workdir).is_ok_and(|text| text.has_index());
    if count > 1 && !has_index {
        let msg = format!("all {count} Jobs would have the folder {:?}; put {{index}} into it", array.job.workdir);
        return Err(in_job("workdir", msg));
    }
    Ok(filled.swap_remove(0))
}

/// The first Job's parameters are checked like any Job's. Others differ only where an index is, which
/// matters where an App takes certain values only.
fn check_choices(array: &JobArrayCreate, app: &AppRow) -> ApiResult<()> {
    for (name, text) in &array.job.parameters {
        let Some(parameter) = app.parameters.get(name).filter(|parameter| !parameter.choices.is_empty()) else {
            continue;
        };
        let Ok(text) = IndexText::parse(text) else { continue };
        // Each index gives another value, so that one index more than there are choices decides.
        let wrong = (0..array.count())
            .take(parameter.choices.len() + 1)
            .map(|place| text.fill(array.first + place * array.step))
            .find(|value| !parameter.choices.contains(value));
        if let Some(value) = wrong {
            let loc: Vec<Value> = vec!["body".into(), "job".into(), "parameters".into()];
            let msg = format!("parameter {name}: {value:?} is not one of {}", parameter.choices.join(", "));
            return Err(ApiError::invalid_at(loc, msg));
        }
    }
    Ok(())
}

/// Whether the tags tell the Jobs apart.
fn has_index_in_tags(array: &JobArrayCreate) -> bool {
    array.job.tags.values().any(|value| IndexText::parse(value).is_ok_and(|text| text.has_index()))
}

/// The one statement, in the making.
struct Statement<'a> {
    array: &'a JobArrayCreate,
    /// The first Job.
    new: &'a New<'a>,
    scope: Scope,
    /// Whether its Jobs wait for their turn.
    limited: bool,
    /// The tag set of them all.
    tag_set: i64,
    sql: QueryBuilder<Postgres>,
}

impl Statement<'_> {
    fn build(&mut self, edges: &[(Dependency, Option<bool>)]) -> ApiResult<()> {
        let JobArrayCreate { first, last, step, .. } = *self.array;
        match self.array.array_id {
            Some(id) => {
                self.sql.push("with array_id as materialized (select ").push_bind(id).push("::bigint as id)");
            }
            None => {
                self.sql.push("with array_id as materialized (select nextval('job_array_ids') as id)");
            }
        }
        // Each has a time of its own: a list by time would have to sort all that have the same by id.
        self.sql
            .push(", new as materialized (select nextval('jobs_id_seq') as id, i as index, clock_timestamp() as at ");
        self.sql.push("from generate_series(");
        self.sql.push_bind(first).push("::bigint, ").push_bind(last).push("::bigint, ").push_bind(step);
        self.sql.push("::bigint) as i)");
        self.hot()?;
        self.cold()?;
        self.tagged()?;
        self.edges(edges);
        self.staged()?;
        self.logged();
        self.sql.push(" select (select id from array_id) as array_id, count(*), min(id) as first_job_id, ");
        self.sql.push("max(id) as last_job_id from new");
        Ok(())
    }

    fn hot(&mut self) -> ApiResult<()> {
        let job = &self.new.job;
        let (app_id, site_id): (AppId, _) = (self.new.app.id, self.new.app.site_id);
        let has_parents = self.limited || !job.parent_ids.is_empty() || !job.dependencies.is_empty();
        self.sql.push(
            ", hot as (insert into jobs (id, last_update, owner_id, site_id, app_id, state, priority, num_nodes, \
             ranks_per_node, node_packing_count, wall_time_min, return_code, max_restarts, dependency_failed, \
             has_transfers, has_parents, has_children, tag_set, tags) select id, at, ",
        );
        let mut values = self.sql.separated(", ");
        values.push_bind(self.scope.owner).push_bind(site_id).push_bind(app_id).push_bind(self.new.state());
        values.push_bind(job.priority).push_bind(job.num_nodes).push_bind(job.ranks_per_node);
        values.push_bind(job.node_packing_count).push_bind(job.wall_time_min).push_bind(job.return_code);
        values.push_bind(job.max_restarts).push_bind(self.new.state() == JobState::Failed);
        // Those who wait for their turn are told of its end as children are.
        values.push_bind(!self.new.transfers.is_empty()).push_bind(has_parents).push_bind(self.limited);
        values.push_bind(self.tag_set).push("");
        self.map(&self.new.job.tags, &self.array.job.tags)?;
        self.sql.push(" from new)");
        Ok(())
    }

    fn cold(&mut self) -> ApiResult<()> {
        let job = &self.new.job;
        self.sql.push(
            ", cold as (insert into job_details (job_id, array_index, array_id, owner_id, site_id, app_id, \
             threads_per_rank, threads_per_core, gpus_per_rank, mem_mb, walltime_limit_min, account, \
             serialized_parameters, parent_ids, dependencies, data, launch_params, checkpoint, workdir, parameters) \
             select id, index, (select id from array_id), ",
        );
        let mut values = self.sql.separated(", ");
        values.push_bind(self.scope.owner).push_bind(self.new.app.site_id).push_bind(self.new.app.id);
        values.push_bind(job.threads_per_rank).push_bind(job.threads_per_core).push_bind(job.gpus_per_rank);
        values.push_bind(job.mem_mb).push_bind(job.walltime_limit_min).push_bind(job.account.clone());
        values.push_bind(job.serialized_parameters.clone()).push_bind(job.parent_ids.clone());
        values.push_bind(Json(job.dependencies.clone())).push_bind(Json(job.data.clone()));
        values.push_bind(Json(job.launch_params.clone())).push_bind(job.checkpoint.clone().map(Json)).push("");
        self.text(&parse(&self.array.job.workdir, "workdir")?);
        self.sql.push(", ");
        // The first Job's have the App's defaults, too.
        self.map(&self.new.job.parameters, &self.array.job.parameters)?;
        self.sql.push(" from new)");
        Ok(())
    }

    fn tagged(&mut self) -> ApiResult<()> {
        if self.array.job.tags.is_empty() {
            return Ok(());
        }
        self.sql.push(", tagged as (insert into job_tags (owner_id, tag, job_id) ");
        for (place, (key, value)) in self.array.job.tags.iter().enumerate() {
            let value = parse(value, "tags")?;
            self.sql.push(if place > 0 { " union all select " } else { "select " }).push_bind(self.scope.owner);
            if value.has_index() {
                // As tags::number has it. Without the offset the hash would be made for each byte.
                self.sql.push(", ");
                let bytes = (0..8).map(|byte| format!("(get_byte(h.hash, {byte})::bigint << {})", 8 * byte));
                self.sql.push(bytes.collect::<Vec<_>>().join(" | "));
                self.sql.push(", new.id from new cross join lateral (select sha256(");
                self.sql.push_bind(tags::hash_prefix(key)).push(" || convert_to(");
                self.text(&value);
                self.sql.push(", 'UTF8')) as hash offset 0) as h");
            } else {
                self.sql.push(", ").push_bind(tags::number(key, &value.fill(0))).push("::bigint, id from new");
            }
        }
        self.sql.push(")");
        Ok(())
    }

    fn edges(&mut self, edges: &[(Dependency, Option<bool>)]) {
        if self.limited {
            self.sql.push(", turns as (insert into job_edges (child_id, parent_id, kind, met) ");
            self.sql.push("select new.id, -(select id from array_id), 'afterany', null from new)");
        }
        if edges.is_empty() {
            return;
        }
        self.sql
            .push(", edges as (insert into job_edges (child_id, parent_id, kind, met) select new.id, u.* from new, ");
        self.sql.push("unnest(").push_bind(edges.iter().map(|(edge, _)| edge.job_id).collect::<Vec<_>>());
        self.sql.push("::bigint[], ").push_bind(edges.iter().map(|(edge, _)| edge.kind).collect::<Vec<_>>());
        self.sql.push("::dependency_kind[], ").push_bind(edges.iter().map(|(_, met)| *met).collect::<Vec<_>>());
        self.sql.push("::bool[]) as u)");
    }

    fn staged(&mut self) -> ApiResult<()> {
        if self.new.transfers.is_empty() {
            return Ok(());
        }
        self.sql.push(
            ", staged as (insert into transfers (job_id, owner_id, site_id, app_id, direction, state, recursive, \
             local_path, location_alias, remote_path, due_at) ",
        );
        let paths = self.array.job.transfers.values().map(|location| location.path.as_str());
        for (place, (transfer, path)) in self.new.transfers.iter().zip(paths).enumerate() {
            self.sql.push(if place > 0 { " union all select id, " } else { "select id, " });
            let state = match transfer.direction {
                Direction::In => TransferState::Pending,
                Direction::Out => TransferState::AwaitingJob,
            };
            let mut values = self.sql.separated(", ");
            values.push_bind(self.scope.owner).push_bind(self.new.app.site_id).push_bind(self.new.app.id);
            values.push_bind(transfer.direction).push_bind(state).push_bind(transfer.recursive);
            values.push_bind(transfer.local_path.clone()).push_bind(transfer.location_alias.clone()).push("");
            self.text(&parse(&copal_schemas::lenient::normal_path(path), "transfers")?);
            self.sql.push(if self.new.is_due(transfer) { ", new.at" } else { ", null::timestamptz" });
            self.sql.push(" from new");
        }
        self.sql.push(")");
        Ok(())
    }

    fn logged(&mut self) {
        let steps = &self.new.steps;
        let data = steps.iter().map(|step| Json(self.new.event_data(step))).collect::<Vec<Json<JsonObject>>>();
        self.sql.push(", logged as (insert into events (job_id, owner_id, site_id, app_id, \"timestamp\", ");
        self.sql.push("from_state, to_state, data) select new.id, ").push_bind(self.scope.owner).push(", ");
        self.sql.push_bind(self.new.app.site_id).push(", ").push_bind(self.new.app.id);
        self.sql
            .push(", new.at + u.place * interval '1 microsecond', u.from_state, u.to_state, u.data from new, unnest(");
        self.sql.push_bind((0..).take(steps.len()).collect::<Vec<i32>>());
        self.sql.push("::int[], ").push_bind(steps.iter().map(|step| step.from).collect::<Vec<_>>());
        self.sql.push("::job_state[], ").push_bind(steps.iter().map(|step| step.to).collect::<Vec<_>>());
        self.sql.push("::job_state[], ").push_bind(data);
        self.sql.push("::jsonb[]) as u(place, from_state, to_state, data))");
    }

    /// The text of each row's index.
    fn text(&mut self, text: &IndexText) {
        if text.parts().is_empty() {
            self.sql.push("''");
        }
        for (place, part) in text.parts().iter().enumerate() {
            self.sql.push(if place > 0 { " || " } else { "" });
            match part {
                Part::Text(text) => self.sql.push_bind(text.clone()).push("::text"),
                Part::Index(width) => {
                    // lpad would cut off what is longer.
                    self.sql.push("lpad(index::text, greatest(length(index::text), ");
                    self.sql.push_bind(i32::try_from(*width).unwrap_or(0)).push("), '0')")
                }
            };
        }
    }

    /// A JSON object with these values, and those with an index in them as each row's index makes them.
    fn map(&mut self, filled: &StringMap, template: &StringMap) -> ApiResult<()> {
        let mut with_index = Vec::new();
        for (key, value) in template {
            let text = parse(value, "parameters")?;
            if text.has_index() {
                with_index.push((key, text));
            }
        }
        self.sql.push_bind(Json(filled.clone())).push("::jsonb");
        for pairs in with_index.chunks(PAIRS_A_CALL) {
            self.sql.push(" || jsonb_build_object(");
            for (place, (key, text)) in pairs.iter().enumerate() {
                self.sql.push(if place > 0 { ", " } else { "" }).push_bind((*key).clone()).push("::text, ");
                self.text(text);
            }
            self.sql.push(")");
        }
        Ok(())
    }
}

/// A text that has been checked before.
fn parse(text: &str, field: &str) -> ApiResult<IndexText> {
    IndexText::parse(text).map_err(|msg| ApiError::invalid_at(vec!["body".into(), "job".into(), field.into()], msg))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(first: i64, last: i64, workdir: &str) -> JobArrayCreate {
        let job = JobCreate::new(AppId(1), workdir);
        JobArrayCreate { first, last, step: 1, max_at_once: None, array_id: None, job }
    }

    fn field_of(mut array: JobArrayCreate) -> String {
        let error = check(&mut array).unwrap_err();
        error.problem().errors[0].loc.last().unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn wrong_templates_and_bounds_are_named() {
        for (field, array) in [
            ("last", array(2, 1, "a/{index}")),
            ("last", array(0, MAX_ARRAY, "a/{index}")),
            ("last", array(0, i64::MAX, "a/{index}")),
            ("first", array(-1, 1, "a/{index}")),
            ("step", JobArrayCreate { step: 0, ..array(0, 1, "a/{index}") }),
            ("max_at_once", JobArrayCreate { max_at_once: Some(0), ..array(0, 1, "a/{index}") }),
            ("max_at_once", JobArrayCreate { max_at_once: Some(1), array_id: Some(1), ..array(0, 1, "a/{index}") }),
            ("workdir", array(0, 1, "a")),
            ("workdir", array(0, 1, "a/{index:x}")),
            ("workdir", array(0, 1, "../{index}")),
            // Short enough for 9, too long for 10.
            ("workdir", array(9, 10, &format!("{}{{index}}", "x".repeat(255)))),
        ] {
            assert_eq!(field_of(array), field);
        }
        let mut good = array(0, MAX_ARRAY - 1, "a//./{index:07}");
        assert_eq!(check(&mut good).unwrap().workdir, "a/0000000");
        assert_eq!(good.job.workdir, "a/{index:07}");
        // One Job needs no index in its folder.
        assert!(check(&mut array(3, 3, "a")).is_ok());
    }
}
