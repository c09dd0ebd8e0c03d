//! Answers of POST requests that carried an `Idempotency-Key`, so that a request whose answer was
//! lost can be sent again without a second effect. Key, effect and answer are one transaction.

use copal_schemas::{UserId, problem::ErrorCode};
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;

use crate::error::{ApiError, ApiResult};

/// An answer that was given before.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// What tells one request from another.
#[must_use]
pub fn request_hash(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), path.as_bytes(), body] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// Takes the key for this transaction. Gives the stored answer where the same request was done
/// before; waits for one that is being done now.
///
/// # Errors
/// 409 when the key belongs to another request.
pub async fn begin(
    tx: &mut PgConnection,
    owner: UserId,
    key: &str,
    request_hash: &[u8],
) -> ApiResult<Option<StoredAnswer>> {
    let taken = sqlx::query(
        "insert into idempotency_keys (owner_id, key, request_hash) values ($1, $2, $3) \
         on conflict on constraint idempotency_keys_pkey do nothing",
    )
    .bind(owner)
    .bind(key)
    .bind(request_hash)
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if taken == 1 {
        return Ok(None);
    }
    let (hash, status, answer): (Vec<u8>, i16, Vec<u8>) = sqlx::query_as(
        "select request_hash, coalesce(status, 0::smallint), coalesce(answer, ''::bytea) \
         from idempotency_keys where owner_id = $1 and key = $2",
    )
    .bind(owner)
    .bind(key)
    .fetch_one(tx)
    .await?;
    if hash != request_hash {
        return Err(ApiError::new(
            ErrorCode::IdempotencyMismatch,
            format!("the Idempotency-Key {key:?} belongs to another request; make a new key for each request"),
        ));
    }
    Ok(Some(StoredAnswer { status: u16::try_from(status).unwrap_or_default(), body: answer }))
}

/// Stores the answer beside its key.
///
/// # Errors
/// When the database does not answer.
pub async fn finish(tx: &mut PgConnection, owner: UserId, key: &str, status: u16, body: &[u8]) -> ApiResult<()> {
    sqlx::query("update idempotency_keys set status = $3, answer = $4 where owner_id = $1 and key = $2")
        .bind(owner)
        .bind(key)
        .bind(i16::try_from(status).unwrap_or_default())
        .bind(body)
        .execute(tx)
        .await?;
    Ok(())
}

/// Forgets answers that nobody will ask for again.
///
/// # Errors
/// When the database does not answer.
pub async fn prune(tx: &mut PgConnection) -> ApiResult<u64> {
    let old = "delete from idempotency_keys where created_at < statement_timestamp() - interval '1 day'";
    Ok(sqlx::query(old).execute(tx).await?.rows_affected())
}
