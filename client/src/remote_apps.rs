//! Files of Apps that are made through the API: how they are marked, written and removed again. A file without the mark, or
//! changed since it was written, is the Site's owner's and is never touched. Whether a Site has such Apps at all is for its
//! settings to say (`allow_remote_apps`) and for its agent to heed.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use copal_schemas::{
    AppId,
    app::{self, is_identifier},
    app_file::{AppFile, Hooks},
};
use sha2::{Digest, Sha256};

use crate::{
    app_file::App,
    site_dir::SiteDir,
    yaml::{self, FileError},
};

/// How the first line of such a file begins; the App's id and the digest of all other lines follow.
const MARK: &str = "# Made through the API: App ";
const DIGEST: &str = ", SHA-256 ";
const NOTE: &str = "# Its owner changes it there. A file that is changed here is the Site's own from then on.\n";
/// Commands and environments are nobody else's business.
const MODE: u32 = 0o600;

/// The App that a file with this text was made for; `None` for the Site's own files. The file may be gone since its text was
/// read, without having been the Site's own for that.
pub(crate) fn made_for(path: &Path, text: &str) -> Option<AppId> {
    // What a link leads to is not ours to replace.
    let is_link = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    if is_link { None } else { marked(text) }
}

/// The App that the file there was made for.
fn made_file(path: &Path) -> Option<AppId> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    if is_file { made_for(path, &fs::read_to_string(path).ok()?) } else { None }
}

/// The files of `apps/` that were made for Apps of the API.
///
/// # Errors
/// When the folder can't be read.
pub fn files(site: &SiteDir) -> Result<Vec<(AppId, PathBuf)>, FileError> {
    let folder = site.apps();
    let failed = |source| FileError::Read { path: folder.clone(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "yml")
            && let Some(id) = made_file(&path)
        {
            found.push((id, path));
        }
    }
    Ok(found)
}

