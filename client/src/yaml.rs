//! YAML files of people: read with errors that name file, line and field; written atomically.

use std::{
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

mod place;

/// A file that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is not there or not readable.
    #[error("can't read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file can't be written.
    #[error("can't write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The text is not what the file should hold.
    #[error("{path}: {message}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and field.
        message: String,
    },
}

/// Reads a YAML file into a type.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    parse(path, &text(path)?)
}

/// Reads a file.
pub(crate) fn text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.into(), source })
}

/// Reads the text of a YAML file into a type; `path` is for the error.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, FileError> {
    serde_saphyr::from_str(text)
        .map_err(|error| FileError::Content { path: path.into(), message: with_field(text, &error) })
}

/// The line of a field in a file, or of the nearest one around it; `None` when the file has neither.
pub(crate) fn line_of(path: &Path, field: &str) -> Option<u64> {
    place::line_of(&std::fs::read_to_string(path).ok()?, field)
}

/// What is wrong, with the line, and with the field where the error itself does not name it.
fn with_field(text: &str, error: &serde_saphyr::Error) -> String {
    let message = first_line(&error.to_string());
    let field = error.location().and_then(|place| place::field_at(text, place.line(), place.column()));
    match field {
        Some(field) if !message.contains(field.rsplit('.').next().unwrap_or(&field)) => {
            format!("{message} in the field {field}")
        }
        _ => message,
    }
}

/// What is wrong and where, without the excerpt of the file that follows on further lines.
fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    // What follows is for programmers.
    let line = line.strip_suffix(", set DuplicateKeyPolicy in Options if acceptable").unwrap_or(line);
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Replaces a file in one step, so that a reader sees the old text or the new one, with these permissions.
pub(crate) fn write_atomically(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.into(), source };
    let file = written_beside(path, text, mode).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Makes a file in one step, with these permissions; fails with `AlreadyExists` where one is there.
pub(crate) fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.into(), source };
    let file = written_beside(path, text, mode).map_err(failed)?;
    file.persist_noclobber(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// A whole file that has no name of its own yet, in the folder of `path`.
fn written_beside(path: &Path, text: &str, mode: u32) -> io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_is_named_with_its_line_on_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yml");
        std::fs::write(&path, "site_id: 3\nlauncher:\n  idle_ttl: 4\n").unwrap();
        let text = read::<copal_schemas::settings::Settings>(&path).unwrap_err().to_string();
        assert!(text.contains("line 3") && text.contains("idle_ttl"), "{text}");
        assert!(!text.contains('\n') && !text.contains("error:"), "{text}");
    }

    #[test]
    fn a_wrong_value_is_named_with_line_and_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yml");
        std::fs::write(&path, "site_id: 3\nlauncher:\n  idle_ttl_sec: [4]\n").unwrap();
        let text = read::<copal_schemas::settings::Settings>(&path).unwrap_err().to_string();
        assert!(text.contains("line 3") && text.contains("launcher.idle_ttl_sec"), "{text}");
        std::fs::write(&path, "site_id: 3\nsite_id: 4\n").unwrap();
        let text = read::<copal_schemas::settings::Settings>(&path).unwrap_err().to_string();
        assert!(text.ends_with("line 2 column 1: duplicate mapping key: site_id"), "{text}");
    }
}
