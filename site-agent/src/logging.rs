//! The agent's log: `log/agent.log`, rotated by size so that it never fills a quota, and standard
//! error where somebody reads that.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use anyhow::Context;
use copal_client::SiteDir;
use tracing_subscriber::{EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

/// A file is rotated when it has grown past this.
const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// The log's level, which may change.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
/// Rotated files that are kept: `agent.log.1` is the youngest.
const KEPT: u32 = 4;

/// Sets the process's log up. `level` is that of the settings; `RUST_LOG` overrules it.
///
/// # Errors
/// When the log file can't be opened or the level is none.
pub fn init(site: &SiteDir, level: &str) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let file = RotatingFile::open(&site.log().join("agent.log"), MAX_BYTES, KEPT)?;
    let to_file = fmt::layer().with_ansi(false).with_writer(move || file.clone());
    let to_stderr = somebody_reads_stderr().then(|| fmt::layer().with_ansi(false).with_writer(io::stderr));
    tracing_subscriber::registry().with(filter).with(to_file).with(to_stderr).try_init()?;
    // The first to come here has set the log up, and nobody else could.
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Gives the log another level, once it is set up.
///
/// # Errors
/// When the level is none.
pub fn set_level(level: &str) -> anyhow::Result<()> {
    let filter = filter(level)?;
    if let Some(handle) = LEVEL.get() {
        handle.reload(filter)?;
    }
    Ok(())
}

fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(text).context("RUST_LOG"),
        // Libraries talk about themselves only when asked.
        _ => EnvFilter::try_new(format!("warn,copal_agent={level},copal_client={level}"))
            .context("settings.yml: logging.level: use error, warn, info, debug or trace"),
    }
}

/// A terminal or systemd's journal is read; a file or `/dev/null` is where `site start` sends it.
fn somebody_reads_stderr() -> bool {
    let Ok(kind) = fs::metadata("/proc/self/fd/2").map(|meta| meta.file_type()) else { return false };
    kind.is_socket() || kind.is_fifo() || io::IsTerminal::is_terminal(&io::stderr())
}

/// A file that is renamed away when it grows too large. Clones share it.
#[derive(Clone)]
struct RotatingFile {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    kept: u32,
}

impl RotatingFile {
    fn open(path: &Path, max_bytes: u64, kept: u32) -> anyhow::Result<Self> {
        let file = open(path).with_context(|| format!("can't write {}", path.display()))?;
        let bytes = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        Ok(Self { inner: Arc::new(Mutex::new(Inner { path: path.into(), file, bytes, max_bytes, kept })) })
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Inner {
    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.kept).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.numbered(1))?;
        self.file = open(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.bytes + text.len() as u64 > inner.max_bytes {
            // A full disk or a lost folder must not stop the agent: go on in the present file.
            if inner.rotate().is_err() {
                inner.bytes = 0;
            }
        }
        // On a full disk the line is lost; the status file still tells of the fault behind it.
        let _ = inner.file.write_all(text);
        inner.bytes += text.len() as u64;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_075_the_log_stays_within_its_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let mut log = RotatingFile::open(&path, 100, 3).unwrap();
        for number in 0..100 {
            writeln!(log, "line {number:03}").unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["agent.log", "agent.log.1", "agent.log.2", "agent.log.3"]);
        for name in names {
            assert!(fs::metadata(folder.path().join(name)).unwrap().len() <= 100);
        }
        assert!(fs::read_to_string(&path).unwrap().ends_with("line 099\n"));
    }
}
