//! Staging with real peers: folders, ssh servers on the loopback, a web server, and what stands in for the rest. The agent,
//! the service and the command are the real ones; most Jobs never run, since staging ends where running begins.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

mod depot;
mod files;
mod globus;
mod graph;
mod s3;
mod ssh;
mod web;
