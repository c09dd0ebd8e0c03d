//! `copal site ls|sync|mv|rename|rm`

use std::{collections::BTreeMap, fmt::Debug, fs, path::Path, process::Stdio, time::Duration};

use copal_client::{Client, SiteDir, api::JobQuery};
use copal_schemas::{
    SiteId,
    batch_job::BatchJobState,
    settings::Settings,
    site::{ALL_NODES, BackfillWindow, NodeStates, Site, SiteDetails, SitePatch},
};
use serde_json::json;

use super::{agent, app};
use crate::{
    args::site::Folder,
    context::Context,
    failure::{Failure, Result},
    human::{Clock, count},
    interrupt::hearing,
    prompt,
    sites::{check_name, is_active, is_unheard},
    table::{Table, cell, maybe},
};

/// States of BatchJobs that are not over.
const OPEN_STATES: &[BatchJobState] =
    &[BatchJobState::PendingSubmission, BatchJobState::Queued, BatchJobState::Running, BatchJobState::PendingDeletion];
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
        table(&sites, here, context.clock, context.out.is_wide())
    })
}

fn table(sites: &[Site], here: Option<SiteId>, clock: Clock, wide: bool) -> Table {
    let headings = ["ID", "NAME", "AGENT", "QUEUED", "RUNNING", "QUEUES", "PATH"];
    let more = ["NODE", "NODES", "ASIDE", "BACKFILL", "PROJECTS", "LOCATIONS", "CREATED"];
    let mut table = Table::with_headings(headings.iter().chain(if wide { &more[..] } else { &[] }));
    for site in sites {
        let agent = match is_active(site, clock.now) {
            _ if is_unheard(site) => "not started".into(),
            true => format!("active, {}", clock.ago(site.last_refresh)),
            false => format!("silent, {}", clock.ago(site.last_refresh)),
        };
        let mark = if Some(site.id) == here { "* " } else { "" };
        let nodes = |state: BatchJobState| -> i32 {
            site.details.queued_jobs.values().filter(|job| job.state == state).map(|job| job.num_nodes).sum()
        };
        let mut row = vec![
            cell(site.id),
            cell(format!("{mark}{}", site.name)),
            cell(agent),
            cell(count(nodes(BatchJobState::Queued), "node")),
            cell(count(nodes(BatchJobState::Running), "node")),
            cell(joined(site.details.allowed_queues.keys())),
            cell(&site.path),
        ];
        if wide {
            row.extend([
                maybe(site.details.node_shape.map(|node| {
                    format!("{}, {}, {} MiB", count(node.cpus, "core"), count(node.gpus, "GPU"), node.mem_mb)
                })),
                cell(node_states(site)),
                cell(aside(site, clock)),
                cell(windows(site)),
                cell(site.details.allowed_projects.join(" ")),
                cell(joined(site.details.transfer_locations.keys())),
                cell(clock.local(site.creation_date)),
            ]);
        }
        table.push(row);
    }
    table
}

fn joined<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// What the nodes do: `debug: 2 idle, 1 allocated, 1 down`.
fn node_states(site: &Site) -> String {
    let queue = |(queue, states): (&String, &NodeStates)| {
        let counts = [(states.idle, "idle"), (states.allocated, "allocated"), (states.down, "down")];
        let words: Vec<String> =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        let words = if words.is_empty() { "none".into() } else { words.join(", ") };
        if queue == ALL_NODES { words } else { format!("{queue}: {words}") }
    };
    site.details.node_states.iter().map(queue).collect::<Vec<_>>().join("; ")
}

/// Nodes that allocations leave out for a while: `n7 until 2026-11-30 13:05: 3 Jobs in a row failed`.
fn aside(site: &Site, clock: Clock) -> String {
    let now = site.details.nodes_aside.iter().filter(|aside| aside.until > clock.now);
    let all = now.map(|aside| format!("{} until {}: {}", aside.node, clock.local(aside.until), aside.reason));
    all.collect::<Vec<_>>().join("; ")
}

