//! Who waits in this process for Jobs to become free, and the tokens that wake them.
//!
//! A notification about n Jobs must not wake a thousand waiters to fight for them. It makes a few
//! tokens that share the n; each token wakes one waiter, who looks, takes what it can, and the
//! token goes on to the next one with what is left. A token passes every waiter that was there
//! when it was born at most once, so it ends even when nobody can take the Jobs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use copal_schemas::{JobState, SiteId, job_state};
use tokio::sync::oneshot;

use super::Wake;
use crate::metrics::{self, Gauged};

/// Tokens of one notification that travel at the same time.
const MAX_TOKENS: u32 = 4;
/// Jobs that are worth a token more.
const JOBS_A_TOKEN: u32 = 8;

/// Which Jobs a waiter can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Those that a launcher may run.
    Runnable,
    /// Those whose hooks an agent may run.
    Processable,
    /// Those that wait for staging.
    Stageable,
    /// Any, or others, of which there is no notification.
    Any,
}

impl Wants {
    /// What somebody wants who acquires Jobs in these states.
    #[must_use]
    pub fn of(states: &[JobState]) -> Self {
        if states.iter().all(|state| state.is_runnable()) {
            Self::Runnable
        } else if states.iter().all(|state| job_state::PROCESSABLE.contains(state)) {
            Self::Processable
        } else {
            Self::Any
        }
    }

    fn meets(self, kind: Self) -> bool {
        self == kind || self == Self::Any
    }
}

/// All waiters of the process.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    sites: HashMap<SiteId, BTreeMap<u64, Entry>>,
}

struct Entry {
    wants: Wants,
    wake: oneshot::Sender<Option<Token>>,
}

/// Somebody who waits. Dropping it ends the waiting; a token that had reached it goes on.
pub struct Waiter {
    registry: Registry,
    site: SiteId,
    number: u64,
    woken: oneshot::Receiver<Option<Token>>,
    _counted: Gauged,
}

/// What wakes a waiter: some Jobs that are worth a look. Goes on to the next waiter when dropped.
#[derive(Debug)]
pub struct Token {
    registry: Registry,
    site: SiteId,
    kind: Wants,
    left: u32,
    /// The last waiter that it has passed, and the last that was there when it was born.
    passed: u64,
    horizon: u64,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the maps are whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, site: SiteId, wants: Wants) -> Waiter {
        let (wake, woken) = oneshot::channel();
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.sites.entry(site).or_default().insert(number, Entry { wants, wake });
        drop(state);
        Waiter { registry: self.clone(), site, number, woken, _counted: metrics::count_waiter() }
    }

    pub(super) fn wake(&self, site: SiteId, wake: Wake) {
        let kinds = [
            (Wants::Runnable, wake.runnable),
            (Wants::Processable, wake.processable),
            (Wants::Stageable, wake.stageable),
        ];
        for (kind, jobs) in kinds {
            if jobs == 0 {
                continue;
            }
            let horizon = self.state().next;
            let tokens = (jobs / JOBS_A_TOKEN).clamp(1, MAX_TOKENS);
            for token in 0..tokens {
                let left = jobs / tokens + u32::from(token < jobs % tokens);
                // Dropping a new token sends it on its way.
                drop(Token { registry: self.clone(), site, kind, left, passed: 0, horizon });
            }
        }
    }

    /// Wakes every waiter, because nobody knows what happened.
    pub(super) fn wake_all(&self) {
        let sites = std::mem::take(&mut self.state().sites);
        for entry in sites.into_values().flat_map(BTreeMap::into_values) {
            // A waiter that is gone needs no waking.
            let _ = entry.wake.send(None);
        }
    }
}

impl Waiter {
    /// Until there is something to look for. `None` when nobody knows what.
    pub async fn woken(&mut self) -> Option<Token> {
        (&mut self.woken).await.ok().flatten()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        if let Some(waiters) = state.sites.get_mut(&self.site) {
            waiters.remove(&self.number);
            if waiters.is_empty() {
                state.sites.remove(&self.site);
            }
        }
        // A token inside `woken` is dropped after the lock, and goes on.
    }
}

