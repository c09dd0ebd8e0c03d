//! What goes back to the head: events in order, at once when little happens, in batches when much does.

use std::{
    io::Write,
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

use tracing::debug;

use crate::protocol::{Event, FromWorker, send};

/// The least time between two reports when one event follows another. The head's next step waits for it
/// only when the worker has no follower, and then the worker is not busy.
const BUSY_GAP: Duration = Duration::from_millis(2);
/// The most events of one report.
const MAX_EVENTS: usize = 4_096;

/// Sends events until nobody can send any more, or the head is gone.
pub(super) fn send_all(events: &Receiver<Event>, mut head: impl Write) {
    let mut last = Instant::now().checked_sub(BUSY_GAP * 4);
    while let Ok(event) = events.recv() {
        if last.is_some_and(|last| last.elapsed() < BUSY_GAP * 2) {
            thread::sleep(BUSY_GAP);
        }
        let mut batch = vec![event];
        batch.extend(events.try_iter().take(MAX_EVENTS));
        if let Err(error) = send(&mut head, &FromWorker::Report(batch)) {
            debug!(%error, "the head does not listen any more");
            return;
        }
        last = Some(Instant::now());
    }
}
