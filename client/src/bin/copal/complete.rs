//! Words that a shell offers for Sites, Apps and states. Sites and Apps are asked of the service;
//! a service that is away, or slow, offers nothing rather than an error in the middle of a line.

use std::{ffi::OsStr, time::Duration};

use clap_complete::CompletionCandidate;
use copal_client::{Client, Credentials};
use copal_schemas::JobState;

/// How long somebody who pressed Tab waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Names of the user's Sites, after the last comma.
pub(crate) fn sites(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = ["this", "all", "active"].map(String::from).into_iter();
    let names = ask(async |client| Some(client.list_sites().await.ok()?.into_iter().map(|site| site.name).collect()));
    matching(current, words.chain(names))
}

/// Names of the Apps of all the user's Sites.
pub(crate) fn apps(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = ask(async |client| Some(client.list_apps(&[]).await.ok()?.into_iter().map(|app| app.name).collect()));
    matching(current, names.into_iter())
}

/// States of Jobs, after the last comma.
pub(crate) fn states(current: &OsStr) -> Vec<CompletionCandidate> {
    let upper = current.to_string_lossy().to_uppercase();
    matching(OsStr::new(&upper), JobState::ALL.iter().map(ToString::to_string))
}

fn ask(question: impl AsyncFnOnce(Client) -> Option<Vec<String>>) -> Vec<String> {
    let answer = || {
        let client = Client::from_credentials(&Credentials::load().ok()?).ok()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, question(client)).await.ok()? })
    };
    answer().unwrap_or_default()
}

/// Those that go on from what was typed.
fn matching(current: &OsStr, words: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, typed) = match current.rsplit_once(',') {
        Some((before, typed)) => (format!("{before},"), typed),
        None => (String::new(), &*current),
    };
    let mut words: Vec<String> = words.filter(|word| word.starts_with(typed)).collect();
    words.sort();
    words.dedup();
    words.into_iter().map(|word| CompletionCandidate::new(format!("{before}{word}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_completed_after_a_comma_in_any_case() {
        let offered = |typed: &str| -> Vec<String> {
            states(OsStr::new(typed)).iter().map(|word| word.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(offered("run_"), ["RUN_DONE", "RUN_ERROR", "RUN_TIMEOUT"]);
        assert_eq!(offered("FAILED,JO"), ["FAILED,JOB_FINISHED"]);
        assert!(offered("x").is_empty());
    }
}
