//! The adapter for S3-compatible stores: `s3://BUCKET/PREFIX`. Objects come and go several at a time, large ones
//! in parts. What is there of a file when a try is cut off serves the next one: inwards a file of its first bytes,
//! outwards the parts that the store has (`s3/upload.rs`).
//!
//! Checked are the size, and a SHA-256 that Copal writes beside what it uploads (`x-amz-meta-copal-sha256`); while
//! uploading, the store checks the SHA-256 of each part. A folder is all that is below a prefix; empty folders have
//! no place in such a store.

mod store;
mod upload;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use copal_schemas::transfer::Direction;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, path::Path as Key};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use self::store::{SHA256, Store};
use super::{Adapter, Batch, Cause, Item, Run, StagingError};

/// Files that are carried at the same time.
const FILES_AT_ONCE: usize = 8;

/// The adapter.
#[derive(Debug)]
pub struct S3;

impl Adapter for S3 {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let store = Store::open(&batch.location, run)?;
        let carrier = Carrier { store: &store, scratch: &batch.scratch };
        let all = stream::iter(&batch.items).for_each_concurrent(FILES_AT_ONCE, async |item| {
            let outcome = match batch.direction {
                Direction::In => carrier.fetch(item).await,
                Direction::Out => carrier.put(item).await,
            };
            match outcome {
                Ok(bytes) => run.arrived(item.id, bytes),
                Err(error) => run.failed(item.id, error),
            }
        });
        tokio::select! {
            () = run.stop.cancelled() => Err(StagingError::stopped()),
            () = all => Ok(()),
        }
    }
}

/// Carries the items of one batch.
struct Carrier<'a> {
    store: &'a Store,
    scratch: &'a Path,
}

