//! A Session claims Jobs: one SKIP LOCKED statement on the partial index of its order, or of its order
//! within a tag set (contract, section 8), or on that of kinds where the first Jobs in the order do not fit.

use copal_schemas::{
    JobState, SessionId, SiteId,
    job::Job,
    job_state::{PROCESSABLE, RUNNABLE},
    session::Acquire,
};
use sqlx::{PgConnection, Postgres, QueryBuilder, types::Json};

use super::{
    jobs::{JobRow, job_columns},
    kinds::{self, Kinds},
    scope::Scope,
    sessions,
    tag_sets::{self, Matching, Odd},
    tags,
};
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

/// What an acquire found.
#[derive(Debug)]
pub enum Acquired {
    /// These, which the Session holds now, in the order of the acquire.
    Jobs(Vec<Job>),
    /// None at this Site.
    Nothing(SiteId),
}

/// Jobs in the order that are looked at before it is followed; twice as many as are wanted where that is more.
const LOOK: i64 = 200;

/// Notes a sign of life of the Session and locks up to `max_num_jobs` Jobs that fit for it. Never waits for
/// another transaction and never takes what another one takes. One statement that writes, so it needs no transaction
/// around it; with tags one more comes before, which only reads. Where the first Jobs in the order do not fit it takes
/// none, and three more find out which kinds do and take of them.
///
/// # Errors
/// `session_ended` when the user has no such Session (any more).
pub async fn acquire(
    conn: &mut PgConnection,
    scope: Scope,
    session: SessionId,
    wanted: &Acquire,
) -> ApiResult<Acquired> {
    if wanted.states.is_empty() {
        return Ok(Acquired::Nothing(sessions::beat(conn, scope, session).await?.site_id));
    }
    let tagged = if wanted.filter_tags.is_empty() {
        Tagged::All
    } else if is_within(&wanted.states, RUNNABLE) {
        let most = wanted.max_num_jobs;
        Tagged::In(tag_sets::matching(&mut *conn, scope, session, &wanted.filter_tags, most).await?)
    } else {
        Tagged::ByRow
    };
    let kinds_matter = kinds::matter(wanted) && !matches!(&tagged, Tagged::In(found) if found.sets.is_empty());
    let in_order = Candidates::in_order(&tagged, kinds_matter);
    let mut jobs = Vec::new();
    // Several sets have no order of their own that could be looked at.
    let has_looked = !kinds_matter || matches!(in_order, Candidates::InOrder { .. });
    if has_looked {
        jobs = claim(&mut *conn, scope, session, wanted, &in_order).await?;
    }
    if !jobs.is_empty() {
        return Ok(Acquired::Jobs(jobs));
    }
    let holder = sessions::get(&mut *conn, scope, session).await?;
    if kinds_matter {
        let (sets, odd) = match &tagged {
            Tagged::In(Matching { sets, odd }) => (Some(sets.as_slice()), *odd),
            Tagged::All | Tagged::ByRow => (None, Odd::None),
        };
        let order = Order::of(wanted).columns();
        let candidates = match kinds::fitting(&mut *conn, scope, holder, wanted, order, sets).await? {
            // Nothing can fit, and the look was the sign of life.
            Some(kinds) if has_looked && kinds.is_empty() && odd == Odd::None => {
                return Ok(Acquired::Nothing(holder.site_id));
            }
            Some(kinds) => Candidates::Best(Groups::Kinds(kinds), odd),
            None => Candidates::in_order(&tagged, false),
        };
        jobs = claim(conn, scope, session, wanted, &candidates).await?;
    }
    Ok(if jobs.is_empty() { Acquired::Nothing(holder.site_id) } else { Acquired::Jobs(jobs) })
}

