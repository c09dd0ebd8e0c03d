//! What the event streams are fed from: one reader a process follows the log of all users and hands
//! pages to every stream, which picks its own; a stream that begins earlier or falls behind reads
//! its own user's rows from the database until it has caught up.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use copal_schemas::{
    BatchJobId, EventId, JobId, JobState, JsonObject, SiteId, StringMap, Timestamp, UserId,
    batch_job::BatchJob,
    event::{Change, Event},
    site::Site,
};
use sqlx::{FromRow, PgConnection, PgPool, types::Json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Feed,
    position::{Key, Position, Snapshot},
};
use crate::{db, error::ApiResult};

/// Pages that wait for the slowest stream. One that is slower still reads from the database.
pub(super) const PAGES_KEPT: usize = 64;
/// Rows of a page.
const PAGE: i64 = 500;
/// Between two rounds, so that a busy service tells many changes at once.
const PAUSE: Duration = Duration::from_millis(5);

/// What a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A Job.
    Job,
    /// A BatchJob.
    BatchJob,
    /// A Site.
    Site,
}

/// A change, ready to be sent.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its place.
    pub key: Key,
    /// Whose it is.
    pub owner: UserId,
    /// At which Site.
    pub site: SiteId,
    /// Of what.
    pub source: Source,
    /// The Job, if it is one's.
    pub job: Option<JobId>,
    /// The variant's name on the wire.
    pub name: &'static str,
    /// [`Change`] as JSON.
    pub json: String,
}

/// Changes that `target` sees and `base` does not, in the order of their keys.
#[derive(Debug)]
pub struct Page {
    /// What was handed out before.
    pub base: Snapshot,
    /// What is handed out by this page and those that follow with the same target.
    pub target: Snapshot,
    /// Whether this is the last page with this target.
    pub last: bool,
    /// The changes.
    pub entries: Vec<Entry>,
}

/// What streams receive.
#[derive(Clone, Debug)]
pub enum Message {
    /// Changes.
    Page(Arc<Page>),
    /// Some changes were not handed out: read them from the database.
    Lost,
}

/// Which changes a stream is about; everything empty means all of the user's.
#[derive(Clone, Debug, Default)]
pub struct StreamFilter {
    /// The only Site of a credential that is bound to one.
    pub only_site: Option<SiteId>,
    /// At these Sites.
    pub site_ids: Vec<SiteId>,
    /// Of Jobs with all of these tags; others are not filtered by it.
    pub tags: StringMap,
    /// Of these things.
    pub sources: Vec<Source>,
}

impl StreamFilter {
    /// Those of the entries that the stream of `owner` is about.
    ///
    /// # Errors
    /// The database's, which is asked only about tags.
    pub async fn pick<'a>(
        &self,
        pool: &PgPool,
        owner: UserId,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> ApiResult<Vec<&'a Entry>> {
        let mut picked: Vec<&Entry> = entries
            .filter(|entry| entry.owner == owner)
            .filter(|entry| self.only_site.is_none_or(|site| site == entry.site))
            .filter(|entry| self.site_ids.is_empty() || self.site_ids.contains(&entry.site))
            .filter(|entry| self.sources.is_empty() || self.sources.contains(&entry.source))
            .collect();
        let mut jobs: Vec<JobId> = picked.iter().filter_map(|entry| entry.job).collect();
        if !self.tags.is_empty() && !jobs.is_empty() {
            jobs.sort_unstable();
            jobs.dedup();
            const SQL: &str = "select id from jobs where id = any($1) and owner_id = $2 and tags @> $3";
            let tagged: Vec<JobId> =
                sqlx::query_scalar(SQL).bind(jobs).bind(owner).bind(Json(&self.tags)).fetch_all(pool).await?;
            let tagged: HashSet<JobId> = tagged.into_iter().collect();
            picked.retain(|entry| entry.job.is_none_or(|job| tagged.contains(&job)));
        }
        Ok(picked)
    }
}

/// The position after everything that has happened so far.
///
/// # Errors
/// The database's.
pub async fn start_position(pool: &PgPool) -> ApiResult<Position> {
    Ok(Position::at(current_snapshot(pool).await?))
}

async fn current_snapshot(pool: &PgPool) -> ApiResult<Snapshot> {
    let text: String = sqlx::query_scalar("select pg_current_snapshot()::text").fetch_one(pool).await?;
    text.parse().map_err(crate::ApiError::internal)
}

