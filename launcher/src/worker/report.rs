//! What goes back to the head: events in order, at once when the head must act on them, else in batches.

use std::{
    io::Write,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tracing::debug;

use crate::protocol::{Event, FromWorker, send};

/// How long an event waits for others while every slot has its next Job. Followers last for several times as long.
const PATIENCE: Duration = Duration::from_millis(10);
/// The most events of one report: so few that the longest that there can be fit into a frame.
const MAX_EVENTS: usize = 1_024;

/// Events on their way to the head.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    events: Vec<Event>,
    is_urgent: bool,
    is_closed: bool,
}

impl Outbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event, in the order of the calls.
    pub(super) fn push(&self, event: Event) {
        let mut waiting = self.waiting();
        let is_first = waiting.events.is_empty();
        let is_urgent = is_urgent(&event) && !waiting.is_urgent;
        waiting.is_urgent |= is_urgent;
        waiting.events.push(event);
        drop(waiting);
        // The reporter sleeps on while neither changes anything for it.
        if is_first || is_urgent {
            self.wake.notify_one();
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.wake.notify_one();
    }

    /// Waits until there is something to send; `None` when there never will be.
    fn take(&self) -> Option<Vec<Event>> {
        let mut waiting = self.waiting();
        while waiting.events.is_empty() {
            if waiting.is_closed {
                return None;
            }
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let due = Instant::now() + PATIENCE;
        while !waiting.is_urgent && !waiting.is_closed && waiting.events.len() < MAX_EVENTS {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.wake.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let rest = waiting.events.len().min(MAX_EVENTS);
        let rest = waiting.events.split_off(rest);
        // It has waited already.
        waiting.is_urgent = !rest.is_empty();
        Some(std::mem::replace(&mut waiting.events, rest))
    }
}

/// Whether the head has something to do when it hears of it: a slot is vacant, or Jobs are to go elsewhere.
fn is_urgent(event: &Event) -> bool {
    match event {
        Event::Started { .. } => false,
        Event::Ended(ended) => ended.vacant,
        Event::Vacant(_) | Event::Returned(_) => true,
    }
}

/// Sends events until nothing more comes, or the head is gone.
pub(super) fn send_all(outbox: &Outbox, mut head: impl Write) {
    while let Some(events) = outbox.take() {
        if let Err(error) = send(&mut head, &FromWorker::Report(events)) {
            debug!(%error, "the head does not listen any more");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        process::tail,
        protocol::{Ended, MAX_FRAME, Outcome, RunId, SlotId},
        worker::table::never_started,
    };

    fn started() -> Event {
        Event::Started { run: RunId(1), slot: SlotId(1), time: chrono::DateTime::UNIX_EPOCH }
    }

    fn ended(vacant: bool) -> Event {
        let time = chrono::DateTime::UNIX_EPOCH;
        let ended = never_started(RunId(1), None, Outcome::Exited(0), None);
        Event::Ended(Box::new(Ended { vacant, start: time, end: time, ..ended }))
    }

    #[test]
    fn only_what_the_head_acts_on_is_urgent() {
        assert!(!is_urgent(&started()) && !is_urgent(&ended(false)));
        assert!(
            is_urgent(&ended(true)) && is_urgent(&Event::Vacant(SlotId(1))) && is_urgent(&Event::Returned(RunId(1)))
        );
    }

    #[test]
    fn events_come_in_order_each_once_and_the_last_ones_too() {
        let outbox = Outbox::default();
        let events = [started(), ended(false), started(), ended(true)];
        events.iter().for_each(|event| outbox.push(event.clone()));
        assert_eq!(outbox.take().unwrap(), events);
        // What is not urgent is sent too.
        outbox.push(started());
        assert_eq!(outbox.take().unwrap(), [started()]);
        outbox.push(ended(false));
        outbox.close();
        assert_eq!(outbox.take().unwrap(), [ended(false)]);
        assert_eq!(outbox.take(), None);
    }

    #[test]
    fn no_report_is_too_long_for_a_frame() {
        let outbox = Outbox::default();
        (0..2 * MAX_EVENTS + 5).for_each(|_| outbox.push(started()));
        let lengths: Vec<usize> = (0..3).map(|_| outbox.take().unwrap().len()).collect();
        assert_eq!(lengths, [MAX_EVENTS, MAX_EVENTS, 5]);
        // A character takes six bytes at most.
        let Event::Ended(mut ended) = ended(true) else { unreachable!() };
        ended.tail = "\u{1b}".repeat(tail::MAX_CHARS);
        assert!(MAX_EVENTS * serde_json::to_vec(&Event::Ended(ended)).unwrap().len() < MAX_FRAME * 9 / 10);
    }

    #[test]
    fn who_sleeps_is_woken() {
        let outbox = Outbox::default();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| std::iter::from_fn(|| outbox.take()).flatten().count());
            (0..1_000).for_each(|number| outbox.push(ended(number % 7 == 0)));
            outbox.close();
            assert_eq!(taker.join().unwrap(), 1_000);
        });
    }
}
