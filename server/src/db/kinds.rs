//! Kinds: the Jobs of a Site that launchers may take now and that have the same tag set, App, nodes, ranks, minutes and
//! packing. What an acquire asks besides tags holds for a whole kind or for none of it, and within a kind every order
//! is that of priority and age. So an acquire for which the first Jobs in its order are no use goes from kind to kind,
//! in one index, and not through the Jobs of kinds that do not fit.

use copal_schemas::{job_state::RUNNABLE, session::Acquire};
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder};

use super::{scope::Scope, sessions::Holder};
use crate::error::ApiResult;

/// The most kinds that are looked at. A Site with more, where nearly each Job has minutes of its own, is read in order.
const MOST: i64 = 1_000;

/// Kinds, a column each.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Kinds {
    /// Their tag sets.
    pub tag_sets: Vec<i64>,
    /// Their Apps.
    pub app_ids: Vec<i64>,
    /// Their num_nodes.
    pub num_nodes: Vec<i32>,
    /// Their ranks_per_node.
    pub ranks_per_node: Vec<i32>,
    /// Their wall_time_min.
    pub wall_time_min: Vec<i32>,
    /// Their node_packing_count.
    pub node_packing_count: Vec<i32>,
}

impl Kinds {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tag_sets.is_empty()
    }
}

/// Whether an acquire of what launchers may take asks for something that only some kinds have.
#[must_use]
pub fn matter(wanted: &Acquire) -> bool {
    let runnable = wanted.states.iter().all(|state| RUNNABLE.contains(state))
        && RUNNABLE.iter().all(|state| wanted.states.contains(state));
    runnable
        && (!wanted.app_ids.is_empty()
            || most_minutes(wanted).is_some()
            || most_nodes(wanted).is_some()
            || wanted.serial_only)
}

/// The bound on the minutes; 0 is none.
fn most_minutes(wanted: &Acquire) -> Option<i32> {
    wanted.max_wall_time_min.filter(|minutes| *minutes != 0)
}

/// The bound on the nodes of a Job; 0 is none.
fn most_nodes(wanted: &Acquire) -> Option<i32> {
    wanted.max_nodes_per_job.filter(|nodes| *nodes != 0)
}

/// The conditions of an acquire on a kind, each after an `and`.
pub fn push_fits(sql: &mut QueryBuilder<Postgres>, wanted: &Acquire) {
    push_app_and_nodes_fit(sql, wanted);
    push_ranks_fit(sql, wanted);
    push_minutes_fit(sql, wanted);
}

fn push_app_and_nodes_fit(sql: &mut QueryBuilder<Postgres>, wanted: &Acquire) {
    if !wanted.app_ids.is_empty() {
        sql.push(" and app_id = any(").push_bind(wanted.app_ids.clone()).push(")");
    }
    if let Some(nodes) = most_nodes(wanted) {
        sql.push(" and num_nodes <= ").push_bind(nodes);
    }
    if wanted.serial_only {
        sql.push(" and num_nodes = 1");
    }
}

fn push_ranks_fit(sql: &mut QueryBuilder<Postgres>, wanted: &Acquire) {
    if wanted.serial_only {
        sql.push(" and ranks_per_node = 1");
    }
}

fn push_minutes_fit(sql: &mut QueryBuilder<Postgres>, wanted: &Acquire) {
    if let Some(minutes) = most_minutes(wanted) {
        sql.push(" and wall_time_min <= ").push_bind(minutes);
    }
}

