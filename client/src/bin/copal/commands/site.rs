//! `copal site ls|sync|rm`

use std::{collections::BTreeMap, fmt::Debug, process::Stdio, time::Duration};

use copal_client::{Client, SiteDir, api::JobQuery};
use copal_schemas::{
    SiteId,
    settings::Settings,
    site::{Site, SiteDetails, SitePatch},
};
use serde_json::json;

use super::{agent, app};
use crate::{
    args::site::Folder,
    context::Context,
    failure::{Failure, Result},
    human::{Clock, count},
    prompt,
    sites::is_active,
    table::{Table, cell},
};

/// How long `copal-agent check` may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) async fn ls(context: Context, selector: Option<&str>) -> Result<()> {
    let client = context.client()?;
    // A broken settings.yml is no reason not to list the Sites.
    let here = context.this_site().unwrap_or_default();
    let sites = match selector {
        Some(selector) => context.sites(&client, Some(selector)).await?.selected().cloned().collect(),
        None => client.list_sites().await?,
    };
    context.out.data(&sites, "You have no Site; make one with `copal site init FOLDER`.", || {
        table(&sites, here, context.clock)
    })
}

fn table(sites: &[Site], here: Option<SiteId>, clock: Clock) -> Table {
    let mut table = Table::new(["ID", "NAME", "AGENT", "QUEUES", "PATH"]);
    for site in sites {
        let agent = if is_active(site, clock.now) { "active" } else { "silent" };
        let mark = if Some(site.id) == here { "* " } else { "" };
        table.row([
            cell(site.id),
            cell(format!("{mark}{}", site.name)),
            cell(format!("{agent}, {}", clock.ago(site.last_refresh))),
            cell(site.details.allowed_queues.keys().cloned().collect::<Vec<_>>().join(" ")),
            cell(&site.path),
        ]);
    }
    table
}

pub(super) async fn sync(context: Context, folder: &Folder) -> Result<()> {
    let folder = agent::find(context, folder).await?;
    let settings = folder.settings()?;
    check(&folder).await?;
    let client = context.client()?;
    let site = client.get_site(settings.site_id).await.map_err(|error| match error.code() {
        Some(copal_schemas::problem::ErrorCode::NotFound) => Failure::new(format!(
            "the service has no Site {} of yours, which {} names",
            settings.site_id,
            folder.settings_path().display()
        ))
        .hint("check with `copal whoami` that you are logged in to the right service as the right user"),
        _ => error.into(),
    })?;
    let (patch, changes) = difference(&site, &settings, &folder.root().display().to_string());
    if !changes.is_empty() {
        client.update_site(site.id, &patch).await?;
    }
    let apps = app::push(&client, &folder, site.id).await?;
    if context.out.is_json() {
        return context.out.json(&json!({"settings": changes, "apps": apps}));
    }
    if changes.is_empty() {
        context.out.talk("The settings are as the service knows them.");
    }
    for (name, value) in &changes {
        context.out.talk(&format!("{name} is now {value}"));
    }
    app::show_synced(context, &apps)
}

/// Lets the agent's program check settings, job template and Apps.
async fn check(folder: &SiteDir) -> Result<()> {
    let mut command = tokio::process::Command::new(agent::sibling("copal-agent")?);
    command.arg("check").arg("--site").arg(folder.root());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(CHECK_TIMEOUT, command.output())
        .await
        .map_err(|_| Failure::new(format!("`copal-agent check` did not end in {} s", CHECK_TIMEOUT.as_secs())))??;
    if output.status.success() {
        return Ok(());
    }
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut mistakes: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("wrong: ")).collect();
    if mistakes.is_empty() {
        // It did not come as far as to list them.
        mistakes.extend(err.lines().filter_map(|line| line.strip_prefix("error: ")).take(1));
    }
    Err(Failure::new(mistakes.join("\nerror: ")).hint("correct that and run the command again; nothing was changed"))
}

/// What the service should know of the settings.
pub(super) fn details(settings: &Settings) -> SiteDetails {
    SiteDetails {
        optional_batch_job_params: settings.scheduler.optional_batch_job_params.clone(),
        allowed_projects: settings.scheduler.allowed_projects.clone(),
        allowed_queues: settings.scheduler.allowed_queues.clone(),
        transfer_locations: settings.transfers.transfer_locations.clone(),
        ..SiteDetails::default()
    }
}

