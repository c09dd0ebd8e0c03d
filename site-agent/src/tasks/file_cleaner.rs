//! The file cleaner: deletes what an App declares as `cleanup_files` from the workdirs of its Jobs that are
//! JOB_FINISHED, once for each. Those of FAILED Jobs stay: they may be restarted, and somebody wants to see why.
//!
//! It never leaves a workdir, whatever a pattern or a link says and however folders change meanwhile: folders are
//! opened one from the other, links not followed, and files deleted by their name in the folder that is open.

use std::{
    ffi::CStr,
    os::fd::AsFd,
    path::{Component, Path},
    time::Duration,
};

use copal_client::api::JobQuery;
use copal_schemas::{
    AppId, JobState,
    app_file::cleanup_parts,
    job::{Job, JobPatch, JobPatchItem},
};
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    sys::stat::{Mode, SFlag, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{Context, Passes, run_passes};

/// How often the settings are looked at while there is no file cleaner.
const OFF_PERIOD: Duration = Duration::from_secs(60);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, FileCleaner { context: context.clone() }).await;
}

struct FileCleaner {
    context: Context,
}

impl Passes for FileCleaner {
    const NAME: &'static str = "file_cleaner";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let (settings, _) = self.context.settings.current();
        let Some(cleaner) = &settings.file_cleaner else { return Ok(("off".into(), OFF_PERIOD)) };
        let period = Duration::try_from_secs_f64(cleaner.service_period).unwrap_or(OFF_PERIOD);
        let size = cleaner.cleanup_batch_size.clamp(1, 5_000);
        let (jobs, files) = self.clean(size).await?;
        // A full batch means that there are more.
        let wait = if jobs == size { Duration::ZERO } else { period.max(Duration::from_secs(1)) };
        Ok((format!("{files} files of {jobs} Jobs deleted in the last look"), wait))
    }

    /// Its period is all that moves it.
    async fn rung(&self) {
        std::future::pending().await
    }
}

impl FileCleaner {
    /// Cleans up after up to `size` Jobs. Gives how many Jobs and files it were.
    async fn clean(&self, size: usize) -> anyhow::Result<(usize, usize)> {
        let (mut jobs, mut files) = (0, 0);
        for (app, patterns) in self.patterns().await? {
            let limit = size - jobs;
            if limit == 0 {
                break;
            }
            let found = self.finished(app, limit).await?;
            jobs += found.len();
            files += self.clean_up_after(found, patterns).await?;
        }
        Ok((jobs, files))
    }

    /// The Apps that have something to clean up, and what. One whose file is gone or wrong for the moment waits.
    async fn patterns(&self) -> anyhow::Result<Vec<(AppId, Vec<String>)>> {
        let (mut apps, _) = self.context.dir.load_apps()?;
        apps.retain(|_, app| !app.spec().cleanup_files.is_empty());
        if apps.is_empty() {
            return Ok(Vec::new());
        }
        let index = self.context.api.client().list_apps(&[self.context.site.id]).await?;
        let patterns_of = |name: &str| apps.get(name).map(|app| app.spec().cleanup_files.clone());
        Ok(index.iter().filter_map(|app| Some((app.id, patterns_of(&app.name)?))).collect())
    }

    async fn finished(&self, app: AppId, limit: usize) -> anyhow::Result<Vec<Job>> {
        let query = JobQuery {
            site_ids: vec![self.context.site.id],
            app_id: Some(app),
            states: vec![JobState::JobFinished],
            pending_file_cleanup: true,
            ordering: Some("id".into()),
            limit: Some(i64::try_from(limit)?),
            ..JobQuery::default()
        };
        Ok(self.context.api.client().list_jobs(&query).await?.results)
    }

    async fn clean_up_after(&self, jobs: Vec<Job>, patterns: Vec<String>) -> anyhow::Result<usize> {
        if jobs.is_empty() {
            return Ok(0);
        }
        let done = JobPatch { pending_file_cleanup: Some(false), ..JobPatch::default() };
        let patches: Vec<JobPatchItem> =
            jobs.iter().map(|job| JobPatchItem { id: job.id, patch: done.clone() }).collect();
        let data = self.context.dir.data();
        let files = tokio::task::spawn_blocking(move || {
            jobs.iter().map(|job| clean_folder(&data, Path::new(&job.workdir), &patterns)).sum::<usize>()
        })
        .await?;
        self.context.api.client().update_jobs(&patches).await?;
        Ok(files)
    }
}

/// Deletes the files in `workdir`, below `data`, that match; gives how many. What can't be deleted is logged and left.
fn clean_folder(data: &Path, workdir: &Path, patterns: &[String]) -> usize {
    let folder = match open_workdir(data, workdir) {
        // The Job made none, or somebody has removed it.
        Err(Errno::ENOENT) => return 0,
        Err(error) => {
            tracing::warn!("{} is not cleaned up: {error}", data.join(workdir).display());
            return 0;
        }
        Ok(folder) => folder,
    };
    let cleaner = FolderCleaner { place: &data.join(workdir) };
    patterns.iter().filter_map(|pattern| cleanup_parts(pattern)).map(|parts| cleaner.delete(&folder, &parts)).sum()
}

