//! The REST contract, one module a resource. Each test has a service and a database of its own.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

mod acquire;
mod apps;
mod array_limits;
mod auth;
mod bad_input;
mod batch_jobs;
mod cancel;
mod dependencies;
mod device_login;
mod events;
mod fences;
mod job_arrays;
mod job_filters;
mod job_states;
mod jobs;
mod lifecycle;
mod links;
mod pitfalls;
mod release;
mod replicas;
mod sessions;
mod sites;
mod speed;
mod staging;
mod stream;
mod subscribe;
mod tag_sets;
mod tenancy;
mod tokens;
mod transfers;
mod updates;
mod why;
mod wire;
