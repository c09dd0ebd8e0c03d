//! The graph: which Jobs wait for which, and what the end of a parent means to its children.
//!
//! Each edge keeps whether it is met, so that a child's status never needs its parents' rows: they
//! may be deleted. What a child does then is `transition`'s.

use std::collections::BTreeMap;

use copal_schemas::{
    JobId, JobState, JsonObject,
    job::{Dependency, DependencyKind, JobCreate},
    job_state::Dependencies,
};
use sqlx::PgConnection;

use super::{array_limit, scope::Scope};
use crate::error::{ApiError, ApiResult};

/// What the edges to a Job's parents say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    open: bool,
    /// A parent whose edge can never be met.
    culprit: Option<JobId>,
    /// Whether that parent was deleted.
    deleted: bool,
}

impl Status {
    /// As the lifecycle table reads it.
    #[must_use]
    pub fn as_dependencies(self) -> Dependencies {
        match self {
            Self { culprit: Some(_), .. } => Dependencies::Impossible,
            Self { open: true, .. } => Dependencies::Open,
            _ => Dependencies::Met,
        }
    }

    /// For the event of a Job that fails by this.
    #[must_use]
    pub fn reason(self) -> JsonObject {
        let mut data = JsonObject::new();
        if let Some(parent) = self.culprit {
            data.insert("reason".into(), "dependency".into());
            data.insert("parent_id".into(), parent.0.into());
            let message = match self.deleted {
                true => format!("Job {parent}, which this Job waited for, was deleted"),
                false => format!("Job {parent} did not end as this Job needs; restart {parent} to let this one run"),
            };
            data.insert("message".into(), message.into());
        }
        data
    }

    /// The same for a Job whose turn in its array is yet to come.
    #[must_use]
    pub fn before_its_turn(self) -> Self {
        Self { open: true, ..self }
    }

    /// One more edge.
    fn add(&mut self, parent: JobId, met: Option<bool>) {
        match met {
            None => self.open = true,
            Some(true) => {}
            Some(false) => self.culprit = self.culprit.or(Some(parent)),
        }
    }
}

/// A parent that came to an end or left one.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The parent.
    pub parent: JobId,
    /// Whether it is JOB_FINISHED; `None` when it is at no end any more.
    pub finished: Option<bool>,
    /// Whether it was at an end before.
    pub was_at_end: bool,
}

/// Whether an edge is met by a parent in this state; `None` while that is open.
#[must_use]
pub fn is_met(kind: DependencyKind, parent: JobState) -> Option<bool> {
    let finished = match parent {
        JobState::JobFinished => true,
        JobState::Failed => false,
        _ => return None,
    };
    Some(match kind {
        DependencyKind::AfterOk => finished,
        DependencyKind::AfterNotOk => !finished,
        DependencyKind::AfterAny => true,
    })
}

/// What the edges of these Jobs say. Jobs without edges are missing.
///
/// # Errors
/// The database's.
pub async fn statuses(conn: &mut PgConnection, children: &[JobId]) -> ApiResult<BTreeMap<JobId, Status>> {
    if children.is_empty() {
        return Ok(BTreeMap::new());
    }
    const SQL: &str = "select e.child_id, e.open, e.culprit, \
         e.culprit is not null and not exists (select from jobs j where j.id = e.culprit) as deleted \
         from (select child_id, coalesce(bool_or(met is null), false) as open, \
         min(parent_id) filter (where met = false) as culprit \
         from job_edges where child_id = any($1) group by child_id) as e";
    let rows: Vec<(JobId, bool, Option<JobId>, bool)> = sqlx::query_as(SQL).bind(children).fetch_all(conn).await?;
    let statuses = rows.into_iter().map(|(child, open, culprit, deleted)| (child, Status { open, culprit, deleted }));
    Ok(statuses.collect())
}

/// Writes to the edges what became of their parents. Gives the children in the order of their ids, and with them the
/// Jobs whose turn it is in an array with a limit.
///
/// # Errors
/// The database's.
pub async fn record(conn: &mut PgConnection, ended: &[Ended]) -> ApiResult<Vec<JobId>> {
    const SQL: &str = "update job_edges e set met = case when u.finished is null then null \
         when e.kind = 'afterany' then true when e.kind = 'afterok' then u.finished else not u.finished end \
         from unnest($1::bigint[], $2::bool[]) as u(parent_id, finished) where e.parent_id = u.parent_id \
         returning e.child_id";
    let parents: Vec<JobId> = ended.iter().map(|end| end.parent).collect();
    let finished: Vec<Option<bool>> = ended.iter().map(|end| end.finished).collect();
    let mut children: Vec<JobId> = sqlx::query_scalar(SQL).bind(parents).bind(finished).fetch_all(&mut *conn).await?;
    let places = array_limit::places_of(&mut *conn, ended).await?;
    children.extend(array_limit::turns(conn, &places).await?);
    children.sort_unstable();
    children.dedup();
    Ok(children)
}

/// Closes the open edges of parents that are about to be deleted: they can't be met any more.
/// Gives the children in the order of their ids.
///
/// # Errors
/// The database's.
pub async fn record_deleted(conn: &mut PgConnection, parents: &[JobId]) -> ApiResult<Vec<JobId>> {
    const SQL: &str = "update job_edges set met = false where parent_id = any($1) and met is null returning child_id";
    let mut children: Vec<JobId> = sqlx::query_scalar(SQL).bind(parents).fetch_all(conn).await?;
    children.sort_unstable();
    children.dedup();
    Ok(children)
}

/// The edges of Jobs that are being created.
#[derive(Debug, Default)]
pub struct NewEdges {
    /// By place in the call.
    pub statuses: Vec<Status>,
    edges: Vec<(usize, Dependency, Option<bool>)>,
}

