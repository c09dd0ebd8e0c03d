//! The file cleaner: deletes what an App declares as `cleanup_files` from the workdirs of its Jobs that
//! are over. It never leaves a workdir, whatever a pattern or a link in it says.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use copal_client::api::JobQuery;
use copal_schemas::{
    AppId, JobState,
    job::{JobPatch, JobPatchItem},
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
        let context = &self.context;
        let client = context.api.client();
        let query = JobQuery {
            site_ids: vec![context.site.id],
            states: vec![JobState::JobFinished, JobState::Failed],
            pending_file_cleanup: true,
            ordering: Some("id".into()),
            limit: Some(i64::try_from(size)?),
            ..JobQuery::default()
        };
        let jobs = client.list_jobs(&query).await?.results;
        if jobs.is_empty() {
            return Ok((0, 0));
        }
        let names: BTreeMap<AppId, String> =
            client.list_apps(&[context.site.id]).await?.into_iter().map(|app| (app.id, app.name)).collect();
        let (apps, _) = context.dir.load_apps()?;
        let tasks: Vec<(PathBuf, Vec<String>)> = jobs
            .iter()
            .filter_map(|job| {
                let patterns = &apps.get(names.get(&job.app_id)?)?.spec().cleanup_files;
                (!patterns.is_empty()).then(|| (context.dir.workdir(&job.workdir), patterns.clone()))
            })
            .collect();
        let data = context.dir.data();
        let files = tokio::task::spawn_blocking(move || {
            tasks.iter().map(|(workdir, patterns)| clean_folder(&data, workdir, patterns)).sum::<usize>()
        })
        .await?;
        let patches: Vec<JobPatchItem> = jobs
            .iter()
            .map(|job| JobPatchItem {
                id: job.id,
                patch: JobPatch { pending_file_cleanup: Some(false), ..JobPatch::default() },
            })
            .collect();
        client.update_jobs(&patches).await?;
        Ok((jobs.len(), files))
    }
}

/// Deletes the files in `workdir` that match; gives how many. What can't be deleted is logged and left.
fn clean_folder(data: &Path, workdir: &Path, patterns: &[String]) -> usize {
    // A workdir that is a link, or behind one, could be anywhere.
    let is_inside = workdir
        .canonicalize()
        .is_ok_and(|real| data.canonicalize().is_ok_and(|data| real.starts_with(&data) && real != data));
    if !is_inside {
        return 0;
    }
    let mut count = 0;
    for pattern in patterns {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.is_empty() || pattern.starts_with('/') || parts.contains(&"..") {
            tracing::warn!("cleanup_files: {pattern:?} is no pattern within a workdir; nothing is deleted for it");
            continue;
        }
        count += delete_matching(workdir, &parts);
    }
    count
}

fn delete_matching(folder: &Path, parts: &[&str]) -> usize {
    let [part, rest @ ..] = parts else { return 0 };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut count = 0;
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| matches(part, name))) {
        // The kind of the entry itself: a link is deleted, never followed.
        let Ok(kind) = entry.file_type() else { continue };
        if rest.is_empty() && !kind.is_dir() {
            match fs::remove_file(entry.path()) {
                Ok(()) => count += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!("can't delete {}: {error}", entry.path().display()),
            }
        } else if kind.is_dir() {
            count += delete_matching(&entry.path(), rest);
        }
    }
    count
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
        let site = tempfile::tempdir().unwrap();
        let data = site.path().join("data");
        let (workdir, other) = (data.join("w/1"), data.join("w/2"));
        fs::create_dir_all(workdir.join("sub")).unwrap();
        fs::create_dir_all(&other).unwrap();
        for file in ["a.tmp", "keep.dat", "sub/b.tmp", "../2/c.tmp"] {
            fs::write(workdir.join(file), "").unwrap();
        }
        fs::write(site.path().join("d.tmp"), "").unwrap();
        std::os::unix::fs::symlink(&other, workdir.join("link")).unwrap();
        let patterns = ["*.tmp", "sub/*.tmp", "link/*.tmp", "../2/*.tmp", "/etc/*", "*"].map(String::from);
        assert_eq!(clean_folder(&data, &workdir, &patterns[..5]), 2);
        assert!(workdir.join("keep.dat").exists() && other.join("c.tmp").exists());
        // A link goes, what it points to stays.
        assert_eq!(clean_folder(&data, &workdir, &patterns[5..]), 2);
        assert!(other.join("c.tmp").exists() && workdir.join("sub").exists());
        std::os::unix::fs::symlink(site.path(), data.join("out")).unwrap();
        assert_eq!(clean_folder(&data, &data.join("out"), &patterns), 0);
        assert_eq!(clean_folder(&data, &data, &patterns), 0);
    }
}
