//! Waiting for a condition: a generous limit, and the last status in the failure's text. Tests
//! wait by this and never sleep for a guessed time.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// How long a condition may take that is met within milliseconds on an idle machine. Generous: a
/// busy two-core machine must not fail a test.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Between two looks. Short, since most conditions are met after one or two.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks again and again until `look` gives `Ok`, and gives its value. `Err` holds what is there instead.
///
/// # Panics
/// When `limit` is over, with the last status.
#[track_caller]
pub fn wait_for<T, F>(what: &str, limit: Duration, mut look: impl FnMut() -> F) -> impl Future<Output = T>
where
    F: Future<Output = Result<T, String>>,
{
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        loop {
            match look().await {
                Ok(value) => return value,
                Err(status) if start.elapsed() > limit => {
                    panic!("{caller}: waited {limit:?} for {what}; the last status was {status}")
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// As [`wait_for`], for conditions that need no async.
///
/// # Panics
/// When `limit` is over, with the last status.
#[track_caller]
pub fn wait_blocking<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        match look() {
            Ok(value) => return value,
            Err(status) if start.elapsed() > limit => {
                panic!("waited {limit:?} for {what}; the last status was {status}")
            }
            // One who looks by running programs leaves as much time to what is waited for.
            Err(_) => std::thread::sleep(PAUSE.max(began.elapsed())),
        }
    }
}
