//! Where log lines go: standard error, which the scheduler keeps, and the launcher's own file at the Site.

use std::{fs::OpenOptions, path::Path, sync::Mutex};

use tracing_subscriber::{EnvFilter, fmt::writer::MakeWriterExt};

/// Starts logging. `RUST_LOG` decides what is logged, else `level`. A log file that can't be opened is
/// said on standard error and done without: a full disk must not keep Jobs from running.
pub fn init(file: Option<&Path>, level: &str) {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_target(false);
    let opened = file.map(|path| OpenOptions::new().create(true).append(true).open(path));
    // A second start, as in tests, keeps the first.
    let problem = match opened {
        Some(Ok(file)) => {
            drop(builder.with_writer(std::io::stderr.and(Mutex::new(file))).try_init());
            None
        }
        other => {
            drop(builder.with_writer(std::io::stderr).try_init());
            other.and_then(Result::err)
        }
    };
    if let Some(error) = problem {
        tracing::warn!(%error, file = %file.unwrap_or(Path::new("")).display(), "can't open the log file");
    }
}
