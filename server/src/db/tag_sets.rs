//! Tag sets: all Jobs of a Site that have the same tags. Tags divide Jobs into few groups as a rule, so an
//! acquire or a count by tag goes through the sets that have it and not through the Jobs.
//!
//! Where tags tell single Jobs apart there would be as many sets as Jobs. So a Site has [`SETS_A_SITE`] at
//! most, and the Jobs whose tags got none are [`ODD`]: those are found by `job_tags`, one by one. Sets of
//! few Jobs make room again ([`tidy`]).

use std::collections::{BTreeMap, HashSet};

use copal_schemas::{JobId, SessionId, SiteId, StringMap, UserId};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, types::Json};

use super::{
    events::{Log, Place},
    scope::Scope,
    tags,
};
use crate::error::ApiResult;

/// Jobs whose tags have no set of their own.
pub const ODD: i64 = 0;
/// Jobs without tags.
const UNTAGGED: i64 = 1;
/// The most sets of one Site.
const SETS_A_SITE: i64 = 1_000;
/// A call makes sets only for tags that at least one in so many of its Jobs have.
const SHARE: usize = 20;
/// Sets of fewer Jobs than this make room where a Site has many.
const SMALL: i64 = 100;
/// Odd Jobs that are looked at before an acquire decides how to find those with its tags.
const LOOK: i64 = 2_000;

/// The number of a set.
#[must_use]
pub fn number(tags: &StringMap) -> i64 {
    if tags.is_empty() {
        return UNTAGGED;
    }
    let mut hash = Sha256::new();
    for (key, value) in tags {
        hash.update(tags::number(key, value).to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    match i64::from_le_bytes(first) {
        ODD | UNTAGGED => 2,
        number => number,
    }
}

/// The sets of Jobs that are about to be written; `known` are sets that exist and take Jobs.
///
/// # Errors
/// The database's.
pub async fn of_new(
    conn: &mut PgConnection,
    owner: UserId,
    known: &HashSet<(SiteId, i64)>,
    jobs: &[(SiteId, &StringMap)],
) -> ApiResult<Vec<i64>> {
    let numbers: Vec<(SiteId, i64)> = jobs.iter().map(|(site, tags)| (*site, number(tags))).collect();
    let mut unknown: BTreeMap<(SiteId, i64), (&StringMap, usize)> = BTreeMap::new();
    for (place, (_, tags)) in numbers.iter().zip(jobs) {
        if place.1 != UNTAGGED && !known.contains(place) {
            unknown.entry(*place).or_insert((tags, 0)).1 += 1;
        }
    }
    unknown.retain(|_, (_, count)| *count * SHARE >= jobs.len());
    let made = if unknown.is_empty() { HashSet::new() } else { make(conn, owner, &unknown).await? };
    let set_of = |place: (SiteId, i64)| match place.1 {
        UNTAGGED => UNTAGGED,
        number if known.contains(&place) || made.contains(&place) => number,
        _ => ODD,
    };
    Ok(numbers.into_iter().map(set_of).collect())
}

/// Makes sets where there is room; gives those that take Jobs, made now or before.
async fn make(
    conn: &mut PgConnection,
    owner: UserId,
    wanted: &BTreeMap<(SiteId, i64), (&StringMap, usize)>,
) -> ApiResult<HashSet<(SiteId, i64)>> {
    // In the order of the key: two calls that make the same sets wait for each other only one way.
    const SQL: &str = "with wanted as (select * from unnest($2::bigint[], $3::bigint[], $4::jsonb[]) \
         as u(site_id, tag_set, tags)), \
         known as (select t.site_id, t.tag_set, t.closed_at from wanted w join tag_sets t \
         on t.site_id = w.site_id and t.tag_set = w.tag_set), \
         new as (select w.* from wanted w where not exists (select from known k \
         where k.site_id = w.site_id and k.tag_set = w.tag_set) \
         and (select count(*) from tag_sets t where t.site_id = w.site_id) < $5), \
         made as (insert into tag_sets (site_id, tag_set, owner_id, tags) \
         select site_id, tag_set, $1, tags from new order by site_id, tag_set on conflict do nothing) \
         select site_id, tag_set from new union all select site_id, tag_set from known where closed_at is null";
    let rows: Vec<(SiteId, i64)> = sqlx::query_as(SQL)
        .bind(owner)
        .bind(wanted.keys().map(|(site, _)| *site).collect::<Vec<_>>())
        .bind(wanted.keys().map(|(_, number)| *number).collect::<Vec<_>>())
        .bind(wanted.values().map(|(tags, _)| Json(*tags)).collect::<Vec<_>>())
        .bind(SETS_A_SITE)
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().collect())
}

/// Where the free Jobs with some tags are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// The sets that have the tags.
    pub sets: Vec<i64>,
    /// How to find those among the odd ones.
    pub odd: Odd,
}

/// How to find Jobs with some tags among the odd ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Odd {
    /// There are no odd ones.
    #[default]
    None,
    /// Many of them have the tags: by their order.
    InOrder,
    /// Few have: by `job_tags`.
    ByTag,
}

