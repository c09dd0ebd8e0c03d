//! Which Jobs are meant: one grammar for every verb of `copal job`, so that what `rm` deletes is
//! what `ls` lists.

use std::collections::BTreeMap;

use copal_client::{
    Client, ClientError,
    api::{JobQuery, StreamQuery},
};
use copal_schemas::{BatchJobId, JobId, JobState, StringMap, job::Job};

use crate::{
    args::job::Selection,
    context::{Context, SelectedSites},
    failure::{Failure, Result},
    ids::Shortest,
};

/// Ids in one request: more make its address longer than proxies take.
const IDS_A_REQUEST: usize = 500;
/// Ids in a row that are asked for by the first and the last of them.
const LONG_RANGE: i64 = 20;
/// Rows of one page.
const PAGE: i64 = 5_000;

/// Jobs in each state.
pub(crate) type Counts = BTreeMap<JobState, i64>;

/// Jobs that are meant, as queries whose results don't overlap.
#[derive(Debug)]
pub(crate) struct Jobs {
    queries: Vec<JobQuery>,
    /// The Sites, for names.
    pub(crate) sites: SelectedSites,
}

impl Selection {
    /// Whether nothing says which Jobs, besides the Sites.
    pub(crate) fn is_open(&self) -> bool {
        let Self {
            positional,
            ids,
            states,
            exclude_states,
            tags,
            app,
            workdir,
            batch_job,
            array,
            parents,
            after,
            before,
            site: _,
        } = self;
        positional.is_empty()
            && ids.is_empty()
            && states.is_empty()
            && exclude_states.is_empty()
            && tags.is_empty()
            && app.is_none()
            && workdir.is_none()
            && batch_job.is_none()
            && array.is_none()
            && parents.is_empty()
            && after.is_none()
            && before.is_none()
    }

    /// The Jobs that it means.
    ///
    /// # Errors
    /// When a Site, an App or a time is unknown.
    pub(crate) async fn resolve(&self, context: &Context, client: &Client) -> Result<Jobs> {
        let named = !self.positional.is_empty() || !self.ids.is_empty();
        // Ids are unique over all Sites, so they are found wherever the user is.
        let anywhere = named || self.batch_job.is_some() || self.array.is_some();
        let site = self.site.site.as_deref().or(if anywhere { Some("all") } else { None });
        let sites = context.sites(client, site).await?;
        let app_id = match &self.app {
            Some(app) => Some(sites.app(client, app).await?.id),
            None => None,
        };
        let time = |text: &Option<String>| {
            text.as_deref().map(|text| context.clock.read(text)).transpose().map_err(Failure::usage)
        };
        let query = JobQuery {
            parent_ids: self.parents.iter().flat_map(|list| list.ids()).map(JobId).collect(),
            app_id,
            site_ids: sites.ids.clone(),
            batch_job_id: self.batch_job.map(BatchJobId),
            array_id: self.array,
            states: self.wanted_states()?,
            tags: self.tags.iter().cloned().collect::<StringMap>(),
            workdir_contains: self.workdir.clone(),
            last_update_after: time(&self.after)?,
            last_update_before: time(&self.before)?,
            ..JobQuery::default()
        };
        let mut ids = Shortest::default();
        self.positional.iter().chain(&self.ids).flat_map(|list| list.ranges()).for_each(|range| ids.add(range));
        let queries = if named { by_ids(&ids, &query) } else { vec![query] };
        Ok(Jobs { queries, sites })
    }

    /// The states that are left; empty for any.
    fn wanted_states(&self) -> Result<Vec<JobState>> {
        if self.exclude_states.is_empty() {
            return Ok(self.states.clone());
        }
        let from = if self.states.is_empty() { JobState::ALL } else { &self.states };
        let states: Vec<JobState> = from.iter().copied().filter(|state| !self.exclude_states.contains(state)).collect();
        if states.is_empty() { Err(Failure::usage("no state is left to select")) } else { Ok(states) }
    }
}

