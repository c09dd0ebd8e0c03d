//! The signals by which a launcher is told that its time is over.

use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// The signals by which a scheduler, or a person, ends a launcher.
pub(super) struct Signals {
    streams: [(SignalStream, &'static str); 4],
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        let stream = |kind, name| Ok::<_, std::io::Error>((signal(kind)?, name));
        Ok(Self {
            streams: [
                stream(SignalKind::terminate(), "SIGTERM")?,
                stream(SignalKind::user_defined1(), "SIGUSR1")?,
                stream(SignalKind::interrupt(), "SIGINT")?,
                stream(SignalKind::hangup(), "SIGHUP")?,
            ],
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        let [term, usr1, int, hup] = &mut self.streams;
        tokio::select! {
            _ = term.0.recv() => term.1,
            _ = usr1.0.recv() => usr1.1,
            _ = int.0.recv() => int.1,
            _ = hup.0.recv() => hup.1,
        }
    }
}
