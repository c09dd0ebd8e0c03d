//! Which certificates of web servers and stores are trusted: those of the machine's authorities, and of those in
//! `transfers.ca_file`, such as a laboratory's own. What a failed call means is said here, too, since a certificate
//! that nobody trusts is a matter of settings.

use std::{fmt, fs};

use copal_client::SiteDir;
use copal_schemas::settings::TransferSettings;

use super::{Cause, StagingError};
use crate::api::root_cause;

/// Certificates of authorities beside the machine's own.
pub struct Authorities {
    /// In PEM form; empty when there are none.
    pem: Vec<u8>,
    /// Where they are from.
    file: String,
}

impl Authorities {
    /// Those that the settings name. Read at each try, so that a new file needs no restart.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn of(site: &SiteDir, settings: &TransferSettings) -> Result<Self, StagingError> {
        let Some(file) = &settings.ca_file else { return Ok(Self { pem: Vec::new(), file: String::new() }) };
        let path = site.root().join(file);
        let pem = fs::read(&path).map_err(|error| {
            StagingError::new(Cause::Settings, format!("transfers.ca_file: {}: {error}", path.display()))
        })?;
        Ok(Self { pem, file: path.display().to_string() })
    }

    /// For clients of web servers and of Globus.
    ///
    /// # Errors
    /// When the file has no certificates.
    pub fn for_web(&self) -> Result<Vec<reqwest::Certificate>, StagingError> {
        self.all(reqwest::Certificate::from_pem_bundle(&self.pem))
    }

    /// For clients of stores.
    ///
    /// # Errors
    /// When the file has no certificates.
    pub fn for_stores(&self) -> Result<Vec<object_store::Certificate>, StagingError> {
        self.all(object_store::Certificate::from_pem_bundle(&self.pem))
    }

    fn all<T, E: fmt::Display>(&self, read: Result<Vec<T>, E>) -> Result<Vec<T>, StagingError> {
        let wrong =
            |what: String| StagingError::new(Cause::Settings, format!("transfers.ca_file: {}: {what}", self.file));
        match read {
            Ok(none) if none.is_empty() && !self.file.is_empty() => {
                Err(wrong("there is no certificate in it; PEM is what is read".into()))
            }
            outcome => outcome.map_err(|error| wrong(error.to_string())),
        }
    }
}

/// What a call that got no answer means.
#[must_use]
pub fn explain(whom: impl fmt::Display, error: &reqwest::Error) -> StagingError {
    let text = root_cause(error);
    match remedy(&text) {
        Some(remedy) => StagingError::new(Cause::Settings, format!("{whom}: {text}; {remedy}")),
        None => StagingError::new(Cause::Network, format!("{whom}: {text}")),
    }
}

/// What to do about a certificate that is not trusted; `None` when an error is about something else.
#[must_use]
pub fn remedy(text: &str) -> Option<&'static str> {
    // In the words of rustls, since a path may hold the word alone.
    text.contains("invalid peer certificate").then_some(
        "a private authority's certificate goes into the file that transfers.ca_file names, and the location's URL \
         must have the name that is in the server's",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_a_mistake() {
        let file = |pem: &str| Authorities { pem: pem.into(), file: "ca.pem".into() };
        assert_eq!(Authorities { pem: Vec::new(), file: String::new() }.for_web().unwrap().len(), 0);
        for text in ["", "hello\n"] {
            let error = file(text).for_stores().err().unwrap();
            assert!(error.cause == Cause::Settings && error.message.contains("ca.pem"), "{error}");
        }
    }

    #[test]
    fn only_certificates_have_the_remedy() {
        assert!(remedy("invalid peer certificate: UnknownIssuer").is_some());
        assert!(remedy("connection refused").is_none());
        assert!(remedy("Object at location certificates/x not found").is_none());
    }
}
