//! What a measurement stands on: the real service on its own Postgres, a user, a Site with Apps, and
//! launchers run by hand in it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use chrono::{DateTime, NaiveDateTime, Utc};
use copal_tests::{
    Api,
    process::{Programs, Running, describe, free_port},
    world::PASSWORD,
};
use serde_json::{Value, json};

use crate::machine::Snapshot;

/// Jobs in one call.
const CALL: usize = 1_000;

/// The Apps of the Site and their commands.
const APPS: [(&str, &str); 3] = [
    ("Flood", "command: /bin/true\noutput: none\n"),
    ("File", "command: /bin/true\n"),
    ("Nap", "command: /bin/sleep 3600\noutput: none\n"),
];

/// Service, user, Site.
pub(crate) struct Stage {
    server: Running,
    pub(crate) api: Api,
    pub(crate) site_id: i64,
    apps: Vec<(String, i64)>,
    programs: Programs,
}

/// A launcher that runs.
pub(crate) struct Launcher {
    child: Child,
    /// When it was started.
    pub(crate) start: DateTime<Utc>,
}

/// CPU seconds used so far, part by part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split {
    pub(crate) server: f64,
    pub(crate) postgres: f64,
    pub(crate) head: f64,
    pub(crate) worker: f64,
    pub(crate) children: f64,
}

