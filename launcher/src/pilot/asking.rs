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

impl Pilot {
    /// Asks the service for Jobs when there is room and no question is under way.
    pub(super) fn ask(&mut self, now: Instant) {
        let Some(lease) = &self.lease else { return };
        if self.asking.in_flight || self.asking.not_before.is_some_and(|at| now < at) {
            return;
        }
        let present = self.book.present(now, &self.deadline, self.asking.kind);
        let Some((question, kind)) = demand::question(&self.terms, &present) else { return };
        self.asking.kind = kind;
        self.asking.in_flight = true;
        self.asking.not_before = None;
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
