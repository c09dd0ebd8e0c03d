//! Which of a user's Jobs a list, count, update, cancel or delete means, and in which order.

use std::collections::BTreeMap;

use copal_schemas::{AppId, BatchJobId, JobId, JobState, SessionId, SiteId, StringMap, Timestamp};
use sqlx::{PgConnection, Postgres, QueryBuilder, types::Json};

use super::{refusals, scope::Scope, tags};
use crate::{error::ApiResult, extract::Paging};

/// Which Jobs are meant; everything empty means all of the user's.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// These Jobs.
    pub ids: Vec<JobId>,
    /// Children of these Jobs.
    pub parent_ids: Vec<JobId>,
    /// Of this App.
    pub app_id: Option<AppId>,
    /// At these Sites.
    pub site_ids: Vec<SiteId>,
    /// That ran in this BatchJob last.
    pub batch_job_id: Option<BatchJobId>,
    /// That this Session holds.
    pub session_id: Option<SessionId>,
    /// Of this array.
    pub array_id: Option<i64>,
    /// Changed at this time or before.
    pub last_update_before: Option<Timestamp>,
    /// Changed at this time or later.
    pub last_update_after: Option<Timestamp>,
    /// With this text in their workdir.
    pub workdir_contains: Option<String>,
    /// In any other state than this.
    pub state_ne: Option<JobState>,
    /// In these states.
    pub states: Vec<JobState>,
    /// With all of these tags.
    pub tags: StringMap,
    /// Where the file cleaner has not been.
    pub pending_file_cleanup: bool,
    /// But those that wait and that allocations of this queue gave back for good.
    pub not_given_back_in: Option<String>,
    /// Since when that counts.
    pub not_given_back_since: Option<Timestamp>,
    /// With this id or a greater one.
    pub id_from: Option<JobId>,
    /// With this id or a smaller one.
    pub id_to: Option<JobId>,
    /// Beyond this id. Only pages of a list heed it: it says where to go on, not which Jobs are meant, so that a client
    /// that reads a million Jobs never makes the service skip rows.
    pub after_id: Option<JobId>,
}

/// A column to order by; ids break ties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderBy {
    /// By id alone.
    #[default]
    Id,
    /// By the time of the last change.
    LastUpdate,
    /// By state, in the order of a Job's life.
    State,
    /// By workdir.
    Workdir,
}

/// The tables that a query reads: `jobs` as `j`, `job_details` as `d`.
///
/// Where a whole selection is read, the order of the two is given: with statistics from before many Jobs were made, the
/// planner takes either side for one row and compares each Job with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tables {
    Hot,
    Cold,
    /// As the planner finds best for a page in an order.
    Both,
    /// The other half of each that is found in `jobs`.
    HotFirst,
    /// The other half of each that is found in `job_details`.
    ColdFirst,
}

impl JobFilter {
    /// A page of the ids of the Jobs in an order.
    ///
    /// # Errors
    /// The database's.
    pub async fn ids(
        &self,
        conn: &mut PgConnection,
        scope: Scope,
        order: (OrderBy, bool),
        paging: Paging,
    ) -> ApiResult<Vec<JobId>> {
        Ok(self.ids_query(scope, order, paging).build_query_scalar().fetch_all(conn).await?)
    }

    fn ids_query(&self, scope: Scope, (by, descending): (OrderBy, bool), paging: Paging) -> QueryBuilder<Postgres> {
        let tables = self.tables(by);
        let way = if descending { " desc" } else { "" };
        let mut sql;
        if by == OrderBy::Id && self.states.len() > 1 {
            // One index range a state, each in the order of ids: otherwise all Jobs of all the
            // states are read and sorted for a page.
            sql = QueryBuilder::new("select id from (");
            for (index, state) in self.states.iter().enumerate() {
                sql.push(if index > 0 { " union all (select " } else { "(select " }).push(tables.id()).push(" as id");
                let one = Self { states: vec![*state], ..self.clone() };
                one.push_from(&mut sql, tables, scope);
                self.push_after(&mut sql, tables);
                sql.push(" order by ").push(tables.id()).push(way);
                sql.push(" limit ").push_bind(paging.limit.saturating_add(paging.offset)).push(")");
            }
            sql.push(") as pages order by id").push(way);
        } else {
            sql = QueryBuilder::new("select ");
            sql.push(tables.id()).push(" as id");
            self.push_from(&mut sql, tables, scope);
            self.push_after(&mut sql, tables);
            sql.push(" order by ");
            match by {
                OrderBy::Id => sql.push(tables.id()).push(way),
                OrderBy::LastUpdate => sql.push("j.last_update").push(way).push(", j.id"),
                OrderBy::State => sql.push("j.state").push(way).push(", j.id"),
                OrderBy::Workdir => sql.push("d.workdir").push(way).push(", d.job_id"),
            };
        }
        sql.push(" limit ").push_bind(paging.limit).push(" offset ").push_bind(paging.offset);
        sql
    }