/// The fields in which the service is behind, and their new values for people.
fn difference(site: &Site, settings: &Settings, path: &str) -> (SitePatch, BTreeMap<&'static str, String>) {
    let (known, wanted) = (&site.details, details(settings));
    let mut changes = BTreeMap::new();
    let patch = SitePatch {
        path: changed(&mut changes, "path", &site.path, path.to_owned()),
        optional_batch_job_params: changed(
            &mut changes,
            "optional_batch_job_params",
            &known.optional_batch_job_params,
            wanted.optional_batch_job_params,
        ),
        allowed_projects: changed(&mut changes, "allowed_projects", &known.allowed_projects, wanted.allowed_projects),
        allowed_queues: changed(&mut changes, "allowed_queues", &known.allowed_queues, wanted.allowed_queues),
        transfer_locations: changed(
            &mut changes,
            "transfer_locations",
            &known.transfer_locations,
            wanted.transfer_locations,
        ),
        ..SitePatch::default()
    };
    (patch, changes)
}

fn changed<T: PartialEq + serde::Serialize + Debug>(
    changes: &mut BTreeMap<&'static str, String>,
    name: &'static str,
    known: &T,
    wanted: T,
) -> Option<T> {
    if *known == wanted {
        return None;
    }
    changes.insert(name, serde_json::to_string(&wanted).unwrap_or_else(|_| format!("{wanted:?}")));
    Some(wanted)
}

pub(super) async fn rm(context: Context, selector: Option<&str>, yes: bool) -> Result<()> {
    let client = context.client()?;
    let site = context.one_site(&client, selector.or(Some("this"))).await?;
    let folder = SiteDir::new(&site.path);
    if folder.settings().is_ok_and(|settings| settings.site_id == site.id) && agent::runs_here(&folder) {
        return Err(Failure::new(format!("the agent of {} runs", site.name))
            .hint(format!("run `copal site stop {}` first", site.path)));
    }
    let jobs = jobs_of(&client, site.id).await?;
    prompt::confirm_change(
        &format!("Delete the Site {} ({}) with {} from the service?", site.name, site.id, count(jobs, "Job")),
        yes,
    )?;
    client.delete_site(site.id).await?;
    if context.out.is_json() {
        return context.out.json(&site);
    }
    context.out.talk(&format!("Deleted the Site {}. Its folder {} is left as it is.", site.name, site.path));
    Ok(())
}

async fn jobs_of(client: &Client, site_id: SiteId) -> Result<i64> {
    Ok(client.count_jobs(&JobQuery { site_ids: vec![site_id], ..JobQuery::default() }).await?)
}

#[cfg(test)]
mod tests {
    use copal_schemas::time;

    use super::*;

    fn site() -> Site {
        Site {
            name: "theta".into(),
            path: "/lus/theta".into(),
            details: SiteDetails::default(),
            id: SiteId(1),
            last_refresh: time::parse("2026-11-30T11:59:50").unwrap(),
            creation_date: time::parse("2026-11-30T11:00:00").unwrap(),
        }
    }

    #[test]
    fn only_what_differs_is_sent() {
        let settings: Settings = serde_saphyr::from_str(
            "site_id: 1\nscheduler: {allowed_queues: {debug: {max_nodes: 8, max_walltime: 60, max_queued_jobs: 1}}}\n",
        )
        .unwrap();
        let (patch, changes) = difference(&site(), &settings, "/lus/theta");
        insta::assert_snapshot!(serde_json::to_string(&patch).unwrap(), @r#"{"allowed_queues":{"debug":{"max_nodes":8,"max_walltime":60,"max_queued_jobs":1}}}"#);
        assert_eq!(changes.keys().copied().collect::<Vec<_>>(), ["allowed_queues"]);
        let known = Site { details: details(&settings), ..site() };
        assert!(difference(&known, &settings, "/lus/theta").1.is_empty());
    }

    #[test]
    fn this_site_is_marked() {
        let text = table(&[site()], Some(SiteId(1)), Clock::fixed("2026-11-30T12:00:00")).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        ID  NAME     AGENT            QUEUES  PATH
        1   * theta  active, 10s ago          /lus/theta
        ");
    }
}
