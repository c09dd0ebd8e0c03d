//! What goes back to the head: events in order, at once when little happens, in batches when much does.

use std::{
    io::Write,
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

use tracing::debug;

use crate::protocol::{Event, FromWorker, send};

/// The least time between two reports for each event of the first: a report wakes the head, which costs as much
/// as a dozen events.
const GAP_PER_EVENT: Duration = Duration::from_micros(250);
/// No event waits longer than this for others. Followers last for several times as long, so that no place waits for
/// the head meanwhile.
const MAX_GAP: Duration = Duration::from_millis(10);
/// The most events of one report.
const MAX_EVENTS: usize = 4_096;

/// Sends events until nobody can send any more, or the head is gone.
pub(super) fn send_all(events: &Receiver<Event>, mut head: impl Write) {
    let mut next = Instant::now();
    while let Ok(event) = events.recv() {
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
        }
        let mut batch = vec![event];
        batch.extend(events.try_iter().take(MAX_EVENTS));
        next = Instant::now() + gap(batch.len());
        if let Err(error) = send(&mut head, &FromWorker::Report(batch)) {
            debug!(%error, "the head does not listen any more");
            return;
        }
    }
}

/// How long the next report waits for more to say, from one with so many events.
fn gap(events: usize) -> Duration {
    u32::try_from(events).map_or(MAX_GAP, |events| (GAP_PER_EVENT * events).min(MAX_GAP))
}