impl Token {
    /// Notes that so many of its Jobs are taken.
    pub fn took(&mut self, jobs: usize) {
        self.left = self.left.saturating_sub(u32::try_from(jobs).unwrap_or(u32::MAX));
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        while self.left > 0 {
            let mut state = self.registry.state();
            let Some(waiters) = state.sites.get_mut(&self.site) else { return };
            let next = waiters.range(self.passed..self.horizon).find(|(_, entry)| entry.wants.meets(self.kind));
            let Some(number) = next.map(|(number, _)| *number) else { return };
            let Some(entry) = waiters.remove(&number) else { return };
            if waiters.is_empty() {
                state.sites.remove(&self.site);
            }
            drop(state);
            let next = Token {
                registry: self.registry.clone(),
                site: self.site,
                kind: self.kind,
                left: std::mem::take(&mut self.left),
                passed: number + 1,
                horizon: self.horizon,
            };
            if let Err(Some(mut back)) = entry.wake.send(Some(next)) {
                // That waiter is gone; try the next. The token that came back has nothing left.
                self.left = std::mem::take(&mut back.left);
                self.passed = back.passed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: SiteId = SiteId(1);

    fn runnable(jobs: u32) -> Wake {
        Wake { runnable: jobs, ..Wake::default() }
    }

    fn try_woken(waiter: &mut Waiter) -> Option<Token> {
        waiter.woken.try_recv().ok().flatten()
    }

    #[test]
    fn one_job_wakes_one_waiter_and_goes_on_when_it_is_not_taken() {
        let registry = Registry::default();
        let mut first = registry.register(SITE, Wants::Runnable);
        let mut second = registry.register(SITE, Wants::Runnable);
        let mut elsewhere = registry.register(SiteId(2), Wants::Runnable);
        let mut hooks = registry.register(SITE, Wants::Processable);
        registry.wake(SITE, runnable(1));
        let token = try_woken(&mut first).unwrap();
        assert!(try_woken(&mut second).is_none());
        drop(token);
        let mut token = try_woken(&mut second).unwrap();
        token.took(1);
        drop(token);
        assert!(try_woken(&mut elsewhere).is_none());
        assert!(try_woken(&mut hooks).is_none());
    }

    #[test]
    fn a_token_ends_when_nobody_can_use_it() {
        let registry = Registry::default();
        let mut waiter = registry.register(SITE, Wants::Runnable);
        registry.wake(SITE, runnable(5));
        let token = try_woken(&mut waiter).unwrap();
        let mut again = registry.register(SITE, Wants::Runnable);
        drop(token);
        assert!(try_woken(&mut again).is_none());
    }

    #[test]
    fn a_token_is_not_lost_with_a_waiter_that_hangs_up() {
        let registry = Registry::default();
        let first = registry.register(SITE, Wants::Any);
        let mut second = registry.register(SITE, Wants::Runnable);
        registry.wake(SITE, runnable(1));
        drop(first);
        assert!(try_woken(&mut second).is_some());
    }

    #[test]
    fn many_jobs_wake_several_at_once() {
        let registry = Registry::default();
        let mut waiters: Vec<_> = (0..10).map(|_| registry.register(SITE, Wants::Runnable)).collect();
        registry.wake(SITE, runnable(1000));
        let tokens: Vec<_> = waiters.iter_mut().filter_map(try_woken).collect();
        assert_eq!(tokens.len(), MAX_TOKENS as usize);
        assert_eq!(tokens.iter().map(|token| token.left).sum::<u32>(), 1000);
    }

    #[test]
    fn nothing_is_left_of_waiters_that_are_gone() {
        let registry = Registry::default();
        drop(registry.register(SITE, Wants::Runnable));
        assert!(registry.state().sites.is_empty());
    }
}
