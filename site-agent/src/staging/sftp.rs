//! `scp://user@host/folder`: the file transfer that every ssh server has (sftp, which today's scp uses,
//! too). One connection carries a batch by a list of commands; what each of them said is read off its echo. A file gets its
//! name at the other end when it is whole and has its size; what was cut starts again from the file that was cut.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use copal_schemas::transfer::Direction;

use super::{Adapter, Batch, Cause, Item, Run, StagingError, area, program, ssh};

/// The adapter of `scp:` locations, and of `rsync:` ones without rsync.
#[derive(Clone, Copy, Debug)]
pub struct Sftp;

impl Adapter for Sftp {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let mut plan = Plan::default();
        for item in &batch.items {
            let planned = match batch.direction {
                Direction::In => plan.get(item),
                Direction::Out => plan.put(item),
            };
            if let Err(error) = planned {
                run.failed(item.id, error);
            }
        }
        // Both outputs in one, so that a complaint is found at the command that it is about.
        let mut argv: Vec<String> = ["sh", "-c", "exec \"$@\" 2>&1", "sh", "sftp", "-b", "-"].map(String::from).into();
        argv.extend(ssh::options(&run.settings));
        if let Some(port) = batch.location.port {
            argv.extend(["-P".to_owned(), port.to_string()]);
        }
        argv.push(match batch.location.host.contains(':') {
            true => batch.location.ssh_target().replace(&batch.location.host, &format!("[{}]", batch.location.host)),
            false => batch.location.ssh_target(),
        });
        let ended = program::run(&argv, plan.text().into_bytes(), run).await?;
        let said = sections(&ended.stdout);
        let cut = || {
            ssh::explain(&batch.location, &ended.stdout).unwrap_or_else(|| {
                let last = ended.stdout.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                let is_missing = ended.code == Some(127);
                StagingError::new(if is_missing { Cause::Local } else { Cause::Network }, format!("sftp: {last}"))
            })
        };
        for item in &batch.items {
            let steps: Vec<&Step> = plan.steps.iter().filter(|step| step.item == Some(item.id)).collect();
            if steps.is_empty() {
                continue;
            }
            let failure = steps.iter().find_map(|step| match said.get(step.number) {
                // What came last may have been cut in the middle.
                Some(lines) if step.number + 1 < said.len() || ended.code == Some(0) => {
                    step.judge(lines, batch.direction, &batch.location.ssh_target())
                }
                _ => Some(cut()),
            });
            match failure {
                Some(error) => run.failed(item.id, error),
                None => match area::size(&item.local) {
                    Ok(bytes) => run.arrived(item.id, bytes),
                    Err(error) => run.failed(item.id, StagingError::reading(item.local.display(), &error)),
                },
            }
        }
        Ok(())
    }
}

/// The commands of a batch.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    folders: BTreeSet<PathBuf>,
}

/// One command.
struct Step {
    number: usize,
    /// The transfer that fails with it; none for a folder that may be there.
    item: Option<copal_schemas::TransferId>,
    command: String,
    check: Check,
}

/// What its words mean.
enum Check {
    /// Any complaint is a failure.
    Silent,
    /// It lists a file, which must have the size of this one.
    SizeOf(PathBuf),
}

impl Plan {
    fn get(&mut self, item: &Item) -> Result<(), StagingError> {
        area::remove(&item.local).map_err(|error| StagingError::writing(item.local.display(), &error))?;
        let (remote, local) = (quoted(&item.remote)?, quoted(&item.local.display().to_string())?);
        let flags = if item.recursive { "-pR" } else { "-p" };
        self.push(item, format!("get {flags} {remote} {local}"), Check::Silent);
        if !item.recursive {
            self.push(item, format!("ls -ln {remote}"), Check::SizeOf(item.local.clone()));
        }
        Ok(())
    }

    fn put(&mut self, item: &Item) -> Result<(), StagingError> {
        let remote = Path::new(&item.remote);
        if !item.recursive {
            self.make_folders(remote.parent().unwrap_or(Path::new("/")))?;
            return self.put_file(item, &item.local, remote);
        }
        self.make_folders(remote)?;
        self.put_folder(item, &item.local, remote)
    }

