//! A service, a Site without an agent, and launchers started by hand.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use copal_tests::{Api, id, laptop::Laptop, wait::wait_for};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// How long anything may take here on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Bed {
    pub(crate) laptop: Laptop,
    pub(crate) api: Api,
    pub(crate) site_id: i64,
    apps: BTreeMap<String, i64>,
}

impl Bed {
    /// With these Apps, by name and command.
    pub(crate) async fn new(apps: &[(&str, &str)]) -> Self {
        Self::with_server(&[], apps).await
    }

    /// The same with arguments for the service.
    pub(crate) async fn with_server(arguments: &[&str], apps: &[(&str, &str)]) -> Self {
        let laptop = Laptop::with_server(arguments);
        laptop.init_site(1);
        for (name, rest) in apps {
            laptop.app(name, rest);
        }
        let login = Api::new(&format!("http://127.0.0.1:{}", laptop.port));
        let form = [("username", "ann"), ("password", "correct horse")];
        let answer = login.post_form("/auth/password/login", &form).await.ok();
        let api = login.with_token(answer["access_token"].as_str().unwrap());
        let site_id = id(&api.list("/sites/").await[0]);
        let known = api.list("/apps/").await;
        let apps = known.iter().map(|app| (app["name"].as_str().unwrap().to_owned(), id(app))).collect();
        Self { laptop, api, site_id, apps }
    }

    /// How launchers that are started from now on work.
    pub(crate) fn settings(&self, launcher: &Value) {
        let text = format!("site_id: {}\nlauncher: {launcher}\n", self.site_id);
        fs::write(self.laptop.site_path().join("settings.yml"), text).unwrap();
    }

    /// Creates Jobs of one App, with these fields and a workdir each; their ids.
    pub(crate) async fn jobs(&self, app: &str, count: usize, fields: &Value) -> Vec<i64> {
        let mut ids = Vec::new();
        for first in (0..count).step_by(1_000) {
            let job = |index: usize| {
                let mut job = json!({"app_id": self.apps[app], "workdir": format!("{app}/{index:05}")});
                job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                job
            };
            let jobs: Vec<Value> = (first..(first + 1_000).min(count)).map(job).collect();
            let made = self.api.post("/jobs/", &Value::Array(jobs)).await.created();
            ids.extend(made.as_array().unwrap().iter().map(id));
        }
        ids
    }

    /// Starts a launcher whose log is named after it.
    pub(crate) fn launch(&self, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> Launcher {
        let log = self.laptop.programs.home().join(format!("{name}.log"));
        let mut command: Command = self.laptop.programs.command("copal-launcher");
        command.current_dir(self.laptop.site_path()).args(arguments).args(["-t", "60"]).envs(env.iter().copied());
        // A scheduler around the tests is not meant.
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        Launcher { child: command.spawn().unwrap(), log }
    }

    /// How many Jobs are in each state.
    pub(crate) async fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.api.get("/jobs/by-state").await.ok();
        counts.as_object().unwrap().iter().map(|(state, count)| (state.clone(), count.as_u64().unwrap())).collect()
    }

    /// How many launchers have opened a Session.
    pub(crate) async fn sessions(&self) -> usize {
        self.api.list("/sessions/").await.len()
    }

    /// Waits until so many Jobs are in a state.
    pub(crate) async fn wait_count(&self, state: &str, count: u64) {
        wait_for(&format!("{count} Jobs {state}"), LIMIT, async || match self.counts().await {
            counts if counts.get(state) == Some(&count) => Ok(()),
            counts => Err(format!("{counts:?}")),
        })
        .await;
    }

    pub(crate) async fn wait_state(&self, job: i64, state: &str) {
        wait_for(&format!("Job {job} {state}"), LIMIT, async || {
            let now = self.api.get(&format!("/jobs/{job}")).await.ok()["state"].as_str().unwrap().to_owned();
            if now == state { Ok(()) } else { Err(now) }
        })
        .await;
    }

    /// All events of Jobs that entered a state.
    pub(crate) async fn events(&self, state: &str) -> Vec<Value> {
        const PAGE: usize = 1_000;
        let mut events = Vec::new();
        loop {
            let path = format!("/events/?to_state={state}&ordering=timestamp&limit={PAGE}&offset={}", events.len());
            let page = self.api.list(&path).await;
            let is_last = page.len() < PAGE;
            events.extend(page);
            if is_last {
                return events;
            }
        }
    }

    /// A file at the Site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.laptop.site_path().join(name)
    }
}

/// A launcher, killed when it goes out of scope.
pub(crate) struct Launcher {
    child: Child,
    log: PathBuf,
}

impl Launcher {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGTERM, and its end, which must be a good one.
    pub(crate) fn stop(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        self.log()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
