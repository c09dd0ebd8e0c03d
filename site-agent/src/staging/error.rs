//! Why a transfer failed, and what that means for the next try. Each cause has a rule of its own: a
//! full disk is waited for, a cut network is tried again soon and goes on where it was, a missing permission is
//! not mended by trying.

use std::{fmt, io, time::Duration};

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// No space, or a quota is used up.
    Full,
    /// The place to write to is not there, or is of another kind than what is to be written.
    Destination,
    /// Somebody must be let in first: a key, a login, a consent, a file's mode.
    Permission,
    /// The peer is not reached, does not answer in time, or the connection broke.
    Network,
    /// What is to be sent is not there.
    MissingSource,
    /// What arrived is not what was sent.
    Checksum,
    /// A path or a link leads out of the workdir or of the location.
    Escape,
    /// The Site's settings do not allow it or are wrong.
    Settings,
    /// A program that is needed is missing, or the agent failed at something of its own.
    Local,
    /// The agent stops, or nobody waits for it any more.
    Stopped,
}

/// How a cause is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Tries after the first one.
    pub retries: u32,
    /// The wait before the second try; doubled for each further one.
    pub first_wait: Duration,
}

/// The longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

impl Cause {
    /// How it is tried again, for settings with this first wait and this many retries of what mends by itself.
    #[must_use]
    pub fn rule(self, wait: Duration, retries: u32) -> Rule {
        let (retries, factor) = match self {
            Self::Network => (retries, 1),
            // Space comes back when somebody makes some, which takes longer than a network's return.
            Self::Full => (retries, 10),
            // A file server may show a new file or folder late; beyond that somebody must act.
            Self::MissingSource | Self::Destination => (retries.min(2), 1),
            // Once more from the start; a file that never arrives whole has another fault.
            Self::Checksum => (retries.min(3), 1),
            Self::Local => (retries.min(3), 2),
            Self::Permission | Self::Escape | Self::Settings | Self::Stopped => (0, 1),
        };
        Rule { retries, first_wait: wait.saturating_mul(factor) }
    }
}

impl Rule {
    /// The wait before the next try after `tries` that failed; `None` when there is none.
    #[must_use]
    pub fn next_wait(self, tries: u32) -> Option<Duration> {
        let doubled = self.first_wait.saturating_mul(1 << tries.saturating_sub(1).min(16));
        (tries <= self.retries).then(|| doubled.min(LONGEST_WAIT.max(self.first_wait)))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no space left",
            Self::Destination => "the place to write to",
            Self::Permission => "permission",
            Self::Network => "network",
            Self::MissingSource => "missing source",
            Self::Checksum => "checksum",
            Self::Escape => "forbidden path",
            Self::Settings => "settings",
            Self::Local => "this machine",
            Self::Stopped => "stopped",
        })
    }
}

/// A transfer that failed: a cause for the agent, a sentence with the remedy for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}: {message}")]
pub struct StagingError {
    /// What kind.
    pub cause: Cause,
    /// What happened, to which path, and what to do. Holds no secret.
    pub message: String,
}

impl StagingError {
    /// An error of this kind.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    /// An error of the operating system while reading something that is to be sent.
    pub fn reading(what: impl fmt::Display, error: &io::Error) -> Self {
        let cause = match error.kind() {
            io::ErrorKind::NotFound => Cause::MissingSource,
            kind => common_cause(kind).unwrap_or(Cause::Local),
        };
        Self::new(cause, format!("can't read {what}: {error}"))
    }

    /// An error of the operating system while writing what arrives.
    pub fn writing(what: impl fmt::Display, error: &io::Error) -> Self {
        let cause = match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::ReadOnlyFilesystem => Cause::Destination,
            kind => common_cause(kind).unwrap_or(Cause::Local),
        };
        Self::new(cause, format!("can't write {what}: {error}"))
    }

    /// The transfer was given up because nobody waits for it.
    #[must_use]
    pub fn stopped() -> Self {
        Self::new(Cause::Stopped, "the transfer was stopped")
    }
}

fn common_cause(kind: io::ErrorKind) -> Option<Cause> {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Some(Cause::Full),
        io::ErrorKind::PermissionDenied => Some(Cause::Permission),
        io::ErrorKind::TimedOut
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::StaleNetworkFileHandle => Some(Cause::Network),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_130_each_cause_has_a_rule_of_its_own() {
        let second = Duration::from_secs(1);
        let waits = |cause: Cause| (1..).map_while(|tries| cause.rule(second, 5).next_wait(tries)).collect::<Vec<_>>();
        assert_eq!(waits(Cause::Network), [1, 2, 4, 8, 16].map(Duration::from_secs));
        assert_eq!(waits(Cause::Full), [10, 20, 40, 80, 160].map(Duration::from_secs));
        assert_eq!(waits(Cause::Checksum).len(), 3);
        assert_eq!(waits(Cause::Destination), [1, 2].map(Duration::from_secs));
        assert_eq!(waits(Cause::MissingSource).len(), 2);
        for cause in [Cause::Permission, Cause::Escape, Cause::Settings, Cause::Stopped] {
            assert!(waits(cause).is_empty(), "{cause}");
        }
        assert_eq!(Cause::Network.rule(second, 99).next_wait(60), Some(LONGEST_WAIT));
    }

    #[test]
    fn pitfall_130_errors_of_the_system_are_told_apart_by_kind_and_side() {
        let cause = |kind: io::ErrorKind| {
            let error = io::Error::from(kind);
            (StagingError::reading("x", &error).cause, StagingError::writing("x", &error).cause)
        };
        assert_eq!(cause(io::ErrorKind::NotFound), (Cause::MissingSource, Cause::Destination));
        assert_eq!(cause(io::ErrorKind::QuotaExceeded), (Cause::Full, Cause::Full));
        assert_eq!(cause(io::ErrorKind::PermissionDenied), (Cause::Permission, Cause::Permission));
        assert_eq!(cause(io::ErrorKind::TimedOut), (Cause::Network, Cause::Network));
        assert_eq!(cause(io::ErrorKind::InvalidData), (Cause::Local, Cause::Local));
    }
}
