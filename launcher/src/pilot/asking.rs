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
    /// The question for all nodes that is under way, and the one for what was free of them.
    whole: Option<Kind>,
    part: Option<Kind>,
    pub(super) not_before: Option<Instant>,
    /// Of which kind the next question is, unless an answer says otherwise.
    pub(super) kind: Kind,
    /// The answer to a question may have been lost, with Jobs in it.
    pub(super) maybe_lost: bool,
    /// The question that is under way asks for those, too; there is no other then.
    asks_for_lost: bool,
    pub(super) backoff: Backoff,
}

impl Asking {
    /// Of which kind a question may be that is sent now; `None` for none. A time to wait for that is over is forgotten,
    /// also where there is nothing to ask: the loop would wake for it again and again.
    ///
    /// One that waits for what was free keeps none from a launcher that `is_empty` by now: all its nodes are asked for
    /// besides. What the two find together is more than there is room for only where much comes at once, and the rest
    /// is given back.
    fn may_ask(&mut self, now: Instant, is_empty: bool) -> Option<Kind> {
        if !self.has_turn(is_empty) || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        self.not_before = None;
        Some(self.kind)
    }

    /// Whether what is under way leaves room for a question.
    fn has_turn(&self, is_empty: bool) -> bool {
        let only_a_part_waits = self.part == Some(Kind::Wait) && self.whole.is_none();
        // Which Jobs a lost answer had can't be known while another is on its way.
        !self.is_under_way() || (only_a_part_waits && is_empty && !self.maybe_lost)
    }

    fn is_under_way(&self) -> bool {
        self.whole.is_some() || self.part.is_some()
    }

    /// Whether nobody knows for now if there is work: a question that is answered at once is under way, or the answer to
    /// one may have been lost.
    pub(super) fn is_in_the_dark(&self) -> bool {
        self.maybe_lost || [self.whole, self.part].into_iter().flatten().any(|kind| kind != Kind::Wait)
    }

    fn slot(&mut self, is_whole: bool) -> &mut Option<Kind> {
        if is_whole { &mut self.whole } else { &mut self.part }
    }

    /// Of which kind the question was that was answered, and whether Jobs that had been lost are found with it.
    pub(super) fn answered(&mut self, is_whole: bool) -> (Kind, bool) {
        let kind = self.slot(is_whole).take().unwrap_or_default();
        let finds_lost = std::mem::take(&mut self.asks_for_lost);
        if finds_lost {
            self.maybe_lost = false;
        }
        (kind, finds_lost)
    }

    /// A question was not answered: the next one waits so long.
    pub(super) fn failed(&mut self, is_whole: bool, until: Instant) {
        *self.slot(is_whole) = None;
        self.asks_for_lost = false;
        self.maybe_lost = true;
        self.not_before = Some(until);
    }

    /// When there may be a question that is not sent before.
    pub(super) fn next(&self, is_empty: bool) -> Option<Instant> {
        self.not_before.filter(|_| self.has_turn(is_empty))
    }

    /// Lets others have what they were offered before the next question.
    pub(super) fn stand_back(&mut self, until: Instant) {
        self.not_before = self.not_before.max(Some(until));
        // What is under way stays what it is: its answer is judged by that.
        if !self.is_under_way() {
            self.kind = Kind::Turn;
        }
    }
}