async fn claim(
    conn: &mut PgConnection,
    scope: Scope,
    session: SessionId,
    wanted: &Acquire,
    candidates: &Candidates,
) -> ApiResult<Vec<Job>> {
    let mut claim = Claim { scope, wanted, order: Order::of(wanted).columns(), sql: QueryBuilder::new("") };
    claim.build(session, candidates);
    let rows: Vec<JobRow> = claim.sql.build_query_as().fetch_all(conn).await?;
    Ok(rows.into_iter().map(Job::from).collect())
}

/// How the wanted tags are found.
enum Tagged {
    /// None are wanted.
    All,
    /// In tag sets, whose Jobs the partial indexes of migration 0008 have in order.
    In(Matching),
    /// Row by row, for Jobs that are no launcher's.
    ByRow,
}

/// Where the Jobs to take are looked for.
enum Candidates {
    /// In the order, among these. With `look` only where the first ones are enough, or all that there are.
    InOrder { among: Among, look: bool },
    /// The best of several groups, and of the odd ones.
    Best(Groups, Odd),
}

/// Jobs that an index has together, in the order of the acquire.
enum Groups {
    Sets(Vec<i64>),
    Kinds(Kinds),
}

impl Candidates {
    fn in_order(tagged: &Tagged, look: bool) -> Self {
        let among = match tagged {
            Tagged::All => Among::All,
            Tagged::ByRow => Among::WithTags,
            Tagged::In(Matching { sets, odd: Odd::None }) if sets.len() == 1 => Among::Set(sets[0]),
            Tagged::In(Matching { sets, odd }) if sets.is_empty() => Among::Odd(*odd),
            Tagged::In(Matching { sets, odd }) => return Self::Best(Groups::Sets(sets.clone()), *odd),
        };
        Self::InOrder { among, look }
    }
}

/// Among which Jobs of the Site to pick.
#[derive(Clone, Copy)]
enum Among {
    All,
    /// One tag set.
    Set(i64),
    /// The tag set `g.tag_set`.
    SetOfGroup,
    /// The kind `g`.
    KindOfGroup,
    /// The odd ones.
    Odd(Odd),
    /// Those whose row has the tags.
    WithTags,
}

/// What is read of a Job to place it.
const PICKED: &str = "id, tag_set, app_id, priority, num_nodes, ranks_per_node, node_packing_count, wall_time_min";

/// The statement, in the making.
struct Claim<'a> {
    scope: Scope,
    wanted: &'a Acquire,
    order: &'static str,
    sql: QueryBuilder<Postgres>,
}

