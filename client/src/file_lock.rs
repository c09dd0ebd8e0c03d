//! A lock between the processes that change one file: `FILE.lock` beside it. The file itself can't
//! carry the lock, since each change puts a new file in its place.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tokio::time::{Instant, sleep};

/// A holder keeps it for one call of the service; one that is longer about it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks: flock has no way to wait with a limit.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock's file.
pub(crate) fn path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock of a file until the value is dropped. `None` where the file system has no locks, the
/// folder can't be written or the holder hangs: the caller goes on without, since a lock only saves
/// work and what it guards must bear a double change.
pub(crate) async fn take(file: &Path) -> Option<Flock<File>> {
    let lock = path(file);
    let give_up = Instant::now() + PATIENCE;
    let mut handle = match OpenOptions::new().create(true).append(true).mode(0o600).open(&lock) {
        Ok(handle) => handle,
        Err(error) => {
            tracing::debug!("going on without {}: {error}", lock.display());
            return None;
        }
    };
    loop {
        match Flock::lock(handle, FlockArg::LockExclusiveNonblock) {
            Ok(taken) => return Some(taken),
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < give_up => handle = back,
            Err((_, error)) => {
                tracing::debug!("going on without {}: {error}", lock.display());
                return None;
            }
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("client.yml");
        let first = take(&file).await.unwrap();
        let second = tokio::spawn({
            let file = file.clone();
            async move { take(&file).await.is_some() }
        });
        sleep(PAUSE * 5).await;
        assert!(!second.is_finished());
        drop(first);
        assert!(second.await.unwrap());
        assert!(take(&folder.path().join("none/client.yml")).await.is_none());
    }
}