impl Carrier<'_> {
    /// Fetches an item, and gives its size in bytes.
    async fn fetch(&self, item: &Item) -> Result<u64, StagingError> {
        let key = self.store.key(&item.remote)?;
        if !item.recursive {
            let meta =
                self.store.client.head(&key).await.map_err(|error| self.store.explain(error, &key, Direction::In))?;
            return self.fetch_file(&meta, &item.local).await;
        }
        let files = self.files_below(&key, &item.local).await?;
        fs::create_dir_all(&item.local).map_err(|error| StagingError::writing(item.local.display(), &error))?;
        stream::iter(files)
            .map(async |(meta, path)| self.fetch_file(&meta, &path).await)
            .buffer_unordered(FILES_AT_ONCE)
            .try_fold(0, async |sum, bytes| Ok(sum + bytes))
            .await
    }

    /// The objects below a prefix, and where each belongs below `folder`.
    async fn files_below(&self, prefix: &Key, folder: &Path) -> Result<Vec<(ObjectMeta, PathBuf)>, StagingError> {
        let below = (!prefix.is_root()).then_some(prefix);
        let found: Vec<ObjectMeta> = self
            .store
            .client
            .list(below)
            .try_collect()
            .await
            .map_err(|error| self.store.explain(error, prefix, Direction::In))?;
        let files: Vec<(ObjectMeta, PathBuf)> = found
            .into_iter()
            .filter_map(|meta| {
                // Parts of a key are never `..`, a dot or empty: the client refuses such keys.
                let path: PathBuf = meta.location.prefix_match(prefix)?.map(|part| part.as_ref().to_owned()).collect();
                (path != Path::new("")).then(|| (meta, folder.join(path)))
            })
            .collect();
        if files.is_empty() {
            let message = format!("there is nothing below {}", self.store.name(prefix));
            return Err(StagingError::new(Cause::MissingSource, message));
        }
        Ok(files)
    }

    /// Fetches one object: first into the scratch folder, going on with what an earlier try left of the same version.
    async fn fetch_file(&self, meta: &ObjectMeta, to: &Path) -> Result<u64, StagingError> {
        let name = self.store.name(&meta.location);
        let version = meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.to_rfc3339());
        let part =
            self.scratch.join(format!("{}.part", hex(&Sha256::digest(format!("{name}\n{version}\n{}", meta.size)))));
        let modified = std::time::SystemTime::from(meta.last_modified);
        // A file that is whole has its final name and the object's time, from an earlier try.
        if fs::symlink_metadata(to).is_ok_and(|file| {
            file.is_file() && file.len() == meta.size && file.modified().is_ok_and(|time| time == modified)
        }) {
            return Ok(meta.size);
        }
        let writing = |error: io::Error| StagingError::writing(to.display(), &error);
        let have = tokio::fs::metadata(&part).await.map_or(0, |file| file.len());
        let mut options = GetOptions { if_match: meta.e_tag.clone(), ..GetOptions::default() };
        if have >= meta.size {
            options.head = true;
        } else if have > 0 {
            options.range = Some(GetRange::Offset(have));
        }
        let answer = self
            .store
            .client
            .get_opts(&meta.location, options)
            .await
            .map_err(|error| self.store.explain(error, &meta.location, Direction::In))?;
        let digest = answer.attributes.get(&SHA256).map(|digest| digest.as_ref().to_owned());
        if have < meta.size || meta.size == 0 {
            let mut file = tokio::fs::File::options().create(true).append(true).open(&part).await.map_err(writing)?;
            let mut body = answer.into_stream();
            while let Some(bytes) =
                body.try_next().await.map_err(|error| self.store.explain(error, &meta.location, Direction::In))?
            {
                file.write_all(&bytes).await.map_err(writing)?;
            }
            file.flush().await.map_err(writing)?;
        }
        let (size, to, checked) = (meta.size, to.to_owned(), part.clone());
        let finish = move || finish(&checked, &to, size, digest.as_deref(), modified, &name);
        let outcome = blocking(finish).await;
        if let Err(error) = &outcome
            && error.cause == Cause::Checksum
        {
            // The next try begins anew.
            let _ = tokio::fs::remove_file(&part).await;
        }
        outcome.map(|()| size)
    }

    /// Uploads an item, and gives its size in bytes.
    async fn put(&self, item: &Item) -> Result<u64, StagingError> {
        let key = self.store.key(&item.remote)?;
        if !item.recursive {
            return self.store.upload(self.scratch, &item.local, &key).await;
        }
        let folder = item.local.clone();
        let files = blocking(move || files_of(&folder)).await?;
        stream::iter(files)
            .map(async |path| {
                let relative = path.strip_prefix(&item.local).unwrap_or(&path);
                let remote = relative.to_str().ok_or_else(|| {
                    let message = format!("{} has a name that is not UTF-8, which a key must be", path.display());
                    StagingError::new(Cause::Destination, message)
                })?;
                let key = self.store.key(&format!("{}/{remote}", item.remote))?;
                self.store.upload(self.scratch, &path, &key).await
            })
            .buffer_unordered(FILES_AT_ONCE)
            .try_fold(0, async |sum, bytes| Ok(sum + bytes))
            .await
    }
}

/// Checks a fetched file and gives it its final name.
fn finish(
    part: &Path,
    to: &Path,
    size: u64,
    digest: Option<&str>,
    modified: std::time::SystemTime,
    name: &str,
) -> Result<(), StagingError> {
    let writing = |error: io::Error| StagingError::writing(to.display(), &error);
    let file = fs::File::options().read(true).append(true).open(part).map_err(writing)?;
    let got = file.metadata().map_err(writing)?.len();
    if got != size {
        let cause = if got < size { Cause::Network } else { Cause::Checksum };
        return Err(StagingError::new(cause, format!("{name}: {got} bytes arrived, it has {size}")));
    }
    if let Some(wanted) = digest
        && sha256(part).map_err(writing)? != wanted
    {
        let message = format!("{name}: what arrived has another SHA-256 than what was uploaded");
        return Err(StagingError::new(Cause::Checksum, message));
    }
    file.set_modified(modified).map_err(writing)?;
    file.sync_all().map_err(writing)?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(writing)?;
    }
    fs::rename(part, to).map_err(writing)
}

/// All files of a folder and of the folders in it.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, StagingError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let reading = |error: io::Error| StagingError::reading(folder.display(), &error);
        for entry in fs::read_dir(&folder).map_err(reading)? {
            let entry = entry.map_err(reading)?;
            let kind = entry.file_type().map_err(reading)?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

/// The SHA-256 of a file in hexadecimal digits.
fn sha256(path: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StagingError> + Send + 'static,
) -> Result<T, StagingError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(StagingError::new(Cause::Local, format!("file work was cut off: {error}"))))
}
