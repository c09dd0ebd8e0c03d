//! Small JSON files in `qsubmit/`, each written in one step, so that a reader sees a whole record or none.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

/// A record that can't be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}")]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Reads a record; `None` when there is none.
///
/// # Errors
/// When it can't be read or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let failed = |source| RecordError { path: path.into(), source };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Writes a record. With `fresh` it must not exist yet.
///
/// # Errors
/// When it can't be written, or exists and must not.
pub fn write(path: &Path, record: &impl Serialize, fresh: bool) -> Result<(), RecordError> {
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, record)?;
        file.as_file().sync_all()?;
        if fresh {
            file.persist_noclobber(path)?
        } else {
            file.persist(path)?
        };
        Ok(())
    };
    write().map_err(|source| RecordError { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_must_be_fresh_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        assert_eq!(read::<i32>(&path).unwrap(), None);
        write(&path, &1, true).unwrap();
        assert!(write(&path, &2, true).is_err());
        assert_eq!(read::<i32>(&path).unwrap(), Some(1));
        write(&path, &3, false).unwrap();
        assert_eq!(read::<i32>(&path).unwrap(), Some(3));
        assert!(read::<String>(&path).unwrap_err().to_string().contains("a.json"));
    }
}
