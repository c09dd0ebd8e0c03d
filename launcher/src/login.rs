//! The launcher's way to the service: by the credential that its agent left for its BatchJob, or by the user's own
//! where there is none, as in a launcher that was started by hand.

use std::time::Instant;

use anyhow::{Context, Result};
use copal_client::{Client, Credentials, SiteDir, launcher_login::LauncherLogin};
use copal_schemas::BatchJobId;
use tracing::warn;

use crate::session::{Backoff, chain};

/// Logs in; while the service is away, tries until `give_up`.
///
/// # Errors
/// When there are no credentials, when others can read them, when the service refuses or stays away.
pub async fn log_in(site: &SiteDir, batch_job_id: Option<BatchJobId>, give_up: Instant) -> Result<Client> {
    if let Some(id) = batch_job_id {
        let login = LauncherLogin::new(&site.qsubmit(), id);
        let mut backoff = Backoff::default();
        loop {
            match login.client().await {
                Ok(Some(client)) => return Ok(client),
                Ok(None) => break,
                Err(error) if error.is_transient() && Instant::now() < give_up => {
                    warn!(error = %chain(&error), "can't log in yet");
                    let left = give_up.saturating_duration_since(Instant::now());
                    tokio::time::sleep(backoff.wait().min(left)).await;
                }
                Err(error) => return Err(error).context("can't log in"),
            }
        }
    }
    Ok(Client::from_credentials(&Credentials::load()?)?)
}
