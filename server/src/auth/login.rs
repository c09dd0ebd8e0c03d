//! Logins: each gives an access token, and where asked for a refresh token that renews it.

use chrono::TimeDelta;
use copal_schemas::{
    BatchJobId, SiteId, UserId,
    user::{AccessToken, LoginKind, OFFLINE_ACCESS},
};
use sqlx::PgConnection;

use super::{LOGIN_LIFE, LONGEST_TOKEN_LIFE, LoginId, TOKEN_LIFE, keys::Signer, secret};
use crate::{
    db::{
        self,
        logins::{NewLogin, Renewal, StoredLogin},
    },
    error::{ApiError, ApiResult},
    extract::{Bound, CurrentUser},
};

/// What people and programs recognise a refresh token by.
const REFRESH_PREFIX: &str = "copal_refresh_";

/// Kept beyond the walltime: the launcher still reports what ended at its end.
const LAUNCHER_MARGIN: TimeDelta = TimeDelta::hours(1);

/// Whether a scope asks for a refresh token.
pub(crate) fn wants_refresh(scope: &str) -> bool {
    scope.split_whitespace().any(|word| word == OFFLINE_ACCESS)
}

/// A login that is about to be made.
pub(crate) struct Start<'a> {
    pub(crate) user_id: UserId,
    pub(crate) username: &'a str,
    /// The program and the address, for people.
    pub(crate) client: &'a str,
    pub(crate) kind: LoginKind,
    pub(crate) bound: Bound,
    /// Whether a refresh token is wanted.
    pub(crate) refresh: bool,
    /// The minutes of the BatchJob, for a launcher.
    pub(crate) wall_time_min: Option<i32>,
}

/// Makes a login and its tokens.
pub(crate) async fn start(
    tx: &mut PgConnection,
    signer: &Signer,
    start: Start<'_>,
) -> ApiResult<(LoginId, AccessToken)> {
    let life = token_life(start.wall_time_min);
    let (site_id, batch_job_id) = parts(start.bound);
    let login = db::logins::create(
        tx,
        &NewLogin {
            user_id: start.user_id,
            kind: start.kind,
            site_id,
            batch_job_id,
            client: start.client,
            life: if start.refresh { LOGIN_LIFE.max(life) } else { life },
        },
    )
    .await?;
    let user = CurrentUser { id: start.user_id, username: start.username.to_owned(), login, bound: start.bound };
    let (access_token, expiration) = signer.sign(&user, life)?;
    let refresh_token = match start.refresh {
        true => {
            let (text, hash) = secret::new(REFRESH_PREFIX);
            db::logins::add_refresh_token(tx, login, &hash, None).await?;
            Some(text)
        }
        false => None,
    };
    Ok((login, AccessToken { access_token, token_type: "bearer".into(), expiration, refresh_token }))
}

/// What became of a refresh token that somebody sent.
pub(crate) enum Renewed {
    /// New tokens.
    Tokens(AccessToken),
    /// Its login is over, or there never was such a token.
    Refused,
    /// It had been spent long ago, so that somebody else has it, too: its login is revoked.
    Stolen,
}

/// Exchanges a refresh token for new tokens.
pub(crate) async fn renew(tx: &mut PgConnection, signer: &Signer, token: &str) -> ApiResult<Renewed> {
    let hash = secret::hash(token);
    let StoredLogin { id, user_id, kind, site_id, batch_job_id, wall_time_min } =
        match db::logins::renew(tx, &hash, LOGIN_LIFE).await? {
            Renewal::Login(login) => login,
            Renewal::Unknown => return Ok(Renewed::Refused),
            Renewal::Reused(login) => {
                db::logins::revoke(tx, login).await?;
                return Ok(Renewed::Stolen);
            }
        };
    let bound = match (kind, site_id, batch_job_id) {
        (LoginKind::Site, Some(site), _) => Bound::Site(site),
        (LoginKind::Launcher, Some(site), Some(batch_job)) => Bound::Launcher(site, batch_job),
        (LoginKind::Password | LoginKind::Device, ..) => Bound::User,
        // The table's constraints exclude these.
        _ => return Err(ApiError::internal(anyhow::anyhow!("login {} is bound to nothing", id.0))),
    };
    let username = db::users::name_of(tx, user_id).await?;
    let (access_token, expiration) =
        signer.sign(&CurrentUser { id: user_id, username, login: id, bound }, token_life(wall_time_min))?;
    let (text, new_hash) = secret::new(REFRESH_PREFIX);
    db::logins::add_refresh_token(tx, id, &new_hash, Some(&hash)).await?;
    let refresh_token = Some(text);
    Ok(Renewed::Tokens(AccessToken { access_token, token_type: "bearer".into(), expiration, refresh_token }))
}

fn token_life(wall_time_min: Option<i32>) -> TimeDelta {
    match wall_time_min {
        None => TOKEN_LIFE,
        Some(minutes) => (TimeDelta::minutes(minutes.into()) + LAUNCHER_MARGIN).min(LONGEST_TOKEN_LIFE),
    }
}

fn parts(bound: Bound) -> (Option<SiteId>, Option<BatchJobId>) {
    match bound {
        Bound::User => (None, None),
        Bound::Site(site) => (Some(site), None),
        Bound::Launcher(site, batch_job) => (Some(site), Some(batch_job)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_decides_over_refresh_tokens() {
        assert!(wants_refresh("openid offline_access"));
        assert!(!wants_refresh("openid offline_accessories"));
        assert!(!wants_refresh(""));
    }

    #[test]
    fn a_launchers_token_lives_to_the_end_of_the_walltime_and_is_bounded() {
        assert_eq!(token_life(None), TOKEN_LIFE);
        assert_eq!(token_life(Some(60)), TimeDelta::hours(2));
        assert_eq!(token_life(Some(i32::MAX)), LONGEST_TOKEN_LIFE);
    }
}
