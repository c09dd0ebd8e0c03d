//! One bucket of an S3-compatible store: how it is reached, with which credentials, how keys are made of paths,
//! and what its errors mean.

use std::{borrow::Cow, env, time::Duration};

use copal_schemas::{settings::S3Settings, transfer::Direction};
use object_store::{
    Attribute, BackoffConfig, ClientOptions, Error, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, Checksum},
    path::Path as Key,
};
use secrecy::ExposeSecret;

use super::super::{
    Cause, Location, Run, StagingError,
    authorities::{self, Authorities},
};
use crate::api::one_line;

/// Where an object keeps the SHA-256 of its content.
pub(super) const SHA256: Attribute = Attribute::Metadata(Cow::Borrowed("copal-sha256"));

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Variables of the environment that lead to credentials.
const CREDENTIALS: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// One bucket.
pub(super) struct Store {
    /// The way to it.
    pub(super) client: AmazonS3,
    alias: String,
    bucket: String,
}

impl Store {
    /// By the settings of the location, with its secrets or those of the environment.
    pub(super) fn open(location: &Location, run: &Run) -> Result<Self, StagingError> {
        let alias = &location.alias;
        let wrong = |what: String| StagingError::new(Cause::Settings, format!("the location {alias:?}: {what}"));
        let mut secrets = run.secrets.of(alias)?;
        let mut secret = |name: &str| secrets.remove(name);
        let builder = match (secret("access_key_id"), secret("secret_access_key")) {
            (Some(id), Some(key)) => {
                let builder = AmazonS3Builder::new()
                    .with_access_key_id(id.expose_secret())
                    .with_secret_access_key(key.expose_secret());
                match secret("session_token") {
                    Some(token) => builder.with_token(token.expose_secret()),
                    None => builder,
                }
            }
            (None, None) if CREDENTIALS.iter().any(|name| env::var_os(name).is_some()) => AmazonS3Builder::from_env(),
            (None, None) => {
                return Err(wrong(
                    "no credentials; put access_key_id and secret_access_key into transfers.credentials_file".into(),
                ));
            }
            _ => return Err(wrong("access_key_id and secret_access_key belong together".into())),
        };
        if let Some(name) = secrets.keys().next() {
            return Err(wrong(format!(
                "{name:?} in transfers.credentials_file is none of access_key_id, secret_access_key, session_token"
            )));
        }
        let usual = S3Settings::default();
        let settings = run.settings.s3.get(alias).unwrap_or(&usual);
        let stall = Duration::try_from_secs_f64(run.settings.stall_timeout_sec).unwrap_or(Duration::MAX);
        let mut options = ClientOptions::new()
            // A large object takes its time; what counts is that something moves.
            .with_timeout_disabled()
            .with_read_timeout(stall)
            .with_connect_timeout(CONNECT_LIMIT);
        for certificate in Authorities::of(&run.site, &run.settings)?.for_stores()? {
            options = options.with_root_certificate(certificate);
        }
        let mut builder = builder
            .with_bucket_name(&location.host)
            .with_region(&settings.region)
            .with_virtual_hosted_style_request(settings.virtual_hosted_style)
            .with_checksum_algorithm(Checksum::SHA256)
            // Waits of minutes are the agent's own.
            .with_retry(RetryConfig {
                backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..BackoffConfig::default() },
                max_retries: 3,
                retry_timeout: Duration::from_secs(60),
            });
        if let Some(endpoint) = &settings.endpoint {
            options = options.with_allow_http(endpoint.starts_with("http://"));
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        let client = builder.with_client_options(options).build().map_err(|error| wrong(one_line(&error)))?;
        Ok(Self { client, alias: alias.clone(), bucket: location.host.clone() })
    }

    /// The key of a path at the location. Letters stand for themselves; nothing is encoded.
    pub(super) fn key(&self, remote: &str) -> Result<Key, StagingError> {
        Key::parse(remote).map_err(|error| StagingError::new(Cause::Escape, format!("{remote:?} is no key: {error}")))
    }

    /// How people call an object.
    pub(super) fn name(&self, key: &Key) -> String {
        format!("s3://{}/{key}", self.bucket)
    }

    /// What an error of the store means.
    pub(super) fn explain(&self, error: Error, key: &Key, direction: Direction) -> StagingError {
        let name = self.name(key);
        let text = bounded(&error);
        if let Some(remedy) = authorities::remedy(&text) {
            return StagingError::new(Cause::Settings, format!("{name}: {text}; {remedy}"));
        }
        let (cause, message) = match &error {
            _ if text.contains("NoSuchBucket") => {
                (Cause::Destination, format!("there is no bucket {}; make it", self.bucket))
            }
            Error::NotFound { .. } if direction == Direction::In => {
                (Cause::MissingSource, format!("there is no {name}"))
            }
            Error::NotFound { .. } => (Cause::Destination, format!("{name}: {text}")),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
                Cause::Permission,
                format!(
                    "{name}: the store does not let these credentials in; see {:?} in transfers.credentials_file",
                    self.alias
                ),
            ),
            Error::Precondition { .. } | Error::NotModified { .. } => {
                (Cause::Network, format!("{name} changed while it was fetched"))
            }
            Error::InvalidPath { .. } => (Cause::Escape, format!("{name}: {text}")),
            _ if mentions(&text, &["BadDigest", "InvalidDigest", "SHA256Mismatch", "InvalidPart"]) => {
                (Cause::Checksum, format!("{name}: {text}"))
            }
            _ if mentions(
                &text,
                &["507 ", "InsufficientStorage", "QuotaExceeded", "StorageFull", "EntityTooLarge"],
            ) =>
            {
                (Cause::Full, format!("{name}: {text}"))
            }
            _ if mentions(&text, &["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "AccessDenied"]) => {
                (Cause::Permission, format!("{name}: {text}"))
            }
            // Such as another region: it stays wrong until somebody mends it.
            _ if mentions(&text, &["status code: 400", "status code: 301"]) => {
                (Cause::Settings, format!("{name}: {text}; see {:?} in transfers.s3", self.alias))
            }
            _ => (Cause::Network, format!("{name}: {text}")),
        };
        StagingError::new(cause, message)
    }
}

fn mentions(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The error with its causes in one line of bounded length.
fn bounded(error: &Error) -> String {
    one_line(error).split_whitespace().collect::<Vec<_>>().join(" ").chars().take(600).collect()
}