/// Where the Jobs are that launchers may take at a Session's Site and that have all of these tags.
///
/// # Errors
/// The database's.
pub async fn matching(
    conn: &mut PgConnection,
    scope: Scope,
    session: SessionId,
    tags: &StringMap,
    most: i64,
) -> ApiResult<Matching> {
    const SQL: &str = "select array(select t.tag_set from tag_sets t where t.site_id = s.site_id and t.tags @> $3 \
         order by t.tag_set), seen.jobs, seen.matching from sessions s cross join lateral \
         (select count(*) as jobs, count(*) filter (where tags @> $3) as matching from (select tags from jobs \
         where site_id = s.site_id and session_id is null and state in ('PREPROCESSED', 'RESTART_READY') \
         and tag_set = 0 and tag_set <> 1 order by priority desc, id limit $4) first) seen \
         where s.id = $1 and s.owner_id = $2";
    let row: Option<(Vec<i64>, i64, i64)> =
        sqlx::query_as(SQL).bind(session).bind(scope.owner).bind(Json(tags)).bind(LOOK).fetch_optional(conn).await?;
    let (sets, seen, having) = row.unwrap_or_default();
    let odd = match seen {
        0 => Odd::None,
        seen if seen < LOOK || having >= most => Odd::InOrder,
        _ => Odd::ByTag,
    };
    Ok(Matching { sets, odd })
}

/// Makes room at Sites with many sets: closes small ones, and dissolves those that were closed so long ago
/// that no transaction can still put Jobs into them. Forgets the sets of Sites that are gone.
///
/// # Errors
/// The database's.
pub async fn tidy(conn: &mut PgConnection) -> ApiResult<()> {
    const FORGET: &str = "delete from tag_sets t where not exists (select from sites s where s.id = t.site_id)";
    sqlx::query(FORGET).execute(&mut *conn).await?;
    const CLOSE: &str = "with jobs as (select owner_id, site_id, tag_set, sum(jobs) as jobs from job_tallies group by 1, 2, 3), \
         full_site as (select site_id from tag_sets group by 1 having count(*) > $1) \
         update tag_sets t set closed_at = clock_timestamp() from full_site f \
         where t.site_id = f.site_id and t.closed_at is null and t.created_at < now() - interval '1 hour' \
         and not exists (select from jobs j where j.owner_id = t.owner_id and j.site_id = t.site_id \
         and j.tag_set = t.tag_set and j.jobs >= $2)";
    sqlx::query(CLOSE).bind(SETS_A_SITE / 2).bind(SMALL).execute(&mut *conn).await?;
    // The longest statement, that of a large array, ends after 15 minutes.
    const CLOSED: &str = "select site_id, tag_set, owner_id, tags from tag_sets \
         where closed_at < now() - interval '1 hour' order by site_id, tag_set limit 100 for update skip locked";
    let closed: Vec<(SiteId, i64, UserId, Json<StringMap>)> = sqlx::query_as(CLOSED).fetch_all(&mut *conn).await?;
    for (site, set, owner, Json(tags)) in closed {
        dissolve(&mut *conn, owner, site, set, &tags).await?;
    }
    Ok(())
}

/// Makes the Jobs of a closed set odd. There are few.
async fn dissolve(conn: &mut PgConnection, owner: UserId, site: SiteId, set: i64, tags: &StringMap) -> ApiResult<()> {
    let Some((key, value)) = tags.first_key_value() else { return Ok(()) };
    const FIND: &str = "select id from jobs where id in (select job_id from job_tags where owner_id = $1 and tag = $2) \
         and site_id = $3 and tag_set = $4 order by id for no key update";
    let ids: Vec<JobId> = sqlx::query_scalar(FIND)
        .bind(owner)
        .bind(tags::number(key, value))
        .bind(site)
        .bind(set)
        .fetch_all(&mut *conn)
        .await?;
    const MOVE: &str = "update jobs set tag_set = 0 where id = any($1) returning app_id, state";
    let mut log = Log::default();
    for (app, state) in sqlx::query_as(MOVE).bind(&ids).fetch_all(&mut *conn).await? {
        let place = Place { owner, site, app, tag_set: set };
        log.regrouped(place, ODD, state);
    }
    log.write(&mut *conn).await?;
    const GONE: &str = "delete from tag_sets where site_id = $1 and tag_set = $2";
    sqlx::query(GONE).bind(site).bind(set).execute(conn).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_set_is_its_tags_whatever_their_order() {
        assert_eq!(number(&StringMap::new()), UNTAGGED);
        assert_eq!(number(&tags(&[("a", "1"), ("b", "2")])), number(&tags(&[("b", "2"), ("a", "1")])));
        assert_ne!(number(&tags(&[("a", "1")])), number(&tags(&[("a", "1"), ("b", "2")])));
        assert_ne!(number(&tags(&[("a", "1")])), number(&tags(&[("a", "2")])));
    }
}