/// Holes in the queues: `debug: 4 nodes for 60 min`.
fn windows(site: &Site) -> String {
    let hole = |queue: &String, hole: &BackfillWindow| {
        format!("{queue}: {} for {} min", count(hole.num_nodes, "node"), hole.wall_time_min)
    };
    let all =
        site.details.backfill_windows.iter().flat_map(|(queue, holes)| holes.iter().map(move |each| hole(queue, each)));
    all.collect::<Vec<_>>().join(", ")
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
    let told = agent::tell(&folder, &settings, context.clock).await?;
    if context.out.is_data() {
        return context.out.value(&json!({"settings": changes, "agent": told, "apps": apps}));
    }
    if changes.is_empty() && told.changes.is_empty() {
        context.out.talk("The settings are as before.");
    }
    for (name, value) in &changes {
        context.out.talk(&format!("The service learns: {name} is now {value}"));
    }
    for (key, (before, now)) in &told.changes {
        context.out.talk(&format!("{key}: {before} -> {now}"));
    }
    context.out.talk(&told.word());
    app::show_synced(context, &apps)
}

/// Lets the agent's program check settings, job template and Apps.
pub(super) async fn check(folder: &SiteDir) -> Result<()> {
    let mut command = tokio::process::Command::new(agent::sibling("copal-agent")?);
    command.arg("check").arg("--site").arg(folder.root());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(CHECK_TIMEOUT, hearing(|| command.output()))
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

/// Moves a Site's folder, or takes note that it was moved.
pub(super) async fn mv(context: Context, from: &Path, to: Option<&Path>) -> Result<()> {
    let client = context.client()?;
    let lost = |error: std::io::Error| {
        Failure::new(format!("can't find the folder {}: {error}", from.display())).hint("check the path")
    };
    let old = SiteDir::new(fs::canonicalize(from).map_err(lost)?);
    let settings = old.settings()?;
    let site = client.get_site(settings.site_id).await?;
    if let Some(place) = agent::running(&old, context.clock) {
        return Err(Failure::new(format!("the agent of {} runs ({place})", site.name))
            .hint(format!("run `copal site stop {}` first", old.root().display())));
    }
    let folder = match to {
        None => old.root().to_path_buf(),
        Some(to) => {
            let mut to = std::path::absolute(to)?;
            // As mv(1) does it.
            if to.is_dir() {
                to.push(old.root().file_name().unwrap_or_default());
            }
            if to.exists() {
                return Err(Failure::new(format!("{} is there already", to.display())).hint("choose another folder"));
            }
            fs::rename(old.root(), &to).map_err(|error| {
                Failure::new(format!("can't move {} to {}: {error}", old.root().display(), to.display())).hint(format!(
                    "between file systems copy the folder yourself, and then run `copal site mv {}`",
                    to.display()
                ))
            })?;
            fs::canonicalize(to)?
        }
    };
    let path = folder.display().to_string();
    let patch = SitePatch { path: Some(path.clone()), ..SitePatch::default() };
    let site = client.update_site(site.id, &patch).await.map_err(|error| {
        Failure::from(error).hint(format!("the folder is {path} now; run `copal site mv {path}` to tell the service"))
    })?;
    if context.out.is_data() {
        return context.out.value(&site);
    }
    context
        .out
        .talk(&format!("The Site {} is in {path} now; start its agent there with `copal site start`.", site.name));
    Ok(())
}

/// Gives a Site another name.
pub(super) async fn rename(context: Context, name: &str, selector: Option<&str>) -> Result<()> {
    check_name(name)?;
    let client = context.client()?;
    let site = context.one_site(&client, selector.or(Some("this"))).await?;
    let patch = SitePatch { name: Some(name.into()), ..SitePatch::default() };
    let renamed = client.update_site(site.id, &patch).await.map_err(|error| match error.code() {
        Some(copal_schemas::problem::ErrorCode::Conflict) => {
            Failure::new(format!("you have a Site named {name:?} already")).hint("choose another name")
        }
        _ => error.into(),
    })?;
    if context.out.is_data() {
        return context.out.value(&renamed);
    }
    context.out.talk(&format!("The Site {} is named {} now.", site.name, renamed.name));
    Ok(())
}

/// Deletes the Site of a folder, or the one that is selected, from the service; `force` although its agent runs or
/// allocations of it are not over, and unasked.
pub(super) async fn rm(
    context: Context,
    folder: &Folder,
    selector: Option<&str>,
    yes: bool,
    force: bool,
) -> Result<()> {
    let client = context.client()?;
    let of_folder = match &folder.path {
        Some(_) => Some(agent::find(context, folder).await?.settings()?.site_id.to_string()),
        None => None,
    };
    let site = context.one_site(&client, of_folder.as_deref().or(selector).or(Some("this"))).await?;
    let open = client.list_batch_jobs(&[site.id], OPEN_STATES).await?.len();
    if !force {
        if let Some(place) = place_of_agent(&site, context.clock) {
            return Err(Failure::new(format!("the agent of {} runs ({place})", site.name))
                .hint("run `copal site stop` there first, or add --force"));
        }
        if open > 0 {
            return Err(Failure::new(format!("{} of {} are not over", count(open as i64, "BatchJob"), site.name)).hint(
                format!(
                    "`copal queue rm --all --site {}` ends them while the agent runs; --force leaves them to the scheduler",
                    site.id
                ),
            ));
        }
    }
    let jobs = jobs_of(&client, site.id).await?;
    prompt::confirm_change(
        &format!("Delete the Site {} ({}) with {} from the service?", site.name, site.id, count(jobs, "Job")),
        yes || force,
    )?;
    client.delete_site(site.id).await?;
    if context.out.is_data() {
        return context.out.value(&site);
    }
    context.out.talk(&format!("Deleted the Site {}. Its folder {} is left as it is.", site.name, site.path));
    Ok(())
}

/// Where the Site's agent runs, as far as this machine can tell.
fn place_of_agent(site: &Site, clock: Clock) -> Option<String> {
    let folder = SiteDir::new(&site.path);
    if folder.settings().is_ok_and(|settings| settings.site_id == site.id) {
        return agent::running(&folder, clock);
    }
    // On another machine; only the service tells.
    (is_active(site, clock.now) && !is_unheard(site)).then(|| format!("it gave news {}", clock.ago(site.last_refresh)))
}

async fn jobs_of(client: &Client, site_id: SiteId) -> Result<i64> {
    Ok(client.count_jobs(&JobQuery { site_ids: vec![site_id], ..JobQuery::default() }).await?)
}

#[cfg(test)]
mod tests {
    use copal_schemas::{site::NodeAside, time};

    use super::*;
    use crate::table::at_both_widths;

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
    fn nodes_and_holes_are_told_by_queue() {
        let states = |idle, allocated, down| NodeStates { idle, allocated, down };
        let mut busy = site();
        busy.details.node_states = [("debug".into(), states(2, 1, 1)), ("empty".into(), states(0, 0, 0))].into();
        busy.details.backfill_windows =
            [("debug".into(), vec![BackfillWindow { num_nodes: 2, wall_time_min: 60 }])].into();
        assert_eq!(node_states(&busy), "debug: 2 idle, 1 allocated, 1 down; empty: none");
        assert_eq!(windows(&busy), "debug: 2 nodes for 60 min");
        let clock = Clock::fixed("2026-11-30T12:00:00");
        let n7 =
            |until| NodeAside { node: "n7".into(), until: time::parse(until).unwrap(), reason: "bus error".into() };
        busy.details.nodes_aside = vec![n7("2026-11-30T12:30:00"), n7("2026-11-30T11:59:59")];
        assert_eq!(aside(&busy, clock), "n7 until 2026-11-30 12:30:00: bus error");
        busy.details.node_states = [(ALL_NODES.into(), states(0, 12, 0))].into();
        assert_eq!(node_states(&busy), "12 allocated");
    }

    #[test]
    fn this_site_is_marked() {
        let text = table(&[site()], Some(SiteId(1)), Clock::fixed("2026-11-30T12:00:00"), false).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        ID  NAME     AGENT            QUEUED   RUNNING  QUEUES  PATH
        1   * theta  active, 10s ago  0 nodes  0 nodes          /lus/theta
        ");
        let clock = Clock::fixed("2026-11-30T12:00:00");
        insta::assert_snapshot!(at_both_widths(|| table(&[site()], Some(SiteId(1)), clock, false)));
        let wide = table(&[site()], Some(SiteId(1)), clock, true).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&wide).to_string());
    }
}
