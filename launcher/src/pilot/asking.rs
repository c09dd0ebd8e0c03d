//! Asking the service for Jobs: when, and by a task of its own, so that the pilot's loop never waits for the answer.
//! What is asked for is decided in `demand`.

use std::time::Instant;

use tracing::warn;

use super::{
    Pilot,
    demand::{self, Kind},
};
use crate::session::{self, Backoff, Heard, chain};

/// Why a question to the service is not sent now.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) in_flight: bool,
    pub(super) not_before: Option<Instant>,
    /// Of which kind the next question is, or the one that is under way.
    pub(super) kind: Kind,
    /// The answer to the last question may have been lost, with Jobs in it.
    pub(super) maybe_lost: bool,
    pub(super) backoff: Backoff,
}

impl Asking {
    /// Whether a question may be sent now. A time to wait for that is over is forgotten, also where there is nothing to
    /// ask: the loop would wake for it again and again.
    fn may_ask(&mut self, now: Instant) -> bool {
        let may_ask = !self.in_flight && self.not_before.is_none_or(|at| now >= at);
        if may_ask {
            self.not_before = None;
        }
        may_ask
    }

    /// When there may be a question that is not sent before.
    pub(super) fn next(&self) -> Option<Instant> {
        self.not_before.filter(|_| !self.in_flight)
    }

    /// Lets others have what they were offered before the next question.
    pub(super) fn stand_back(&mut self, until: Instant) {
        self.not_before = self.not_before.max(Some(until));
        // What is under way stays what it is: its answer is judged by that.
        if !self.in_flight {
            self.kind = Kind::Turn;
        }
    }
}

impl Pilot {
    /// Asks the service for Jobs when there is room and no question is under way.
    pub(super) fn ask(&mut self, now: Instant) {
        let Some(lease) = &self.lease else { return };
        if !self.asking.may_ask(now) {
            return;
        }
        let present = self.book.present(now, &self.deadline, self.asking.kind);
        let Some((question, kind)) = demand::question(&self.terms, &present) else { return };
        self.asking.kind = kind;
        self.asking.in_flight = true;
        let (asker, heard, lost) = (lease.asker.clone(), self.mouths.heard.clone(), self.asking.maybe_lost);
        let known = self.book.known_apps();
        let (mine, wait) = (lost.then(|| self.book.held()), self.asking.backoff.wait());
        let caught_up = lost.then(|| lease.reporter.caught_up());
        let keeping_up = lease.reporter.keeping_up();
        tokio::spawn(async move {
            // A Job that ended while the service was away looks as if it had never been started until its end
            // is delivered, and would be taken for one whose acquire was lost.
            if let Some(caught_up) = caught_up {
                caught_up.await;
            }
            keeping_up.await;
            let answer = match asker.ask(&question, |id| known.contains(&id), mine.as_ref()).await {
                Ok((jobs, names)) => Heard::Acquired(asker.session_id, jobs, names),
                Err(error) if session::is_ended(&error) => Heard::Ended(asker.session_id),
                Err(error) => {
                    // Said once for each time that the service is away.
                    if !lost {
                        warn!(error = %chain(&error), "can't acquire Jobs");
                    }
                    Heard::NotAcquired(asker.session_id, wait)
                }
            };
            drop(heard.send(answer));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_that_has_come_is_not_waited_for_again_though_there_is_nothing_to_ask() {
        let now = Instant::now();
        let at = now + Duration::from_secs(1);
        let mut asking = Asking { not_before: Some(at), ..Asking::default() };
        assert!(!asking.may_ask(now));
        assert_eq!(asking.next(), Some(at));
        assert!(asking.may_ask(at));
        assert_eq!(asking.next(), None);
        // The answer to what is under way wakes the loop itself.
        let under_way = Asking { in_flight: true, not_before: Some(now), ..Asking::default() };
        assert_eq!(under_way.next(), None);
    }

    #[test]
    fn a_question_under_way_stays_what_it_is_and_a_longer_wait_as_long() {
        let now = Instant::now();
        let (soon, late) = (now + Duration::from_millis(30), now + Duration::from_secs(5));
        let mut asking = Asking { in_flight: true, kind: Kind::Wait, ..Asking::default() };
        asking.stand_back(soon);
        assert_eq!((asking.kind, asking.not_before), (Kind::Wait, Some(soon)));
        let mut asking = Asking { not_before: Some(late), ..Asking::default() };
        asking.stand_back(soon);
        assert_eq!((asking.kind, asking.not_before), (Kind::Turn, Some(late)));
    }
}