impl Stage {
    /// Starts all of it.
    pub(crate) async fn new() -> Self {
        let programs = Programs::new();
        // The embedded Postgres may run as another user, who must get to its folder.
        fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).expect("an own folder");
        let (server, url) = programs.start_server(free_port(), &[]);
        let output = programs
            .command("copal")
            .env("COPAL_PASSWORD", PASSWORD)
            .args(["register", "--url", &url, "--username", "bench"])
            .output()
            .expect("copal starts");
        assert!(output.status.success(), "{}", describe(&output));
        let login = Api::new(&url);
        let answer =
            login.post_form("/auth/password/login", &[("username", "bench"), ("password", PASSWORD)]).await.ok();
        let api = login.with_token(answer["access_token"].as_str().expect("a token"));
        let site = programs.home().join("site");
        let path = site.to_str().expect("a plain path");
        programs.run_ok("copal", &["site", "init", path, "--name", "bench", "--platform", "local", "-y"]);
        for (name, text) in APPS {
            fs::write(site.join(format!("apps/{name}.yml")), format!("name: {name}\n{text}")).expect("an own folder");
        }
        let sync = programs.command("copal").current_dir(&site).args(["app", "sync"]).output().expect("copal starts");
        assert!(sync.status.success(), "{}", describe(&sync));
        let apps = api.list("/apps/").await;
        let apps: Vec<(String, i64)> = apps
            .iter()
            .map(|app| (app["name"].as_str().unwrap_or_default().to_owned(), copal_tests::id(app)))
            .collect();
        let site_id = copal_tests::id(&api.list("/sites/").await[0]);
        Self { server, api, site_id, apps, programs }
    }

    /// The Site's folder.
    pub(crate) fn site(&self) -> PathBuf {
        self.programs.home().join("site")
    }

    /// The programs, with one home.
    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// A command of `copal` in the Site's folder, which must succeed.
    pub(crate) fn copal(&self, arguments: &[&str]) {
        let output =
            self.programs.command("copal").current_dir(self.site()).args(arguments).output().expect("copal starts");
        assert!(output.status.success(), "copal {arguments:?}: {}", describe(&output));
    }

    /// The process of a program that runs with this home.
    pub(crate) fn pid_of(&self, program: &str) -> i32 {
        let left = self.programs.left();
        let line = left.iter().find(|line| line.contains(program)).expect("it runs");
        line.split(':').next().and_then(|pid| pid.parse().ok()).expect("a process id")
    }

    /// How launchers that are started from now on work.
    pub(crate) fn settings(&self, launcher: &Value) {
        let text = format!("site_id: {}\nlauncher: {launcher}\n", self.site_id);
        fs::write(self.site().join("settings.yml"), text).expect("an own folder");
    }

    /// The fields of a Job of this App, so many of which fill a node.
    pub(crate) fn job(&self, app: &str, workdir: &str, packing: usize) -> Value {
        let id = self.apps.iter().find(|(name, _)| name == app).expect("the App is there").1;
        json!({"app_id": id, "workdir": workdir, "node_packing_count": packing})
    }

    /// Creates Jobs; returns how long it took.
    pub(crate) async fn create(&self, count: usize, job: impl Fn(usize) -> Value) -> Duration {
        let start = Instant::now();
        for first in (0..count).step_by(CALL) {
            let jobs: Vec<Value> = (first..(first + CALL).min(count)).map(&job).collect();
            let answer = self.api.post("/jobs/", &Value::Array(jobs)).await;
            answer.created();
        }
        start.elapsed()
    }

    /// Starts a launcher.
    pub(crate) fn launch(&self, mode: &str) -> Launcher {
        let log = fs::File::create(self.programs.home().join("launcher.log")).expect("an own folder");
        let start = Utc::now();
        let child = self
            .programs
            .command("copal-launcher")
            .current_dir(self.site())
            .args(["-j", mode, "-t", "60"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("copal-launcher starts");
        Launcher { child, start }
    }

    /// How many Jobs are in each state.
    pub(crate) async fn count(&self, state: &str) -> usize {
        let counts = self.api.get("/jobs/by-state").await.ok();
        usize::try_from(counts[state].as_u64().unwrap_or_default()).expect("a number of Jobs")
    }

    /// Waits until so many Jobs are finished; a look takes time from what is measured, so `pause` is long.
    pub(crate) async fn wait_finished(&self, count: usize, pause: Duration) {
        let start = Instant::now();
        loop {
            let finished = self.count("JOB_FINISHED").await;
            if finished >= count {
                return;
            }
            let failed = self.count("FAILED").await;
            if failed > 0 {
                let errors = self.api.list("/events/?to_state=FAILED&limit=1").await;
                panic!("{failed} of {count} Jobs failed: {errors:?}; {}", self.launcher_log());
            }
            assert!(
                start.elapsed() < Duration::from_secs(1_800),
                "{finished} of {count} Jobs; {}",
                self.launcher_log()
            );
            tokio::time::sleep(pause).await;
        }
    }

    /// When the last Job was finished.
    pub(crate) async fn last_finish(&self) -> DateTime<Utc> {
        let events = self.api.list("/events/?to_state=JOB_FINISHED&ordering=-timestamp&limit=1").await;
        time(&events[0]["timestamp"])
    }

    /// CPU time used so far.
    pub(crate) fn split(&self, launcher: &Launcher) -> Split {
        let now = Snapshot::take();
        // Where the home is closed to Postgres's user, the data are behind a link.
        let data = fs::canonicalize(self.programs.home().join(".copal/postgres")).expect("the service's Postgres");
        let head = launcher.pid();
        let workers = now.workers(head);
        Split {
            server: now.process(self.server.pid()).own_sec,
            postgres: now.tree_sec(now.postmaster(&data)),
            head: now.process(head).own_sec,
            worker: workers.iter().map(|worker| worker.own_sec).sum(),
            children: workers.iter().map(|worker| worker.children_sec).sum(),
        }
    }

    /// The last lines that the launcher wrote.
    pub(crate) fn launcher_log(&self) -> String {
        let text = fs::read_to_string(self.programs.home().join("launcher.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Split {
    /// What was used between two looks.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            server: self.server - before.server,
            postgres: self.postgres - before.postgres,
            head: self.head - before.head,
            worker: self.worker - before.worker,
            children: self.children - before.children,
        }
    }

    /// All of it.
    pub(crate) fn total(self) -> f64 {
        self.server + self.postgres + self.head + self.worker + self.children
    }

    /// Microseconds a Job.
    pub(crate) fn a_job(self, count: usize) -> String {
        let us = |sec: f64| sec * 1e6 / count as f64;
        format!(
            "CPU µs a Job: server {:.0}, Postgres {:.0}, head {:.0}, worker {:.0}, child {:.0}",
            us(self.server),
            us(self.postgres),
            us(self.head),
            us(self.worker),
            us(self.children)
        )
    }
}

impl Launcher {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Its workers.
    pub(crate) fn workers(&self) -> Vec<i32> {
        Snapshot::take().workers(self.pid()).iter().map(|process| process.pid).collect()
    }

    /// Their guards.
    pub(crate) fn guards(&self) -> Vec<i32> {
        Snapshot::take().children(self.pid()).iter().map(|process| process.pid).collect()
    }

    /// Tells it to stop and waits for its end.
    pub(crate) fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the launcher runs");
        let status = self.child.wait().expect("the launcher was started here");
        assert!(status.success(), "the launcher ended with {status}");
    }
}

/// The argument list of a process.
pub(crate) fn arguments(pid: i32) -> Vec<String> {
    words(pid, "cmdline")
}

/// The environment with which a process was started.
pub(crate) fn environment(pid: i32) -> Vec<(String, String)> {
    let pair = |word: String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    words(pid, "environ").into_iter().filter_map(pair).collect()
}

/// A file of `/proc` in which each word ends in a NUL; empty when the process has ended.
fn words(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default();
    let mut words: Vec<String> =
        bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    words.pop();
    words
}

/// Whether a program is on PATH.
pub(crate) fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// A time on the wire.
pub(crate) fn time(value: &Value) -> DateTime<Utc> {
    let text = value.as_str().expect("a time");
    NaiveDateTime::parse_from_str(text.trim_end_matches('Z'), "%Y-%m-%dT%H:%M:%S%.f").expect("a time").and_utc()
}
