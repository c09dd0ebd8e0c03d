//! Loops that run beside the requests in every process: ending lapsed Sessions, removing what was
//! deleted, housekeeping. Each pass takes no input, can be repeated at any time, and does nothing
//! where another process of the service does it at the moment.

mod sweep;
mod tidy;

use tokio::task::JoinSet;

use crate::app::Shared;

/// Starts all loops. They end when `shared.stop` is cancelled.
pub fn start(shared: &Shared, tasks: &mut JoinSet<()>) {
    tasks.spawn(shared.feed.clone().run(shared.pool.clone(), shared.stop.clone()));
    tasks.spawn(sweep::run(shared.clone()));
    tasks.spawn(tidy::run(shared.clone()));
}