/// A query narrowed to ids, as several that don't overlap, in the order of the ids.
fn by_ids(ids: &Shortest, query: &JobQuery) -> Vec<JobQuery> {
    let mut queries = Vec::new();
    let mut few = Vec::new();
    let flush = |few: &mut Vec<JobId>, queries: &mut Vec<JobQuery>| {
        if !few.is_empty() {
            queries.push(JobQuery { ids: std::mem::take(few), ..query.clone() });
        }
    };
    for range in ids.ranges() {
        let (first, last) = (*range.start(), *range.end());
        if last - first >= LONG_RANGE {
            flush(&mut few, &mut queries);
            queries.push(JobQuery { id_from: Some(JobId(first)), id_to: Some(JobId(last)), ..query.clone() });
            continue;
        }
        for id in range {
            few.push(JobId(id));
            if few.len() == IDS_A_REQUEST {
                flush(&mut few, &mut queries);
            }
        }
    }
    flush(&mut few, &mut queries);
    queries
}

impl Jobs {
    /// The queries, none of which finds a Job of another.
    pub(crate) fn queries(&self) -> &[JobQuery] {
        &self.queries
    }

    /// The same Jobs by their ids, where what selects them changes while they run.
    pub(crate) async fn pinned(self, client: &Client) -> Result<Self> {
        let is_lasting = |query: &JobQuery| {
            query.states.is_empty()
                && query.batch_job_id.is_none()
                && query.last_update_after.is_none()
                && query.last_update_before.is_none()
        };
        if self.queries.iter().all(is_lasting) {
            return Ok(self);
        }
        let mut ids = Shortest::default();
        let mut pages = self.pages(None, None);
        while let Some(page) = pages.next(client).await? {
            page.iter().for_each(|job| ids.add(job.id.0..=job.id.0));
        }
        if ids.len() == 0 {
            return Err(none_match());
        }
        let query = JobQuery { site_ids: self.sites.ids.clone(), ..JobQuery::default() };
        let queries = by_ids(&ids, &query);
        Ok(Self { queries, sites: self.sites })
    }

    /// How many there are in each state.
    pub(crate) async fn counts(&self, client: &Client) -> std::result::Result<Counts, ClientError> {
        let mut counts = Counts::new();
        for query in &self.queries {
            for (state, count) in client.count_jobs_by_state(query).await? {
                *counts.entry(state).or_default() += count;
            }
        }
        Ok(counts)
    }

    /// How many there are, for a question; none is a failure.
    pub(crate) async fn counts_or_none(&self, client: &Client) -> Result<Counts> {
        let counts = self.counts(client).await?;
        if total(&counts) == 0 { Err(none_match()) } else { Ok(counts) }
    }

    /// The first of them in the given order within each query; all with `limit: None`.
    pub(crate) async fn list(&self, client: &Client, limit: Option<i64>, ordering: Option<&str>) -> Result<Vec<Job>> {
        let mut jobs: Vec<Job> = Vec::new();
        let mut pages = self.pages(limit, ordering);
        while let Some(page) = pages.next(client).await? {
            jobs.extend(page);
        }
        Ok(jobs)
    }

    /// The same page by page, for those who need not hold all of them.
    pub(crate) fn pages<'a>(&'a self, limit: Option<i64>, ordering: Option<&'a str>) -> Pages<'a> {
        Pages::of(&self.queries, limit, ordering)
    }

    /// The first of those that are in one of these states.
    pub(crate) async fn list_in_states(&self, client: &Client, states: &[JobState], limit: i64) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for query in &self.queries {
            let limit = limit - jobs.len() as i64;
            if limit <= 0 {
                break;
            }
            let query = JobQuery { states: states.to_vec(), limit: Some(limit), ..query.clone() };
            jobs.extend(client.list_jobs(&query).await?.results);
        }
        Ok(jobs)
    }

    /// The part of the event stream in which all their changes are.
    pub(crate) fn stream_query(&self) -> StreamQuery {
        let tags = self.queries.first().map(|query| query.tags.clone()).unwrap_or_default();
        StreamQuery { site_ids: self.sites.ids.clone(), tags, kinds: vec!["job"] }
    }
}

/// Where a reader of Jobs is.
pub(crate) struct Pages<'a> {
    queries: &'a [JobQuery],
    ordering: Option<&'a str>,
    left: Option<i64>,
    /// Rows of the first query that were read, for orders in which nothing else says where to go on.
    offset: i64,
    /// The last Job of the first query that was read.
    after: Option<JobId>,
}

