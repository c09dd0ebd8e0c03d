//! The one LISTEN connection of the process. It tells itself a word now and then, so that a
//! connection that is silently deaf (a pooler in between, a dead peer) is found out and replaced.

use std::{sync::atomic::Ordering, time::Duration};

use sqlx::{PgPool, postgres::PgListener};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{CHANNEL, Feed};
use crate::metrics;

/// What it tells itself.
const PING: &str = "ping";
const PING_PERIOD: Duration = Duration::from_secs(15);
/// Without its own word for so long it is deaf.
const DEAF_AFTER: Duration = Duration::from_secs(40);
/// Between two tries to connect.
const RETRY: Duration = Duration::from_secs(1);

/// Listens until `stop`.
pub(super) async fn run(feed: Feed, pool: PgPool, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            result = listen(&feed, &pool) => {
                hear(&feed, false);
                if !stop.is_cancelled()
                    && let Err(error) = result
                {
                    tracing::warn!("notifications of the database are not heard, looking every second instead: {error}");
                }
            }
        }
        // Whatever was missed meanwhile is found by looking.
        feed.heard_nothing();
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Notes whether notifications arrive.
fn hear(feed: &Feed, heard: bool) {
    feed.0.deaf.store(!heard, Ordering::Relaxed);
    metrics::note_notifications(heard);
}

/// Listens on one connection until it breaks or is deaf.
async fn listen(feed: &Feed, pool: &PgPool) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    feed.heard_nothing();
    let mut heard_at = Instant::now();
    let mut pings = interval(PING_PERIOD);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            notification = listener.try_recv() => match notification? {
                Some(notification) if notification.payload() == PING => {
                    heard_at = Instant::now();
                    hear(feed, true);
                }
                Some(notification) => feed.heard(notification.payload()),
                None => return Ok(()),
            },
            _ = pings.tick() => {
                if heard_at.elapsed() > DEAF_AFTER {
                    return Ok(());
                }
                // On another connection, as all others are. A database that does not answer is
                // found out by the missing word.
                let ping = sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(PING).execute(pool);
                let _ = timeout(PING_PERIOD, ping).await;
            }
        }
    }
}
