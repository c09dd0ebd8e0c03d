//! A Session claims Jobs: one SKIP LOCKED statement on the partial index of its order
//! (contract, section 8).

use copal_schemas::{
    JobId, JobState, UserId,
    job::Job,
    job_state::{PROCESSABLE, RUNNABLE},
    session::Acquire,
};
use sqlx::{PgConnection, Postgres, QueryBuilder, types::Json};

use super::{jobs, scope::Scope, sessions::Holder, tags};
use crate::error::ApiResult;

/// In which order Jobs are taken. Priority comes first in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    SmallFirst,
    LongLargeFirst,
    ShortestFirst,
    Fifo,
}

impl Order {
    /// Without a bound on the sum of nodes the contract promises no order; oldest first starves nobody.
    fn of(wanted: &Acquire) -> Self {
        match wanted.sort_by.as_deref() {
            Some("long_large_first") => Self::LongLargeFirst,
            Some("shortest_first") => Self::ShortestFirst,
            Some("fifo" | "priority") => Self::Fifo,
            None if wanted.max_aggregate_nodes.is_none() => Self::Fifo,
            _ => Self::SmallFirst,
        }
    }

    /// As the partial indexes of migration 0002 have it.
    fn columns(self) -> &'static str {
        match self {
            Self::SmallFirst => "priority desc, num_nodes, node_packing_count desc, wall_time_min desc, id",
            Self::LongLargeFirst => "priority desc, wall_time_min desc, num_nodes desc, node_packing_count desc, id",
            Self::ShortestFirst => "priority desc, wall_time_min, id",
            Self::Fifo => "priority desc, id",
        }
    }
}

/// Locks up to `max_num_jobs` Jobs that fit for the Session, and gives them in the order of the
/// acquire. Never waits for another transaction and never takes what another one takes.
///
/// # Errors
/// The database's.
pub async fn acquire(conn: &mut PgConnection, owner: UserId, holder: Holder, wanted: &Acquire) -> ApiResult<Vec<Job>> {
    if wanted.states.is_empty() {
        return Ok(Vec::new());
    }
    let mut sql = statement(owner, holder, wanted);
    let taken: Vec<(JobId, i64)> = sql.build_query_as().fetch_all(&mut *conn).await?;
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let mut ids = taken;
    ids.sort_unstable_by_key(|(_, place)| *place);
    let ids: Vec<JobId> = ids.into_iter().map(|(id, _)| id).collect();
    jobs::get_in_order(conn, owner, &ids).await
}

fn statement(owner: UserId, holder: Holder, wanted: &Acquire) -> QueryBuilder<Postgres> {
    let order = Order::of(wanted).columns();
    let mut sql = QueryBuilder::new(
        "with candidate as materialized (select id, priority, num_nodes, node_packing_count, wall_time_min \
         from jobs where session_id is null and site_id = ",
    );
    // The Site is the Session's, so its owner is the Session's.
    sql.push_bind(holder.site_id);
    push_states(&mut sql, &wanted.states);
    Scope { owner, site: None, batch_job: None }.push_visible(&mut sql, "jobs");
    if !wanted.filter_tags.is_empty() {
        // The index knows how common the tags are and finds rare ones; where they are common and
        // Jobs are read in order, the row itself tells sooner. The planner takes a CASE for a
        // coin's throw, and so does not count the same condition twice.
        sql.push(" and case when tags @> ").push_bind(Json(wanted.filter_tags.clone()));
        sql.push(" then true else false end");
        tags::push_have(&mut sql, "id", owner, &wanted.filter_tags);
    }
    if !wanted.app_ids.is_empty() {
        sql.push(" and app_id = any(").push_bind(wanted.app_ids.clone()).push(")");
    }
    if let Some(minutes) = wanted.max_wall_time_min.filter(|minutes| *minutes != 0) {
        sql.push(" and wall_time_min <= ").push_bind(minutes);
    }
    if let Some(nodes) = wanted.max_nodes_per_job.filter(|nodes| *nodes != 0) {
        sql.push(" and num_nodes <= ").push_bind(nodes);
    }
    if wanted.serial_only {
        sql.push(" and num_nodes = 1 and ranks_per_node = 1");
    }
    sql.push(" order by ").push(order).push(" limit ").push_bind(wanted.max_num_jobs);
    sql.push(" for no key update skip locked), placed as (select id, row_number() over (order by ").push(order);
    sql.push(") as place, sum(num_nodes::float8 / node_packing_count) over (order by ").push(order);
    sql.push(" rows unbounded preceding) as nodes from candidate) ");
    sql.push("update jobs j set session_id = ").push_bind(holder.id);
    sql.push(", batch_job_id = coalesce(").push_bind(holder.batch_job_id);
    sql.push("::bigint, j.batch_job_id), last_update = greatest(clock_timestamp(), j.last_update + interval '1 microsecond')");
    sql.push(" from placed p where j.id = p.id");
    if let Some(nodes) = wanted.max_aggregate_nodes {
        // Seven sevenths are a whole, whatever their sum in floating point is.
        sql.push(" and p.nodes <= ").push_bind(nodes + 1e-6);
    }
    sql.push(" returning j.id, p.place");
    sql
}

/// The states are spelled out where a partial index holds them, so that the planner can see it.
fn push_states(sql: &mut QueryBuilder<Postgres>, states: &[JobState]) {
    let within = |set: &[JobState]| states.iter().all(|state| set.contains(state));
    if within(RUNNABLE) {
        sql.push(" and state in ('PREPROCESSED', 'RESTART_READY')");
    } else if within(PROCESSABLE) {
        sql.push(" and state in ('STAGED_IN', 'RUN_DONE', 'RUN_ERROR', 'RUN_TIMEOUT')");
    }
    if !RUNNABLE.iter().all(|state| states.contains(state)) || !within(RUNNABLE) {
        sql.push(" and state = any(").push_bind(states.to_vec()).push(")");
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{SessionId, SiteId};

    use super::*;

    fn order(sort_by: Option<&str>, bounded: bool) -> Order {
        Order::of(&Acquire {
            sort_by: sort_by.map(str::to_owned),
            max_aggregate_nodes: bounded.then_some(1.0),
            ..Acquire::default()
        })
    }

    #[test]
    fn pitfall_111_an_acquire_without_an_order_takes_the_oldest() {
        assert_eq!(order(None, false), Order::Fifo);
        assert_eq!(order(None, true), Order::SmallFirst);
        assert_eq!(order(Some("unknown"), true), Order::SmallFirst);
        assert_eq!(order(Some("long_large_first"), false), Order::LongLargeFirst);
    }

    #[test]
    fn pitfall_112_the_claim_joins_nothing_and_names_the_states_of_its_index() {
        let holder = Holder { id: SessionId(1), site_id: SiteId(2), batch_job_id: None };
        let sql = statement(UserId(3), holder, &Acquire::default());
        let sql = sql.sql();
        let sql = sql.as_str();
        assert!(sql.contains("state in ('PREPROCESSED', 'RESTART_READY')"), "{sql}");
        assert!(!sql.contains(" join "), "{sql}");
        let hooks = Acquire { states: PROCESSABLE.to_vec(), ..Acquire::default() };
        assert!(statement(UserId(3), holder, &hooks).sql().as_str().contains("'RUN_TIMEOUT')"));
    }
}
