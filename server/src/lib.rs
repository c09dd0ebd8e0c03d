//! Copal's service: the REST API on Postgres, as a library that the program and the tests start.
//!
//! Handlers (`routes`) turn checked values (`extract`) into calls of `db`, which holds all SQL.
//! Nothing in the process is needed for correctness: any number of processes on one database
//! behave as one.

pub mod app;
pub mod auth;
pub mod config;
pub mod db;
pub mod embedded;
pub mod error;
pub mod extract;
pub mod feed;
mod metrics;
pub mod openapi;
pub mod routes;
pub mod tasks;
pub mod telemetry;
mod tls;

pub use app::{App, Shared};
pub use config::Config;
pub use error::ApiError;
