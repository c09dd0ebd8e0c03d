//! `copal doctor`: looks at everything that Copal needs here, and says how to mend what is amiss.

use std::{env, fs, path::Path, process::Stdio, time::Duration};

use chrono::TimeDelta;
use copal_client::{Client, Credentials, SiteDir, api::ServiceInfo, credentials::copal_home};
use copal_schemas::{
    Timestamp,
    problem::ErrorCode,
    settings::{SchedulerKind, Settings},
    site::Site,
};
use nix::sys::statvfs::statvfs;
use serde::Serialize;

use super::agent;
use crate::{
    context::Context,
    failure::{Failure, Result, one_line},
    human::{Clock, count, size, span},
    interrupt::hearing,
    sites::{ACTIVE_MIN, is_active, is_unheard},
    table::{Table, cell, verdict},
};

/// How long a program may take to say its version.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds by which two clocks may differ without anybody noticing.
const CLOCK_TOLERANCE_SEC: i64 = 5;
/// Bytes below which a disk is as good as full.
const LEAST_FREE: u64 = 1 << 30;
/// Bytes with which a disk is not almost full, however large it is.
const ROOMY: u64 = 100 << 30;

/// How something fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Nothing that stops work now.
    Warning,
    /// Something will not work.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    found: String,
    remedy: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }
    fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }
    fn wrong(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Wrong, found: found.into(), remedy: Some(remedy.into()) }
    }
    /// A failure whose first hint is the remedy.
    fn failed(check: &'static str, failure: &Failure) -> Self {
        let (message, hint) = failure.parts();
        Self { check, verdict: Verdict::Wrong, found: one_line(message), remedy: hint.map(Into::into) }
    }
}

