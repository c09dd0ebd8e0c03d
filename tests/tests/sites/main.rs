//! The life of a Site and of its agent as a daemon: one agent for a Site, settings that change while work runs, a
//! service that is away, a folder that moves, a disk that is full, and the end of a Site.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helper fails as a test does")]

mod daemon;
mod faults;
mod folder;

use std::fs;

use copal_tests::laptop::Laptop;

/// Replaces a text in the Site's `settings.yml`.
#[track_caller]
pub(crate) fn change_settings(laptop: &Laptop, from: &str, to: &str) {
    let path = laptop.site_path().join("settings.yml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "no {from:?} in {text}");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
}