impl<'a> Pages<'a> {
    /// The Jobs of these queries, one after the other; all with `limit: None`.
    pub(crate) fn of(queries: &'a [JobQuery], limit: Option<i64>, ordering: Option<&'a str>) -> Self {
        Self { queries, ordering, left: limit, offset: 0, after: None }
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// The service's.
    pub(crate) async fn next(&mut self, client: &Client) -> Result<Option<Vec<Job>>> {
        while let Some((query, others)) = self.queries.split_first() {
            let room = self.left.unwrap_or(PAGE).min(PAGE);
            if room <= 0 {
                return Ok(None);
            }
            let by_id = self.ordering.is_none();
            let query = JobQuery {
                ordering: self.ordering.map(Into::into),
                limit: Some(room),
                // By ids the service finds the next page at once, however far it is.
                offset: (!by_id).then_some(self.offset),
                after_id: if by_id { self.after } else { None },
                ..query.clone()
            };
            let page = client.list_jobs(&query).await?.results;
            let rows = page.len() as i64;
            let last = page.last().map(|job| job.id);
            if by_id && last.is_some() && last <= self.after {
                return Err(Failure::new("the service can't list Jobs page by page")
                    .hint("it is older than this `copal`; use --ordering id, or the `copal` of its version"));
            }
            (self.offset, self.after) = (self.offset + rows, last);
            self.left = self.left.map(|left| left - rows);
            if rows < room {
                (self.queries, self.offset, self.after) = (others, 0, None);
            }
            if rows > 0 {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }
}

/// Jobs in any state.
pub(crate) fn total(counts: &Counts) -> i64 {
    counts.values().sum()
}

/// `3 RUNNING, 2 FAILED`
pub(crate) fn summary(counts: &Counts) -> String {
    let parts: Vec<String> =
        counts.iter().filter(|(_, count)| **count > 0).map(|(state, count)| format!("{count} {state}")).collect();
    parts.join(", ")
}

/// The failure of a command that needs Jobs.
pub(crate) fn none_match() -> Failure {
    Failure::new("no Job matches").hint("`copal job ls` takes the same options and shows which do")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_states_are_taken_from_the_wanted_ones() {
        let states = |states: &[JobState], exclude: &[JobState]| {
            Selection { states: states.into(), exclude_states: exclude.into(), ..Selection::default() }.wanted_states()
        };
        use JobState::{Failed, JobFinished, Running};
        assert_eq!(states(&[], &[]).unwrap(), []);
        assert_eq!(states(&[Failed, Running], &[Failed]).unwrap(), [Running]);
        assert_eq!(states(&[], &[Failed, JobFinished]).unwrap().len(), JobState::ALL.len() - 2);
        assert!(states(&[Failed], &[Failed]).is_err());
    }

    #[test]
    fn ids_are_asked_for_in_few_queries_and_in_their_order() {
        let shortest = |text: &str| {
            let mut ids = Shortest::default();
            text.parse::<crate::ids::IdList>().unwrap().ranges().for_each(|range| ids.add(range));
            ids
        };
        let shown = |text: &str| -> Vec<String> {
            let query = JobQuery::default();
            let spelled = |query: JobQuery| match (query.id_from, query.id_to) {
                (Some(first), Some(last)) => format!("{first}..{last}"),
                _ => query.ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            };
            by_ids(&shortest(text), &query).into_iter().map(spelled).collect()
        };
        assert_eq!(shown("7"), ["7"]);
        assert_eq!(shown("200,1-3,10-90,91"), ["1 2 3", "10..91", "200"]);
        assert_eq!(shown("1-1000000"), ["1..1000000"]);
        let many: Vec<String> = (0..700).map(|place| (2 * place + 1).to_string()).collect();
        assert_eq!(by_ids(&shortest(&many.join(",")), &JobQuery::default()).len(), 2);
    }

    #[test]
    fn a_selection_by_site_alone_is_open() {
        let mut selection = Selection::default();
        selection.site.site = Some("all".into());
        assert!(selection.is_open());
        selection.workdir = Some("x".into());
        assert!(!selection.is_open());
    }

    #[test]
    fn counts_are_summed_up_for_people() {
        let counts = Counts::from([(JobState::Failed, 2), (JobState::Running, 3), (JobState::Ready, 0)]);
        assert_eq!(summary(&counts), "3 RUNNING, 2 FAILED");
        assert_eq!(total(&counts), 5);
    }
}