    fn put_folder(&mut self, item: &Item, local: &Path, remote: &Path) -> Result<(), StagingError> {
        let failed = |error: std::io::Error| StagingError::reading(local.display(), &error);
        // A folder with nothing in it needs a command, too, or nothing would be said about it.
        self.push(item, format!("ls -1d {}", quoted(&remote.display().to_string())?), Check::Silent);
        for entry in fs::read_dir(local).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (local, remote) = (entry.path(), remote.join(entry.file_name()));
            if entry.file_type().map_err(failed)?.is_dir() {
                self.make_folders(&remote)?;
                self.put_folder(item, &local, &remote)?;
            } else {
                self.put_file(item, &local, &remote)?;
            }
        }
        Ok(())
    }

    fn put_file(&mut self, item: &Item, local: &Path, remote: &Path) -> Result<(), StagingError> {
        let name = remote.file_name().unwrap_or_default().to_string_lossy();
        let part = quoted(&remote.with_file_name(format!(".{name}.copal-part")).display().to_string())?;
        let (source, remote) = (quoted(&local.display().to_string())?, quoted(&remote.display().to_string())?);
        self.push(item, format!("put -p {source} {part}"), Check::Silent);
        self.push(item, format!("ls -ln {part}"), Check::SizeOf(local.into()));
        self.push(item, format!("rename {part} {remote}"), Check::Silent);
        Ok(())
    }

    fn make_folders(&mut self, folder: &Path) -> Result<(), StagingError> {
        let mut above: Vec<&Path> = folder.ancestors().filter(|path| path.parent().is_some()).collect();
        above.reverse();
        for path in above {
            if self.folders.insert(path.into()) {
                let command = format!("mkdir {}", quoted(&path.display().to_string())?);
                self.steps.push(Step { number: self.steps.len(), item: None, command, check: Check::Silent });
            }
        }
        Ok(())
    }

    fn push(&mut self, item: &Item, command: String, check: Check) {
        self.steps.push(Step { number: self.steps.len(), item: Some(item.id), command, check });
    }

    /// With a dash before each, so that one that fails does not end the others.
    fn text(&self) -> String {
        self.steps.iter().map(|step| format!("-{}\n", step.command)).collect()
    }
}

impl Step {
    /// Why it failed; `None` when it did not.
    fn judge(&self, lines: &[&str], direction: Direction, target: &str) -> Option<StagingError> {
        let failed = |text: &str, fallback: Cause| {
            let reads_there = direction == Direction::In;
            let cause = ssh::cause_of(text, reads_there).unwrap_or(fallback);
            StagingError::new(cause, format!("sftp at {target}: {text}"))
        };
        let complaint = lines.iter().find(|line| is_complaint(line));
        if let Some(line) = complaint {
            return Some(match line.contains("not a regular file") {
                true => failed(&format!("{line}; sftp carries no links"), Cause::MissingSource),
                // sftp knows one word for a full disk and much else.
                false => failed(line, Cause::Destination),
            });
        }
        match &self.check {
            Check::Silent => None,
            Check::SizeOf(path) => {
                let wanted = fs::metadata(path).map(|meta| meta.len()).ok();
                let found = lines.iter().find_map(|line| line.split_whitespace().nth(4)?.parse::<u64>().ok());
                (wanted.is_none() || wanted != found).then(|| {
                    let text = format!("{} has {found:?} bytes there and {wanted:?} here", path.display());
                    StagingError::new(Cause::Checksum, text)
                })
            }
        }
    }
}

/// Whether a line is one of sftp's complaints, and not a listing or its progress.
fn is_complaint(line: &str) -> bool {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    begins(&[
        "Can't ",
        "Couldn't ",
        "File \"",
        "remote ",
        "local ",
        "open ",
        "dest ",
        "stat ",
        "read ",
        "write ",
        "download ",
        "upload ",
        "rename ",
        "mkdir ",
        "Cannot ",
        "cannot ",
        "realpath ",
        "lstat ",
    ]) || line.contains("not found")
        || line.contains("Permission denied")
        || line.contains(": Failure")
        || line.contains("No such file")
        || line.contains("not a regular file")
        || line.contains("is not a directory")
}

/// What was said after each command.
fn sections(text: &str) -> Vec<Vec<&str>> {
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for line in text.lines().map(str::trim_end) {
        if line.starts_with("sftp> ") {
            sections.push(Vec::new());
        } else if let Some(section) = sections.last_mut() {
            section.push(line);
        }
    }
    sections
}

/// A path as an argument of a command of sftp, which has no way to write a line break.
fn quoted(path: &str) -> Result<String, StagingError> {
    if path.contains(['\n', '\r']) {
        return Err(StagingError::new(Cause::Settings, format!("{path:?} has a line break, which sftp can't carry")));
    }
    Ok(format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_at_their_command() {
        let text = "sftp> -get -p \"/a\" \"/b\"\nFile \"/a\" not found.\nsftp> -ls -ln \"/c\"\n\
                    -rw-r--r--    ? 0        0            2048 Nov 30 15:00 /c\n";
        let said = sections(text);
        assert_eq!(said.len(), 2);
        let step = |check| Step { number: 0, item: None, command: String::new(), check };
        let error = step(Check::Silent).judge(&said[0], Direction::In, "ann@login").unwrap();
        assert_eq!(error.cause, Cause::MissingSource);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c");
        fs::write(&file, vec![0; 2048]).unwrap();
        assert_eq!(step(Check::SizeOf(file.clone())).judge(&said[1], Direction::In, "x"), None);
        fs::write(&file, "short").unwrap();
        assert_eq!(step(Check::SizeOf(file)).judge(&said[1], Direction::In, "x").unwrap().cause, Cause::Checksum);
    }

    #[test]
    fn paths_are_quoted() {
        assert_eq!(quoted(r#"/a b/"c"\d*"#).unwrap(), r#""/a b/\"c\"\\d*""#);
        assert!(quoted("/a\nb").is_err());
    }
}
