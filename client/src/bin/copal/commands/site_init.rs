//! `copal site init`: a folder made from a platform's templates, and the Site's entry at the service.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use copal_client::{
    Client, SiteDir,
    agent_status::SettingsNote,
    platforms::{Platform, platform, platforms},
};
use copal_schemas::{
    SiteId,
    problem::ErrorCode,
    settings::Settings,
    site::{Site, SiteCreate},
};

use super::{agent, site::details};
use crate::{
    context::Context,
    failure::{Failure, Result},
    interrupt::hearing,
    output::is_interactive,
    prompt, sites,
};

/// How long the scheduler may take to say what it has.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn init(
    context: Context,
    path: &Path,
    name: Option<&str>,
    chosen: Option<&str>,
    yes: bool,
) -> Result<()> {
    let chosen = choose_platform(context, chosen)?;
    let path = absolute(path)?;
    let existed = check_folder(&path)?;
    let folder_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = match name {
        Some(name) => name.to_owned(),
        None if !yes && is_interactive() => {
            let check = |name: &str| sites::check_name(name).map_err(|failure| failure.parts().0.to_owned());
            prompt::line("Name of the Site", Some(&folder_name), check)?
        }
        None => folder_name,
    };
    sites::check_name(&name)?;
    // The login is checked before anything is made.
    let client = context.client()?;
    let found = discover(context, chosen).await;
    let settings = settings(chosen, &found)?;
    fs::create_dir_all(&path).map_err(|error| {
        Failure::new(format!("can't make the folder {}: {error}", path.display()))
            .hint("check the path and its permissions")
    })?;
    // What the service keeps is the path by which every machine finds the folder, without links.
    let path = fs::canonicalize(&path)?;
    let site = match register(&client, &name, &path, &settings).await {
        Ok(site) => site,
        Err(failure) => {
            clean(&path, existed);
            return Err(failure);
        }
    };
    if let Err(failure) = fill(&path, chosen, &found, site.id) {
        clean(&path, existed);
        // Should that fail, too, the first failure is the one to tell.
        let _ = client.delete_site(site.id).await;
        return Err(failure);
    }
    if context.out.is_data() {
        return context.out.value(&site);
    }
    context.out.talk(&format!(
        "Made the Site {} (id {}) in {}.\nNext: write Apps to {}/apps, then `copal app sync` and `copal site start` there.",
        site.name,
        site.id,
        path.display(),
        path.display()
    ));
    Ok(())
}

fn choose_platform(context: Context, chosen: Option<&str>) -> Result<&'static Platform> {
    let names: Vec<&str> = platforms().iter().map(|platform| platform.name).collect();
    let unknown = |name: &str| format!("there is no platform {name:?}; there is {}", names.join(", "));
    if let Some(name) = chosen {
        return platform(name).ok_or_else(|| Failure::usage(unknown(name)));
    }
    if !is_interactive() {
        return Err(Failure::usage("which platform? Nobody can be asked here")
            .hint(format!("add --platform PLATFORM; there is {}", names.join(", "))));
    }
    context.out.talk("Platforms:");
    for platform in platforms() {
        context.out.talk(&format!("  {:<18} {}", platform.name, platform.description));
    }
    let check = |name: &str| if platform(name).is_some() { Ok(()) } else { Err(unknown(name)) };
    let name = prompt::line("Platform", names.first().copied(), check)?;
    platform(&name).ok_or_else(|| Failure::usage(unknown(&name)))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(Failure::usage("the folder has no name"));
    }
    let path = std::path::absolute(path)?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(Failure::usage(format!("the path {} is not UTF-8", path.display())).hint("choose another folder")),
    }
}

/// Whether the folder is there already; it must be empty then.
fn check_folder(path: &Path) -> Result<bool> {
    if SiteDir::new(path).settings_path().exists() {
        return Err(Failure::new(format!("{} is a Site's folder already", path.display()))
            .hint("choose another folder; `copal site start` there starts its agent"));
    }
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(true),
            Some(_) => Err(Failure::new(format!("the folder {} is not empty", path.display()))
                .hint("choose a new or an empty one")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => {
            Err(Failure::new(format!("can't look into {}: {error}", path.display())).hint("choose another folder"))
        }
    }
}

async fn register(client: &Client, name: &str, path: &Path, settings: &Settings) -> Result<Site> {
    let site = SiteCreate { name: name.into(), path: path.display().to_string(), details: details(settings) };
    client.create_site(&site).await.map_err(|error| match error.code() {
        Some(ErrorCode::Conflict) => {
            Failure::new(format!("you have a Site named {name:?} already")).hint("choose another one with --name NAME")
        }
        _ => error.into(),
    })
}