/// The kinds that fit at a Session's Site, within these tag sets or in all, the best first in an order of acquire; as many as Jobs are
/// wanted, since more could not add to the best. `None` where there are too many to look at.
///
/// # Errors
/// The database's.
pub async fn fitting(
    conn: &mut PgConnection,
    scope: Scope,
    holder: Holder,
    wanted: &Acquire,
    order: &str,
    sets: Option<&[i64]>,
) -> ApiResult<Option<Kinds>> {
    #[derive(FromRow)]
    struct Found {
        seen: i64,
        #[sqlx(flatten)]
        kinds: Kinds,
    }
    let mut sql = QueryBuilder::new("with recursive walk as (");
    match sets {
        Some(sets) => {
            sql.push("select k.* from unnest(")
                .push_bind(sets.to_vec())
                .push("::bigint[]) as s(set) cross join lateral (");
            push_first(&mut sql, scope, holder, wanted);
            sql.push(" and tag_set = s.set");
        }
        None => {
            sql.push("select k.* from (");
            push_first(&mut sql, scope, holder, wanted);
        }
    }
    // The next kind, beyond all that do not fit for the same reason as this one.
    sql.push(BY_KIND).push(") k union all select k.* from walk w cross join lateral (");
    push_first(&mut sql, scope, holder, wanted);
    // An equality beside a comparison that begins with the same column would be all that the index is entered by.
    sql.push(match sets {
        Some(_) => " and tag_set = w.tag_set and (",
        None => " and (tag_set, ",
    });
    sql.push("app_id, num_nodes, ranks_per_node, wall_time_min, node_packing_count) > (");
    sql.push(if sets.is_some() { "" } else { "w.tag_set, " });
    sql.push(
        "w.app_id, \
         case when w.fits > 0 then w.num_nodes else 2147483647 end, \
         case when w.fits > 1 then w.ranks_per_node else 2147483647 end, \
         case when w.fits > 2 then w.wall_time_min else 2147483647 end, \
         case when w.fits > 2 then w.node_packing_count else 2147483647 end)",
    );
    sql.push(BY_KIND).push(") k), seen as materialized (select * from walk limit ").push_bind(MOST + 1);
    sql.push("), best as (select * from seen where fits = 3 order by ").push(order).push(" limit ");
    sql.push_bind(wanted.max_num_jobs);
    sql.push(") select (select count(*) from seen) as seen");
    for (column, name) in [
        ("tag_set", "tag_sets"),
        ("app_id", "app_ids"),
        ("num_nodes", "num_nodes"),
        ("ranks_per_node", "ranks_per_node"),
        ("wall_time_min", "wall_time_min"),
        ("node_packing_count", "node_packing_count"),
    ] {
        sql.push(", array(select ").push(column).push(" from best) as ").push(name);
    }
    let Found { seen, kinds } = sql.build_query_as().fetch_one(conn).await?;
    Ok((seen <= MOST).then_some(kinds))
}

/// The order of `jobs_runnable_kind_idx`, of which the first entry is read.
const BY_KIND: &str = " order by tag_set, app_id, num_nodes, ranks_per_node, wall_time_min, node_packing_count, \
     priority desc, id limit 1";

/// A Job and how far its kind fits: 0 by neither App and nodes, 1 not by its ranks, 2 not by its minutes, 3 in all.
fn push_first(sql: &mut QueryBuilder<Postgres>, scope: Scope, holder: Holder, wanted: &Acquire) {
    sql.push("select tag_set, app_id, num_nodes, ranks_per_node, wall_time_min, node_packing_count, priority, id, case when not (true");
    scope.push_visible(sql, "jobs");
    push_app_and_nodes_fit(sql, wanted);
    sql.push(") then 0 when not (true");
    push_ranks_fit(sql, wanted);
    sql.push(") then 1 when not (true");
    push_minutes_fit(sql, wanted);
    sql.push(") then 2 else 3 end as fits from jobs where session_id is null ");
    sql.push("and state in ('PREPROCESSED', 'RESTART_READY') and site_id = ").push_bind(holder.site_id);
    if holder.has_refusals {
        // A kind all of whose Jobs the Session gave back would take the place of one that it can have.
        sql.push(" and not exists (select from job_refusals r where r.session_id = ").push_bind(holder.id);
        sql.push(" and r.job_id = jobs.id)");
    }
}
