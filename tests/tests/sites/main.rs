//! The life of a Site and of its agent as a daemon: one agent for a Site, settings that change while work runs, a
//! service that is away, a folder that moves, a disk that is full, and the end of a Site.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helper fails as a test does")]

mod daemon;
mod faults;
mod folder;

use std::fs;

use copal_tests::laptop::Laptop;

/// Waits until every task of the agent is well, or one says this.
#[track_caller]
pub(crate) fn wait_status(laptop: &Laptop, word: &str) -> String {
    copal_tests::wait::wait_blocking(&format!("{word:?} in the status"), copal_tests::laptop::LIMIT, || {
        // It fails when the settings are wrong, and tells all the same.
        let output = laptop.try_site(&["site", "status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains(word) { Ok(text) } else { Err(format!("{text}\n{}", laptop.logs())) }
    })
}

/// Replaces a text in the Site's `settings.yml`.
#[track_caller]
pub(crate) fn change_settings(laptop: &Laptop, from: &str, to: &str) {
    let path = laptop.site_path().join("settings.yml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "no {from:?} in {text}");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

/// The state of a BatchJob.
#[track_caller]
pub(crate) fn batch_job_state(laptop: &Laptop, id: i64) -> String {
    let all = laptop.json(&["queue", "ls", "--history"]);
    let row = all.as_array().unwrap().iter().find(|row| row["id"] == id).cloned().unwrap_or_default();
    row["state"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
pub(crate) fn wait_batch_job(laptop: &Laptop, id: i64, state: &str) {
    copal_tests::wait::wait_blocking(&format!("BatchJob {id} to be {state}"), copal_tests::laptop::LIMIT, || {
        match batch_job_state(laptop, id) {
            now if now == state => Ok(()),
            now => Err(format!("{now}; {}", laptop.logs())),
        }
    });
}
