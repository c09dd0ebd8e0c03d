//! The harness of Copal's end-to-end tests: a private Postgres cluster and a database a test, the real
//! service in this process or as a program, users and their things, and the checks that nothing is left.
//!
//! Nothing here is an assertion about Copal itself: those are in `tests/tests`.
#![expect(clippy::expect_used, reason = "a harness that can't do its work fails the test at once")]

pub mod api;
pub mod at_site;
pub mod browser;
pub mod cut;
pub mod exchange;
pub mod gate;
pub mod globus;
pub mod laptop;
pub mod pages;
pub mod postgres;
pub mod process;
pub mod python;
pub mod service;
pub mod ssh;
pub mod store;
pub mod stream;
pub mod tls;
pub mod wait;
pub mod web;
pub mod world;

pub use api::{Answer, Api, id};
pub use service::{Service, Settings};
pub use wait::{LIMIT, wait_for};
pub use world::World;
