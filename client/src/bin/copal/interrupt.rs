//! Ctrl-C. One thread hears it, from the beginning of the program: a question gives the terminal back, what follows
//! Jobs or makes many of them comes to an end that it chooses, and everything else ends as programs do.
//! What those ends are is theirs.

use std::{
    process,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
};

use nix::sys::signal::{SigSet, Signal, raise};
use tokio::sync::watch;

use crate::failure::INTERRUPTED;

/// Whether Ctrl-C was pressed while somebody listened.
static PRESSED: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));
/// Gives the terminal back, while a question is open.
static TIDY: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Begins to hear Ctrl-C. To be called before any other thread is there, since each of them inherits that it is deaf.
/// So do programs, which are therefore started by [`hearing`].
pub(crate) fn listen() {
    let interrupt = SigSet::from(Signal::SIGINT);
    // Where it can't be had, Ctrl-C ends the program in the system's way.
    if interrupt.thread_block().is_err() {
        return;
    }
    thread::spawn(move || {
        while interrupt.wait().is_ok() {
            if let Some(tidy) = TIDY.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                tidy();
                process::exit(INTERRUPTED.into());
            }
            // Who presses it twice does not want to wait for an end in good order.
            if PRESSED.receiver_count() > 0 && !PRESSED.send_replace(true) {
                continue;
            }
            // By the signal, so that a shell's loop around this program ends, too; unless whoever started this program
            // made it ignore the signal.
            let _ = interrupt.thread_unblock().and_then(|()| raise(Signal::SIGINT));
            let _ = interrupt.thread_block();
        }
    });
}

/// Starts a program that hears Ctrl-C as any other does.
pub(crate) fn hearing<T>(start: impl FnOnce() -> T) -> T {
    let before = SigSet::thread_get_mask();
    let _ = SigSet::from(Signal::SIGINT).thread_unblock();
    let started = start();
    let _ = before.and_then(|before| before.thread_set_mask());
    started
}

/// While one of these is there, the first Ctrl-C does not end the program.
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    pub(crate) fn new() -> Self {
        Self(PRESSED.subscribe())
    }

    /// Whether it was pressed.
    pub(crate) fn was_pressed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for it. May be dropped and called again.
    pub(crate) async fn pressed(&mut self) {
        // The other side lives as long as the program.
        if self.0.wait_for(|pressed| *pressed).await.is_err() {
            std::future::pending().await
        }
    }
}

/// While one of these is there, Ctrl-C ends the program only after the terminal was given back.
pub(crate) struct Tidy;

impl Tidy {
    pub(crate) fn by(tidy: impl Fn() + Send + 'static) -> Self {
        *TIDY.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tidy));
        Self
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        *TIDY.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
