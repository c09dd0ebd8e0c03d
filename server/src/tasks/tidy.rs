//! Housekeeping: removes the Jobs of deleted Apps and Sites, folds tallies, forgets old answers and events.

use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::{Instant, sleep};

use crate::{app::Shared, db, error::ApiResult, feed};

/// Between two looks for deleted Apps.
const PERIOD: Duration = Duration::from_secs(2);
/// Between two rounds of everything else.
const SLOW_PERIOD: Duration = Duration::from_secs(600);
/// Between two folds of the tallies.
const FOLD_PERIOD: Duration = Duration::from_secs(10);

/// Tidies until the service stops.
pub(super) async fn run(shared: Shared) {
    // At once: a service that is started again and again must get to it, too.
    let mut slow_at: Option<Instant> = None;
    let mut fold_at = Instant::now();
    loop {
        if let Err(error) = remove_orphans(&shared).await {
            tracing::warn!("can't remove the Jobs of deleted Apps: {error}");
        }
        if fold_at.elapsed() >= FOLD_PERIOD {
            fold_at = Instant::now();
            if let Err(error) = fold_tallies(&shared).await {
                tracing::warn!("can't fold the tallies of Jobs: {error}");
            }
        }
        if slow_at.is_none_or(|at| at.elapsed() >= SLOW_PERIOD) {
            slow_at = Some(Instant::now());
            if let Err(error) = prune(&shared).await {
                tracing::warn!("can't remove what is out of date: {error}");
            }
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = sleep(PERIOD) => {}
        }
    }
}

async fn remove_orphans(shared: &Shared) -> ApiResult<()> {
    while !shared.stop.is_cancelled() {
        let mut transaction = shared.pool.begin().await?;
        let more = db::purge::remove_orphans(&mut transaction).await?;
        transaction.commit().await?;
        if !more {
            break;
        }
    }
    Ok(())
}

async fn fold_tallies(shared: &Shared) -> ApiResult<()> {
    let mut transaction = shared.pool.begin().await?;
    db::purge::fold_tallies(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

async fn prune_events(shared: &Shared) -> ApiResult<()> {
    let days = shared.config.event_retention_days;
    while days > 0 && !shared.stop.is_cancelled() {
        let mut transaction = shared.pool.begin().await?;
        let more = db::purge::prune_events(&mut transaction, TimeDelta::days(days.into())).await?;
        transaction.commit().await?;
        if !more {
            break;
        }
    }
    Ok(())
}

async fn tidy_tag_sets(shared: &Shared) -> ApiResult<()> {
    let mut transaction = shared.pool.begin().await?;
    db::tag_sets::tidy(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

async fn prune(shared: &Shared) -> ApiResult<()> {
    prune_events(shared).await?;
    tidy_tag_sets(shared).await?;
    let mut connection = shared.pool.acquire().await?;
    db::updates::prune(&mut connection).await?;
    db::refusals::prune(&mut connection).await?;
    db::array_limit::forget(&mut connection).await?;
    feed::prune(&mut connection).await?;
    db::idempotency::prune(&mut connection).await?;
    Ok(())
}
