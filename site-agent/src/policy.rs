//! What the Site's owner allows to be submitted, by the settings as they are now. The rules are
//! [`copal_schemas::limits`], which the command and the service go by as well.

use copal_schemas::{batch_job::BatchJob, limits::Limits, settings::SchedulerSettings};

/// Checks a BatchJob before it is submitted. `queued` counts the Site's BatchJobs that wait in the
/// same queue now, those submitted a moment ago included.
///
/// # Errors
/// A sentence with what is allowed.
pub fn check(settings: &SchedulerSettings, batch_job: &BatchJob, queued: usize) -> Result<(), String> {
    Limits::from(settings).check(&batch_job.into(), queued)
}
