//! `copal site start|run|stop|status|unit`: the agent's process at a Site of this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use copal_client::{
    SiteDir,
    agent_status::{AgentPid, AgentPresence, AgentStatus, SettingsNote},
    processes::start_ticks,
};
use copal_schemas::{Timestamp, settings::Settings};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    args::site::Folder,
    context::Context,
    failure::{Failure, Result},
    human::{Clock, count},
    interrupt::hearing,
    table::{Table, cell, maybe},
};

/// How long an agent may take to come up.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an agent may take to end: it waits for hooks that run.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an agent may take to read its settings again.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Between looks at the files and processes of an agent that is not this program's child to await.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Lines of a failed start that are shown.
const SHOWN_LINES: usize = 10;

pub(super) async fn start(context: Context, folder: &Folder) -> Result<()> {
    let site = find(context, folder).await?;
    site.settings()?;
    let log = site.log().join("agent.log");
    if let AgentPresence::Here(holder) = presence(&site, context.clock)? {
        context.out.talk(&format!("The agent runs already: pid {}, log {}", holder.pid, log.display()));
        return if context.out.is_data() { context.out.value(&holder) } else { Ok(()) };
    }
    site.create_folders()?;
    let start_log = site.log().join("agent-start.log");
    let output = fs::File::create(&start_log).map_err(|error| unwritable(&start_log, &error))?;
    let mut command = agent(&site)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    detach(&mut command);
    let mut child =
        hearing(|| command.spawn()).map_err(|error| Failure::new(format!("can't start the agent: {error}")))?;
    let deadline = Instant::now() + START_TIMEOUT;
    let holder = loop {
        if let AgentPresence::Here(holder) = AgentPid::presence(&site)
            && holder.pid == child.id()
            && AgentStatus::read(&site).is_some_and(|status| status.pid == holder.pid)
        {
            break holder;
        }
        if let Some(status) = child.try_wait()? {
            return Err(Failure::new(format!("the agent ended at once ({status}): {}", tail(&start_log)))
                .hint(format!("see {}; `copal site run` starts it in the foreground", log.display())));
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "the agent (pid {}) did not come up in {} s",
                child.id(),
                START_TIMEOUT.as_secs()
            ))
            .hint(format!("see {}", log.display())));
        }
        sleep(LOOK_PAUSE).await;
    };
    context.out.talk(&format!("The agent runs: pid {}, log {}", holder.pid, log.display()));
    if context.out.is_data() { context.out.value(&holder) } else { Ok(()) }
}

/// Where the agent is, unless another machine has it.
fn presence(site: &SiteDir, clock: Clock) -> Result<AgentPresence> {
    match living(site, clock) {
        AgentPresence::Elsewhere(holder) => Err(Failure::new(format!(
            "the agent of {} runs on {} (pid {})",
            site.root().display(),
            holder.host,
            holder.pid
        ))
        .hint(format!("run the command on {}; if that machine is gone, try again in a few minutes", holder.host))),
        here => Ok(here),
    }
}

pub(super) async fn run(context: Context, folder: &Folder) -> Result<()> {
    let site = find(context, folder).await?;
    // The agent takes this process over, so that signals and the exit code are its own.
    let mut command = agent(&site)?;
    let error = hearing(|| command.exec());
    Err(Failure::new(format!("can't start the agent: {error}")))
}

pub(super) async fn stop(context: Context, folder: &Folder) -> Result<()> {
    let site = find(context, folder).await?;
    let AgentPresence::Here(holder) = presence(&site, context.clock)? else {
        context.out.talk("The agent does not run.");
        return Ok(());
    };
    let pid = i32::try_from(holder.pid).map_err(|_| Failure::new(format!("{} is no process id", holder.pid)))?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(error) => {
            return Err(Failure::new(format!("can't stop the agent (pid {pid}): {error}"))
                .hint("stop it as the user who started it"));
        }
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    while start_ticks(holder.pid) == Some(holder.start_ticks) {
        if Instant::now() > deadline {
            return Err(Failure::new(format!("the agent (pid {pid}) still runs after {} s", STOP_TIMEOUT.as_secs()))
                .hint("it may wait for a hook; try again"));
        }
        sleep(LOOK_PAUSE).await;
    }
    context.out.talk("The agent is stopped.");
    Ok(())
}

/// Prints a systemd unit for the user's own service manager.
pub(super) async fn unit(context: Context, folder: &Folder) -> Result<()> {
    let site = find(context, folder).await?;
    // In a unit file a percent sign begins a specifier, and words are quoted as in C.
    let word = |path: &std::path::Path| {
        let text = path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
        format!("\"{text}\"")
    };
    let (program, root) = (word(&env::current_exe()?), word(site.root()));
    context.out.text(&format!(
        "[Unit]\nDescription=Copal agent of {root}\nAfter=network-online.target\n\n\
         [Service]\nExecStart={program} site run {root}\nRestart=on-failure\nRestartSec=10\n\
         # Launchers that the local scheduler started outlive a restart of the agent.\nKillMode=process\n\n\
         [Install]\nWantedBy=default.target\n"
    ))
}

