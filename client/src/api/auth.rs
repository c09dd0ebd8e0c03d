//! Calls about users and tokens.

use copal_schemas::user::{AccessToken, Login, Register, User};
use reqwest::Method;

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

    /// Who the token belongs to.
    ///
    /// # Errors
    /// `unauthenticated` when the service does not know the token.
    pub async fn whoami(&self) -> Result<User, ClientError> {
        self.get("auth/password/me", &()).await
    }
}
