//! Uploading one file: small ones at once, large ones in parts. Which parts the store has is kept in a file of the
//! scratch folder, so that the next try, also of the next agent, goes on after the last of them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use copal_schemas::transfer::Direction;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    multipart::{MultipartStore, PartId},
    path::Path as Key,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    super::{Cause, StagingError},
    blocking, hex, sha256,
    store::{SHA256, Store},
};

/// The size of a part in bytes, unless a file would have too many of them.
const PART_BYTES: u64 = 8 << 20;
/// The most parts of an upload; S3 allows 10,000.
const MAX_PARTS: u64 = 9_000;
/// Parts of one file that are on their way at the same time.
const PARTS_AT_ONCE: usize = 4;

/// An upload that has begun.
#[derive(Debug, Serialize, Deserialize)]
struct Upload {
    /// The store's name for it.
    id: String,
    /// The size of its parts.
    part_bytes: u64,
    /// The parts that the store has, from the first.
    parts: Vec<String>,
}

impl Store {
    /// Uploads a file, unless the store has it from an earlier try; gives its size in bytes.
    pub(super) async fn upload(&self, scratch: &Path, path: &Path, key: &Key) -> Result<u64, StagingError> {
        let explain = |error| self.explain(error, key, Direction::Out);
        let (size, digest) = size_and_digest(path).await?;
        if self.has(key, size, &digest).await {
            return Ok(size);
        }
        let attributes = Attributes::from_iter([(SHA256, digest.clone())]);
        if size <= PART_BYTES {
            let bytes = read(path.to_owned(), 0, size).await?;
            let options = PutOptions { attributes, ..PutOptions::default() };
            self.client.put_opts(key, bytes.into(), options).await.map_err(explain)?;
        } else {
            let note = scratch.join(format!("{}.upload", hex(&Sha256::digest(format!("{key}\n{digest}")))));
            self.upload_in_parts(path, key, size, attributes, &note).await?;
        }
        let meta = self.client.head(key).await.map_err(explain)?;
        if meta.size != size {
            let message = format!("{}: the store has {} bytes of {size}", self.name(key), meta.size);
            return Err(StagingError::new(Cause::Checksum, message));
        }
        Ok(size)
    }

    /// Whether an earlier try has brought the file there.
    async fn has(&self, key: &Key, size: u64, digest: &str) -> bool {
        let head = GetOptions { head: true, ..GetOptions::default() };
        let Ok(there) = self.client.get_opts(key, head).await else { return false };
        there.meta.size == size && there.attributes.get(&SHA256).is_some_and(|known| known.as_ref() == digest)
    }

    async fn upload_in_parts(
        &self,
        path: &Path,
        key: &Key,
        size: u64,
        attributes: Attributes,
        note: &Path,
    ) -> Result<(), StagingError> {
        let explain = |error| self.explain(error, key, Direction::Out);
        let mut upload = match read_note(note) {
            Some(upload) => upload,
            None => {
                let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                let id = self.client.create_multipart_opts(key, options).await.map_err(explain)?;
                Upload { id, part_bytes: part_bytes(size), parts: Vec::new() }
            }
        };
        let outcome = self.send_parts(path, key, size, &mut upload, note).await;
        if let Err(error) = &outcome
            && !matches!(error.cause, Cause::Network | Cause::Full)
        {
            // What the store does not want will not be taken up again; its parts would be paid for.
            let _ = self.client.abort_multipart(key, &upload.id).await;
            let _ = fs::remove_file(note);
        }
        outcome
    }

    async fn send_parts(
        &self,
        path: &Path,
        key: &Key,
        size: u64,
        upload: &mut Upload,
        note: &Path,
    ) -> Result<(), StagingError> {
        let (id, part_bytes) = (upload.id.clone(), upload.part_bytes);
        let first = upload.parts.len();
        let count = usize::try_from(size.div_ceil(part_bytes)).unwrap_or(usize::MAX);
        let id = &id;
        // In order, so that those noted are the first ones.
        let mut parts = stream::iter(first..count)
            .map(async |number| {
                let offset = number as u64 * part_bytes;
                let bytes = read(path.to_owned(), offset, part_bytes.min(size - offset)).await?;
                let sent = self.client.put_part(key, id, number, bytes.into()).await;
                sent.map_err(|error| self.explain(error, key, Direction::Out))
            })
            .buffered(PARTS_AT_ONCE);
        while let Some(part) = parts.try_next().await? {
            upload.parts.push(part.content_id);
            write_note(note, upload)?;
        }
        let parts = upload.parts.iter().map(|id| PartId { content_id: id.clone() }).collect();
        let done = self.client.complete_multipart(key, id, parts).await;
        done.map_err(|error| self.explain(error, key, Direction::Out))?;
        let _ = fs::remove_file(note);
        Ok(())
    }
}

fn part_bytes(size: u64) -> u64 {
    PART_BYTES.max(size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20))
}

/// `None` when there is none, or none that can be used: then the upload begins anew.
fn read_note(note: &Path) -> Option<Upload> {
    serde_json::from_slice(&fs::read(note).ok()?).ok()
}

fn write_note(note: &Path, upload: &Upload) -> Result<(), StagingError> {
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(note.parent().unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, upload)?;
        file.persist(note).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error| StagingError::writing(note.display(), &error))
}

async fn size_and_digest(path: &Path) -> Result<(u64, String), StagingError> {
    let path = path.to_owned();
    blocking(move || {
        let reading = |error: io::Error| StagingError::reading(path.display(), &error);
        Ok((fs::metadata(&path).map_err(reading)?.len(), sha256(&path).map_err(reading)?))
    })
    .await
}

/// A piece of a file.
async fn read(path: PathBuf, offset: u64, length: u64) -> Result<Bytes, StagingError> {
    blocking(move || {
        let piece = || -> io::Result<Bytes> {
            let file = fs::File::open(&path)?;
            let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset)?;
            Ok(bytes.into())
        };
        piece().map_err(|error| StagingError::reading(path.display(), &error))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_too_many_parts() {
        assert_eq!(part_bytes(9 << 20), PART_BYTES);
        for size in [1_u64 << 40, 5 << 40] {
            assert!(size.div_ceil(part_bytes(size)) <= MAX_PARTS);
            assert_eq!(part_bytes(size) % (1 << 20), 0);
        }
    }
}
