//! Events: written with the state changes they tell of, listed by their owner. The tallies that
//! make counts fast and the wake-up of whoever waits go with them, in one statement.

use std::collections::BTreeMap;

use copal_schemas::{
    AppId, BatchJobId, EventId, JobId, JobState, JsonObject, SessionId, SiteId, StringMap, Timestamp, UserId,
    event::Event, page::Page,
};
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder, postgres::PgArguments, query::Query, types::Json};

use super::{scope::Scope, tag_sets, tags};
use crate::{
    error::ApiResult,
    extract::Paging,
    feed::{Wake, Wakes},
};

/// The parts of a statement that write [`Columns`]; they end it, and others may stand before. Their
/// parameters are the first seventeen.
macro_rules! log_parts {
    () => {
        "logged as (insert into events (job_id, owner_id, site_id, app_id, batch_job_id, \
         \"timestamp\", from_state, to_state, data) select * from unnest($1::bigint[], $2::bigint[], \
         $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::job_state[], $8::job_state[], \
         $9::jsonb[])), tallied as (insert into job_tallies (owner_id, site_id, app_id, state, tag_set, jobs, events) \
         select * from unnest($10::bigint[], $11::bigint[], $12::bigint[], $13::job_state[], $14::bigint[], \
         $15::bigint[], $16::bigint[])) select pg_notify('copal', payload) from unnest($17::text[]) as payload"
    };
}
pub(super) use log_parts;

/// A state change that is about to be written.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// When it happened.
    pub timestamp: Timestamp,
    /// The state before.
    pub from_state: JobState,
    /// The state after.
    pub to_state: JobState,
    /// Why and how.
    pub data: JsonObject,
}

/// The same with its Job.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    /// The Job.
    pub job_id: JobId,
    /// Its owner.
    pub owner_id: UserId,
    /// Its Site.
    pub site_id: SiteId,
    /// Its App.
    pub app_id: AppId,
    /// The BatchJob it ran in last.
    pub batch_job_id: Option<BatchJobId>,
    /// The change.
    pub event: NewEvent,
}

/// All that a transaction has to tell about the Jobs it changed.
#[derive(Debug, Default)]
pub struct Log {
    /// State changes, in the order in which they are to be numbered.
    pub events: Vec<LoggedEvent>,
    /// Jobs and events more than before. Those of `events` are added when it is written.
    tallies: BTreeMap<(Place, JobState), (i64, i64)>,
    wakes: Wakes,
}

/// Where a Job belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its owner.
    pub owner: UserId,
    /// Its Site.
    pub site: SiteId,
    /// Its App.
    pub app: AppId,
    /// Its tag set; [`tag_sets::ODD`] for those without one, and where events are counted.
    pub tag_set: i64,
}

impl Place {
    /// Where its events are counted: by tag nobody asks for their number alone.
    fn of_events(self) -> Self {
        Self { tag_set: tag_sets::ODD, ..self }
    }
}

impl Log {
    /// A Job was made, in this state.
    pub fn created(&mut self, place: Place, state: JobState) {
        self.tallies.entry((place, state)).or_default().0 += 1;
        self.wakes.add(place.owner, place.site, Wake::free(state, None));
    }

