//! What a user does in the folder of a Site and looks at there, whatever the Site's scheduler is: commands, BatchJobs
//! and Jobs that come into a state, and the ends of the logs for the text of a failure. How a Site is made is
//! its machine's.
#![expect(clippy::unwrap_used, reason = "a harness that can't do its work fails the test at once")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::{process::describe, wait::wait_blocking};

/// How long BatchJobs and short Jobs may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// A machine with a Site.
pub trait AtSite {
    /// The Site's folder.
    fn site_folder(&self) -> PathBuf;

    /// The command `copal` with this machine's environment.
    fn copal_command(&self) -> Command;

    /// A command in the Site's folder, whatever its outcome.
    fn try_copal(&self, arguments: &[&str]) -> Output {
        self.copal_command().current_dir(self.site_folder()).args(arguments).output().expect("copal starts")
    }

    /// A command in the Site's folder that must succeed.
    #[track_caller]
    fn copal(&self, arguments: &[&str]) -> String {
        let output = self.try_copal(arguments);
        assert!(output.status.success(), "copal {}: {}", arguments.join(" "), describe(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A command in the Site's folder whose answer is JSON.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.copal(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Puts an App into the Site and tells the service.
    fn app(&self, name: &str, rest: &str) {
        fs::write(self.site_folder().join(format!("apps/{name}.yml")), format!("name: {name}\n{rest}\n")).unwrap();
        self.copal(&["app", "sync"]);
    }

    /// A BatchJob as it is now.
    #[track_caller]
    fn batch_job(&self, id: i64) -> Value {
        let all = self.json(&["queue", "ls", "--history"]);
        let found = all.as_array().unwrap().iter().find(|batch_job| batch_job["id"] == id);
        found.unwrap_or_else(|| panic!("no BatchJob {id} in {all}")).clone()
    }

    /// Waits until a BatchJob is in a state, and gives it.
    #[track_caller]
    fn wait_batch_job(&self, id: i64, state: &str) -> Value {
        wait_blocking(&format!("BatchJob {id} to be {state}"), LIMIT, || match self.batch_job(id) {
            now if now["state"] == state => Ok(now),
            now => Err(format!("{now}\n{}", self.ends_of_logs())),
        })
    }

    /// Waits until a Job is in a state.
    #[track_caller]
    fn wait_job(&self, id: i64, state: &str) {
        wait_blocking(&format!("Job {id} to be {state}"), LIMIT, || {
            match &self.json(&["job", "ls", "--id", &id.to_string()])[0]["state"] {
                now if now == state => Ok(()),
                now => Err(format!("{now}\n{}", self.ends_of_logs())),
            }
        });
    }

    /// Waits until `site status` says this, and gives all that it says. A status that tells of trouble tells all the same.
    #[track_caller]
    fn wait_status(&self, text: &str) -> String {
        wait_blocking(&format!("{text:?} in the status"), LIMIT, || {
            let output = self.try_copal(&["site", "status"]);
            let status = String::from_utf8_lossy(&output.stdout).into_owned();
            if status.contains(text) { Ok(status) } else { Err(format!("{status}\n{}", self.ends_of_logs())) }
        })
    }

    /// The ends of the Site's logs and of what its scripts wrote, without the credentials that lie there: what a failed test
    /// prints is kept by many.
    fn ends_of_logs(&self) -> String {
        let is_credential = |path: &Path| path.extension().is_some_and(|extension| extension == "yml");
        let mut text = String::new();
        for folder in ["log", "qsubmit"] {
            let files = fs::read_dir(self.site_folder().join(folder)).into_iter().flatten().flatten();
            for path in files.map(|file| file.path()).filter(|path| !is_credential(path)) {
                let bytes = fs::read(&path).unwrap_or_default();
                let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2_000)..]).into_owned();
                text.push_str(&format!("\n--- {}\n{tail}", path.display()));
            }
        }
        text
    }
}
