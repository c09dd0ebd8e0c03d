//! What `rsync` and `sftp` have in common: how they call ssh, and what ssh's complaints mean.

use copal_schemas::settings::TransferSettings;

use super::{Cause, Location, StagingError};

/// Between two signs of life of a connection that is silent, and how many may be missed, in seconds.
const ALIVE: (u32, u32) = (15, 4);

/// Options that ssh and sftp know alike. Never asks anything: nobody is there to answer.
#[must_use]
pub fn options(settings: &TransferSettings) -> Vec<String> {
    let connect = settings.stall_timeout_sec.clamp(1.0, 3_600.0).ceil();
    let mut options: Vec<String> = [
        "BatchMode=yes".to_owned(),
        format!("ConnectTimeout={connect}"),
        format!("ServerAliveInterval={}", ALIVE.0),
        format!("ServerAliveCountMax={}", ALIVE.1),
        "ForwardAgent=no".to_owned(),
        "ForwardX11=no".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect();
    options.extend(settings.ssh_options.iter().cloned());
    options
}

/// What a complaint of ssh or of the programs that talk through it means; `None` when it is none of theirs.
#[must_use]
pub fn explain(location: &Location, text: &str) -> Option<StagingError> {
    let target = location.ssh_target();
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let find = |words: &[&str]| line.clone().find(|line| words.iter().any(|word| line.contains(word)));
    if let Some(line) = find(&["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"]) {
        let message = format!(
            "{line}: this machine does not know the key of {}; run `ssh {target} true` once as the agent's user and check it",
            location.host
        );
        return Some(StagingError::new(Cause::Permission, message));
    }
    // As in `Permission denied (publickey).`; with a number in the brackets it is about a file.
    let refused = line.clone().find(|line| line.contains("Permission denied (") && line.ends_with(")."));
    if let Some(line) = refused.or_else(|| find(&["Too many authentication failures"])) {
        let message = format!(
            "{line}: {target} does not let the agent in; `ssh -o BatchMode=yes {target} true` must work as the agent's user \
             (a key without a passphrase or an agent, see transfers.ssh_options)"
        );
        return Some(StagingError::new(Cause::Permission, message));
    }
    let cut = [
        "Connection refused",
        "Connection timed out",
        "Connection reset",
        "Connection closed",
        "connection unexpectedly closed",
        "Broken pipe",
        "No route to host",
        "Network is unreachable",
        "Could not resolve hostname",
        "Name or service not known",
        "Operation timed out",
        "timed out",
        "not responding",
        "kex_exchange_identification",
        "lost connection",
    ];
    find(&cut).map(|line| StagingError::new(Cause::Network, format!("{target}: {line}")))
}

/// What an error text of the operating system at either end means.
#[must_use]
pub fn cause_of(text: &str, is_source: bool) -> Option<Cause> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["No space left on device", "Disk quota exceeded", "File too large"]) {
        Some(Cause::Full)
    } else if has(&["Permission denied", "Operation not permitted"]) {
        Some(Cause::Permission)
    } else if has(&["No such file or directory", "has vanished", "no referent", "not found"]) {
        Some(if is_source { Cause::MissingSource } else { Cause::Destination })
    } else if has(&["Is a directory", "Not a directory", "could not make way", "Read-only file system", "File exists"])
    {
        Some(Cause::Destination)
    } else if has(&["failed verification"]) {
        Some(Cause::Checksum)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_apart() {
        let location = Location::parse("home", "rsync://ann@login/scratch").unwrap();
        let cause = |text: &str| explain(&location, text).map(|error| error.cause);
        assert_eq!(cause("ann@login: Permission denied (publickey)."), Some(Cause::Permission));
        assert_eq!(cause("x\nHost key verification failed.\r\ny"), Some(Cause::Permission));
        assert_eq!(cause("ssh: connect to host login port 22: Connection refused"), Some(Cause::Network));
        assert_eq!(cause("client_loop: send disconnect: Broken pipe"), Some(Cause::Network));
        assert_eq!(cause("rsync: open failed: Permission denied (13)"), None);
        let error = explain(&location, "Permission denied (publickey).").unwrap();
        assert!(error.message.contains("ssh -o BatchMode=yes ann@login true"), "{error}");
    }

    #[test]
    fn pitfall_130_errors_of_the_far_end_are_told_apart() {
        for (text, cause) in [
            ("write failed on \"/x\": No space left on device (28)", Some(Cause::Full)),
            ("write failed on \"/x\": Disk quota exceeded (122)", Some(Cause::Full)),
            ("mkstemp \"/x/.y.Ab12\" failed: Permission denied (13)", Some(Cause::Permission)),
            ("mkdir \"/x\" failed: No such file or directory (2)", Some(Cause::Destination)),
            ("cannot delete non-empty directory: x", None),
        ] {
            assert_eq!(cause_of(text, false), cause, "{text}");
        }
        assert_eq!(
            cause_of("link_stat \"/x\" failed: No such file or directory (2)", true),
            Some(Cause::MissingSource)
        );
    }
}