    /// So many Jobs were made, in this state, each with an event into each of the states it passed.
    pub fn created_array(&mut self, place: Place, state: JobState, passed: impl Iterator<Item = JobState>, count: i64) {
        self.tallies.entry((place, state)).or_default().0 += count;
        for state in passed {
            self.tallies.entry((place.of_events(), state)).or_default().1 += count;
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let Wake { runnable, processable, stageable, .. } = Wake::free(state, None);
        let wake = Wake {
            runnable: runnable * count,
            processable: processable * count,
            stageable: stageable * count,
            signals: false,
        };
        self.wakes.add(place.owner, place.site, wake);
    }

    /// A Job changed from one state and tag set to another and has this holder now, or changed in other ways
    /// that may matter to who waits.
    pub fn moved(&mut self, was: (Place, JobState), is: (Place, JobState), held_by: Option<SessionId>) {
        if was != is {
            self.tallies.entry(was).or_default().0 -= 1;
            self.tallies.entry(is).or_default().0 += 1;
        }
        self.wakes.add(is.0.owner, is.0.site, Wake::free(is.1, held_by));
    }

    /// A Job belongs to another tag set now, though its tags are the same.
    pub fn regrouped(&mut self, was: Place, tag_set: i64, state: JobState) {
        self.tallies.entry((was, state)).or_default().0 -= 1;
        self.tallies.entry((Place { tag_set, ..was }, state)).or_default().0 += 1;
    }

    /// A Job is gone.
    pub fn deleted(&mut self, place: Place, state: JobState) {
        self.tallies.entry((place, state)).or_default().0 -= 1;
    }

    /// A holder at the Site has something to hear.
    pub fn signal(&mut self, owner: UserId, site: SiteId) {
        self.wakes.add(owner, site, Wake { signals: true, ..Wake::default() });
    }

    /// Writes it all in one statement.
    ///
    /// # Errors
    /// The database's.
    pub async fn write(self, conn: &mut PgConnection) -> ApiResult<()> {
        if let Some(columns) = self.into_columns() {
            columns.bind_to(concat!("with ", log_parts!())).execute(conn).await?;
        }
        Ok(())
    }

    /// What there is to write; `None` where that is nothing.
    #[must_use]
    pub fn into_columns(self) -> Option<Columns> {
        let Self { events, mut tallies, mut wakes } = self;
        for LoggedEvent { owner_id: owner, site_id: site, app_id: app, event, .. } in &events {
            let place = Place { owner: *owner, site: *site, app: *app, tag_set: tag_sets::ODD };
            tallies.entry((place, event.to_state)).or_default().1 += 1;
            wakes.add(*owner, *site, Wake::default());
        }
        tallies.retain(|_, counts| *counts != (0, 0));
        let payloads = wakes.payloads();
        let nothing = events.is_empty() && tallies.is_empty() && payloads.is_empty();
        (!nothing).then_some(Columns { events, tallies, payloads })
    }
}

/// What a [`Log`] says, ready to be written.
#[derive(Debug)]
pub struct Columns {
    events: Vec<LoggedEvent>,
    tallies: BTreeMap<(Place, JobState), (i64, i64)>,
    payloads: Vec<String>,
}

impl Columns {
    /// A statement that ends with [`log_parts`], with the first seventeen parameters bound.
    pub(super) fn bind_to(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        fn column<'a, T>(events: &'a [LoggedEvent], field: impl Fn(&'a LoggedEvent) -> T) -> Vec<T> {
            events.iter().map(field).collect()
        }
        let Self { events, tallies, payloads } = self;
        sqlx::query(sql)
            .bind(column(events, |logged| logged.job_id))
            .bind(column(events, |logged| logged.owner_id))
            .bind(column(events, |logged| logged.site_id))
            .bind(column(events, |logged| logged.app_id))
            .bind(column(events, |logged| logged.batch_job_id))
            .bind(column(events, |logged| logged.event.timestamp))
            .bind(column(events, |logged| logged.event.from_state))
            .bind(column(events, |logged| logged.event.to_state))
            .bind(column(events, |logged| Json(&logged.event.data)))
            .bind(tallies.keys().map(|(place, _)| place.owner).collect::<Vec<_>>())
            .bind(tallies.keys().map(|(place, _)| place.site).collect::<Vec<_>>())
            .bind(tallies.keys().map(|(place, _)| place.app).collect::<Vec<_>>())
            .bind(tallies.keys().map(|(_, state)| *state).collect::<Vec<_>>())
            .bind(tallies.keys().map(|(place, _)| place.tag_set).collect::<Vec<_>>())
            .bind(tallies.values().map(|counts| counts.0).collect::<Vec<_>>())
            .bind(tallies.values().map(|counts| counts.1).collect::<Vec<_>>())
            .bind(payloads)
    }
}

/// Which events of a user are meant; everything empty means all.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// These events.
    pub ids: Vec<EventId>,
    /// Of these Jobs.
    pub job_ids: Vec<JobId>,
    /// Of Jobs that ran in this BatchJob last.
    pub batch_job_id: Option<BatchJobId>,
    /// Of Jobs that ran last in the BatchJob with this scheduler's id.
    pub scheduler_id: Option<String>,
    /// Of Jobs with all of these tags.
    pub tags: StringMap,
    /// With these texts in their data.
    pub data: StringMap,
    /// From this state.
    pub from_state: Option<JobState>,
    /// To this state.
    pub to_state: Option<JobState>,
    /// At this time or later.
    pub after: Option<Timestamp>,
    /// At this time or before.
    pub before: Option<Timestamp>,
}