impl Pilot {
    /// Asks the service for Jobs when there is room and no question is under way.
    pub(super) fn ask(&mut self, now: Instant) {
        let Some(lease) = &self.lease else { return };
        let Some(kind) = self.asking.may_ask(now, self.book.is_empty()) else { return };
        let present = self.book.present(now, &self.deadline, kind);
        let Some((question, kind)) = demand::question(&self.terms, &present) else { return };
        let is_whole = present.is_empty();
        if self.asking.slot(is_whole).is_some() {
            return;
        }
        *self.asking.slot(is_whole) = Some(kind);
        self.asking.asks_for_lost = self.asking.maybe_lost;
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
                Ok((jobs, names)) => Heard::Acquired(asker.session_id, is_whole, jobs, names),
                Err(error) if session::is_ended(&error) => Heard::Ended(asker.session_id),
                Err(error) => {
                    // Said once for each time that the service is away.
                    if !lost {
                        warn!(error = %chain(&error), "can't acquire Jobs");
                    }
                    Heard::NotAcquired(asker.session_id, is_whole, wait)
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
        assert_eq!(asking.may_ask(now, true), None);
        assert_eq!(asking.next(true), Some(at));
        assert_eq!(asking.may_ask(at, true), Some(Kind::Fill));
        assert_eq!(asking.next(true), None);
        // The answer to what is under way wakes the loop itself.
        let under_way = Asking { whole: Some(Kind::Fill), not_before: Some(now), ..Asking::default() };
        assert_eq!(under_way.next(true), None);
    }

    #[test]
    fn an_empty_launcher_asks_for_all_nodes_beside_what_waits_for_a_part() {
        let now = Instant::now();
        let waits = || Asking { part: Some(Kind::Wait), ..Asking::default() };
        assert_eq!(waits().may_ask(now, false), None);
        assert_eq!(waits().may_ask(now, true), Some(Kind::Fill));
        // It wakes for that.
        let stands_back = Asking { not_before: Some(now), ..waits() };
        assert_eq!((stands_back.next(false), stands_back.next(true)), (None, Some(now)));
        for mut other in [
            Asking { whole: Some(Kind::Wait), ..waits() },
            Asking { part: Some(Kind::Fill), ..waits() },
            Asking { maybe_lost: true, ..waits() },
        ] {
            assert_eq!(other.may_ask(now, true), None, "{other:?}");
        }
        let mut both = Asking { whole: Some(Kind::Turn), ..waits() };
        assert_eq!(both.answered(true), (Kind::Turn, false));
        assert!(both.may_ask(now, true).is_some());
        assert_eq!(both.answered(false), (Kind::Wait, false));
        assert!(both.may_ask(now, false).is_some());
    }

    #[test]
    fn only_who_waits_for_jobs_knows_that_there_are_none() {
        let whole = |kind| Asking { whole: Some(kind), ..Asking::default() };
        assert!(!Asking::default().is_in_the_dark() && !whole(Kind::Wait).is_in_the_dark());
        assert!(whole(Kind::Fill).is_in_the_dark() && whole(Kind::Turn).is_in_the_dark());
        assert!(Asking { maybe_lost: true, ..whole(Kind::Wait) }.is_in_the_dark());
    }

    #[test]
    fn what_a_lost_answer_had_is_asked_for_until_it_is_found() {
        let now = Instant::now();
        let mut asking = Asking { part: Some(Kind::Wait), whole: Some(Kind::Wait), ..Asking::default() };
        asking.failed(false, now);
        // The other one was sent before, and knows nothing of it.
        assert_eq!(asking.answered(true), (Kind::Wait, false));
        assert!(asking.maybe_lost && asking.may_ask(now, true).is_some());
        (asking.whole, asking.asks_for_lost) = (Some(Kind::Fill), true);
        asking.failed(true, now);
        assert!(asking.maybe_lost);
        (asking.whole, asking.asks_for_lost) = (Some(Kind::Fill), true);
        assert_eq!(asking.answered(true), (Kind::Fill, true));
        assert!(!asking.maybe_lost);
    }

    #[test]
    fn a_question_under_way_stays_what_it_is_and_a_longer_wait_as_long() {
        let now = Instant::now();
        let (soon, late) = (now + Duration::from_millis(30), now + Duration::from_secs(5));
        let mut asking = Asking { part: Some(Kind::Wait), kind: Kind::Wait, ..Asking::default() };
        asking.stand_back(soon);
        assert_eq!((asking.answered(false).0, asking.not_before), (Kind::Wait, Some(soon)));
        let mut asking = Asking { not_before: Some(late), ..Asking::default() };
        asking.stand_back(soon);
        assert_eq!((asking.kind, asking.not_before), (Kind::Turn, Some(late)));
    }
}
