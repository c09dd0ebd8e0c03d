//! `copal` as people type it: what it prints, what it refuses and in which words, how it behaves in
//! pipes and on terminals. What happens between the programs is `workflow`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helper fails as a test does")]

mod bulk;
mod completions;
mod desk;
mod docs;
mod doctor;
mod errors;
mod formats;
mod guide;
mod help;
mod manual;
mod other_service;
mod pitfalls;
mod pty;
mod remote_apps;
mod scripts;
mod terminal;
mod wait;