    fn push_after(&self, sql: &mut QueryBuilder<Postgres>, tables: Tables) {
        if let Some(after) = self.after_id {
            sql.push(" and ").push(tables.id()).push(" > ").push_bind(after);
        }
    }

    /// Up to `limit` of the ids of the Jobs beyond `after`, in their order.
    ///
    /// # Errors
    /// The database's.
    pub async fn ids_after(
        &self,
        conn: &mut PgConnection,
        scope: Scope,
        after: JobId,
        limit: i64,
    ) -> ApiResult<Vec<JobId>> {
        let tables = self.tables(OrderBy::Id);
        let mut sql = QueryBuilder::new("select ");
        sql.push(tables.id()).push(" as id");
        self.push_from(&mut sql, tables, scope);
        sql.push(" and ").push(tables.id()).push(" > ").push_bind(after);
        sql.push(" order by ").push(tables.id()).push(" limit ").push_bind(limit);
        Ok(sql.build_query_scalar().fetch_all(conn).await?)
    }

    /// Those of locked Jobs that match: others may have changed them before they could be locked.
    ///
    /// # Errors
    /// The database's.
    pub async fn still(&self, conn: &mut PgConnection, scope: Scope, locked: Vec<JobId>) -> ApiResult<Vec<JobId>> {
        let most = i64::try_from(locked.len()).unwrap_or(i64::MAX);
        Self { ids: locked, ..self.clone() }.ids_after(conn, scope, JobId(0), most).await
    }

    /// How many Jobs match.
    ///
    /// # Errors
    /// The database's.
    pub async fn count(&self, conn: &mut PgConnection, scope: Scope) -> ApiResult<i64> {
        if !self.is_tallied() {
            return self.count_rows(conn, scope, false).await;
        }
        let (counts, has_odd) = self.tallies(&mut *conn, scope).await?;
        let odd = if has_odd { self.count_rows(conn, scope, true).await? } else { 0 };
        Ok(counts.values().sum::<i64>() + odd)
    }

    async fn count_rows(&self, conn: &mut PgConnection, scope: Scope, only_odd: bool) -> ApiResult<i64> {
        let mut sql = QueryBuilder::new("select count(*)");
        self.push_from(&mut sql, self.tables(OrderBy::Id), scope);
        sql.push(if only_odd { " and j.tag_set = 0" } else { "" });
        Ok(sql.build_query_scalar().fetch_one(conn).await?)
    }

    /// How many Jobs match, by state.
    ///
    /// # Errors
    /// The database's.
    pub async fn count_by_state(&self, conn: &mut PgConnection, scope: Scope) -> ApiResult<BTreeMap<JobState, i64>> {
        if !self.is_tallied() {
            return self.count_rows_by_state(conn, scope, false).await;
        }
        let (mut counts, has_odd) = self.tallies(&mut *conn, scope).await?;
        if has_odd {
            for (state, jobs) in self.count_rows_by_state(conn, scope, true).await? {
                *counts.entry(state).or_default() += jobs;
            }
        }
        counts.retain(|_, jobs| *jobs != 0);
        Ok(counts)
    }

    async fn count_rows_by_state(
        &self,
        conn: &mut PgConnection,
        scope: Scope,
        only_odd: bool,
    ) -> ApiResult<BTreeMap<JobState, i64>> {
        let mut sql = QueryBuilder::new("select j.state, count(*)");
        let tables = match self.tables(OrderBy::Id) {
            Tables::Cold if self.array_id.is_none() && self.workdir_contains.is_none() => Tables::Hot,
            Tables::Cold => self.both(),
            tables => tables,
        };
        self.push_from(&mut sql, tables, scope);
        sql.push(if only_odd { " and j.tag_set = 0" } else { "" }).push(" group by j.state");
        let counts: Vec<(JobState, i64)> = sql.build_query_as().fetch_all(conn).await?;
        Ok(counts.into_iter().collect())
    }

