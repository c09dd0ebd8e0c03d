//! Apps and hooks with all four programs: what `app sync` and `app show` say, hooks that do their work, hooks that
//! don't, the retry policy, cleaning up, and Python functions as Apps.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

mod hooks;
mod index;
mod python_app;
mod remote;
mod retries;

use copal_tests::laptop;
