//! Finds the Postgres programs of this machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

/// Names the only folder to look in, for a Postgres that was installed elsewhere.
const FOLDER_VARIABLE: &str = "COPAL_POSTGRES_BIN";
/// Where distributions keep a version's programs off PATH.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A folder with `postgres` and `initdb` of one version.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    pub(super) dir: PathBuf,
    pub(super) major: u32,
}

impl Binaries {
    /// The newest version on PATH and under `/usr/lib/postgresql`, or the one in `$COPAL_POSTGRES_BIN`;
    /// of version `major` where a cluster of it exists already.
    pub(super) fn find(major: Option<u32>) -> anyhow::Result<Self> {
        let all = all_versions();
        if all.is_empty() {
            bail!(
                "no Postgres programs found on PATH or in {DEBIAN}/*/bin; install them with \
                 `apt-get install postgresql`, name their folder in {FOLDER_VARIABLE}, or give --database-url"
            );
        }
        let newest = all.iter().filter(|found| major.is_none_or(|major| found.major == major)).max_by_key(|b| b.major);
        newest.cloned().with_context(|| {
            let (have, want) =
                (all.iter().map(|b| b.major.to_string()).collect::<Vec<_>>().join(", "), major.unwrap_or(0));
            format!(
                "the embedded database was made by PostgreSQL {want}, but this machine has only {have}; \
                 install PostgreSQL {want}, or move the data with pg_upgrade"
            )
        })
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn all_versions() -> Vec<Binaries> {
    if let Some(folder) = env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
        return version_in(Path::new(&folder)).into_iter().collect();
    }
    let on_path = env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let packaged = fs::read_dir(DEBIAN)
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect::<Vec<_>>())
        .unwrap_or_default();
    on_path.into_iter().chain(packaged).filter_map(|dir| version_in(&dir)).collect()
}

fn version_in(dir: &Path) -> Option<Binaries> {
    if !dir.join("initdb").is_file() {
        return None;
    }
    let output = Command::new(dir.join("postgres")).arg("--version").output().ok()?;
    let major = parse_version(&String::from_utf8_lossy(&output.stdout))?;
    Some(Binaries { dir: dir.to_owned(), major })
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn parse_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("(PostgreSQL) ")?;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(parse_version("something else"), None);
    }
}
