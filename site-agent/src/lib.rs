//! Copal's agent: the one process that works for a Site between the service and the machine. It
//! submits BatchJobs to the scheduler and follows them, runs the hooks of Apps, delivers what
//! launchers could not, and tells the service about the Site.
//!
//! `agent.rs` wires the services of `tasks/` together; `scheduler/` and `script/` know nothing of the service.

pub mod agent;
pub mod api;
pub mod check;
pub mod cli;
pub mod discover;
pub mod guard;
pub mod hook;
pub mod ledger;
pub mod lock;
pub mod logging;
pub mod nodes_aside;
pub mod policy;
pub mod process;
pub mod records;
pub mod scheduler;
pub mod script;
pub mod settings;
pub mod staging;
pub mod status;
pub mod tasks;