pub(super) async fn doctor(context: Context) -> Result<()> {
    let mut checks = vec![programs()];
    let client = credentials(context, &mut checks);
    if let Some(client) = &client {
        service(client, &mut checks).await;
    }
    let site = SiteDir::find();
    match &site {
        Some(folder) => site_folder(context, folder, client.as_ref(), &mut checks).await,
        None => checks.push(Check::ok("site", "this folder is in no Site; the scheduler is not looked at")),
    }
    checks.push(mpi().await);
    checks.push(gpus().await);
    checks.push(disk("disk of COPAL_HOME", &copal_home()));
    if let Some(site) = &site {
        checks.push(disk("disk of the Site", site.root()));
    }
    let wrong = checks.iter().filter(|check| check.verdict == Verdict::Wrong).count();
    context.out.data(&checks, "", || table(&checks))?;
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(format!(
            "{} wrong",
            if wrong == 1 { "1 thing is".into() } else { format!("{wrong} things are") }
        ))
        .hint("the table says how to mend each")),
    }
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["CHECK", "", "FOUND", "WHAT TO DO"]);
    for check in checks {
        table.row([
            cell(check.check),
            verdict(check.verdict),
            cell(&check.found),
            cell(check.remedy.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn programs() -> Check {
    let missing: Vec<&str> =
        ["copal-agent", "copal-launcher"].into_iter().filter(|name| agent::sibling(name).is_err()).collect();
    let version = env!("CARGO_PKG_VERSION");
    match missing[..] {
        [] => Check::ok("programs", format!("version {version}, agent and launcher beside it")),
        _ => Check::warning(
            "programs",
            format!("version {version}; {} not beside it", missing.join(" and ")),
            "install Copal's programs into one folder on machines that have Sites",
        ),
    }
}

/// A client, where somebody is logged in.
fn credentials(context: Context, checks: &mut Vec<Check>) -> Option<Client> {
    let client = match context.client() {
        Ok(client) => client,
        Err(failure) => {
            checks.push(Check::failed("credentials", &failure));
            return None;
        }
    };
    if let Ok(known) = Credentials::load() {
        let token = match known.refresh_token {
            Some(_) => "token renews itself".to_owned(),
            None => format!("token lapses {}", context.clock.both(known.token_expiry)),
        };
        let found = format!("{} at {}, {token}", known.username, known.api_root);
        let lapses_soon =
            known.refresh_token.is_none() && known.token_expiry - context.clock.now < TimeDelta::hours(24);
        checks.push(match lapses_soon {
            true => Check::warning("credentials", found, "run `copal login` before then"),
            false => Check::ok("credentials", found),
        });
    }
    Some(client)
}

async fn service(client: &Client, checks: &mut Vec<Check>) {
    let info = match client.service_info().await {
        Ok(info) => info,
        Err(error) => {
            checks.push(Check::failed("service", &error.into()));
            return;
        }
    };
    let found = format!("version {}, answers in {}", info.version, span(info.latency.as_secs_f64()));
    checks.push(match (info.version == env!("CARGO_PKG_VERSION"), client.whoami().await) {
        (_, Err(error)) => Check::failed("service", &error.into()),
        (false, Ok(_)) => Check::warning("service", found, versions_differ(&info.version)),
        (true, Ok(_)) => Check::ok("service", found),
    });
    checks.push(clock(&info));
}

fn versions_differ(service: &str) -> String {
    format!("this `copal` is {}; install the one of {service}, or update the service", env!("CARGO_PKG_VERSION"))
}

fn clock(info: &ServiceInfo) -> Check {
    let Some(there) = info.time else { return Check::ok("clock", "the service's time is not known") };
    let apart = (chrono::Utc::now() - there).num_seconds();
    // The service tells its time to the second.
    let found = match apart.abs() {
        0..=1 => "as the service's".into(),
        apart => format!("{} apart from the service's", span(apart as f64)),
    };
    match apart.abs() > CLOCK_TOLERANCE_SEC {
        true => Check::warning("clock", found, "set this machine's clock, such as by chrony or systemd-timesyncd"),
        false => Check::ok("clock", found),
    }
}

async fn site_folder(context: Context, folder: &SiteDir, client: Option<&Client>, checks: &mut Vec<Check>) {
    let settings = match folder.settings() {
        Ok(settings) => settings,
        Err(error) => {
            checks.push(Check::failed("site", &error.into()));
            return;
        }
    };
    let root = folder.root().display().to_string();
    if let Err(error) = tempfile::tempfile_in(folder.root()) {
        checks.push(Check::wrong(
            "site",
            format!("{root} can't be written: {error}"),
            "check who owns it and its disk",
        ));
        return;
    }
    let known = match client {
        Some(client) => Some(client.get_site(settings.site_id).await),
        None => None,
    };
    checks.push(match known {
        Some(Err(error)) if error.code() == Some(ErrorCode::NotFound) => Check::wrong(
            "site",
            format!("the service has no Site {} of yours", settings.site_id),
            "check with `copal whoami` that this is the right service and user",
        ),
        // Why it does not tell is said of the service and of the credentials.
        None | Some(Err(_)) => {
            Check::ok("site", format!("{root}, id {}; the service can't be asked about it", settings.site_id))
        }
        Some(Ok(site)) if Path::new(&site.path) != folder.root() => Check::wrong(
            "site",
            format!("the service holds it to be in {}", site.path),
            format!("run `copal site mv {root}`"),
        ),
        Some(Ok(site)) => site_agent(&site, agent::running_since(folder, context.clock), context.clock),
    });
    checks.push(files(folder).await);
    checks.push(scheduler(&settings).await);
}

/// How the agent of a Site fares that runs since then, or does not run.
fn site_agent(site: &Site, since: Option<Timestamp>, clock: Clock) -> Check {
    let named = format!("{} ({})", site.name, site.id);
    let heard = || clock.ago(site.last_refresh);
    match since {
        _ if is_active(site, clock.now) && !is_unheard(site) => Check::ok("site", format!("{named}, agent active")),
        Some(since) if (clock.now - since).num_minutes() < ACTIVE_MIN => {
            Check::ok("site", format!("{named}; its agent was started and has not reported yet"))
        }
        Some(_) if is_unheard(site) => {
            Check::warning("site", format!("{named}; its agent runs and never reported"), "see `copal site status`")
        }
        Some(_) => Check::warning(
            "site",
            format!("{named}; its agent runs, but was last heard of {}", heard()),
            "see `copal site status`",
        ),
        None if is_unheard(site) => {
            Check::warning("site", format!("{named}; its agent was not started yet"), "run `copal site start`")
        }
        None => Check::warning(
            "site",
            format!("{named}; its agent was last heard of {}", heard()),
            "run `copal site start`, and see `copal site status`",
        ),
    }
}

/// Settings, template and Apps, as the agent's program sees them.
async fn files(folder: &SiteDir) -> Check {
    match super::site::check(folder).await {
        Ok(()) => Check::ok("site files", "settings, job template and Apps are good"),
        Err(failure) => Check::failed("site files", &failure),
    }
}

async fn scheduler(settings: &Settings) -> Check {
    let (name, programs, version): (&str, &[&str], &[&str]) = match settings.scheduler.kind {
        SchedulerKind::Local => return Check::ok("scheduler", "local: this machine"),
        SchedulerKind::Slurm => ("slurm", &["sbatch", "squeue", "scancel"], &["sinfo", "--version"]),
        SchedulerKind::Pbs => ("pbs", &["qsub", "qstat", "qdel"], &["qstat", "--version"]),
        SchedulerKind::Lsf => ("lsf", &["bsub", "bjobs", "bkill"], &["lsid"]),
        SchedulerKind::Cobalt => ("cobalt", &["qsub", "qstat", "qdel"], &["qstat", "--version"]),
        SchedulerKind::Flux => ("flux", &["flux"], &["flux", "--version"]),
    };
    let missing: Vec<&str> = programs.iter().copied().filter(|program| on_path(program).is_none()).collect();
    if !missing.is_empty() {
        return Check::wrong(
            "scheduler",
            format!("{name}: {} not on PATH", missing.join(", ")),
            "load the scheduler's module, or set `scheduler.kind` in settings.yml",
        );
    }
    match say(version).await {
        Some(line) => Check::ok("scheduler", format!("{name}: {line}")),
        None => {
            Check::wrong("scheduler", format!("{name}: `{}` does not answer", version.join(" ")), "ask the operators")
        }
    }
}

async fn mpi() -> Check {
    for command in [["mpiexec", "--version"], ["srun", "--version"], ["aprun", "--version"], ["jsrun", "--version"]] {
        if on_path(command[0]).is_some() {
            let line = say(&command).await.unwrap_or_else(|| "its version is not known".into());
            return Check::ok("mpi", format!("{}: {line}", command[0]));
        }
    }
    Check::warning(
        "mpi",
        "no mpiexec, srun, aprun or jsrun on PATH",
        "for Jobs with several ranks install MPICH or Open MPI, or load its module; serial Jobs need none",
    )
}

async fn gpus() -> Check {
    let asks: [(&str, &[&str]); 3] = [
        ("NVIDIA", &["nvidia-smi", "-L"]),
        ("AMD", &["rocm-smi", "--showid", "--csv"]),
        ("Intel", &["xpu-smi", "discovery", "--dump", "1"]),
    ];
    for (vendor, command) in asks {
        if on_path(command[0]).is_none() {
            continue;
        }
        let Some(text) = output(command).await else {
            let found = format!("{vendor}: `{}` fails", command.join(" "));
            return Check::warning("gpus", found, "check the driver; launchers would find no GPU");
        };
        let found = text.lines().filter(|line| line.starts_with("GPU ") || line.starts_with("card")).count();
        let slices = text.lines().filter(|line| line.trim_start().starts_with("MIG ")).count();
        let more = if slices > 0 { format!(", {}", count(slices as i64, "MIG slice")) } else { String::new() };
        return Check::ok("gpus", format!("{vendor}: {}{more}", count(found as i64, "GPU")));
    }
    Check::ok("gpus", "none on this machine")
}

fn disk(check: &'static str, folder: &Path) -> Check {
    // A home that is not there yet will be made on its parent's disk.
    let Some(there) = folder.ancestors().find(|folder| folder.exists()) else {
        return Check::wrong(check, format!("{} does not exist", folder.display()), "check the path");
    };
    match statvfs(there) {
        Err(error) => Check::wrong(check, format!("{}: {error}", there.display()), "check the file system"),
        Ok(stat) => {
            // The types differ between machines.
            #[expect(clippy::useless_conversion, reason = "the C types are narrower on other platforms")]
            let (free, all) = (
                u64::from(stat.blocks_available()) * u64::from(stat.fragment_size()),
                u64::from(stat.blocks()) * u64::from(stat.fragment_size()),
            );
            space(check, free, all, there)
        }
    }
}

/// How a disk fares with so many bytes free of all.
fn space(check: &'static str, free: u64, all: u64, place: &Path) -> Check {
    let bytes = |bytes: u64| size(i64::try_from(bytes).unwrap_or(i64::MAX));
    let found = format!("{} of {} free", bytes(free), bytes(all));
    let remedy = format!("free some space on {}", place.display());
    match free {
        free if free < LEAST_FREE => Check::wrong(check, found, remedy),
        free if free < ROOMY.min(all / 20) => Check::warning(check, found, remedy),
        _ => Check::ok(check, found),
    }
}

/// The first program of that name on PATH.
fn on_path(name: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| fs::metadata(program).is_ok_and(|meta| meta.is_file()))
}

/// The first line with a number that a command prints, if it ends well and in time: its version.
async fn say(command: &[&str]) -> Option<String> {
    let text = output(command).await?;
    let line = text.lines().find(|line| line.contains(|letter: char| letter.is_ascii_digit()))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

async fn output(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let mut child = tokio::process::Command::new(program);
    child.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PROGRAM_TIMEOUT, hearing(|| child.output())).await.ok()?.ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    output.status.success().then(|| String::from_utf8_lossy(&text).into_owned())
}

/// A failure that an answer was not understood, with both versions where they differ.
pub(super) async fn explain_version(context: Context, failure: Failure) -> Failure {
    let Ok(client) = context.client() else { return failure };
    match client.service_info().await {
        Ok(info) if info.version != env!("CARGO_PKG_VERSION") => {
            failure.hint(format!("the service has version {}: {}", info.version, versions_differ(&info.version)))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{SiteId, site::SiteDetails};

    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn each_mistake_has_its_remedy_beside_it() {
        let checks = [
            Check::ok("service", "version 0.1.0, answers in 3ms"),
            Check::warning("clock", "9s apart from the service's", "set this machine's clock"),
            Check::failed("credentials", &Failure::new("not logged in").hint("run `copal login`")),
        ];
        let text = table(&checks).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        CHECK                 FOUND                          WHAT TO DO
        service      ok       version 0.1.0, answers in 3ms
        clock        warning  9s apart from the service's    set this machine's clock
        credentials  wrong    not logged in                  run `copal login`
        ");
        insta::assert_snapshot!(at_both_widths(|| table(&checks)));
    }

    #[test]
    fn a_disk_that_is_almost_full_is_noticed() {
        let verdict = |free: u64, all: u64| space("disk", free << 30, all << 30, Path::new("/scratch")).verdict;
        assert_eq!((verdict(100, 1000), verdict(40, 1000)), (Verdict::Ok, Verdict::Warning));
        assert_eq!((verdict(2, 4), verdict(0, 1000)), (Verdict::Ok, Verdict::Wrong));
        assert_eq!((verdict(100, 10_000), verdict(99, 10_000)), (Verdict::Ok, Verdict::Warning));
        let full = space("disk", 1 << 20, 1 << 40, Path::new("/scratch"));
        assert_eq!(full.found, "1.0 MiB of 1.0 TiB free");
        assert_eq!(full.remedy.as_deref(), Some("free some space on /scratch"));
    }

    #[test]
    fn an_agent_that_was_just_started_may_not_have_reported_yet() {
        let clock = Clock::fixed("2026-11-30T12:00:00");
        let at = |minutes_ago: i64| clock.now - TimeDelta::minutes(minutes_ago);
        let found = |made: i64, heard: i64, started: Option<i64>| {
            let site = Site {
                name: "theta".into(),
                path: "/theta".into(),
                details: SiteDetails::default(),
                id: SiteId(1),
                last_refresh: at(heard),
                creation_date: at(made),
            };
            let check = site_agent(&site, started.map(at), clock);
            let remedy = check.remedy.map(|remedy| format!(" -> {remedy}"));
            format!("{:?}: {}{}", check.verdict, check.found, remedy.unwrap_or_default())
        };
        let all = [
            found(1, 1, Some(0)),
            found(10, 10, Some(0)),
            found(10, 9, Some(0)),
            found(10, 10, Some(6)),
            found(10, 9, Some(6)),
            found(10, 10, None),
            found(10, 9, None),
            found(10, 1, None),
        ];
        insta::assert_snapshot!(all.join("\n"), @r"
        Ok: theta (1); its agent was started and has not reported yet
        Ok: theta (1); its agent was started and has not reported yet
        Ok: theta (1); its agent was started and has not reported yet
        Warning: theta (1); its agent runs and never reported -> see `copal site status`
        Warning: theta (1); its agent runs, but was last heard of 9m ago -> see `copal site status`
        Warning: theta (1); its agent was not started yet -> run `copal site start`
        Warning: theta (1); its agent was last heard of 9m ago -> run `copal site start`, and see `copal site status`
        Ok: theta (1), agent active
        ");
    }

    #[test]
    fn a_clock_that_is_off_is_noticed() {
        let info = |offset: i64| ServiceInfo {
            version: "0.1.0".into(),
            time: Some(chrono::Utc::now() - TimeDelta::seconds(offset)),
            latency: Duration::ZERO,
        };
        assert_eq!(clock(&info(1)).verdict, Verdict::Ok);
        assert_eq!(clock(&info(-3600)).verdict, Verdict::Warning);
    }
}
