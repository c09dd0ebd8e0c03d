//! The real launcher and the real service, without a scheduler: launchers that share a Site, many nodes, shapes that
//! only some allocation can hold, clocks that jump, a service that is not there.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test's helper fails as a test does")]

mod bed;
mod clock;
mod nodes;
mod outage;
mod owner;
mod shapes;
mod sharing;
mod spool;
