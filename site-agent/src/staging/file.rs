//! `file:///folder`: a folder that this machine sees, such as a project's on a shared file system. Copies
//! share blocks where the file system can do that. Links are followed as far as the location's folder.

use std::{
    os::fd::AsFd,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use copal_schemas::transfer::Direction;

use super::{
    Adapter, Batch, Cause, Item, Run, StagingError, area,
    beneath::Root,
    tree::{self, Hand},
};

/// Items that are copied at the same time.
const WORKERS: usize = 8;

/// The adapter of `file:` locations.
#[derive(Clone, Copy, Debug)]
pub struct FileCopy;

impl Adapter for FileCopy {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let (batch, run) = (batch.clone(), run.clone());
        let copying = tokio::task::spawn_blocking(move || copy_all(&batch, &run));
        copying.await.map_err(|error| StagingError::new(Cause::Local, error.to_string()))?
    }
}

fn copy_all(batch: &Batch, run: &Run) -> Result<(), StagingError> {
    let base = if batch.location.base.is_empty() { "/" } else { &batch.location.base };
    let root = Root::open(Path::new(base)).map_err(|error| match batch.direction {
        Direction::In => StagingError::reading(base, &error),
        Direction::Out => StagingError::writing(base, &error),
    })?;
    let hand = Hand::Copy { verify: run.settings.checksum, stop: run.stop.clone() };
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(batch.items.len()) {
            scope.spawn(|| {
                while let Some(item) = batch.items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if run.stop.is_cancelled() {
                        return;
                    }
                    match copy(&root, base, item, batch.direction, &hand) {
                        Ok(bytes) => run.arrived(item.id, bytes),
                        Err(error) => run.failed(item.id, error),
                    }
                }
            });
        }
    });
    if run.stop.is_cancelled() { Err(StagingError::stopped()) } else { Ok(()) }
}

/// Copies one item; gives its size in bytes.
fn copy(root: &Root, base: &str, item: &Item, direction: Direction, hand: &Hand) -> Result<u64, StagingError> {
    let path = Path::new(item.remote.strip_prefix(base).unwrap_or(&item.remote).trim_start_matches('/'));
    match direction {
        Direction::In => {
            area::remove(&item.local).map_err(|error| StagingError::writing(item.local.display(), &error))?;
            tree::take(root, path, item.recursive, &item.local, hand.clone())
        }
        Direction::Out => {
            let bytes = area::size(&item.local).map_err(|error| StagingError::reading(item.local.display(), &error))?;
            if item.recursive {
                let folder = root.make_folder(path)?;
                tree::merge(&item.local, folder.as_fd(), &root.path().join(path), hand)?;
            } else {
                let name = path.file_name().ok_or_else(|| {
                    StagingError::new(Cause::Destination, format!("{} is a folder and a file arrives", item.remote))
                })?;
                let folder = root.make_folder(path.parent().unwrap_or(Path::new("")))?;
                tree::put(&item.local, folder.as_fd(), name, hand)?;
            }
            Ok(bytes)
        }
    }
}