impl EventFilter {
    fn push_where(&self, sql: &mut QueryBuilder<Postgres>, scope: Scope) {
        let owner = scope.owner;
        sql.push(" where ");
        scope.push(sql, "e");
        scope.push_visible(sql, "e");
        if !self.ids.is_empty() {
            sql.push(" and e.id = any(").push_bind(self.ids.clone()).push(")");
        }
        if !self.job_ids.is_empty() {
            sql.push(" and e.job_id = any(").push_bind(self.job_ids.clone()).push(")");
        }
        if let Some(batch_job) = self.batch_job_id {
            // The Job's present BatchJob, which later events carry and earlier ones do not.
            sql.push(" and e.job_id in (select id from jobs where batch_job_id = ").push_bind(batch_job);
            sql.push(" and owner_id = ").push_bind(owner).push(")");
        }
        if let Some(scheduler_id) = &self.scheduler_id {
            sql.push(" and e.job_id in (select j.id from jobs j join batch_jobs b on b.id = j.batch_job_id ");
            sql.push("where b.owner_id = ").push_bind(owner);
            sql.push(" and b.scheduler_id = ").push_bind(scheduler_id.clone()).push(")");
        }
        tags::push_have(sql, "e.job_id", owner, &self.tags);
        if !self.data.is_empty() {
            sql.push(" and e.data @> ").push_bind(Json(self.data.clone()));
        }
        if let Some(state) = self.from_state {
            sql.push(" and e.from_state = ").push_bind(state);
        }
        if let Some(state) = self.to_state {
            sql.push(" and e.to_state = ").push_bind(state);
        }
        if let Some(time) = self.after {
            sql.push(" and e.\"timestamp\" >= ").push_bind(time);
        }
        if let Some(time) = self.before {
            sql.push(" and e.\"timestamp\" <= ").push_bind(time);
        }
    }

    /// Whether nothing but the target state is asked, so that the tallies know the count.
    fn is_tallied(&self) -> bool {
        let Self { ids, job_ids, batch_job_id, scheduler_id, tags, data, from_state, to_state: _, after, before } =
            self;
        ids.is_empty()
            && job_ids.is_empty()
            && batch_job_id.is_none()
            && scheduler_id.is_none()
            && tags.is_empty()
            && data.is_empty()
            && from_state.is_none()
            && after.is_none()
            && before.is_none()
    }
}

#[derive(FromRow)]
struct EventRow {
    id: EventId,
    job_id: JobId,
    timestamp: Timestamp,
    from_state: JobState,
    to_state: JobState,
    data: Json<JsonObject>,
}

impl From<EventRow> for Event {
    fn from(row: EventRow) -> Self {
        let EventRow { id, job_id, timestamp, from_state, to_state, data: Json(data) } = row;
        Self { id, job_id, timestamp, from_state, to_state, data }
    }
}

/// A page of a user's events, newest first unless `oldest_first`.
///
/// # Errors
/// The database's.
pub async fn list(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &EventFilter,
    oldest_first: bool,
    paging: Paging,
) -> ApiResult<Page<Event>> {
    let count = count(conn, scope, filter).await?;
    if paging.limit == 0 || paging.offset >= count {
        return Ok(Page { count, results: Vec::new() });
    }
    let mut sql =
        QueryBuilder::new("select e.id, e.job_id, e.\"timestamp\", e.from_state, e.to_state, e.data from events e");
    filter.push_where(&mut sql, scope);
    sql.push(" order by e.\"timestamp\"").push(if oldest_first { "" } else { " desc" });
    sql.push(", e.id limit ").push_bind(paging.limit).push(" offset ").push_bind(paging.offset);
    let rows: Vec<EventRow> = sql.build_query_as().fetch_all(conn).await?;
    Ok(Page { count, results: rows.into_iter().map(Event::from).collect() })
}

async fn count(conn: &mut PgConnection, scope: Scope, filter: &EventFilter) -> ApiResult<i64> {
    if filter.is_tallied() {
        const SQL: &str = "select coalesce(sum(events), 0)::bigint from job_tallies where owner_id = $1 \
             and ($2::bigint is null or site_id = $2) and ($3::job_state is null or state = $3) \
             and app_id <> all(array(select app_id from deleted_apps where owner_id = $1))";
        let tallied = sqlx::query_scalar(SQL).bind(scope.owner).bind(scope.site).bind(filter.to_state);
        return Ok(tallied.fetch_one(conn).await?);
    }
    let mut sql = QueryBuilder::new("select count(*) from events e");
    filter.push_where(&mut sql, scope);
    Ok(sql.build_query_scalar().fetch_one(conn).await?)
}
