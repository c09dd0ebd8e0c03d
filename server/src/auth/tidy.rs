//! Removes what has lapsed and lets signing keys rotate, once an hour in every process: each step
//! is idempotent, so that it does not matter how many do it.

use std::time::Duration;

use super::{Rotation, limit, rotate};
use crate::{app::Shared, db, error::ApiResult};

const PERIOD: Duration = Duration::from_secs(3600);

/// Runs until the service stops.
pub(crate) async fn tidy(shared: Shared) {
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = pass(&shared).await {
            tracing::warn!(%error, "lapsed logins were not removed; the next try is in an hour");
        }
    }
}

async fn pass(shared: &Shared) -> ApiResult<()> {
    db::transact(&shared.pool, async |tx| {
        db::logins::tidy(tx).await?;
        db::users::tidy_login_attempts(tx, limit::WINDOW).await?;
        rotate(tx, Rotation::WhenDue).await.map(drop)
    })
    .await
}
