//! A machine with a scheduler that is stood in for: its commands (`site-agent/tests/standins`) on the PATH, a
//! service, and a Site whose agent uses them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use copal_tests::{
    at_site::AtSite,
    process::{Programs, Running, describe, free_port},
};

pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The commands of each kind of scheduler.
fn commands(kind: &str) -> &'static [&'static str] {
    match kind {
        "pbs" => &["qsub", "qselect", "qstat", "qdel", "pbsnodes"],
        "lsf" => &["bsub", "bjobs", "bhist", "bkill", "bhosts", "bqueues", "bslots", "busers"],
        "cobalt" => &["qsub", "qstat", "qdel", "nodelist"],
        "flux" => &["flux"],
        other => panic!("no stand-ins for {other}"),
    }
}

pub(crate) struct Bed {
    // Dropped in this order: service, then the check that nothing is left.
    _server: Running,
    programs: Programs,
}

impl Bed {
    /// The machine, a user, and a Site that was made by `site init` alone, with its agent.
    pub(crate) fn new(kind: &'static str) -> Self {
        let programs = Programs::with_database();
        let (server, url) = programs.start_server(free_port(), &[]);
        let bed = Self { _server: server, programs };
        fs::create_dir(bed.folder("bin")).unwrap();
        fs::create_dir(bed.folder("queue")).unwrap();
        let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../site-agent/tests/standins/standin.py");
        for command in commands(kind) {
            let path = bed.folder("bin").join(command);
            let text = format!(
                "#!/bin/sh\nSTANDIN_FAMILY={kind} STANDIN_QUEUE='{}' exec '{}' {command} \"$@\"\n",
                bed.folder("queue").display(),
                standin.display()
            );
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let register = ["register", "--url", &url, "--username", "ann"];
        let output = bed.command("copal").env("COPAL_PASSWORD", "correct horse").args(register).output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        let site = bed.site();
        let init = ["site", "init", site.to_str().unwrap(), "--name", kind, "--platform", kind, "-y"];
        let output = bed.command("copal").args(init).output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        bed
    }

    /// Sets keys of `settings.yml`, each of which must be a line of it.
    pub(crate) fn set_settings(&self, values: &[(&str, &str)]) {
        let mut text = self.settings();
        for (key, value) in values {
            let is_key = |line: &&str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.starts_with(':'));
            let line = text.lines().find(is_key).unwrap_or_else(|| panic!("{key} is not in {text}")).to_owned();
            let indent = &line[..line.len() - line.trim_start().len()];
            text = text.replace(&line, &format!("{indent}{key}: {value}"));
        }
        fs::write(self.site().join("settings.yml"), text).unwrap();
    }

    pub(crate) fn settings(&self) -> String {
        fs::read_to_string(self.site().join("settings.yml")).unwrap()
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.programs.home().join(name)
    }

    /// The Site's folder. Its name has a space in it: there are such.
    pub(crate) fn site(&self) -> PathBuf {
        self.folder("my site")
    }

    fn command(&self, program: &str) -> Command {
        let path = format!("{}:{}", self.folder("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = self.programs.command(program);
        command.env("PATH", path);
        command
    }

    /// Puts a file into the queue's folder by which the stand-ins change what they do, or takes it away.
    pub(crate) fn set(&self, name: &str, text: Option<&str>) {
        let path = self.folder("queue").join(name);
        match text {
            Some(text) => fs::write(path, text).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
    }

    /// How many jobs the scheduler was ever given.
    pub(crate) fn submitted(&self) -> usize {
        let entries = fs::read_dir(self.folder("queue")).unwrap().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count()
    }

    #[track_caller]
    pub(crate) fn job(&self, app: &str, workdir: &str) -> i64 {
        self.json(&["job", "create", "-y", "-a", app, "-w", workdir])[0]["id"].as_i64().unwrap()
    }

    /// Asks for a node for ten minutes in a queue.
    #[track_caller]
    pub(crate) fn submit(&self, queue: &str) -> i64 {
        let ask = ["queue", "submit", "-n", "1", "-t", "10", "-A", "proj", "-j", "serial", "-q", queue];
        self.json(&ask)["id"].as_i64().unwrap()
    }
}

impl AtSite for Bed {
    fn site_folder(&self) -> PathBuf {
        self.site()
    }

    fn copal_command(&self) -> Command {
        self.command("copal")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.ends_of_logs());
        }
        let _ = self.command("copal").current_dir(self.site()).args(["site", "stop"]).output();
        // Their supervisors end what still runs.
        for job in fs::read_dir(self.folder("queue")).into_iter().flatten().flatten() {
            if job.path().extension().is_some_and(|extension| extension == "json") {
                let _ = fs::write(job.path().with_extension("cancel"), "");
            }
        }
    }
}