/// Writes the file of an App, unless it is as it should be. Says whether it was written.
///
/// # Errors
/// A sentence for the App's owner: what is wrong with it, or that the Site has a file of its own by that name.
pub fn write(site: &SiteDir, index: &app::App) -> Result<bool, String> {
    if !is_identifier(&index.name) {
        return Err(format!("name: {:?} is no identifier (letters, digits, _)", index.name));
    }
    let app = App::from_index(index).ok_or("command: it has none; an App of the API needs one")?;
    let app = app.map_err(|(field, message)| format!("{field}: {message}"))?;
    check_hooks(site, &app.spec().hooks)?;
    let text = text(app.spec(), index.id)?;
    let path = site.app_file(&index.name);
    let written = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => yaml::write_new(&path, &text, MODE),
        Err(source) => Err(FileError::Read { path: path.clone(), source }),
        Ok(_) if made_file(&path).is_none() => return Err(own_file(&path)),
        Ok(_) if fs::read_to_string(&path).is_ok_and(|present| present == text) => return Ok(false),
        Ok(_) => yaml::write_atomically(&path, &text, MODE),
    };
    match written {
        Ok(()) => Ok(true),
        // The owner wrote one this very moment.
        Err(FileError::Write { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => Err(own_file(&path)),
        Err(FileError::Write { path, source } | FileError::Read { path, source }) => {
            Err(format!("{}: {source}", path.display()))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn own_file(path: &Path) -> String {
    format!(
        "{} is there already and is the Site's own; delete it, or run `copal app sync` at the Site to take it as the App",
        path.display()
    )
}

/// The file's text, which reads as the App and nothing else.
fn text(spec: &AppFile, id: AppId) -> Result<String, String> {
    let unwritable = || "it can't be written as YAML; take unusual characters out of its texts".to_owned();
    let body = serde_saphyr::to_string(spec).map_err(|_| unwritable())?;
    let again: AppFile = serde_saphyr::from_str(&body).map_err(|_| unwritable())?;
    if again != *spec {
        return Err(unwritable());
    }
    let rest = format!("{NOTE}{body}");
    Ok(format!("{MARK}{id}{DIGEST}{}\n{rest}", digest(&rest)))
}

fn marked(text: &str) -> Option<AppId> {
    let (head, rest) = text.split_once('\n')?;
    let (id, told) = head.strip_prefix(MARK)?.split_once(DIGEST)?;
    let id = id.parse().ok()?;
    (told == digest(rest)).then_some(AppId(id))
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hooks are programs that the Site's owner put into `apps/`, not any program of the machine.
fn check_hooks(site: &SiteDir, hooks: &Hooks) -> Result<(), String> {
    for (name, program) in hooks.programs() {
        let is_there = program.contains('/') && is_program_within(&site.apps(), program);
        if !is_there {
            return Err(format!(
                "hooks.{name}: {program:?} is no executable file in the Site's apps/; name one that is, such as ./collect.sh"
            ));
        }
    }
    Ok(())
}

/// Whether a path leads to an executable file in a folder, wherever links on the way lead to.
fn is_program_within(folder: &Path, program: &str) -> bool {
    let (Ok(folder), Ok(path)) = (folder.canonicalize(), folder.join(program).canonicalize()) else { return false };
    let is_program = |meta: fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    path.starts_with(folder) && fs::metadata(path).is_ok_and(is_program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use copal_schemas::app_file::OutputMode;
    use serde_json::json;

    use super::*;

    fn site() -> (tempfile::TempDir, SiteDir) {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        site.create_folders().unwrap();
        (folder, site)
    }

    fn greet(remote: serde_json::Value) -> app::App {
        let parameters = json!({"name": {"required": true}, "tail": {"required": false, "default": ""}});
        serde_json::from_value(
            json!({"site_id": 1, "id": 7, "name": "Greet", "serialized_class": "", "source_code": "",
            "description": "Greets: # all", "command": "echo \"Hi {{name}}\"\necho {{tail}}", "parameters": parameters,
            "transfers": {"r": {"required": false, "direction": "out", "local_path": "r.dat"}}, "max_restarts": 2,
            "remote": remote}),
        )
        .unwrap()
    }

    #[test]
    fn the_file_reads_as_the_app_and_is_known_again() {
        let (_folder, site) = site();
        let remote = json!({"environment": {"N": "007", "B": "yes"}, "preamble": "module load gcc\n  # two\n", "output": "none",
            "cleanup_files": ["*.tmp"]});
        assert_eq!(write(&site, &greet(remote.clone())), Ok(true));
        assert_eq!(write(&site, &greet(remote)), Ok(false), "it is as it should be");
        let path = site.app_file("Greet");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(files(&site).unwrap(), [(AppId(7), path)]);
        let app = site.load_app("Greet").unwrap();
        let spec = app.spec();
        assert_eq!((spec.environment["N"].as_str(), spec.environment["B"].as_str()), ("007", "yes"));
        assert_eq!((spec.preamble.as_deref(), spec.output), (Some("module load gcc\n  # two\n"), OutputMode::None));
        assert_eq!((spec.max_restarts, spec.transfers["r"].local_path.as_str()), (Some(2), "r.dat"));
        assert_eq!(app.command(&[("name".into(), "$(id)".into())].into()).unwrap(), "echo \"Hi \\$(id)\"\necho ''");
        // Another command of the same App goes over it.
        assert_eq!(write(&site, &app::App { command: Some("true".into()), ..greet(json!({})) }), Ok(true));
        assert_eq!(site.load_app("Greet").unwrap().spec().command, "true");
    }

    #[test]
    fn a_file_of_the_owner_is_never_written_over() {
        let (folder, site) = site();
        let path = site.app_file("Greet");
        let kept = |text: &str| {
            let error = write(&site, &greet(json!({}))).unwrap_err();
            assert!(error.contains("the Site's own"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(files(&site).unwrap(), []);
        };
        fs::write(&path, "name: Greet\ncommand: mine\n").unwrap();
        kept("name: Greet\ncommand: mine\n");
        // A file that was made, and that the owner changed since then.
        fs::remove_file(&path).unwrap();
        write(&site, &greet(json!({}))).unwrap();
        let changed = fs::read_to_string(&path).unwrap().replace("echo", "printf");
        fs::write(&path, &changed).unwrap();
        kept(&changed);
        // The other ending, and links.
        let other = path.with_extension("yaml");
        fs::rename(&path, &other).unwrap();
        assert!(write(&site, &greet(json!({}))).unwrap_err().contains("Greet.yaml is there already"));
        fs::remove_file(&other).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        symlink(&elsewhere, &path).unwrap();
        assert!(write(&site, &greet(json!({}))).unwrap_err().contains("the Site's own"));
        assert!(!elsewhere.exists());
    }

    #[test]
    fn what_app_sync_would_refuse_and_hooks_that_are_not_there_are_refused() {
        let (folder, site) = site();
        let refused = |app: app::App| {
            let error = write(&site, &app).unwrap_err();
            assert_eq!(files(&site).unwrap(), [], "{error}");
            error
        };
        let command = |text: &str| app::App { command: Some(text.into()), ..greet(json!({})) };
        assert!(refused(command("echo {{nobody}}")).starts_with("command: the variable \"nobody\""));
        assert!(refused(command("echo $(({{name}}))")).contains("arithmetic"));
        assert!(refused(app::App { command: None, ..greet(json!({})) }).starts_with("command: it has none"));
        assert!(refused(app::App { name: "../data/x".into(), ..greet(json!({})) }).starts_with("name: "));
        assert!(refused(greet(json!({"environment": {"A B": ""}}))).starts_with("environment.A B: "));
        assert!(refused(greet(json!({"cleanup_files": ["../x"]}))).starts_with("cleanup_files: "));
        let script = |path: &Path, mode| {
            fs::write(path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        script(&folder.path().join("data/evil.sh"), 0o755);
        script(&site.apps().join("text.sh"), 0o644);
        symlink(folder.path().join("data/evil.sh"), site.apps().join("link.sh")).unwrap();
        for program in ["bash", "/bin/sh", "./missing.sh", "../data/evil.sh", "./text.sh", "./link.sh", "./"] {
            let error = refused(greet(json!({"hooks": {"postprocess": program}})));
            assert!(error.starts_with("hooks.postprocess: ") && error.contains(program), "{error}");
        }
        script(&site.apps().join("collect.sh"), 0o755);
        assert_eq!(write(&site, &greet(json!({"hooks": {"postprocess": "./collect.sh"}}))), Ok(true));
        let hooks = site.load_app("Greet").unwrap().spec().hooks.clone();
        assert_eq!(hooks.postprocess.as_deref(), Some("./collect.sh"));
    }
}