    /// Whether nothing but Sites, Apps, states and tags is asked, which the tallies know.
    fn is_tallied(&self) -> bool {
        let but_tags = Self { tags: StringMap::new(), ..self.clone() };
        !but_tags.has_hot_conditions()
            && !self.has_cold_conditions()
            && self.ids.is_empty()
            && self.id_from.is_none()
            && self.id_to.is_none()
    }

    /// The counts by state from the tallies, and whether there are Jobs besides whose tags they do not know.
    async fn tallies(&self, conn: &mut PgConnection, scope: Scope) -> ApiResult<(BTreeMap<JobState, i64>, bool)> {
        const SQL: &str = "select state, coalesce(sum(jobs) filter (where $7::jsonb = '{}' or tag_set in \
             (select tag_set from tag_sets where owner_id = $1 and tags @> $7)), 0)::bigint, \
             coalesce(sum(jobs) filter (where $7::jsonb <> '{}' and tag_set = 0), 0)::bigint \
             from job_tallies where owner_id = $1 \
             and ($2::bigint is null or site_id = $2) and ($3::bigint[] = '{}' or site_id = any($3)) \
             and ($4::bigint is null or app_id = $4) and ($5::job_state[] = '{}' or state = any($5)) \
             and state is distinct from $6 \
             and app_id <> all(array(select app_id from deleted_apps where owner_id = $1)) group by state";
        let rows: Vec<(JobState, i64, i64)> = sqlx::query_as(SQL)
            .bind(scope.owner)
            .bind(scope.site)
            .bind(&self.site_ids)
            .bind(self.app_id)
            .bind(&self.states)
            .bind(self.state_ne)
            .bind(Json(&self.tags))
            .fetch_all(conn)
            .await?;
        let has_odd = rows.iter().any(|(.., odd)| *odd != 0);
        let counts = rows.into_iter().filter(|(_, jobs, _)| *jobs != 0).map(|(state, jobs, _)| (state, jobs));
        Ok((counts.collect(), has_odd))
    }

    fn has_hot_conditions(&self) -> bool {
        self.batch_job_id.is_some()
            || self.session_id.is_some()
            || self.last_update_before.is_some()
            || self.last_update_after.is_some()
            || !self.tags.is_empty()
            || self.pending_file_cleanup
            || self.not_given_back_in.is_some()
    }

    fn has_cold_conditions(&self) -> bool {
        self.workdir_contains.is_some() || self.array_id.is_some() || !self.parent_ids.is_empty()
    }

    /// Plain lists read the cold half, whose indexes no state change touches.
    fn tables(&self, by: OrderBy) -> Tables {
        let hot = self.has_hot_conditions() || !self.states.is_empty() || self.state_ne.is_some();
        let cold = self.workdir_contains.is_some() || self.array_id.is_some();
        match by {
            OrderBy::Id | OrderBy::Workdir if !hot => Tables::Cold,
            OrderBy::Workdir => Tables::Both,
            OrderBy::Id if cold => self.both(),
            _ if cold => Tables::Both,
            _ => Tables::Hot,
        }
    }

    /// An array is a range of an index of `job_details`; a text in the workdir is looked for in the Jobs that are left.
    fn both(&self) -> Tables {
        if self.array_id.is_some() { Tables::ColdFirst } else { Tables::HotFirst }
    }

