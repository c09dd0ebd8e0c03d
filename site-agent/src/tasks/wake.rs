//! Follows the service's event stream and wakes the services that an event concerns. What happened
//! is never taken from the event itself: it may be late, doubled, or lost in a cut network.

use copal_client::api::StreamQuery;
use copal_schemas::event::Change;

use super::{Context, MAX_BACKOFF, mend_login};
use crate::api::Backoff;

/// Follows the stream until the agent stops.
pub async fn run(context: Context) {
    let mut backoff = Backoff::new(MAX_BACKOFF);
    while !context.stop.is_cancelled() {
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = follow(&context, &mut backoff) => {}
        }
        let wait = backoff.next_wait();
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Follows one connection to its end.
async fn follow(context: &Context, backoff: &mut Backoff) {
    let query =
        StreamQuery { site_ids: vec![context.site.id], kinds: vec!["batch_job", "site"], ..StreamQuery::default() };
    // From now on, not from the last event: whatever came before is seen by the passes that the connection wakes.
    let mut stream = match context.api.client().stream(&query, None).await {
        Ok(stream) => stream,
        Err(error) => {
            context.board.failure("events", &context.api.explain(&error));
            return mend_login(context, &error).await;
        }
    };
    context.board.success("events", "connected");
    context.wakes.all();
    loop {
        match stream.next().await {
            Ok(Some(Change::BatchJob { .. } | Change::BatchJobDeleted { .. })) => {
                backoff.reset();
                context.wakes.scheduler.notify_one();
                context.wakes.hooks.notify_one();
            }
            // Apps have no events of their own: their Site has one.
            Ok(Some(Change::Site { .. })) => {
                backoff.reset();
                context.wakes.apps.notify_one();
            }
            Ok(Some(_)) => backoff.reset(),
            Ok(None) => return context.board.failure("events", "the service closed the event stream"),
            Err(error) => return context.board.failure("events", &context.api.explain(&error)),
        }
    }
}
