//! The last lines of an output file, as text that every part of Copal can store, whatever bytes were written.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// The most bytes read from the end of a file.
const MAX_BYTES: u64 = 64 << 10;
/// The most characters kept.
pub const MAX_CHARS: usize = 8_000;

/// The last `lines` lines of a file. Bytes that are no UTF-8, and NUL, which no database keeps in a
/// text, become U+FFFD. A carriage return starts a line anew, as a terminal shows it.
///
/// # Errors
/// When the file can't be read.
pub fn tail(path: &Path, lines: usize) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_BYTES)))?;
    let mut bytes = Vec::new();
    // The file may still be growing: no more is read than was there.
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
    let shown: Vec<&str> =
        text.trim_end().lines().map(|line| line.trim_end().rsplit('\r').next().unwrap_or_default()).collect();
    let text = shown[shown.len().saturating_sub(lines)..].join("\n");
    let excess = text.chars().count().saturating_sub(MAX_CHARS);
    Ok(text.chars().skip(excess).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], lines: usize) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.out");
        std::fs::write(&path, bytes).unwrap();
        tail(&path, lines).unwrap()
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(of(b"a\nb\nc\n", 2), "b\nc");
        assert_eq!(of(b"a", 10), "a");
        assert_eq!(of(b"", 10), "");
        assert_eq!(of(b"10 %\r50 %\r100 %\ndone\n", 2), "100 %\ndone");
    }

    #[test]
    fn any_bytes_become_text() {
        assert_eq!(of(b"Stra\xdfe\0x\n", 1), "Stra\u{fffd}e\u{fffd}x");
        let long = of(&vec![b'x'; 1 << 20], 5);
        assert_eq!(long.len(), MAX_CHARS);
    }
}