    fn push_from(&self, sql: &mut QueryBuilder<Postgres>, tables: Tables, scope: Scope) {
        let t = match tables {
            Tables::Hot => {
                sql.push(" from jobs j");
                "j"
            }
            Tables::Cold => {
                sql.push(" from job_details d");
                "d"
            }
            Tables::Both => {
                sql.push(" from jobs j join job_details d on d.job_id = j.id");
                "j"
            }
            Tables::HotFirst => {
                sql.push(" from jobs j cross join lateral (select * from job_details where job_id = j.id offset 0) d");
                "j"
            }
            Tables::ColdFirst => {
                sql.push(" from job_details d cross join lateral (select * from jobs where id = d.job_id offset 0) j");
                "d"
            }
        };
        let id = tables.id();
        sql.push(" where ");
        scope.push(sql, t);
        scope.push_visible(sql, t);
        if !self.ids.is_empty() {
            sql.push(" and ").push(id).push(" = any(").push_bind(self.ids.clone()).push(")");
        }
        if let Some(first) = self.id_from {
            sql.push(" and ").push(id).push(" >= ").push_bind(first);
        }
        if let Some(last) = self.id_to {
            sql.push(" and ").push(id).push(" <= ").push_bind(last);
        }
        if !self.parent_ids.is_empty() {
            sql.push(" and ").push(id).push(" in (select child_id from job_edges where parent_id = any(");
            sql.push_bind(self.parent_ids.clone()).push("))");
        }
        if let Some(app) = self.app_id {
            sql.push(" and ").push(t).push(".app_id = ").push_bind(app);
        }
        match self.site_ids.as_slice() {
            [] => {}
            // An equality keeps the order of an index.
            [site] => {
                sql.push(" and ").push(t).push(".site_id = ").push_bind(*site);
            }
            sites => {
                sql.push(" and ").push(t).push(".site_id = any(").push_bind(sites.to_vec()).push(")");
            }
        }
        if let Some(batch_job) = self.batch_job_id {
            sql.push(" and j.batch_job_id = ").push_bind(batch_job);
        }
        if let Some(session) = self.session_id {
            sql.push(" and j.session_id = ").push_bind(session);
        }
        if let Some(time) = self.last_update_before {
            sql.push(" and j.last_update <= ").push_bind(time);
        }
        if let Some(time) = self.last_update_after {
            sql.push(" and j.last_update >= ").push_bind(time);
        }
        if let Some(text) = &self.workdir_contains {
            sql.push(" and strpos(d.workdir, ").push_bind(text.clone()).push(") > 0");
        }
        if let Some(array) = self.array_id {
            sql.push(" and d.array_id = ").push_bind(array);
        }
        match self.states.as_slice() {
            [] => {}
            [state] => {
                sql.push(" and j.state = ").push_bind(*state);
            }
            states => {
                sql.push(" and j.state = any(").push_bind(states.to_vec()).push(")");
            }
        }
        if let Some(state) = self.state_ne {
            sql.push(" and j.state <> ").push_bind(state);
        }
        tags::push_have(sql, "j.id", scope.owner, &self.tags);
        if self.pending_file_cleanup {
            sql.push(" and j.pending_file_cleanup");
        }
        if let Some(queue) = &self.not_given_back_in {
            sql.push(" and (j.state = 'RUNNING' or j.id <> all(array");
            refusals::push_unfit(sql, scope.owner, queue, self.not_given_back_since);
            sql.push("))");
        }
    }
}

impl Tables {
    fn id(self) -> &'static str {
        match self {
            Self::Hot | Self::Both | Self::HotFirst => "j.id",
            Self::Cold | Self::ColdFirst => "d.job_id",
        }
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::UserId;

    use super::*;

    #[test]
    fn plain_lists_read_the_cold_half() {
        let plain = JobFilter { site_ids: vec![SiteId(1)], ..JobFilter::default() };
        assert_eq!(plain.tables(OrderBy::Id), Tables::Cold);
        assert_eq!(plain.tables(OrderBy::LastUpdate), Tables::Hot);
        let by_state = JobFilter { states: vec![JobState::Failed], ..JobFilter::default() };
        assert_eq!(by_state.tables(OrderBy::Id), Tables::Hot);
        assert_eq!(by_state.tables(OrderBy::Workdir), Tables::Both);
        let by_text = JobFilter { workdir_contains: Some("x".into()), ..by_state };
        assert_eq!(by_text.tables(OrderBy::Id), Tables::HotFirst);
        let by_array = JobFilter { array_id: Some(1), ..by_text };
        assert_eq!(by_array.tables(OrderBy::Id), Tables::ColdFirst);
        assert_eq!(by_array.tables(OrderBy::LastUpdate), Tables::Both);
    }

    #[test]
    fn every_query_is_bound_to_the_owner_and_the_site() {
        let scope = Scope { owner: UserId(1), site: Some(SiteId(2)), batch_job: None };
        let filters = [
            JobFilter::default(),
            JobFilter { states: vec![JobState::Failed, JobState::Running], ..JobFilter::default() },
        ];
        for filter in filters {
            for by in [OrderBy::Id, OrderBy::LastUpdate, OrderBy::State, OrderBy::Workdir] {
                let sql = filter.ids_query(scope, (by, true), Paging { limit: 10, offset: 0 });
                let sql = sql.sql();
                let queries =
                    sql.as_str().matches(" from jobs j").count() + sql.as_str().matches(" from job_details d").count();
                assert!(queries > 0);
                assert_eq!(sql.as_str().matches(".owner_id = $").count(), queries, "{by:?}");
                assert_eq!(sql.as_str().matches(".site_id = $").count(), queries, "{by:?}");
            }
        }
    }
}
