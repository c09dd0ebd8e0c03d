//! Calls about users and tokens.

use std::time::Duration;

use copal_schemas::{
    BatchJobId, SiteId,
    user::{
        AccessToken, DeviceLogin, DeviceLoginStart, DeviceToken, LauncherSecret, Login, OFFLINE_ACCESS, Refresh,
        Register, Revoke, User,
    },
};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::{Client, ClientError};

/// How long a renewal or a revocation may take: other requests wait for it.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(20);

impl Client {
    /// The ways to log in, in the service's spelling: `LoginMethod.password`, `LoginMethod.oauth_device`.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn login_methods(&self) -> Result<Vec<String>, ClientError> {
        self.get("auth/how", &()).await
    }

    /// Makes an account.
    ///
    /// # Errors
    /// `conflict` when the name is taken, `forbidden` when registration is closed.
    pub async fn register(&self, username: &str, password: &str) -> Result<User, ClientError> {
        self.post("auth/password/register", &Register { username: username.into(), password: password.into() }).await
    }

    /// Logs in, with a refresh token.
    ///
    /// # Errors
    /// `unauthenticated` when name or password are wrong, `rate_limited` after too many tries.
    pub async fn login(&self, username: &str, password: &str) -> Result<AccessToken, ClientError> {
        let form = Login { username: username.into(), password: password.into(), scope: OFFLINE_ACCESS.into() };
        self.fetch_bare(self.request(Method::POST, "auth/password/login").form(&form)).await
    }

    /// Exchanges a refresh token for new tokens. It stays good until its successor is used.
    ///
    /// # Errors
    /// `unauthenticated` when the login is over.
    pub async fn renew(&self, refresh_token: &SecretString) -> Result<AccessToken, ClientError> {
        let form = Refresh { grant_type: "refresh_token".into(), refresh_token: refresh_token.expose_secret().into() };
        self.fetch_bare(self.request(Method::POST, "auth/token").timeout(TOKEN_TIMEOUT).form(&form)).await
    }

    /// Ends the login that an access or refresh token belongs to.
    ///
    /// # Errors
    /// [`ClientError`]; a token that the service does not know is no error.
    pub async fn revoke(&self, token: &SecretString) -> Result<(), ClientError> {
        let form = Revoke { token: token.expose_secret().into() };
        let request = self.request(Method::POST, "auth/revoke").timeout(TOKEN_TIMEOUT).form(&form);
        self.send_bare(request).await.map(drop)
    }

    /// Makes tokens for the agent of a Site, good for that Site only.
    ///
    /// # Errors
    /// `not_found`; `forbidden` unless a user asks.
    pub async fn create_site_token(&self, id: SiteId) -> Result<AccessToken, ClientError> {
        self.fetch(self.request(Method::POST, &format!("sites/{id}/token"))).await
    }

    /// Makes a secret that the BatchJob's launcher exchanges for tokens when it starts, whenever that is.
    ///
    /// # Errors
    /// `not_found`; `conflict` when the BatchJob is over.
    pub async fn create_launcher_secret(&self, id: BatchJobId) -> Result<LauncherSecret, ClientError> {
        self.fetch(self.request(Method::POST, &format!("batch-jobs/{id}/launcher-secret"))).await
    }

    /// Exchanges a launcher's secret, once, for tokens that are good as long as its BatchJob.
    ///
    /// # Errors
    /// `unauthenticated` when the secret is unknown or spent, or the BatchJob is over.
    pub async fn exchange_launcher_secret(&self, secret: &SecretString) -> Result<AccessToken, ClientError> {
        let form = LauncherSecret { secret: secret.expose_secret().into() };
        self.fetch_bare(self.request(Method::POST, "auth/launcher").timeout(TOKEN_TIMEOUT).form(&form)).await
    }

    /// Begins a login that its user approves in a browser (RFC 8628), with a refresh token.
    ///
    /// # Errors
    /// `not_found` where the service has no such login.
    pub async fn start_device_login(&self, client_id: Uuid) -> Result<DeviceLogin, ClientError> {
        let form = DeviceLoginStart { client_id: client_id.to_string(), scope: OFFLINE_ACCESS.into() };
        self.fetch_bare(self.request(Method::POST, "auth/device/login").form(&form)).await
    }

    /// Asks whether a login was approved. `None` while it was not.
    ///
    /// # Errors
    /// `forbidden` when it was denied, `conflict` when the code lapsed.
    pub async fn finish_device_login(
        &self,
        client_id: Uuid,
        device_code: &str,
    ) -> Result<Option<AccessToken>, ClientError> {
        let form = DeviceToken {
            grant_type: "urn:ietf:params:oauth:grant-type:device_code".into(),
            device_code: device_code.into(),
            client_id: client_id.to_string(),
        };
        match self.fetch_bare(self.request(Method::POST, "auth/device/token").form(&form)).await {
            Ok(token) => Ok(Some(token)),
            Err(ClientError::Problem(problem)) if problem.detail.contains("authorization_pending") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who the token belongs to.
    ///
    /// # Errors
    /// `unauthenticated` when the service does not know the token.
    pub async fn whoami(&self) -> Result<User, ClientError> {
        self.get("auth/password/me", &()).await
    }
}