/// What `site status` says.
#[derive(Debug, Serialize)]
struct Status {
    running: bool,
    agent: Option<AgentPid>,
    status: Option<AgentStatus>,
}

pub(super) async fn status(context: Context, folder: &Folder) -> Result<()> {
    let site = find(context, folder).await?;
    let presence = AgentPid::presence(&site);
    let status = AgentStatus::read(&site);
    if context.out.is_data() {
        let (running, agent) = match presence {
            AgentPresence::Stopped => (false, None),
            AgentPresence::Here(holder) => (true, Some(holder)),
            AgentPresence::Elsewhere(holder) => (is_fresh(&site, &holder, context.clock), Some(holder)),
        };
        return context.out.value(&Status { running, agent, status });
    }
    context.out.text(&status_text(&site, &presence, status.as_ref(), context.clock, context.out.width()))?;
    // How the agent fares matters most when the settings are wrong, so that comes first.
    site.settings().map(drop).map_err(Into::into)
}

/// Whether the agent on another machine gave a sign of life lately.
fn is_fresh(site: &SiteDir, holder: &AgentPid, clock: Clock) -> bool {
    AgentStatus::read(site).is_some_and(|status| status.is_fresh(holder, clock.now))
}

fn status_text(
    site: &SiteDir,
    presence: &AgentPresence,
    status: Option<&AgentStatus>,
    clock: Clock,
    width: Option<u16>,
) -> String {
    let mut fields = Table::bare();
    fields.field("Folder", cell(site.root().display()));
    let agent = match presence {
        AgentPresence::Here(holder) => format!("runs, pid {}, started {}", holder.pid, clock.both(holder.started)),
        AgentPresence::Elsewhere(holder) if status.is_some_and(|status| status.is_fresh(holder, clock.now)) => {
            format!("runs on {}, pid {}", holder.host, holder.pid)
        }
        AgentPresence::Elsewhere(holder) => {
            format!("was started on {}, pid {}, and is silent", holder.host, holder.pid)
        }
        AgentPresence::Stopped => match status.and_then(|status| status.stopped) {
            Some(stopped) => format!("stopped {}", clock.both(stopped)),
            None if status.is_some() => "does not run; it ended without saying so".into(),
            None => "does not run".into(),
        },
    };
    fields.field("Agent", cell(agent));
    let Some(status) = status else { return fields.render(width) };
    fields.field("Service", cell(&status.api_root));
    fields.field("Told", cell(clock.both(status.updated)));
    let mut services = Table::new(["TASK", "STATE", "LAST SUCCESS", "DOING"]);
    for (name, service) in &status.services {
        let state = match service.is_well() {
            true => "well".into(),
            false => format!("failed {}", count(service.failures, "time")),
        };
        let doing = match (&service.last_error, service.last_error_time) {
            (Some(error), _) if !service.is_well() => error.clone(),
            (Some(error), Some(time)) => format!("{}; failed {}: {error}", service.detail, clock.ago(time)),
            _ => service.detail.clone(),
        };
        services.row([cell(name), cell(state), maybe(service.last_success.map(|time| clock.ago(time))), cell(doing)]);
    }
    if services.is_empty() {
        fields.render(width)
    } else {
        format!("{}\n{}", fields.render(width), services.render(width))
    }
}

/// The folder that is meant.
pub(super) async fn find(context: Context, folder: &Folder) -> Result<SiteDir> {
    let site = match (&folder.path, &folder.site) {
        (Some(path), _) => SiteDir::new(fs::canonicalize(path).map_err(|error| {
            Failure::new(format!("can't find the folder {}: {error}", path.display()))
                .hint("make a Site with `copal site init FOLDER`")
        })?),
        (None, Some(selector)) => {
            let client = context.client()?;
            SiteDir::new(context.one_site(&client, Some(selector)).await?.path)
        }
        (None, None) => SiteDir::find().ok_or_else(|| {
            Failure::usage("this folder is in no Site")
                .hint("go to a Site's folder, or name it: `copal site start FOLDER`")
        })?,
    };
    if site.settings_path().is_file() {
        return Ok(site);
    }
    Err(Failure::new(format!("{} is no Site's folder: it has no settings.yml", site.root().display()))
        .hint("make a Site with `copal site init FOLDER`, or name the right folder"))
}

/// Another of Copal's programs, which lie beside this one.
pub(super) fn sibling(name: &str) -> Result<PathBuf> {
    let program = env::current_exe()?.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(Failure::new(format!("there is no {}", program.display())).hint("install Copal's programs into one folder"))
}

