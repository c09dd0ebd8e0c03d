//! Tags: which Jobs have which. `jobs.tags` is what is shown, `job_tags` finds Jobs by a tag
//! without an index on the row that state changes rewrite.

use std::collections::HashSet;

use copal_schemas::{JobId, SiteId, StringMap, UserId};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, Postgres, QueryBuilder, types::Json};

use super::tag_sets;
use crate::error::ApiResult;

/// The number under which a tag is found: 64 bits of a hash that nobody can steer. Numbers are only
/// compared among the tags of one user, where even a million of them share one with a chance of
/// one in thirty million; so readers take the number for the tag.
#[must_use]
pub fn number(key: &str, value: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(hash_prefix(key));
    hash.update(value);
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    i64::from_le_bytes(first)
}

/// What is hashed before the value.
#[must_use]
pub fn hash_prefix(key: &str) -> Vec<u8> {
    // The length keeps ("ab", "c") and ("a", "bc") apart.
    [&(key.len() as u64).to_le_bytes(), key.as_bytes()].concat()
}

/// The rows of Jobs in `job_tags`, in the order of its key: numbers and Jobs.
#[must_use]
pub fn rows<'a>(jobs: impl Iterator<Item = (JobId, &'a StringMap)>) -> (Vec<i64>, Vec<JobId>) {
    let mut rows: Vec<(i64, JobId)> =
        jobs.flat_map(|(id, tags)| tags.iter().map(move |(key, value)| (number(key, value), id))).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.into_iter().unzip()
}

/// Records the tags of Jobs that have none recorded.
async fn insert<'a>(
    conn: &mut PgConnection,
    owner: UserId,
    jobs: impl Iterator<Item = (JobId, &'a StringMap)>,
) -> ApiResult<()> {
    let (numbers, jobs) = rows(jobs);
    if !jobs.is_empty() {
        const SQL: &str =
            "insert into job_tags (owner_id, tag, job_id) select $1, * from unnest($2::bigint[], $3::bigint[])";
        sqlx::query(SQL).bind(owner).bind(numbers).bind(jobs).execute(conn).await?;
    }
    Ok(())
}

/// Replaces the tags of locked Jobs; gives their tag sets.
///
/// # Errors
/// The database's.
pub async fn replace(
    conn: &mut PgConnection,
    owner: UserId,
    jobs: &[(JobId, SiteId, &StringMap)],
) -> ApiResult<Vec<i64>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<JobId> = jobs.iter().map(|(id, ..)| *id).collect();
    delete(&mut *conn, owner, &ids).await?;
    let places: Vec<(SiteId, &StringMap)> = jobs.iter().map(|(_, site, tags)| (*site, *tags)).collect();
    let sets = tag_sets::of_new(&mut *conn, owner, &HashSet::new(), &places).await?;
    const SQL: &str = "update jobs j set tags = u.tags, tag_set = u.tag_set \
         from unnest($1::bigint[], $2::jsonb[], $3::bigint[]) as u(id, tags, tag_set) where j.id = u.id";
    let tags: Vec<_> = jobs.iter().map(|(.., tags)| Json(tags)).collect();
    sqlx::query(SQL).bind(ids).bind(tags).bind(&sets).execute(&mut *conn).await?;
    insert(conn, owner, jobs.iter().map(|(id, _, tags)| (*id, *tags))).await?;
    Ok(sets)
}

/// Removes what is recorded of Jobs, by the tags that their rows still have.
///
/// # Errors
/// The database's.
pub async fn delete(conn: &mut PgConnection, owner: UserId, ids: &[JobId]) -> ApiResult<()> {
    const READ: &str = "select id, tags from jobs where id = any($1) and tags <> '{}'";
    let rows: Vec<(JobId, Json<StringMap>)> = sqlx::query_as(READ).bind(ids).fetch_all(&mut *conn).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let pairs: Vec<(i64, JobId)> =
        rows.iter().flat_map(|(id, tags)| tags.iter().map(move |(key, value)| (number(key, value), *id))).collect();
    const SQL: &str = "delete from job_tags t using unnest($2::bigint[], $3::bigint[]) as u(tag, job_id) \
         where t.owner_id = $1 and t.tag = u.tag and t.job_id = u.job_id";
    sqlx::query(SQL)
        .bind(owner)
        .bind(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())
        .bind(pairs.iter().map(|pair| pair.1).collect::<Vec<_>>())
        .execute(conn)
        .await?;
    Ok(())
}

/// Conditions that the Job whose id is in `column` has all of these tags.
pub fn push_have(sql: &mut QueryBuilder<Postgres>, column: &str, owner: UserId, tags: &StringMap) {
    for (key, value) in tags {
        sql.push(" and ").push(column).push(" in (select job_id from job_tags where owner_id = ").push_bind(owner);
        sql.push(" and tag = ").push_bind(number(key, value)).push(")");
    }
}

/// A query for the ids of the Jobs that have all of these tags, of which there is one at least.
pub fn push_jobs_with(sql: &mut QueryBuilder<Postgres>, owner: UserId, tags: &StringMap) {
    for (place, (key, value)) in tags.iter().enumerate() {
        sql.push(if place > 0 { " intersect " } else { "" });
        sql.push("select job_id from job_tags where owner_id = ").push_bind(owner);
        sql.push(" and tag = ").push_bind(number(key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_keep_key_and_value_apart() {
        assert_eq!(number("system", "H2O"), number("system", "H2O"));
        assert_ne!(number("ab", "c"), number("a", "bc"));
        assert_ne!(number("a", ""), number("", "a"));
        // Stored in the database: may never change.
        assert_eq!(number("a", "b"), number_of_a_b());
    }

    fn number_of_a_b() -> i64 {
        let mut hash = Sha256::new();
        hash.update([1, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        let bytes: [u8; 8] = hash.finalize()[..8].try_into().unwrap();
        i64::from_le_bytes(bytes)
    }
}
