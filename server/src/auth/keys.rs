//! The keys that sign access tokens, and the tokens themselves: JWT, HS256, with `kid`.
//!
//! Keys and revoked logins live in the database, so that all processes sign and verify alike; each
//! process keeps a copy that is never older than a few seconds. The newest key signs, all that are
//! not retired verify.

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{TimeDelta, Utc};
use copal_schemas::{BatchJobId, SiteId, Timestamp, UserId, problem::ErrorCode};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};

use super::LoginId;
use crate::{
    db,
    error::{ApiError, ApiResult},
    extract::{Bound, CurrentUser},
};

/// The copy is read again after this time, so that a new key starts to sign, and a retired key or
/// a revoked login is refused, everywhere.
const REFRESH_AFTER: Duration = Duration::from_secs(5);
/// A key that is not known yet is looked up at once, but at most this often: anybody can send
/// tokens with made-up ones.
const UNKNOWN_AFTER: Duration = Duration::from_millis(500);

/// A key signs this long before the next one takes over.
const ROTATE_AFTER: TimeDelta = TimeDelta::days(30);
/// HS256 wants a key as long as its hash.
const SECRET_BYTES: usize = 32;

#[derive(Serialize, Deserialize)]
struct Claims {
    /// The user, an integer as Balsam has it.
    sub: i64,
    username: String,
    exp: i64,
    iat: i64,
    /// The login that it stems from.
    login: i64,
    /// What it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch_job: Option<i64>,
}

/// This process's copy of the signing keys and the revoked logins.
pub struct KeyRing(RwLock<Ring>);

struct Ring {
    /// The id of the key that signs.
    newest: String,
    keys: HashMap<String, Key>,
    revoked: HashSet<LoginId>,
    read_at: Instant,
}

struct Key {
    sign: EncodingKey,
    verify: DecodingKey,
}

/// The key that signs now. Got before a transaction, so that signing needs no second connection.
pub(crate) struct Signer {
    kid: String,
    key: EncodingKey,
}

impl Signer {
    /// A token for the user, good for `life`; and when it lapses.
    pub(crate) fn sign(&self, user: &CurrentUser, life: TimeDelta) -> ApiResult<(String, Timestamp)> {
        let now = Utc::now();
        let exp = (now + life).timestamp();
        let claims = Claims {
            sub: user.id.0,
            username: user.username.clone(),
            exp,
            iat: now.timestamp(),
            login: user.login.0,
            site: user.site().map(|id| id.0),
            batch_job: user.batch_job().map(|id| id.0),
        };
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(Algorithm::HS256) };
        let token = encode(&header, &claims, &self.key).map_err(ApiError::internal)?;
        // `exp` counts whole seconds.
        Ok((token, Timestamp::from_timestamp(exp, 0).unwrap_or(now)))
    }
}