fn agent(site: &SiteDir) -> Result<Command> {
    let mut command = Command::new(sibling("copal-agent")?);
    command.arg("--site").arg(site.root()).current_dir(site.root());
    // Meant for this program, and never for what Apps run.
    command.env_remove("COPAL_PASSWORD");
    Ok(command)
}

/// Lets a command run in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.
#[expect(unsafe_code, reason = "std has no stable way to start a session")]
fn detach(command: &mut Command) {
    let start_session = || nix::unistd::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe functions may be called; setsid is one.
    unsafe {
        command.pre_exec(start_session);
    }
}

fn tail(log: &std::path::Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => "it printed nothing".into(),
        count => anstream::adapter::strip_str(&lines[count.saturating_sub(SHOWN_LINES)..].join("\n  ")).to_string(),
    }
}

fn unwritable(path: &std::path::Path, error: &io::Error) -> Failure {
    Failure::new(format!("can't write {}: {error}", path.display())).hint("check who owns the Site's folder")
}

/// Where the Site's agent is.
fn living(site: &SiteDir, clock: Clock) -> AgentPresence {
    match AgentPid::presence(site) {
        // One that gives no sign of life is gone with its machine.
        AgentPresence::Elsewhere(holder) if !is_fresh(site, &holder, clock) => AgentPresence::Stopped,
        presence => presence,
    }
}

/// Where the agent that holds the Site runs: `pid 12` or `pid 12 on login2`; `None` when none does.
pub(super) fn running(site: &SiteDir, clock: Clock) -> Option<String> {
    match living(site, clock) {
        AgentPresence::Here(holder) => Some(format!("pid {}", holder.pid)),
        AgentPresence::Elsewhere(holder) => Some(format!("pid {} on {}", holder.pid, holder.host)),
        AgentPresence::Stopped => None,
    }
}

/// Since when an agent holds the Site; `None` when none does.
pub(super) fn running_since(site: &SiteDir, clock: Clock) -> Option<Timestamp> {
    match living(site, clock) {
        AgentPresence::Here(holder) | AgentPresence::Elsewhere(holder) => Some(holder.started),
        AgentPresence::Stopped => None,
    }
}

/// What the agent made of a call to look at everything again.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    /// Where it runs.
    agent: Option<String>,
    /// Whether it works by the settings as they are now.
    applied: bool,
    /// What changed since this was last told, by the keys of `settings.yml`: what it was and what it is.
    pub(super) changes: BTreeMap<String, (Value, Value)>,
}

/// Lets the agent of this machine look at everything again, and waits until it works by these settings.
pub(super) async fn tell(site: &SiteDir, settings: &Settings, clock: Clock) -> Result<Told> {
    let wanted = serde_json::to_value(settings).map_err(io::Error::from)?;
    let before = SettingsNote::Synced.read(site);
    let mut told = Told {
        agent: running(site, clock),
        applied: false,
        changes: before.map(|before| changes(&before, &wanted)).unwrap_or_default(),
    };
    if wake(site) {
        let deadline = Instant::now() + SYNC_TIMEOUT;
        while !told.applied && Instant::now() < deadline {
            sleep(LOOK_PAUSE).await;
            told.applied = SettingsNote::Applied.read(site).as_ref() == Some(&wanted);
        }
    }
    SettingsNote::Synced.write(site, settings)?;
    Ok(told)
}

impl Told {
    /// One line for people.
    pub(super) fn word(&self) -> String {
        match (&self.agent, self.applied) {
            (None, _) => "The agent does not run; it takes the settings when it starts.".into(),
            (Some(place), true) => format!("The agent ({place}) works by these settings."),
            (Some(place), false) if place.contains(" on ") => {
                format!("The agent ({place}) takes the settings within a minute.")
            }
            (Some(place), false) => {
                format!("The agent ({place}) has not taken the settings yet; `copal site status` says how it fares.")
            }
        }
    }
}

/// Lets the agent of this machine look at everything again. Says whether there is one.
pub(super) fn wake(site: &SiteDir) -> bool {
    let AgentPresence::Here(holder) = AgentPid::presence(site) else { return false };
    i32::try_from(holder.pid).is_ok_and(|pid| kill(Pid::from_raw(pid), Signal::SIGHUP).is_ok())
}

/// The leaves in which two values differ, by their paths.
fn changes(before: &Value, now: &Value) -> BTreeMap<String, (Value, Value)> {
    let (before, now) = (leaves(before), leaves(now));
    let paths: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    paths
        .into_iter()
        .filter(|path| before.get(*path) != now.get(*path))
        .map(|path| {
            let of = |leaves: &BTreeMap<String, Value>| leaves.get(path).cloned().unwrap_or(Value::Null);
            (path.clone(), (of(&before), of(&now)))
        })
        .collect()
}

