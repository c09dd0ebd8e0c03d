//! Ends Sessions whose lease is over, by the database's clock.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    app::Shared,
    db::sessions::{self, Swept},
    error::ApiResult,
};

/// Processes sweep in turn; a gap of so many sweeps, and at least of [`SHORTEST_OUTAGE`], means that none was there.
const MISSED_SWEEPS: u32 = 3;
const SHORTEST_OUTAGE: Duration = Duration::from_secs(5);

/// Sweeps until the service stops.
pub(super) async fn run(shared: Shared) {
    loop {
        let more = pass(&shared).await;
        if more && !shared.stop.is_cancelled() {
            continue;
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = sleep(shared.config.sweep) => {}
        }
    }
}

async fn pass(shared: &Shared) -> bool {
    match sweep(shared).await {
        Ok(swept) => {
            if let Some(gap) = swept.was_down {
                tracing::info!("the service was down for {gap:.1?}, which counts for no lease");
            }
            if swept.ended > 0 {
                tracing::info!("ended {} Sessions whose lease was over", swept.ended);
            }
            swept.more
        }
        // The next pass does it.
        Err(error) => {
            tracing::warn!("can't look for lapsed Sessions: {error}");
            false
        }
    }
}

async fn sweep(shared: &Shared) -> ApiResult<Swept> {
    let config = &shared.config;
    let pause = (config.sweep * MISSED_SWEEPS).max(SHORTEST_OUTAGE);
    let mut transaction = shared.pool.begin().await?;
    let swept = sessions::sweep(&mut transaction, config.leases(), pause).await?;
    transaction.commit().await?;
    Ok(swept)
}