/// Opens a workdir from `data` down, so that no link on the way leads elsewhere.
fn open_workdir(data: &Path, workdir: &Path) -> nix::Result<Dir> {
    let mut folder = Dir::open(data, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut is_data = true;
    for part in workdir.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => {
                folder = Dir::openat(folder.as_fd(), name, folder_flags(), Mode::empty())?;
                is_data = false;
            }
            Component::Prefix(_) | Component::RootDir | Component::ParentDir => return Err(Errno::ELOOP),
        }
    }
    if is_data { Err(Errno::ELOOP) } else { Ok(folder) }
}

fn folder_flags() -> OFlag {
    OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC
}

/// Deletes below one workdir.
struct FolderCleaner<'a> {
    /// The workdir, for messages.
    place: &'a Path,
}

impl FolderCleaner<'_> {
    fn delete(&self, folder: &Dir, parts: &[&str]) -> usize {
        let [part, rest @ ..] = parts else { return 0 };
        let mut count = 0;
        for name in self.matching(folder, part) {
            let is_folder = is_folder(folder, &name);
            if rest.is_empty() && !is_folder {
                // A link is deleted, never what it points to.
                match unlinkat(folder.as_fd(), name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                    Ok(()) => count += 1,
                    Err(Errno::ENOENT) => {}
                    Err(error) => self.warn(&name, error),
                }
            } else if is_folder && !rest.is_empty() {
                match Dir::openat(folder.as_fd(), name.as_c_str(), folder_flags(), Mode::empty()) {
                    Ok(inner) => count += self.delete(&inner, rest),
                    Err(Errno::ENOENT) => {}
                    Err(error) => self.warn(&name, error),
                }
            }
        }
        count
    }

    /// The names in a folder that match, read to the end before any of them is deleted.
    fn matching(&self, folder: &Dir, pattern: &str) -> Vec<std::ffi::CString> {
        // A reader of its own, since one can't be wound back for the next pattern.
        let Ok(mut reader) = Dir::openat(folder.as_fd(), ".", folder_flags(), Mode::empty()) else { return Vec::new() };
        let names = reader.iter().filter_map(|entry| entry.map(|entry| entry.file_name().to_owned()).ok());
        names
            .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
            .filter(|name| matches(pattern, &name.to_string_lossy()))
            .collect()
    }

    fn warn(&self, name: &CStr, error: Errno) {
        tracing::warn!("can't delete {} in {}: {error}", name.to_string_lossy(), self.place.display());
    }
}

/// Whether the entry itself is a folder; a link to one is none.
fn is_folder(folder: &Dir, name: &CStr) -> bool {
    fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
}

/// Whether a name matches a pattern in which `*` is any text and `?` any letter.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(letter) if *letter == '?' || *letter == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                // The last star takes one letter more.
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name) in
            [("*.tmp", "a.tmp"), ("*", ""), ("a?c*", "abcd"), ("*a*b", "xaxxb"), ("core.*", "core.12")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.tmp", "a.tmpx"), ("?", ""), ("a?c", "ac"), ("*a*b", "ba"), ("", "x")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn only_what_matches_within_the_workdir_is_deleted() {
        use std::{fs, os::unix::fs::symlink};
        let site = tempfile::tempdir().unwrap();
        let data = site.path().join("data");
        let (workdir, other) = (data.join("w/1"), data.join("w/2"));
        fs::create_dir_all(workdir.join("sub")).unwrap();
        fs::create_dir_all(&other).unwrap();
        for file in ["a.tmp", "keep.dat", "sub/b.tmp", "../2/c.tmp"] {
            fs::write(workdir.join(file), "").unwrap();
        }
        fs::write(workdir.join(std::ffi::OsStr::from_bytes(b"odd\xff.tmp")), "").unwrap();
        fs::write(site.path().join("d.tmp"), "").unwrap();
        symlink(&other, workdir.join("link")).unwrap();
        let clean = |workdir: &str, patterns: &[&str]| {
            clean_folder(
                &data,
                Path::new(workdir),
                &patterns.iter().map(|pattern| (*pattern).into()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(clean("w/1", &["*.tmp", "./sub/*.tmp", "link/*.tmp", "../2/*.tmp", "/etc/*", "*/..", "."]), 3);
        assert!(workdir.join("keep.dat").exists() && other.join("c.tmp").exists());
        // A link goes, what it points to stays.
        assert_eq!(clean("w/1", &["*"]), 2);
        assert!(other.join("c.tmp").exists() && workdir.join("sub").exists());
        // Nothing behind a link, outside of data, or in data itself.
        symlink(site.path(), data.join("out")).unwrap();
        symlink(&other, data.join("w/3")).unwrap();
        fs::write(data.join("e.tmp"), "").unwrap();
        for workdir in ["out", "w/3", "../data/w/2", ".", "", "/", "w/none"] {
            assert_eq!(clean(workdir, &["*", "*.tmp", "w/2/*"]), 0, "{workdir}");
        }
        assert!(other.join("c.tmp").exists() && site.path().join("d.tmp").exists() && data.join("e.tmp").exists());
    }
}
