//! The calls of the Globus Transfer API (v0.10) that staging needs, with the token they take, and what its answers
//! and errors mean. Only fields that are needed are read, and each may be missing: the service leaves some out when
//! it has nothing to say.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use reqwest::{Client, Method, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::super::{
    Cause, Run, StagingError,
    authorities::{self, Authorities},
};

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// The scope of tokens for transfers.
const SCOPE: &str = "urn:globus:auth:scope:transfer.api.globus.org:all";
/// Faults of a running task that the service tries again for days, and that no try mends.
const HOPELESS: &[(&str, Cause)] = &[
    ("PERMISSION_DENIED", Cause::Permission),
    ("FILE_NOT_FOUND", Cause::MissingSource),
    ("NO_SUCH_FILE", Cause::MissingSource),
    ("NOT_A_DIRECTORY", Cause::Destination),
    ("IS_A_DIRECTORY", Cause::Destination),
    ("NO_SPACE", Cause::Full),
    ("QUOTA_EXCEEDED", Cause::Full),
    ("AUTH", Cause::Permission),
    ("CREDENTIAL", Cause::Permission),
];

/// The way to the service.
pub(super) struct Api {
    client: Client,
    base: Url,
    auth: Url,
    alias: String,
    login: Login,
    token: Mutex<Option<SecretString>>,
}

/// What a token is made of.
enum Login {
    /// Somebody has put one into the file.
    Token(SecretString),
    /// A refresh token of a native or confidential client.
    Refresh { client_id: String, client_secret: Option<SecretString>, refresh_token: SecretString },
    /// A confidential client of its own.
    Client { client_id: String, client_secret: SecretString },
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It works. What the service may call states that are not known here is this, too.
    Active,
    /// It waits for somebody to let it in.
    Inactive,
    /// All is moved.
    Succeeded,
    /// It ended with something not moved.
    Failed,
}

/// A task, as far as it is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Task {
    status: Option<String>,
    nice_status: Option<String>,
    nice_status_short_description: Option<String>,
    nice_status_details: Option<String>,
    is_paused: Option<bool>,
    fatal_error: Option<FatalError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct FatalError {
    code: Option<String>,
    description: Option<String>,
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: Option<String>,
    message: Option<String>,
    required_scopes: Option<Vec<String>>,
    authorization_parameters: Option<Value>,
}

impl Task {
    pub(super) fn status(&self) -> Status {
        match self.status.as_deref() {
            Some("SUCCEEDED") => Status::Succeeded,
            Some("FAILED") => Status::Failed,
            Some("INACTIVE") => Status::Inactive,
            _ => Status::Active,
        }
    }

    /// Whether it runs into something that no try mends.
    pub(super) fn is_hopeless(&self) -> bool {
        self.is_paused != Some(true) && self.nice_status.as_deref().is_some_and(|status| cause_of(status).is_some())
    }

    /// Why it is not done.
    pub(super) fn error(&self) -> StagingError {
        let fatal = self.fatal_error.clone().unwrap_or_default();
        let code = fatal.code.as_deref().or(self.nice_status.as_deref()).unwrap_or_default();
        let known = cause_of(code).or_else(|| self.nice_status.as_deref().and_then(cause_of));
        let cause = match (known, self.status()) {
            (Some(cause), _) => cause,
            (None, Status::Inactive) => Cause::Permission,
            (None, _) if code.contains("CHECKSUM") => Cause::Checksum,
            (None, _) => Cause::Network,
        };
        let words = [
            Some(code).filter(|code| !code.is_empty()),
            fatal.description.as_deref().or(self.nice_status_short_description.as_deref()),
            self.nice_status_details.as_deref(),
        ];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        let said = if words.is_empty() { "it does not say why".into() } else { words.join(": ") };
        let message = match self.status() {
            Status::Inactive => format!("the Globus task waits for a login at one of its collections: {said}"),
            _ => format!("the Globus task did not move it: {said}"),
        };
        StagingError::new(cause, shortened(&message))
    }
}

fn cause_of(code: &str) -> Option<Cause> {
    HOPELESS.iter().find(|(word, _)| code.contains(word)).map(|(_, cause)| *cause)
}

