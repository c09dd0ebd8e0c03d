//! Runs that were ended by SIGTERM, but not by this launcher. A scheduler that cancels an allocation signals
//! the steps and the launcher at the same moment, and the news of a step may be the quicker. Such an end is held back for
//! a moment: when the launcher is told to stop meanwhile, the run was cut off with it and is no error of its Job.

use std::time::{Duration, Instant};

use crate::protocol::{Cause, Ended, Event, Outcome};

/// How much later than the end of a step the launcher's own signal may come.
const DOUBT: Duration = Duration::from_millis(500);

/// The ends that are held back.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    held: Vec<(Instant, usize, Box<Ended>)>,
}

impl Doubts {
    /// Holds doubtful ends of a worker's report back; gives the rest. While the launcher stops nothing is in
    /// doubt: what SIGTERM ended was cut off.
    pub(super) fn sift(&mut self, worker: usize, events: Vec<Event>, stopping: bool, now: Instant) -> Vec<Event> {
        let mut clear = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Ended(ended) if ended.cause.is_none() && by_term(&ended.outcome) => {
                    if stopping {
                        clear.push(Event::Ended(cut_off(ended)));
                    } else {
                        self.held.push((now + DOUBT, worker, ended));
                    }
                }
                event => clear.push(event),
            }
        }
        clear
    }

    /// The ends that are in doubt no more, each with its worker.
    pub(super) fn settle(&mut self, stopping: bool, now: Instant) -> Vec<(usize, Event)> {
        let due = |at: Instant| stopping || at <= now;
        let (settled, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(at, ..): &(Instant, usize, Box<Ended>)| due(*at));
        self.held = held;
        settled
            .into_iter()
            .map(|(_, worker, ended)| (worker, Event::Ended(if stopping { cut_off(ended) } else { ended })))
            .collect()
    }

    /// Whether any end is in doubt: perhaps the whole allocation is being ended, and nothing new should start.
    pub(super) fn any(&self) -> bool {
        !self.held.is_empty()
    }

    /// When the next one must be settled.
    pub(super) fn next(&self) -> Option<Instant> {
        self.held.iter().map(|(at, ..)| *at).min()
    }
}

fn by_term(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Signaled(libc::SIGTERM) | Outcome::Exited(143))
}

fn cut_off(mut ended: Box<Ended>) -> Box<Ended> {
    ended.cause = Some(Cause::EndOfTime);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RunId;

    fn ended(outcome: Outcome) -> Event {
        let time = chrono::DateTime::UNIX_EPOCH;
        Event::Ended(Box::new(Ended {
            run: RunId(1),
            slot: None,
            vacant: true,
            outcome,
            cause: None,
            start: time,
            end: time,
            peak_memory_bytes: None,
            cpu_sec: None,
            tail: String::new(),
        }))
    }

    fn cause(event: &Event) -> Option<Cause> {
        match event {
            Event::Ended(ended) => ended.cause,
            _ => None,
        }
    }

    #[test]
    fn an_end_by_term_waits_for_the_launchers_own() {
        let now = Instant::now();
        let mut doubts = Doubts::default();
        let clear = doubts.sift(0, vec![ended(Outcome::Exited(143)), ended(Outcome::Exited(3))], false, now);
        assert_eq!(clear.len(), 1);
        assert!(doubts.settle(false, now).is_empty() && doubts.any());
        let settled = doubts.settle(true, now);
        assert!(!doubts.any());
        assert_eq!(cause(&settled[0].1), Some(Cause::EndOfTime));
        assert_eq!(doubts.next(), None);
    }

    #[test]
    fn an_end_by_term_alone_is_the_jobs_own() {
        let now = Instant::now();
        let mut doubts = Doubts::default();
        assert!(doubts.sift(0, vec![ended(Outcome::Signaled(libc::SIGTERM))], false, now).is_empty());
        let settled = doubts.settle(false, doubts.next().unwrap());
        assert_eq!(cause(&settled[0].1), None);
    }

    #[test]
    fn while_the_launcher_stops_nothing_waits() {
        let clear = Doubts::default().sift(0, vec![ended(Outcome::Exited(143))], true, Instant::now());
        assert_eq!(cause(&clear[0]), Some(Cause::EndOfTime));
    }
}