fn leaves(value: &Value) -> BTreeMap<String, Value> {
    let Value::Object(fields) = value else { return [(String::new(), value.clone())].into() };
    let below = |(key, value): (&String, &Value)| {
        let key = key.clone();
        leaves(value).into_iter().map(move |(path, leaf)| match path.is_empty() {
            true => (key.clone(), leaf),
            false => (format!("{key}.{path}"), leaf),
        })
    };
    fields.iter().flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use copal_client::agent_status::ServiceStatus;
    use copal_schemas::{SiteId, time};

    use super::*;

    fn at(text: &str) -> copal_schemas::Timestamp {
        time::parse(text).unwrap()
    }

    #[test]
    fn settings_differ_in_their_leaves() {
        let settings = |text: &str| serde_json::to_value(serde_saphyr::from_str::<Settings>(text).unwrap()).unwrap();
        let before = settings("site_id: 1\nlauncher: {idle_ttl_sec: 60}\n");
        let now = settings(
            "site_id: 1\nlauncher: {idle_ttl_sec: 5}\nscheduler: {allowed_queues: {q: {max_nodes: 1, max_walltime: 2, max_queued_jobs: 3}}}\n",
        );
        assert!(changes(&now, &now).is_empty());
        let changed: Vec<String> =
            changes(&before, &now).iter().map(|(key, (old, new))| format!("{key}: {old} -> {new}")).collect();
        insta::assert_snapshot!(changed.join("\n"), @r"
        launcher.idle_ttl_sec: 60.0 -> 5.0
        scheduler.allowed_queues.q.max_nodes: null -> 1
        scheduler.allowed_queues.q.max_queued_jobs: null -> 3
        scheduler.allowed_queues.q.max_walltime: null -> 2
        ");
    }

    #[test]
    fn the_status_says_what_does_not_work() {
        let holder = AgentPid { pid: 12, host: "login1".into(), started: at("2026-11-30T09:00:00"), start_ticks: 1 };
        let well = ServiceStatus {
            last_success: Some(at("2026-11-30T11:59:50")),
            detail: "2 BatchJobs".into(),
            ..Default::default()
        };
        let ill = ServiceStatus {
            last_error: Some("squeue: timed out".into()),
            last_error_time: Some(at("2026-11-30T11:59:50")),
            failures: 3,
            ..Default::default()
        };
        let mut status = AgentStatus {
            pid: 12,
            host: "login1".into(),
            version: "0.1.0".into(),
            site_id: SiteId(1),
            api_root: "http://127.0.0.1:8642/".into(),
            started: at("2026-11-30T09:00:00"),
            updated: at("2026-11-30T11:59:55"),
            stopped: None,
            services: [("events".into(), well), ("scheduler".into(), ill)].into(),
        };
        let clock = Clock::fixed("2026-11-30T12:00:00");
        let site = SiteDir::new("/lus/theta");
        let text = |presence: &AgentPresence, status: Option<&AgentStatus>| {
            anstream::adapter::strip_str(&status_text(&site, presence, status, clock, None)).to_string()
        };
        insta::assert_snapshot!(text(&AgentPresence::Here(holder.clone()), Some(&status)), @r"
        Folder   /lus/theta
        Agent    runs, pid 12, started 2026-11-30 09:00:00 (3h ago)
        Service  http://127.0.0.1:8642/
        Told     2026-11-30 11:59:55 (5s ago)

        TASK       STATE           LAST SUCCESS  DOING
        events     well            10s ago       2 BatchJobs
        scheduler  failed 3 times  -             squeue: timed out
        ");
        let mended = ServiceStatus { detail: "1 queued".into(), failures: 0, ..status.services["scheduler"].clone() };
        let now_well = AgentStatus { services: [("scheduler".into(), mended)].into(), ..status.clone() };
        let table = text(&AgentPresence::Stopped, Some(&now_well));
        assert!(table.contains("1 queued; failed 10s ago: squeue: timed out"), "{table}");
        for width in [80, 160] {
            let shown = status_text(&site, &AgentPresence::Here(holder.clone()), Some(&status), clock, Some(width));
            insta::assert_snapshot!(anstream::adapter::strip_str(&shown).to_string());
        }
        insta::assert_snapshot!(text(&AgentPresence::Stopped, None), @r"
        Folder  /lus/theta
        Agent   does not run
        ");
        assert!(text(&AgentPresence::Elsewhere(holder.clone()), Some(&status)).contains("runs on login1"));
        status.updated = at("2026-11-30T10:00:00");
        assert!(text(&AgentPresence::Elsewhere(holder), Some(&status)).contains("is silent"));
        status.stopped = Some(at("2026-11-30T10:00:00"));
        assert!(text(&AgentPresence::Stopped, Some(&status)).contains("stopped 2026-11-30 10:00:00 (2h ago)"));
    }
}