impl Claim<'_> {
    fn build(&mut self, session: SessionId, candidates: &Candidates) {
        let order = self.order;
        self.sql.push("with holder as (");
        sessions::push_beat(&mut self.sql, self.scope, session);
        self.sql.push("), ");
        match candidates {
            Candidates::InOrder { among, look } => self.push_candidates(*among, *look),
            Candidates::Best(groups, odd) => self.push_best(groups, *odd),
        }
        self.sql.push(", placed as (select id, row_number() over (order by ").push(order);
        self.sql.push(") as place, sum(num_nodes::float8 / node_packing_count) over (order by ").push(order);
        self.sql.push(" rows unbounded preceding) as nodes from candidate), ");
        self.sql.push(
            "taken as (update jobs j set session_id = h.id, batch_job_id = coalesce(h.batch_job_id, j.batch_job_id), ",
        );
        self.sql.push("last_update = greatest(clock_timestamp(), j.last_update + interval '1 microsecond')");
        self.sql.push(" from placed p, holder h where j.id = p.id");
        if let Some(nodes) = self.wanted.max_aggregate_nodes {
            // Seven sevenths are a whole, whatever their sum in floating point is.
            self.sql.push(" and p.nodes <= ").push_bind(nodes + 1e-6);
        }
        self.sql.push(concat!(" returning j.*, p.place) select ", job_columns!()));
        self.sql.push(" from taken j join job_details d on d.job_id = j.id order by j.place");
    }

    fn push_candidates(&mut self, among: Among, look: bool) {
        let (order, most) = (self.order, self.wanted.max_num_jobs);
        if look {
            let first = (2 * most).max(LOOK);
            self.sql.push("look as (select (select count(*) from (select from (");
            self.push_free(among);
            self.sql.push(" order by ").push(order).push(" limit ").push_bind(first).push(") first where true");
            kinds::push_fits(&mut self.sql, self.wanted);
            self.sql.push(" limit ").push_bind(most).push(") fitting) >= ").push_bind(most);
            self.sql.push(" or (select count(*) from (");
            self.push_free(among);
            self.sql.push(" limit ").push_bind(first).push(") all_free) < ").push_bind(first);
            self.sql.push(" as in_order), ");
        }
        self.sql.push("candidate as materialized (");
        self.push_pick(among, order, if look { " and (select in_order from look)" } else { "" });
        self.sql.push(" limit ").push_bind(most).push(" for no key update skip locked)");
    }

    /// The best of several groups. They are looked for first and then locked, group by group, as many as are among the
    /// best: where another Session was faster, those that follow in the group stand in for its.
    fn push_best(&mut self, groups: &Groups, odd: Odd) {
        let (order, most) = (self.order, self.wanted.max_num_jobs);
        let (among, in_group) = match groups {
            Groups::Sets(sets) => {
                self.sql.push("groups as (select * from unnest(").push_bind(sets.clone());
                self.sql.push("::bigint[]) with ordinality as u(tag_set, number))");
                (Among::SetOfGroup, order)
            }
            Groups::Kinds(kinds) => {
                self.sql.push("groups as (select * from unnest(").push_bind(kinds.tag_sets.clone());
                self.sql.push("::bigint[], ").push_bind(kinds.app_ids.clone());
                self.sql.push("::bigint[], ").push_bind(kinds.num_nodes.clone());
                self.sql.push("::int[], ").push_bind(kinds.ranks_per_node.clone());
                self.sql.push("::int[], ").push_bind(kinds.wall_time_min.clone());
                self.sql.push("::int[], ").push_bind(kinds.node_packing_count.clone());
                self.sql.push("::int[]) with ordinality as u(tag_set, app_id, num_nodes, ranks_per_node, ");
                self.sql.push("wall_time_min, node_packing_count, number))");
                (Among::KindOfGroup, "priority desc, id")
            }
        };
        self.sql.push(", first as (select g.number, c.* from groups g cross join lateral (");
        self.push_pick(among, in_group, "");
        self.sql.push(" limit ").push_bind(most).push(") c");
        if odd != Odd::None {
            self.sql.push(" union all select 0, * from (");
            self.push_pick(Among::Odd(odd), order, "");
            self.sql.push(" limit ").push_bind(most).push(" for no key update skip locked) odd");
        }
        self.sql.push("), best as (select * from first order by ").push(order).push(" limit ").push_bind(most);
        self.sql.push("), candidate as materialized (select c.* from (select number, count(*) as jobs from best ");
        self.sql.push("where number > 0 group by number) n join groups g using (number) cross join lateral (");
        self.push_pick(among, in_group, "");
        self.sql.push(" limit n.jobs for no key update skip locked) c");
        if odd != Odd::None {
            self.sql.push(" union all select ").push(PICKED).push(" from best where number = 0");
        }
        self.sql.push(")");
    }

    /// Jobs that the Session may take, in their order.
    fn push_pick(&mut self, among: Among, order: &str, only_if: &str) {
        self.push_free(among);
        // Every Job of a kind has what the kind was chosen for.
        if !matches!(among, Among::KindOfGroup) {
            kinds::push_fits(&mut self.sql, self.wanted);
        }
        self.sql.push(only_if);
        // Jobs that it gave back, which only few Sessions have.
        self.sql.push(" and (not (select has_refusals from holder) or not exists (select from job_refusals r ");
        self.sql.push("where r.session_id = (select id from holder) and r.job_id = jobs.id)) order by ").push(order);
    }

    /// The free ones among these Jobs, whether they fit or not.
    fn push_free(&mut self, among: Among) {
        let Self { scope, wanted, sql, .. } = self;
        sql.push("select ").push(PICKED).push(" from jobs ");
        // The Site is the Session's, so its owner is the Session's.
        sql.push("where session_id is null and site_id = (select site_id from holder)");
        push_states(sql, &wanted.states);
        Scope { owner: scope.owner, site: None, batch_job: None }.push_visible(sql, "jobs");
        match among {
            Among::All => {}
            Among::Set(set) => {
                sql.push(" and tag_set = ").push_bind(set).push(" and tag_set <> 1");
            }
            Among::SetOfGroup => {
                sql.push(" and jobs.tag_set = g.tag_set and jobs.tag_set <> 1");
            }
            Among::KindOfGroup => {
                sql.push(" and jobs.tag_set = g.tag_set and jobs.app_id = g.app_id and jobs.num_nodes = g.num_nodes ");
                sql.push("and jobs.ranks_per_node = g.ranks_per_node and jobs.wall_time_min = g.wall_time_min ");
                sql.push("and jobs.node_packing_count = g.node_packing_count");
            }
            Among::Odd(Odd::None) => {
                sql.push(" and false");
            }
            Among::Odd(Odd::InOrder) => {
                // The planner takes a CASE for a coin's throw, and so reads by the order.
                sql.push(" and tag_set = 0 and tag_set <> 1 and case when tags @> ");
                sql.push_bind(Json(wanted.filter_tags.clone())).push(" then true else false end");
            }
            Among::Odd(Odd::ByTag) => {
                sql.push(" and tag_set = 0 and id = any(array(");
                tags::push_jobs_with(sql, scope.owner, &wanted.filter_tags);
                sql.push("))");
            }
            Among::WithTags => {
                sql.push(" and tags @> ").push_bind(Json(wanted.filter_tags.clone()));
                tags::push_have(sql, "id", scope.owner, &wanted.filter_tags);
            }
        }
    }
}