impl Api {
    /// By the settings, with the secrets of the location.
    pub(super) fn open(alias: &str, run: &Run) -> Result<Self, StagingError> {
        let wrong = |what: String| StagingError::new(Cause::Settings, format!("the location {alias:?}: {what}"));
        let url = |name: &str, text: &str| {
            let url = Url::parse(text).map_err(|error| wrong(format!("transfers.globus.{name}: {error}")))?;
            // A token must not be readable on its way.
            let is_safe =
                url.scheme() == "https" || matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
            if is_safe { Ok(url) } else { Err(wrong(format!("transfers.globus.{name} must begin with https://"))) }
        };
        let mut secrets = run.secrets.of(alias)?;
        let mut secret = |name: &str| secrets.remove(name);
        let text = |secret: SecretString| secret.expose_secret().to_owned();
        let (token, refresh) = (secret("token"), secret("refresh_token"));
        let (client_id, client_secret) = (secret("client_id").map(text), secret("client_secret"));
        let login = match (token, refresh, client_id, client_secret) {
            (Some(token), None, None, None) => Login::Token(token),
            (None, Some(refresh_token), Some(client_id), client_secret) => {
                Login::Refresh { client_id, client_secret, refresh_token }
            }
            (None, None, Some(client_id), Some(client_secret)) => Login::Client { client_id, client_secret },
            _ => {
                return Err(wrong(
                    "transfers.credentials_file must give it one of: token; refresh_token and client_id; client_id and client_secret".into(),
                ));
            }
        };
        let client = Client::builder()
            .timeout(CALL_LIMIT)
            .connect_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none())
            .tls_certs_merge(Authorities::of(&run.site, &run.settings)?.for_web()?)
            .build()
            .map_err(|error| StagingError::new(Cause::Local, error.to_string()))?;
        let settings = &run.settings.globus;
        Ok(Self {
            client,
            base: url("transfer_url", &settings.transfer_url)?,
            auth: url("auth_url", &settings.auth_url)?,
            alias: alias.to_owned(),
            login,
            token: Mutex::default(),
        })
    }

    /// An id that makes the submission which uses it happen once.
    pub(super) async fn submission_id(&self) -> Result<String, StagingError> {
        #[derive(Deserialize)]
        struct SubmissionId {
            value: String,
        }
        Ok(self.call::<SubmissionId>(Method::GET, "submission_id", None).await?.value)
    }

    /// Submits a transfer document and gives its task's id; the same one for the same submission id.
    pub(super) async fn submit(&self, document: &Value) -> Result<String, StagingError> {
        #[derive(Deserialize)]
        struct Submitted {
            task_id: String,
        }
        Ok(self.call::<Submitted>(Method::POST, "transfer", Some(document)).await?.task_id)
    }

    pub(super) async fn task(&self, id: &str) -> Result<Task, StagingError> {
        self.call(Method::GET, &format!("task/{id}"), None).await
    }

    /// Ends a task. One that has ended stays as it is.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), StagingError> {
        let answer: Result<Value, StagingError> =
            self.call(Method::POST, &format!("task/{id}/cancel"), Some(&json!({}))).await;
        match answer {
            Err(error) if error.cause == Cause::Network => Err(error),
            _ => Ok(()),
        }
    }

    /// The paths of the files that a task has moved, as they are called at both ends.
    pub(super) async fn moved(&self, id: &str) -> Result<HashSet<String>, StagingError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(rename = "DATA", default)]
            data: Vec<Moved>,
            #[serde(default)]
            next_marker: Option<Value>,
        }
        #[derive(Deserialize)]
        #[serde(default)]
        #[derive(Default)]
        struct Moved {
            source_path: String,
            destination_path: String,
        }
        let mut paths = HashSet::new();
        let mut query = String::new();
        loop {
            let page: Page = self.call(Method::GET, &format!("task/{id}/successful_transfers{query}"), None).await?;
            let is_last = page.data.is_empty();
            paths.extend(page.data.into_iter().flat_map(|moved| [moved.source_path, moved.destination_path]));
            match page.next_marker {
                Some(Value::String(marker)) if !is_last => query = format!("?marker={marker}"),
                Some(Value::Number(marker)) if !is_last => query = format!("?marker={marker}"),
                _ => return Ok(paths),
            }
        }
    }

    /// One call; with a new token once, where the service does not take the present one.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, StagingError> {
        let (base, path) = (self.base.as_str().trim_end_matches('/'), path.trim_start_matches('/'));
        let mut is_fresh = false;
        loop {
            let token = self.token(&mut is_fresh).await?;
            let mut request =
                self.client.request(method.clone(), format!("{base}/{path}")).bearer_auth(token.expose_secret());
            if let Some(body) = body {
                request = request.json(body);
            }
            let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
            let status = answer.status();
            let text = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
            if status.is_success() {
                return serde_json::from_slice(&text).map_err(|error| {
                    StagingError::new(
                        Cause::Network,
                        format!("Globus gave an answer to {path} that is not understood: {error}"),
                    )
                });
            }
            if status == StatusCode::UNAUTHORIZED && !is_fresh && !matches!(self.login, Login::Token(_)) {
                self.keep_token(None);
                continue;
            }
            return Err(self.refused(status, &text));
        }
    }

    /// What a refusal means.
    fn refused(&self, status: StatusCode, body: &[u8]) -> StagingError {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let code = problem.code.unwrap_or_default();
        let said = problem.message.unwrap_or_else(|| format!("HTTP status {status}"));
        let scopes = problem.required_scopes.or_else(|| {
            let scopes = problem.authorization_parameters?.get("required_scopes")?.clone();
            serde_json::from_value(scopes).ok()
        });
        let alias = &self.alias;
        let (cause, message) = match (status, code.as_str()) {
            (_, "ConsentRequired") => {
                let scopes = scopes.unwrap_or_default().join(" ");
                (
                    Cause::Permission,
                    format!(
                        "a collection of {alias:?} wants your consent first: {said}; get a token for the scope {scopes} (Globus' own \
                         command does it: globus session consent '{scopes}') and put it into transfers.credentials_file"
                    ),
                )
            }
            (StatusCode::UNAUTHORIZED, _) => (
                Cause::Permission,
                format!(
                    "Globus does not accept the token of {alias:?}: {said}; put a new one into transfers.credentials_file"
                ),
            ),
            (StatusCode::FORBIDDEN, _) => (Cause::Permission, format!("Globus refuses it: {code}: {said}")),
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
                (Cause::Network, format!("Globus is busy: {said}"))
            }
            (status, _) if status.is_server_error() => (Cause::Network, format!("Globus is out of order: {said}")),
            (StatusCode::NOT_FOUND, _) => (Cause::Destination, format!("Globus knows no such thing: {code}: {said}")),
            _ => (Cause::Settings, format!("Globus refuses it: {code}: {said}")),
        };
        StagingError::new(cause, shortened(&message))
    }

    /// The token, a new one where there is none yet; `is_fresh` then becomes true.
    async fn token(&self, is_fresh: &mut bool) -> Result<SecretString, StagingError> {
        if let Some(token) = self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone() {
            return Ok(token);
        }
        let token = match &self.login {
            Login::Token(token) => token.clone(),
            Login::Refresh { client_id, client_secret, refresh_token } => {
                let form = [("grant_type", "refresh_token"), ("refresh_token", refresh_token.expose_secret())];
                self.new_token(&form, client_id, client_secret.as_ref()).await?
            }
            Login::Client { client_id, client_secret } => {
                let form = [("grant_type", "client_credentials"), ("scope", SCOPE)];
                self.new_token(&form, client_id, Some(client_secret)).await?
            }
        };
        *is_fresh = true;
        self.keep_token(Some(token.clone()));
        Ok(token)
    }

    fn keep_token(&self, token: Option<SecretString>) {
        *self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = token;
    }

    async fn new_token(
        &self,
        form: &[(&str, &str)],
        client_id: &str,
        client_secret: Option<&SecretString>,
    ) -> Result<SecretString, StagingError> {
        #[derive(Deserialize)]
        struct Answer {
            access_token: String,
        }
        let mut form = form.to_vec();
        let mut request = self.client.post(format!("{}/token", self.auth.as_str().trim_end_matches('/')));
        match client_secret {
            Some(secret) => request = request.basic_auth(client_id, Some(secret.expose_secret())),
            None => form.push(("client_id", client_id)),
        }
        let answer = request.form(&form).send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let text = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(StagingError::new(Cause::Network, format!("Globus gives no token now: HTTP status {status}")));
        }
        serde_json::from_slice::<Answer>(&text).map(|answer| answer.access_token.into()).map_err(|_| {
            let message = format!(
                "Globus gives no token for what transfers.credentials_file has for {:?} (HTTP status {status}); log in there anew",
                self.alias
            );
            StagingError::new(Cause::Permission, message)
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> StagingError {
        authorities::explain("Globus is not reached", error)
    }
}

/// One line of bounded length.
fn shortened(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(800).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(text: &str) -> Task {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn pitfall_128_every_field_of_a_task_may_be_missing() {
        assert_eq!(task("{}").status(), Status::Active);
        assert!(!task("{}").is_hopeless());
        let failed = task(r#"{"status": "FAILED", "nice_status": null}"#);
        assert_eq!((failed.status(), failed.error().cause), (Status::Failed, Cause::Network));
        assert!(failed.error().message.contains("does not say why"));
        assert_eq!(task(r#"{"status": "SOMETHING_NEW"}"#).status(), Status::Active);
    }

    #[test]
    fn pitfall_130_faults_have_causes() {
        for (text, cause) in [
            (
                r#"{"status": "FAILED", "fatal_error": {"code": "PERMISSION_DENIED", "description": "no"}}"#,
                Cause::Permission,
            ),
            (r#"{"status": "FAILED", "fatal_error": {"code": "QUOTA_EXCEEDED"}}"#, Cause::Full),
            (r#"{"status": "FAILED", "nice_status": "FILE_NOT_FOUND"}"#, Cause::MissingSource),
            (r#"{"status": "FAILED", "fatal_error": {"code": "CHECKSUM_MISMATCH"}}"#, Cause::Checksum),
            (r#"{"status": "FAILED", "fatal_error": {"code": "EXPIRED"}}"#, Cause::Network),
            (r#"{"status": "INACTIVE", "nice_status": "GC_PAUSED"}"#, Cause::Permission),
        ] {
            assert_eq!(task(text).error().cause, cause, "{text}");
        }
        assert!(task(r#"{"status": "ACTIVE", "nice_status": "PERMISSION_DENIED"}"#).is_hopeless());
        assert!(!task(r#"{"status": "ACTIVE", "nice_status": "CONNECTION_FAILED"}"#).is_hopeless());
        assert!(!task(r#"{"status": "ACTIVE", "nice_status": "PERMISSION_DENIED", "is_paused": true}"#).is_hopeless());
    }
}