/// The user's next page after a position, and the position after that. An empty page means that
/// the user has seen everything.
///
/// # Errors
/// The database's.
pub async fn catch_up(pool: &PgPool, owner: UserId, position: &Position) -> ApiResult<(Page, Position)> {
    let (target, after) = match &position.partly {
        Some((target, key)) => (target.clone(), Some(*key)),
        None => (current_snapshot(pool).await?, None),
    };
    let base = position.base.clone();
    let mut conn = pool.acquire().await?;
    let (entries, more) = read(&mut conn, Some(owner), &base, &target, after).await?;
    let next = match entries.last() {
        Some(entry) if more => Position { base: base.clone(), partly: Some((target.clone(), entry.key)) },
        _ => Position::at(target.clone()),
    };
    Ok((Page { base, target, last: !more, entries }, next))
}

/// Follows the log until `stop`.
pub(super) async fn run(feed: Feed, pool: PgPool, stop: CancellationToken) {
    let mut ticks = feed.0.ticks.subscribe();
    let mut base: Option<Snapshot> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // A time-out is the fallback for lost notifications.
            _ = timeout(feed.fallback(), ticks.changed()) => {}
        }
        if feed.0.pages.receiver_count() == 0 {
            base = None;
            continue;
        }
        let round = tokio::select! {
            () = stop.cancelled() => return,
            round = hand_out(&feed, &pool, base.take()) => round,
        };
        match round {
            Ok(target) => base = Some(target),
            // Without a base the next round tells the streams that something is lost.
            Err(error) => tracing::warn!("can't read the changes for the event streams: {error}"),
        }
        sleep(PAUSE).await;
    }
}

/// Hands out everything between `base` and now.
///
/// A stream subscribes before it takes its own first snapshot. So a base that was taken before the
/// subscription sees no more than that snapshot, and the stream misses nothing.
async fn hand_out(feed: &Feed, pool: &PgPool, base: Option<Snapshot>) -> ApiResult<Snapshot> {
    let target = current_snapshot(pool).await?;
    let Some(base) = base else {
        // Nobody knows what was handed out before: each stream reads what it misses.
        let _ = feed.0.pages.send(Message::Lost);
        return Ok(target);
    };
    if base == target {
        return Ok(target);
    }
    let mut after = None;
    loop {
        let mut conn = pool.acquire().await?;
        let (entries, more) = read(&mut conn, None, &base, &target, after).await?;
        drop(conn);
        after = entries.last().map(|entry| entry.key);
        let page = Page { base: base.clone(), target: target.clone(), last: !more, entries };
        // The last stream may have gone meanwhile.
        let _ = feed.0.pages.send(Message::Page(Arc::new(page)));
        if !more {
            return Ok(target);
        }
    }
}

#[derive(FromRow)]
struct LogRow {
    xid: i64,
    source: i16,
    id: i64,
    owner_id: UserId,
    site_id: SiteId,
    batch_job_id: Option<BatchJobId>,
    object_id: i64,
    kind: Option<String>,
    timestamp: Option<Timestamp>,
    from_state: Option<JobState>,
    to_state: Option<JobState>,
    data: Option<Json<JsonObject>>,
}