fn is_within(states: &[JobState], set: &[JobState]) -> bool {
    states.iter().all(|state| set.contains(state))
}

/// The states are spelled out where a partial index holds them, so that the planner can see it.
fn push_states(sql: &mut QueryBuilder<Postgres>, states: &[JobState]) {
    let within = |set: &[JobState]| is_within(states, set);
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
    use copal_schemas::UserId;

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

    fn sql_of(wanted: &Acquire, tagged: &Tagged) -> String {
        let candidates = Candidates::in_order(tagged, kinds::matter(wanted));
        let scope = Scope { owner: UserId(3), site: None, batch_job: None };
        let mut claim = Claim { scope, wanted, order: Order::of(wanted).columns(), sql: QueryBuilder::new("") };
        claim.build(SessionId(1), &candidates);
        claim.sql.sql().as_str().to_owned()
    }

    #[test]
    fn pitfall_112_the_claim_joins_nothing_and_names_the_states_of_its_index() {
        let sql = sql_of(&Acquire::default(), &Tagged::All);
        let candidates = sql.split("candidate as").nth(1).unwrap().split("placed as").next().unwrap();
        assert!(candidates.contains("state in ('PREPROCESSED', 'RESTART_READY')"), "{sql}");
        assert!(!candidates.contains(" join "), "{sql}");
        let hooks = Acquire { states: PROCESSABLE.to_vec(), ..Acquire::default() };
        assert!(sql_of(&hooks, &Tagged::All).contains("'RUN_TIMEOUT')"));
    }

    #[test]
    fn one_tag_set_is_claimed_like_a_whole_site() {
        let tagged = Tagged::In(Matching { sets: vec![7], odd: Odd::None });
        let sql = sql_of(&Acquire::default(), &tagged);
        assert!(sql.contains("tag_set <> 1 and"), "the condition of the partial indexes: {sql}");
        assert!(!sql.contains("job_tags"), "{sql}");
    }
}