/// All dependencies that a new Job asks for, each once.
#[must_use]
pub fn asked(job: &JobCreate) -> Vec<Dependency> {
    let afterok = job.parent_ids.iter().map(|job_id| Dependency { job_id: *job_id, kind: DependencyKind::AfterOk });
    let mut all: Vec<Dependency> = Vec::new();
    for dependency in afterok.chain(job.dependencies.iter().copied()) {
        if !all.contains(&dependency) {
            all.push(dependency);
        }
    }
    all
}

/// Locks the parents of new Jobs, so that none ends unseen meanwhile, and looks at their states.
///
/// # Errors
/// 404 when a parent does not exist or is not this user's.
pub async fn prepare(conn: &mut PgConnection, scope: Scope, jobs: &[JobCreate]) -> ApiResult<NewEdges> {
    let mut new = NewEdges { statuses: vec![Status::default(); jobs.len()], edges: Vec::new() };
    let asked: Vec<(usize, Dependency)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(index, job)| asked(job).into_iter().map(move |dependency| (index, dependency)))
        .collect();
    if asked.is_empty() {
        return Ok(new);
    }
    let mut parents: Vec<JobId> = asked.iter().map(|(_, dependency)| dependency.job_id).collect();
    parents.sort_unstable();
    parents.dedup();
    const LOCK: &str = "select id, state, has_children from jobs where id = any($1) and owner_id = $2 \
         and ($3::bigint is null or site_id = $3) and app_id <> all(array(select app_id from deleted_apps where owner_id = $2)) order by id for no key update";
    let rows: Vec<(JobId, JobState, bool)> =
        sqlx::query_as(LOCK).bind(&parents).bind(scope.owner).bind(scope.site).fetch_all(&mut *conn).await?;
    let states: BTreeMap<JobId, JobState> = rows.iter().map(|(id, state, _)| (*id, *state)).collect();
    for (index, dependency) in asked {
        let Some(state) = states.get(&dependency.job_id) else {
            return Err(ApiError::not_found(format!("parent Job {} of item {index}", dependency.job_id)));
        };
        let met = is_met(dependency.kind, *state);
        new.statuses[index].add(dependency.job_id, met);
        new.edges.push((index, dependency, met));
    }
    let first_children: Vec<JobId> = rows.iter().filter(|(_, _, has)| !has).map(|(id, ..)| *id).collect();
    if !first_children.is_empty() {
        const MARK: &str = "update jobs set has_children = true where id = any($1)";
        sqlx::query(MARK).bind(first_children).execute(conn).await?;
    }
    Ok(new)
}

impl NewEdges {
    /// Those of the Job at this place of the call, and whether each is met.
    #[must_use]
    pub fn of(&self, place: usize) -> Vec<(Dependency, Option<bool>)> {
        self.edges.iter().filter(|(index, ..)| *index == place).map(|(_, edge, met)| (*edge, *met)).collect()
    }

    /// Writes the edges; `ids` are those of the new Jobs in the order of the call.
    ///
    /// # Errors
    /// The database's.
    pub async fn insert(self, conn: &mut PgConnection, ids: &[JobId]) -> ApiResult<()> {
        if self.edges.is_empty() {
            return Ok(());
        }
        const SQL: &str = "insert into job_edges (parent_id, child_id, kind, met) \
             select * from unnest($1::bigint[], $2::bigint[], $3::dependency_kind[], $4::bool[])";
        let edges = &self.edges;
        sqlx::query(SQL)
            .bind(edges.iter().map(|(_, dependency, _)| dependency.job_id).collect::<Vec<_>>())
            .bind(edges.iter().map(|(index, ..)| ids[*index]).collect::<Vec<_>>())
            .bind(edges.iter().map(|(_, dependency, _)| dependency.kind).collect::<Vec<_>>())
            .bind(edges.iter().map(|(.., met)| *met).collect::<Vec<_>>())
            .execute(conn)
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_parent_decides_by_kind() {
        use DependencyKind::{AfterAny, AfterNotOk, AfterOk};
        let met = |kind| (is_met(kind, JobState::JobFinished), is_met(kind, JobState::Failed));
        assert_eq!(met(AfterOk), (Some(true), Some(false)));
        assert_eq!(met(AfterNotOk), (Some(false), Some(true)));
        assert_eq!(met(AfterAny), (Some(true), Some(true)));
        for state in JobState::ALL.iter().filter(|state| !state.is_terminal()) {
            assert_eq!(is_met(AfterAny, *state), None);
        }
    }

    #[test]
    fn one_impossible_edge_outweighs_all_others() {
        let mut status = Status::default();
        assert_eq!(status.as_dependencies(), Dependencies::Met);
        status.add(JobId(1), Some(true));
        assert_eq!(status.as_dependencies(), Dependencies::Met);
        status.add(JobId(2), None);
        assert_eq!(status.as_dependencies(), Dependencies::Open);
        status.add(JobId(3), Some(false));
        assert_eq!(status.as_dependencies(), Dependencies::Impossible);
        assert_eq!(status.reason()["parent_id"], 3);
    }

    #[test]
    fn a_dependency_named_twice_is_one() {
        let mut job = JobCreate::new(copal_schemas::AppId(1), "a");
        job.parent_ids = vec![JobId(1), JobId(1)];
        job.dependencies = vec![
            Dependency { job_id: JobId(1), kind: DependencyKind::AfterOk },
            Dependency { job_id: JobId(1), kind: DependencyKind::AfterAny },
        ];
        assert_eq!(asked(&job).len(), 2);
    }
}