impl KeyRing {
    /// Reads the keys; makes the first one where there is none.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn load(pool: &PgPool) -> anyhow::Result<Self> {
        Ok(Self(RwLock::new(read_ring(pool).await?)))
    }

    /// The key that signs now.
    pub(crate) async fn signer(&self, pool: &PgPool) -> ApiResult<Signer> {
        self.refresh(pool, REFRESH_AFTER).await?;
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match ring.keys.get(&ring.newest) {
            Some(key) => Ok(Signer { kid: ring.newest.clone(), key: key.sign.clone() }),
            None => Err(ApiError::internal(anyhow::anyhow!("there is no signing key"))),
        }
    }

    /// Whose token it is and what it may do.
    ///
    /// # Errors
    /// `unauthenticated` when this service did not sign it, it has lapsed or was revoked.
    pub async fn verify(&self, pool: &PgPool, token: &str) -> ApiResult<CurrentUser> {
        self.verify_holder(pool, token).await.map_err(|error| match error.code() {
            ErrorCode::SessionEnded => ApiError::unauthenticated(error.problem().detail.clone()),
            _ => error,
        })
    }

    /// The same for a call on a Session. A launcher that was cut off when its BatchJob ended must hear that it has no
    /// Session any more: for want of a credential alone it would let its runs go on. One that has lost no more than its
    /// credential must not hear that, since it would throw its results away.
    ///
    /// # Errors
    /// As [`KeyRing::verify`]; `session_ended` for a launcher whose BatchJob is over.
    pub(crate) async fn verify_holder(&self, pool: &PgPool, token: &str) -> ApiResult<CurrentUser> {
        let refused = || ApiError::unauthenticated("Could not validate credentials: log in again for a new token");
        let kid = decode_header(token).ok().and_then(|header| header.kid).ok_or_else(refused)?;
        self.refresh(pool, REFRESH_AFTER).await?;
        let mut key = self.verifier(&kid);
        if key.is_none() {
            self.refresh(pool, UNKNOWN_AFTER).await?;
            key = self.verifier(&kid);
        }
        let key = key.ok_or_else(refused)?;
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = 0;
        let claims = decode::<Claims>(token, &key, &rules).map_err(|_| refused())?.claims;
        let login = LoginId(claims.login);
        if self.has_revoked(login) {
            return Err(match claims.batch_job.map(BatchJobId) {
                Some(id) if db::batch_jobs::is_over(pool, UserId(claims.sub), id).await? => {
                    ApiError::new(ErrorCode::SessionEnded, format!("BatchJob {id} is over; its launcher must end"))
                }
                _ => refused(),
            });
        }
        let bound = match (claims.site.map(SiteId), claims.batch_job.map(BatchJobId)) {
            (None, _) => Bound::User,
            (Some(site), None) => Bound::Site(site),
            (Some(site), Some(batch_job)) => Bound::Launcher(site, batch_job),
        };
        Ok(CurrentUser { id: UserId(claims.sub), username: claims.username, login, bound })
    }

    /// Whether a login has ended since its token was believed.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn is_revoked(&self, pool: &PgPool, login: LoginId) -> ApiResult<bool> {
        self.refresh(pool, REFRESH_AFTER).await?;
        Ok(self.has_revoked(login))
    }

    fn has_revoked(&self, login: LoginId) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).revoked.contains(&login)
    }

    /// Makes this process read the keys and revoked logins again before it believes the next token.
    pub(crate) fn expire(&self) {
        let mut ring = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(long_ago) = ring.read_at.checked_sub(REFRESH_AFTER) {
            ring.read_at = long_ago;
        }
    }

    fn verifier(&self, kid: &str) -> Option<DecodingKey> {
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ring.keys.get(kid).map(|key| key.verify.clone())
    }

    async fn refresh(&self, pool: &PgPool, after: Duration) -> ApiResult<()> {
        if self.0.read().unwrap_or_else(PoisonError::into_inner).read_at.elapsed() < after {
            return Ok(());
        }
        {
            let mut ring = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if ring.read_at.elapsed() < after {
                return Ok(());
            }
            // Others go on with the present copy in the meantime.
            ring.read_at = Instant::now();
        }
        match read_ring(pool).await {
            Ok(fresh) => *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh,
            Err(error) => {
                self.expire();
                return Err(error);
            }
        }
        Ok(())
    }
}

async fn read_ring(pool: &PgPool) -> ApiResult<Ring> {
    let read_at = Instant::now();
    let (stored, revoked) = {
        let mut connection = pool.acquire().await?;
        (db::users::signing_keys(&mut connection).await?, db::logins::revoked(&mut connection).await?)
    };
    let stored = match stored.is_empty() {
        true => db::transact(pool, async |tx| rotate(tx, Rotation::WhenDue).await).await?,
        false => stored,
    };
    let newest = stored.first().map(|key| key.kid.clone()).unwrap_or_default();
    let keys = stored
        .into_iter()
        .map(|key| {
            let sign = EncodingKey::from_secret(&key.secret).map_err(ApiError::internal)?;
            let verify = DecodingKey::from_secret(&key.secret).map_err(ApiError::internal)?;
            Ok((key.kid, Key { sign, verify }))
        })
        .collect::<ApiResult<_>>()?;
    Ok(Ring { newest, keys, revoked: revoked.into_iter().collect(), read_at })
}

/// How a new key takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// When the present one has signed for a month. Older ones retire when their last token has lapsed.
    WhenDue,
    /// Now; the present one verifies on.
    Now,
    /// Now; all others retire at once, so that every token is refused: for when a key has leaked.
    RetireAll,
}

/// Makes a new key, for an operator; retires all others where wanted.
///
/// # Errors
/// When the database does not answer.
pub async fn rotate_now(pool: &PgPool, retire_all: bool) -> anyhow::Result<()> {
    let rotation = if retire_all { Rotation::RetireAll } else { Rotation::Now };
    db::transact(pool, async |tx| rotate(tx, rotation).await.map(drop)).await.map_err(Into::into)
}

/// Makes a new key as `rotation` says; gives the keys that are not retired, the newest first.
pub(crate) async fn rotate(tx: &mut PgConnection, rotation: Rotation) -> ApiResult<Vec<db::users::SigningKey>> {
    db::users::lock_signing_keys(tx).await?;
    match rotation {
        Rotation::WhenDue | Rotation::Now => {
            db::users::retire_signing_keys(tx, ROTATE_AFTER + super::LONGEST_TOKEN_LIFE).await?;
        }
        Rotation::RetireAll => db::users::retire_signing_keys(tx, TimeDelta::zero()).await?,
    }
    let newest = db::users::signing_keys(tx).await?.into_iter().next();
    if rotation == Rotation::Now || newest.is_none_or(|key| key.age() > ROTATE_AFTER) {
        let (kid, secret): ([u8; 9], [u8; SECRET_BYTES]) = (rand::random(), rand::random());
        db::users::add_signing_key(tx, &URL_SAFE_NO_PAD.encode(kid), &secret).await?;
    }
    db::users::signing_keys(tx).await
}
