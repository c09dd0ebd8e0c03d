//! Calls about users and tokens.

use copal_schemas::user::{AccessToken, DeviceLogin, DeviceLoginStart, DeviceToken, Login, Register, User};
use reqwest::Method;
use uuid::Uuid;

use super::{Client, ClientError};

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

    /// Logs in.
    ///
    /// # Errors
    /// `unauthenticated` when name or password are wrong, `rate_limited` after too many tries.
    pub async fn login(&self, username: &str, password: &str) -> Result<AccessToken, ClientError> {
        let form = Login { username: username.into(), password: password.into(), scope: String::new() };
        self.fetch(self.request(Method::POST, "auth/password/login").form(&form)).await
    }

    /// Begins a login that its user approves in a browser (RFC 8628).
    ///
    /// # Errors
    /// `not_found` where the service has no such login.
    pub async fn start_device_login(&self, client_id: Uuid) -> Result<DeviceLogin, ClientError> {
        let form = DeviceLoginStart { client_id: client_id.to_string(), scope: String::new() };
        self.fetch(self.request(Method::POST, "auth/device/login").form(&form)).await
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
        match self.fetch(self.request(Method::POST, "auth/device/token").form(&form)).await {
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
