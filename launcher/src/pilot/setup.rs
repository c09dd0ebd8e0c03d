//! What a launcher finds when it starts: its Site, its nodes, its time; and the record that it leaves.

use anyhow::{Context, Result, bail};
use chrono::Utc;
use copal_client::{
    SiteDir,
    agent_status::this_host,
    launcher_exit::{ExitReason, LauncherExit},
};
use copal_schemas::settings::Settings;
use tracing::warn;

use crate::{
    args::PilotArgs,
    nodes::{self, Allocation},
    session::chain,
};

/// The Site that is meant, and its settings.
///
/// # Errors
/// When there is none, or its settings are wrong.
pub fn site_of(args: &PilotArgs) -> Result<(SiteDir, Settings)> {
    let site = match &args.site {
        Some(path) => SiteDir::new(std::path::absolute(path).context("can't make the Site's path absolute")?),
        None => SiteDir::find().context("this folder is in no Site; name one by --site")?,
    };
    if site.root().to_str().is_none() {
        bail!("the Site's path {} is not UTF-8; move the Site", site.root().display());
    }
    let settings = site.settings().context("can't use the Site's settings")?;
    site.create_folders().context("can't use the Site's folder")?;
    Ok((site, settings))
}

/// Takes away the exit record of an earlier start of this launcher. That of a partition is its parent's.
pub fn forget_earlier_exit(args: &PilotArgs, site: &SiteDir) {
    if let Some(id) = args.batch_job_id.filter(|_| args.nodes.is_none())
        && let Err(error) = LauncherExit::forget(&site.qsubmit(), id)
    {
        warn!(error = %chain(&error), "the exit record of an earlier start stays");
    }
}

/// The exit record of now.
#[must_use]
pub fn exit_record(reason: ExitReason, message: &str, runs: u64) -> LauncherExit {
    let host = this_host().split('.').next().map(str::to_owned);
    LauncherExit { reason, message: message.into(), time: Utc::now(), runs, host }
}

/// The nodes of this launcher.
///
/// # Errors
/// When the scheduler's list can't be read, or has not the nodes that the partition needs.
pub fn nodes_of(args: &PilotArgs, settings: &Settings) -> Result<Allocation> {
    let mut allocation = nodes::discover(settings, &|name| std::env::var(name).ok()).context("can't find the nodes")?;
    if let Some((first, count)) = args.nodes {
        if first + count > allocation.nodes.len() {
            bail!(
                "the allocation has {} nodes; nodes {first} to {} are asked for",
                allocation.nodes.len(),
                first + count - 1
            );
        }
        allocation.nodes = allocation.nodes.drain(first..first + count).collect();
    }
    if allocation.nodes.is_empty() {
        bail!("the allocation has no nodes");
    }
    Ok(allocation)
}

/// Minutes from `now` to a Unix time that is still to come.
pub(super) fn minutes_to(end: Option<&str>, now: i64) -> Option<f64> {
    let seconds = end?.trim().parse::<i64>().ok()? - now;
    (seconds > 0).then_some(seconds as f64 / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_to_come_counts() {
        assert_eq!(minutes_to(Some("1060\n"), 1_000), Some(1.0));
        for text in [None, Some("900"), Some(""), Some("soon")] {
            assert_eq!(minutes_to(text, 1_000), None);
        }
    }
}
