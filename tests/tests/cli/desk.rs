//! A user's desk: a service in this process, the real `copal` with a home of its own, logged in, and
//! a Site's folder without an agent.

use std::{
    env, fs,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use copal_tests::{
    Service, Settings,
    process::{Programs, describe, program_dir},
    world::PASSWORD,
};
use serde_json::Value;

pub(crate) struct Desk {
    pub(crate) service: Service,
    pub(crate) programs: Programs,
}

pub(crate) const HELLO: &str =
    "command: echo Hello, {{name}}!\nparameters: {name: {required: true}, tail: {default: '', choices: ['', x]}}";

impl Desk {
    /// A user who is logged in, and a Site `theta` with the App Hello.
    pub(crate) async fn new() -> Self {
        let desk = Self::without_site().await;
        let path = desk.site_path();
        desk.ok(&["site", "init", path.to_str().unwrap(), "--name", "theta", "--platform", "local", "-y"]);
        desk.app("Hello", HELLO);
        desk
    }

    /// A user who is logged in.
    pub(crate) async fn without_site() -> Self {
        let service = Service::start(Settings::default()).await;
        service.user("ann").await;
        let desk = Self { service, programs: Programs::new() };
        let url = desk.service.base().to_owned();
        let output = desk
            .copal(&["login", "--url", &url, "--username", "ann"])
            .env("COPAL_PASSWORD", PASSWORD)
            .output()
            .expect("copal starts");
        assert!(output.status.success(), "{}", describe(&output));
        desk
    }

    pub(crate) fn site_path(&self) -> PathBuf {
        self.programs.home().join("site")
    }

    /// Makes the stored login one at another service.
    pub(crate) fn point_at(&self, url: &str) {
        let credentials = self.programs.home().join(".copal/client.yml");
        let text = fs::read_to_string(&credentials).unwrap();
        fs::write(&credentials, text.replace(self.service.base(), url)).unwrap();
    }

    pub(crate) fn app(&self, name: &str, rest: &str) {
        fs::write(self.site_path().join(format!("apps/{name}.yml")), format!("name: {name}\n{rest}\n")).unwrap();
        self.ok(&["app", "sync"]);
    }

    /// The command, in the Site's folder where there is one.
    pub(crate) fn copal(&self, arguments: &[&str]) -> Command {
        let mut command = self.copal_bare(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same with streams that the caller chooses.
    pub(crate) fn copal_bare(&self, arguments: &[&str]) -> Command {
        let mut command = self.programs.command("copal");
        let site = self.site_path();
        command.current_dir(if site.is_dir() { site } else { self.programs.home().into() });
        command.args(arguments);
        command
    }

    /// A line for Bash, in the same folder, with the programs on its PATH.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([program_dir()].into_iter().chain(env::split_paths(&path))).unwrap();
        let mut command = self.programs.command("/bin/bash");
        command.current_dir(self.copal_bare(&[]).get_current_dir().unwrap());
        command.env("PATH", path).args(["-c", line]);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.copal(arguments).output().expect("copal starts")
    }

    /// The same with a text on stdin.
    pub(crate) fn run_with(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut child = self.copal(arguments).stdin(Stdio::piped()).spawn().expect("copal starts");
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// What a command that succeeds writes to stdout.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "copal {}: {}", arguments.join(" "), describe(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let text = self.ok(&all);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Exit code and words of a command that fails, with what differs from run to run taken out.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.stdout.is_empty(), "stdout is for data: {}", describe(&output));
        self.told(&output)
    }

    pub(crate) fn told(&self, output: &Output) -> String {
        let text = String::from_utf8_lossy(&output.stderr)
            .replace(self.service.base(), "http://SERVICE")
            .replace(self.programs.home().to_str().unwrap(), "~");
        format!("{}\n{text}", output.status.code().unwrap_or(-1))
    }
}

/// The ids of a list.
pub(crate) fn ids(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(copal_tests::id).collect()
}
