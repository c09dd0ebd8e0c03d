//! `copal-agent discover`: what the scheduler of this machine says about queues, limits and accounts, as the
//! lines of a new Site's `settings.yml`. Changes nothing.

use std::io::Write;

use copal_schemas::settings::Settings;

use crate::scheduler::inventory::{self, Discovered};

/// Asks the scheduler of that kind and writes two lines of `scheduler:` to `out`.
///
/// # Errors
/// When the scheduler does not answer, has no queue, or is of a kind that does not tell.
pub async fn run(platform: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let settings = serde_json::json!({"site_id": 0, "scheduler": {"kind": platform}});
    let settings: Settings =
        serde_json::from_value(settings).map_err(|_| anyhow::anyhow!("{platform:?} is no kind of scheduler"))?;
    let Some(found) = inventory::of(&settings).discover().await? else {
        anyhow::bail!("{platform} does not tell what queues there are");
    };
    anyhow::ensure!(!found.queues.is_empty(), "{platform} names no queue that takes jobs");
    out.write_all(lines(&found)?.as_bytes())?;
    Ok(())
}

/// Each on one line, in JSON's way of writing, which is YAML too: a name can't break out of it.
fn lines(found: &Discovered) -> anyhow::Result<String> {
    let (projects, queues) = (serde_json::to_string(&found.projects)?, serde_json::to_string(&found.queues)?);
    Ok(format!("  allowed_projects: {projects}\n  allowed_queues: {queues}\n"))
}

#[cfg(test)]
mod tests {
    use copal_schemas::settings::QueueLimits;

    use super::*;

    #[tokio::test]
    async fn only_kinds_that_tell_are_asked() {
        let error = run("local", &mut Vec::new()).await.unwrap_err().to_string();
        assert_eq!(error, "local does not tell what queues there are");
        let error = run("abacus", &mut Vec::new()).await.unwrap_err().to_string();
        assert_eq!(error, "\"abacus\" is no kind of scheduler");
    }

    #[test]
    fn what_is_found_is_a_part_of_the_settings() {
        let limits = QueueLimits { max_nodes: 4, max_walltime: 60, max_queued_jobs: 2 };
        let found = Discovered {
            queues: [("debug".to_owned(), limits), ("no: {x}".to_owned(), limits)].into(),
            projects: vec!["proj".into(), "it's".into()],
        };
        let folder = tempfile::tempdir().unwrap();
        let site = copal_client::SiteDir::new(folder.path());
        std::fs::write(site.settings_path(), format!("site_id: 3\nscheduler:\n{}", lines(&found).unwrap())).unwrap();
        let settings: Settings = site.settings().unwrap();
        assert_eq!(settings.scheduler.allowed_queues, found.queues);
        assert_eq!(settings.scheduler.allowed_projects, found.projects);
    }
}
