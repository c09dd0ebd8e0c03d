//! A user's machine: a service, a user who is logged in, a Site with an agent, and short commands to use them.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a harness that can't do its work fails the test at once"
)]
#![expect(clippy::missing_panics_doc, reason = "every command here panics when it fails")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::{
    at_site::AtSite,
    process::{Programs, Running, describe, free_port},
    wait::wait_blocking,
};

/// How long Jobs of a second or less may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A user's machine.
#[derive(Debug)]
pub struct Laptop {
    // Dropped in this order: the agent's tree is stopped by `drop`, then the service, then the check
    // that nothing is left.
    /// The service, while it runs.
    pub server: Option<Running>,
    /// Where it listens.
    pub port: u16,
    /// The programs, with one home.
    pub programs: Programs,
}

impl Default for Laptop {
    fn default() -> Self {
        Self::new()
    }
}

impl Laptop {
    /// A service and a registered user.
    pub fn new() -> Self {
        Self::with_server(&[])
    }

    /// The same with arguments for the service.
    #[must_use]
    pub fn with_server(arguments: &[&str]) -> Self {
        Self::on(Programs::with_database(), arguments)
    }

    /// The same with the service's embedded Postgres, which lies in the user's home: for tests that look at that, kill it, or
    /// run more of the service's commands.
    #[must_use]
    pub fn embedded() -> Self {
        Self::on(Programs::new(), &[])
    }

    fn on(programs: Programs, arguments: &[&str]) -> Self {
        // The embedded Postgres may run as another user, who must get to its folder.
        fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).unwrap();
        let port = free_port();
        let (server, url) = programs.start_server(port, arguments);
        let laptop = Self { server: Some(server), port, programs };
        laptop.copal_with_password("correct horse", &["register", "--url", &url, "--username", "ann"]);
        laptop
    }

    /// The same with a Site whose agent runs, with `settings` put over the settings of the platform.
    pub fn with_site(nodes: u32) -> Self {
        Self::new().and_site(nodes)
    }

    /// This machine with a Site whose agent runs.
    #[must_use]
    pub fn and_site(self, nodes: u32) -> Self {
        self.init_site(nodes);
        self.site(&["site", "start"]);
        self
    }

    /// Makes the Site's folder; its agent does not run.
    pub fn init_site(&self, nodes: u32) {
        let path = self.site_path();
        self.copal(&["site", "init", path.to_str().unwrap(), "--name", "laptop", "--platform", "local", "-y"]);
        let settings = path.join("settings.yml");
        let text: String = fs::read_to_string(&settings)
            .unwrap()
            .lines()
            .map(|line| match line.trim_start() {
                rest if rest.starts_with("local_nodes:") => format!("  local_nodes: {nodes}\n"),
                rest if rest.starts_with("idle_ttl_sec:") => "  idle_ttl_sec: 2\n".to_owned(),
                _ => format!("{line}\n"),
            })
            .collect();
        fs::write(&settings, text).unwrap();
    }

    /// The Site's folder.
    #[must_use]
    pub fn site_path(&self) -> PathBuf {
        self.programs.home().join("site")
    }

    /// Puts an App into the Site and tells the service.
    pub fn app(&self, name: &str, rest: &str) {
        AtSite::app(self, name, rest);
    }

    /// An executable file in the Site's `apps/`.
    pub fn script(&self, name: &str, text: &str) {
        let path = self.site_path().join("apps").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A command outside the Site that must succeed.
    #[track_caller]
    pub fn copal(&self, arguments: &[&str]) -> String {
        self.programs.run_ok("copal", arguments)
    }

    /// A command outside the Site that must succeed, with a password in its environment.
    #[track_caller]
    pub fn copal_with_password(&self, password: &str, arguments: &[&str]) -> String {
        let output = self
            .programs
            .command("copal")
            .env("COPAL_PASSWORD", password)
            .args(arguments)
            .output()
            .expect("copal starts");
        assert!(output.status.success(), "{arguments:?}: {}", describe(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A command in the Site's folder, whatever its outcome.
    pub fn try_site(&self, arguments: &[&str]) -> Output {
        self.try_copal(arguments)
    }

    /// A command in the Site's folder that must succeed.
    #[track_caller]
    pub fn site(&self, arguments: &[&str]) -> String {
        AtSite::copal(self, arguments)
    }

    /// A command in the Site's folder whose answer is JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        AtSite::json(self, arguments)
    }

    /// Creates one Job and gives its id.
    #[track_caller]
    pub fn job(&self, arguments: &[&str]) -> i64 {
        let mut all = vec!["job", "create", "-y"];
        all.extend(arguments);
        let made = self.json(&all);
        made[0]["id"].as_i64().unwrap_or_else(|| panic!("no id in {made}"))
    }

    /// Asks for one node for some minutes.
    #[track_caller]
    pub fn allocation(&self, mode: &str, minutes: u32) -> i64 {
        let minutes = minutes.to_string();
        let made = self.json(&["queue", "submit", "-n", "1", "-t", &minutes, "-q", "local", "-A", "local", "-j", mode]);
        made["id"].as_i64().unwrap_or_else(|| panic!("no id in {made}"))
    }

    /// A Job as it is now.
    #[must_use]
    pub fn show(&self, job: i64) -> Value {
        let jobs = self.json(&["job", "ls", "--id", &job.to_string()]);
        jobs[0].clone()
    }

    /// A Job's state.
    #[must_use]
    pub fn state(&self, job: i64) -> String {
        self.show(job)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a Job is in a state.
    #[track_caller]
    pub fn wait_state(&self, job: i64, state: &str) {
        self.wait_job(job, state);
    }

    /// The states that a Job entered, oldest first.
    pub fn history(&self, job: i64) -> Vec<String> {
        let events = self.json(&["events", "ls", "--job", &job.to_string(), "--ordering", "timestamp"]);
        events.as_array().unwrap().iter().map(|event| event["to_state"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a process wrote this file in a workdir, and gives its text.
    #[track_caller]
    pub fn wait_file(&self, workdir: &str, name: &str) -> String {
        let path = self.site_path().join("data").join(workdir).join(name);
        wait_blocking(&format!("{}", path.display()), LIMIT, || match fs::read_to_string(&path) {
            Ok(text) if text.ends_with('\n') => Ok(text),
            _ => Err(self.logs()),
        })
    }

    /// What a Job printed.
    #[must_use]
    pub fn output(&self, workdir: &str) -> Vec<u8> {
        fs::read(self.site_path().join("data").join(workdir).join("job.out")).unwrap_or_default()
    }

    /// The ends of the Site's logs, for the text of a failure.
    pub fn logs(&self) -> String {
        self.ends_of_logs()
    }

    /// The process ids of a program that run with this laptop's home, by a part of their command line.
    pub fn pids(&self, part: &str) -> Vec<i32> {
        self.programs
            .left()
            .iter()
            .filter(|line| line.contains(part))
            .filter_map(|line| line.split(':').next()?.parse().ok())
            .collect()
    }
}

impl AtSite for Laptop {
    fn site_folder(&self) -> PathBuf {
        self.site_path()
    }

    fn copal_command(&self) -> Command {
        self.programs.command("copal")
    }
}

impl Drop for Laptop {
    fn drop(&mut self) {
        if self.site_path().join("settings.yml").exists() {
            let _ = self.try_site(&["site", "stop"]);
            for pid in self.pids("local-run") {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// What a failed command wrote on stderr.
#[track_caller]
pub fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", describe(output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}
