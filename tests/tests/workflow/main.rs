//! One machine, all four programs, as a user types it: the README's tour, what happens when a
//! part is killed in the middle, and what wrong input is told.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

mod bad_input;
mod faults;
mod outage;
mod tour;

use copal_tests::laptop;