/// A page of what `target` sees and `base` does not, after a row, and whether there is more.
async fn read(
    conn: &mut PgConnection,
    owner: Option<UserId>,
    base: &Snapshot,
    target: &Snapshot,
    after: Option<Key>,
) -> ApiResult<(Vec<Entry>, bool)> {
    const SQL: &str = "select * from ( \
         (select c.xid::text::bigint as xid, 0::int2 as source, c.id, c.owner_id, c.site_id, null::bigint as batch_job_id, \
         c.object_id, c.kind::text as kind, null::timestamptz as \"timestamp\", null::job_state as from_state, \
         null::job_state as to_state, null::jsonb as data \
         from changes c where c.xid >= pg_snapshot_xmin($1::text::pg_snapshot) and c.xid >= $4::bigint::text::xid8 \
         and c.xid < pg_snapshot_xmax($2::text::pg_snapshot) \
         and not pg_visible_in_snapshot(c.xid, $1::text::pg_snapshot) \
         and pg_visible_in_snapshot(c.xid, $2::text::pg_snapshot) and ($3::bigint is null or c.owner_id = $3) \
         and (c.xid > $4::bigint::text::xid8 or ($5 = 0 and c.id > $6)) order by c.xid, c.id limit $7) \
         union all \
         (select e.xid::text::bigint, 1::int2, e.id, e.owner_id, e.site_id, e.batch_job_id, \
         e.job_id, null, e.\"timestamp\", e.from_state, e.to_state, e.data \
         from events e where e.xid >= pg_snapshot_xmin($1::text::pg_snapshot) and e.xid >= $4::bigint::text::xid8 \
         and e.xid < pg_snapshot_xmax($2::text::pg_snapshot) \
         and not pg_visible_in_snapshot(e.xid, $1::text::pg_snapshot) \
         and pg_visible_in_snapshot(e.xid, $2::text::pg_snapshot) and ($3::bigint is null or e.owner_id = $3) \
         and (e.xid > $4::bigint::text::xid8 or $5 = 0 or e.id > $6) order by e.xid, e.id limit $7) \
         ) as log order by xid, source, id limit $7";
    let after_xid = after.map_or(0, |key| i64::try_from(key.xid).unwrap_or(i64::MAX));
    let rows: Vec<LogRow> = sqlx::query_as(SQL)
        .bind(base.to_string())
        .bind(target.to_string())
        .bind(owner)
        .bind(after_xid)
        .bind(after.map_or(0, |key| key.source))
        .bind(after.map_or(0, |key| key.id))
        .bind(PAGE)
        .fetch_all(&mut *conn)
        .await?;
    let more = rows.len() as i64 == PAGE;
    let last = rows.last().map(key_of);
    let of_kind = |kind: &str| -> Vec<i64> {
        rows.iter().filter(|row| row.kind.as_deref() == Some(kind)).map(|row| row.object_id).collect()
    };
    let batch_jobs = of_kind("batch_job").into_iter().map(BatchJobId).collect::<Vec<_>>();
    let sites = of_kind("site").into_iter().map(SiteId).collect::<Vec<_>>();
    let batch_jobs: HashMap<BatchJobId, BatchJob> = if batch_jobs.is_empty() {
        HashMap::new()
    } else {
        let found = db::batch_jobs::get_any(&mut *conn, &batch_jobs).await?;
        found.into_iter().map(|batch_job| (batch_job.id, batch_job)).collect()
    };
    let sites: HashMap<SiteId, Site> = if sites.is_empty() {
        HashMap::new()
    } else {
        db::sites::get_any(&mut *conn, &sites).await?.into_iter().map(|site| (site.id, site)).collect()
    };
    let mut entries: Vec<Entry> = rows.into_iter().filter_map(|row| entry_of(row, &batch_jobs, &sites)).collect();
    // The last row marks the place to go on from, so it may not drop out.
    if let (true, Some(key)) = (more, last)
        && entries.last().is_none_or(|entry| entry.key != key)
    {
        entries.push(Entry {
            key,
            // No user has this id, so no stream picks the entry.
            owner: UserId(0),
            site: SiteId(0),
            source: Source::Site,
            job: None,
            name: "gone",
            json: String::new(),
        });
    }
    Ok((entries, more))
}

fn key_of(row: &LogRow) -> Key {
    Key { xid: u64::try_from(row.xid).unwrap_or_default(), source: row.source, id: row.id }
}

/// A row as what is sent; `None` for one whose object is gone since, whose deletion follows.
fn entry_of(row: LogRow, batch_jobs: &HashMap<BatchJobId, BatchJob>, sites: &HashMap<SiteId, Site>) -> Option<Entry> {
    let key = key_of(&row);
    let site_id = row.site_id;
    let (name, source, job, change) = match row.kind.as_deref() {
        None => {
            let job_id = JobId(row.object_id);
            let event = Event {
                id: EventId(row.id),
                job_id,
                timestamp: row.timestamp?,
                from_state: row.from_state?,
                to_state: row.to_state?,
                data: row.data?.0,
            };
            let change = Change::Job { site_id, batch_job_id: row.batch_job_id, event };
            ("job", Source::Job, Some(job_id), change)
        }
        Some("batch_job") => {
            let batch_job = batch_jobs.get(&BatchJobId(row.object_id))?.clone();
            ("batch_job", Source::BatchJob, None, Change::BatchJob { batch_job: Box::new(batch_job) })
        }
        Some("batch_job_deleted") => {
            let change = Change::BatchJobDeleted { site_id, batch_job_id: BatchJobId(row.object_id) };
            ("batch_job_deleted", Source::BatchJob, None, change)
        }
        Some("site") => {
            let site = sites.get(&SiteId(row.object_id))?.clone();
            ("site", Source::Site, None, Change::Site { site: Box::new(site) })
        }
        Some(_) => ("site_deleted", Source::Site, None, Change::SiteDeleted { site_id }),
    };
    let json = serde_json::to_string(&change).ok()?;
    Some(Entry { key, owner: row.owner_id, site: site_id, source, job, name, json })
}