/// What the machine's scheduler says about queues and accounts, as lines of `settings.yml`; empty where it says nothing.
/// The settings of a named machine hold that already.
async fn discover(context: Context, platform: &Platform) -> String {
    if !matches!(platform.name, "slurm" | "pbs" | "lsf" | "cobalt" | "flux") {
        return String::new();
    }
    match ask_scheduler(platform.name).await {
        Ok(lines) => lines,
        Err(failure) => {
            let what = failure.lines();
            context
                .out
                .talk(&format!("Queues and accounts could not be found out, so settings.yml names none: {what}"));
            String::new()
        }
    }
}

async fn ask_scheduler(platform: &str) -> Result<String> {
    let mut command = tokio::process::Command::new(agent::sibling("copal-agent")?);
    command.args(["discover", "--platform", platform]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(DISCOVER_TIMEOUT, hearing(|| command.output()))
        .await
        .map_err(|_| Failure::new(format!("{platform} did not answer within {} s", DISCOVER_TIMEOUT.as_secs())))??;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(out.into_owned());
    }
    Err(Failure::new(err.trim().trim_start_matches("error: ")))
}

/// `settings.yml` of a platform with what was found out in the place of the lines that it ships empty.
fn settings_text(platform: &Platform, found: &str, id: SiteId) -> String {
    let mut text = platform.settings_for(id);
    for line in found.lines() {
        let Some((key, _)) = line.split_once(':') else { continue };
        for empty in ["[]", "{}"] {
            text = text.replacen(&format!("\n{key}: {empty}\n"), &format!("\n{line}\n"), 1);
        }
    }
    text
}

fn settings(platform: &Platform, found: &str) -> Result<Settings> {
    serde_saphyr::from_str(&settings_text(platform, found, SiteId(0)))
        .map_err(|error| Failure::new(format!("the platform {} is broken: {error}", platform.name)))
}

/// Writes the files of the new Site.
fn fill(path: &Path, platform: &Platform, found: &str, id: SiteId) -> Result<()> {
    let folder = SiteDir::new(path);
    folder.create_folders()?;
    let settings = Settings { site_id: id, ..settings(platform, found)? };
    SettingsNote::Synced.write(&folder, &settings)?;
    write(&path.join(&settings.scheduler.job_template_path), platform.job_template)?;
    // The settings come last: a folder with settings is a Site's.
    write(&folder.settings_path(), &settings_text(platform, found, id))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| {
        Failure::new(format!("can't write {}: {error}", path.display()))
            .hint("check the disk's free space and the permissions")
    })
}

/// Takes away what was made in the folder, and the folder if it was not there before. Best effort:
/// the failure that led here is the one to tell.
fn clean(path: &Path, existed: bool) {
    let folder = SiteDir::new(path);
    let _ = SettingsNote::Synced.remove(&folder);
    for made in [folder.apps(), folder.data(), folder.log(), folder.qsubmit(), folder.spool()] {
        let _ = fs::remove_dir(made);
    }
    for made in [folder.settings_path(), path.join("job-template.sh")] {
        let _ = fs::remove_file(made);
    }
    if !existed {
        let _ = fs::remove_dir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_new_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!check_folder(&folder.path().join("new")).unwrap());
        assert!(check_folder(folder.path()).unwrap());
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        assert!(check_folder(folder.path()).is_err());
    }

    #[test]
    fn a_half_made_folder_is_taken_away_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("site");
        fs::create_dir(&path).unwrap();
        fill(&path, platform("local").unwrap(), "", SiteId(7)).unwrap();
        assert_eq!(SiteDir::new(&path).settings().unwrap().site_id, SiteId(7));
        assert!(check_folder(&path).unwrap_err().lines().contains("already"));
        clean(&path, true);
        assert!(check_folder(&path).unwrap());
        clean(&path, false);
        assert!(!path.exists());
    }

    #[test]
    fn what_the_scheduler_says_takes_the_place_of_empty_lines() {
        let found = "  allowed_projects: [\"proj\"]\n  allowed_queues: {\"debug\":{\"max_nodes\":4,\"max_walltime\":60,\"max_queued_jobs\":2}}\n";
        for name in ["slurm", "pbs", "lsf", "flux"] {
            let scheduler = settings(platform(name).unwrap(), found).unwrap().scheduler;
            assert_eq!(scheduler.allowed_projects, ["proj"], "{name}");
            assert_eq!(scheduler.allowed_queues["debug"].max_nodes, 4, "{name}");
        }
    }
}
