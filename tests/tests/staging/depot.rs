//! A Site whose agent stages: locations in its settings, an App with a slot of each kind, and short
//! words for what tests do with its Jobs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use copal_tests::{
    laptop::{LIMIT, Laptop},
    wait::wait_blocking,
};

const APP: &str = "command: cat input.dat tree/* > result.txt\n\
transfers:\n  input: {direction: in, required: false, local_path: input.dat}\n  \
tree: {direction: in, required: false, local_path: tree, recursive: true}\n  \
here: {direction: in, required: false, local_path: ., recursive: true}\n  \
result: {direction: out, required: false, local_path: result.txt}\n  \
all: {direction: out, required: false, local_path: ., recursive: true}\n";

/// A Site that stages.
pub(crate) struct Depot {
    pub(crate) laptop: Laptop,
}

impl Depot {
    /// A Site with these locations and further lines of its transfers' settings; its agent runs.
    pub(crate) fn new(locations: &[(&str, &str)], settings: &[&str]) -> Self {
        let depot = Self { laptop: Laptop::new() };
        depot.laptop.init_site(1);
        fs::create_dir_all(depot.folder()).unwrap();
        depot.configure(locations, settings);
        depot.laptop.site(&["site", "sync"]);
        depot.laptop.app("Stage", APP);
        depot.laptop.site(&["site", "start"]);
        depot
    }

    /// Writes the transfers' part of settings.yml. `{folder}` becomes the depot's folder.
    pub(crate) fn configure(&self, locations: &[(&str, &str)], settings: &[&str]) {
        let path = self.laptop.site_path().join("settings.yml");
        let text = fs::read_to_string(&path).unwrap();
        // Everything of an earlier call is between the key and the next empty line.
        let start = text.find("transfers:\n").unwrap();
        let end = text[start..].find("\n\n").map_or(text.len(), |length| start + length);
        let folder = self.folder().display().to_string();
        let mut part = String::from("transfers:\n  retry_wait_sec: 0.2\n  transfer_locations:");
        part.push_str(if locations.is_empty() { " {}\n" } else { "\n" });
        for (alias, url) in locations {
            part.push_str(&format!("    {alias}: '{}'\n", url.replace("{folder}", &folder)));
        }
        for line in settings {
            part.push_str(&format!("  {line}\n"));
        }
        fs::write(&path, format!("{}{}{}", &text[..start], part.trim_end(), &text[end..])).unwrap();
    }

    /// The folder that stands for what is elsewhere.
    pub(crate) fn folder(&self) -> PathBuf {
        self.laptop.programs.home().join("depot")
    }

    /// Puts a file into the depot's folder.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.folder().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A file that is in the depot's folder.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Creates a Job with these slots: `SLOT=LOCATION:/PATH`.
    #[track_caller]
    pub(crate) fn job(&self, workdir: &str, slots: &[&str]) -> i64 {
        let mut words = vec!["-a", "Stage", "-w", workdir];
        slots.iter().for_each(|slot| words.extend(["-s", slot]));
        self.laptop.job(&words)
    }

    /// A Job's workdir.
    pub(crate) fn workdir(&self, workdir: &str) -> PathBuf {
        self.laptop.site_path().join("data").join(workdir)
    }

    /// A file in a Job's workdir.
    pub(crate) fn read_work(&self, path: &str) -> String {
        fs::read_to_string(self.workdir(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Takes a Job to a state as its owner.
    #[track_caller]
    pub(crate) fn set_state(&self, job: i64, state: &str) {
        self.laptop.site(&["job", "modify", &job.to_string(), "--set-state", state, "-y"]);
    }

    /// Waits for FAILED and gives the reason.
    #[track_caller]
    pub(crate) fn failure(&self, job: i64) -> String {
        self.laptop.wait_state(job, "FAILED");
        let events = self.laptop.json(&["events", "ls", "--job", &job.to_string(), "--ordering", "timestamp"]);
        let last = events.as_array().and_then(|events| events.last()).cloned().unwrap_or_default();
        last["data"]["reason"].as_str().unwrap_or_else(|| panic!("no reason in {last}")).to_owned()
    }

    /// Waits until `copal job why` says something.
    #[track_caller]
    pub(crate) fn wait_why(&self, job: i64, words: &str) {
        wait_blocking(&format!("why to say {words:?}"), LIMIT, || {
            let text = self.laptop.site(&["job", "why", &job.to_string()]);
            if text.contains(words) { Ok(()) } else { Err(format!("{text}; {}", self.laptop.logs())) }
        });
    }
}

/// All files of a folder with their content, by their path; those that vanish meanwhile are none.
pub(crate) fn tree(folder: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if let Ok(content) = fs::read_to_string(entry.path()) {
                files.push((entry.path().strip_prefix(folder).unwrap().display().to_string(), content));
            }
        }
    }
    files.sort();
    files
}
