//! The keys that sign access tokens, and the tokens themselves: JWT, HS256, with `kid`.
//!
//! Keys live in the database, so that all processes sign and verify alike; each process keeps a
//! copy. The newest key signs, all that are not retired verify.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{TimeDelta, Utc};
use copal_schemas::{
    Timestamp, UserId,
    user::{AccessToken, User},
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};

use crate::{
    db,
    error::{ApiError, ApiResult},
    extract::CurrentUser,
};

/// How long an access token is good. Balsam's clients warn when less than a day is left.
pub const TOKEN_LIFE: TimeDelta = TimeDelta::hours(48);

/// The copy of the keys is read again after this time, so that a retired key stops verifying and
/// a new one starts to sign; a key that is not known yet is looked up at once.
const REFRESH_AFTER: Duration = Duration::from_secs(60);
/// Look-ups of unknown keys happen at most this often: anybody can send tokens with made-up ones.
const UNKNOWN_AFTER: Duration = Duration::from_secs(1);

/// HS256 wants a key as long as its hash.
const SECRET_BYTES: usize = 32;

#[derive(Serialize, Deserialize)]
struct Claims {
    /// An integer, as Balsam has it.
    sub: i64,
    username: String,
    exp: i64,
    iat: i64,
}

/// This process's copy of the signing keys.
pub struct KeyRing(RwLock<Ring>);

struct Ring {
    /// The id of the key that signs.
    newest: String,
    keys: HashMap<String, Key>,
    read_at: Instant,
}

#[derive(Clone)]
struct Key {
    sign: EncodingKey,
    verify: DecodingKey,
}

impl KeyRing {
    /// Reads the keys; makes the first one where there is none.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn load(pool: &PgPool) -> anyhow::Result<Self> {
        let ring = db::transact(pool, async |tx| read_ring(tx).await).await?;
        Ok(Self(RwLock::new(ring)))
    }

    /// Makes an access token for a user.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn issue(&self, pool: &PgPool, user: &User) -> ApiResult<AccessToken> {
        self.refresh(pool, REFRESH_AFTER).await?;
        let (kid, key) = {
            let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let key = ring.keys.get(&ring.newest).cloned();
            (ring.newest.clone(), key.ok_or_else(|| ApiError::internal(anyhow::anyhow!("no signing key")))?)
        };
        let now = Utc::now();
        let expiration = now + TOKEN_LIFE;
        let claims = Claims {
            sub: user.id.0,
            username: user.username.clone(),
            exp: expiration.timestamp(),
            iat: now.timestamp(),
        };
        let header = Header { kid: Some(kid), ..Header::new(Algorithm::HS256) };
        let access_token = encode(&header, &claims, &key.sign).map_err(ApiError::internal)?;
        // `exp` counts whole seconds.
        let expiration = Timestamp::from_timestamp(claims.exp, 0).unwrap_or(expiration);
        Ok(AccessToken { access_token, token_type: "bearer".into(), expiration })
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// `unauthenticated` when this service did not sign it or it has lapsed.
    pub async fn verify(&self, pool: &PgPool, token: &str) -> ApiResult<CurrentUser> {
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
        Ok(CurrentUser { id: UserId(claims.sub), username: claims.username })
    }

    fn verifier(&self, kid: &str) -> Option<DecodingKey> {
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ring.keys.get(kid).map(|key| key.verify.clone())
    }

    async fn refresh(&self, pool: &PgPool, after: Duration) -> ApiResult<()> {
        {
            let mut ring = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if ring.read_at.elapsed() < after {
                return Ok(());
            }
            // Others go on with the present copy in the meantime.
            ring.read_at = Instant::now();
        }
        let fresh = db::transact(pool, async |tx| read_ring(tx).await).await?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }
}

async fn read_ring(tx: &mut PgConnection) -> ApiResult<Ring> {
    let mut stored = db::users::signing_keys(tx).await?;
    if stored.is_empty() {
        db::users::lock_signing_keys(tx).await?;
        stored = db::users::signing_keys(tx).await?;
    }
    if stored.is_empty() {
        let (kid, secret): ([u8; 9], [u8; SECRET_BYTES]) = (rand::random(), rand::random());
        db::users::add_signing_key(tx, &URL_SAFE_NO_PAD.encode(kid), &secret).await?;
        stored = db::users::signing_keys(tx).await?;
    }
    let newest = stored.first().map(|key| key.kid.clone()).unwrap_or_default();
    let keys = stored
        .into_iter()
        .map(|key| {
            let sign = EncodingKey::from_secret(&key.secret).map_err(ApiError::internal)?;
            let verify = DecodingKey::from_secret(&key.secret).map_err(ApiError::internal)?;
            Ok((key.kid, Key { sign, verify }))
        })
        .collect::<ApiResult<_>>()?;
    Ok(Ring { newest, keys, read_at: Instant::now() })
}
