//! Running one hook of one Job. A hook is any executable: it gets the Job as JSON on standard input,
//! runs in the workdir with `COPAL_JOB_ID`, `COPAL_JOB_STATE`, `COPAL_SITE_PATH` and `COPAL_RESULT`
//! in its environment, and its output goes to `copal.log` there. `copal` in a hook means this Site, and acts with
//! the login of the Site's user, which it reads from `$COPAL_HOME/client.yml` itself. A hook may write
//! `{"state": …, "data": {…}, "state_data": {…}}` to the file `$COPAL_RESULT`; exit code 0 without
//! that means go on, everything else that it failed. What follows is `tasks/hooks.rs`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use chrono::Utc;
use copal_client::{SiteDir, credentials::copal_home};
use copal_schemas::{JobState, JsonObject, app_file::Hooks, job::Job};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::guard::Guard;

/// Between TERM and KILL for a hook that takes too long.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// The largest result of a hook in bytes.
const MAX_RESULT: u64 = 4 * 1024 * 1024;
/// The most bytes of its output that become the tail in an event.
const MAX_TAIL: u64 = 8 * 1024;

/// What a hook wrote to `$COPAL_RESULT`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookResult {
    /// The state that the Job shall enter; left out for the usual next one.
    pub state: Option<JobState>,
    /// Laid over the Job's data, key by key.
    pub data: JsonObject,
    /// For the event.
    pub state_data: JsonObject,
}

/// A hook that failed; the Job is FAILED for it.
#[derive(Clone, Debug, PartialEq)]
pub struct HookFailure {
    /// What happened.
    pub reason: String,
    /// Its exit code.
    pub return_code: Option<i32>,
    /// The last lines of its output.
    pub tail: String,
}

/// The hook's name for a Job in this state, and the program that an App declares for it.
#[must_use]
pub fn hook_for(hooks: &Hooks, state: JobState) -> Option<(&'static str, Option<&str>)> {
    let (name, program) = match state {
        JobState::StagedIn => ("preprocess", &hooks.preprocess),
        JobState::RunDone => ("postprocess", &hooks.postprocess),
        JobState::RunError => ("handle_error", &hooks.handle_error),
        JobState::RunTimeout => ("handle_timeout", &hooks.handle_timeout),
        _ => return None,
    };
    Some((name, program.as_deref()))
}

/// What one run of a hook needs to know.
pub struct HookRun<'a> {
    /// The Site.
    pub site: &'a SiteDir,
    /// The folder of Copal's programs, put on the hook's PATH.
    pub programs: &'a Path,
    /// Ends it, should the agent be killed.
    pub guard: &'a Arc<Guard>,
    /// `preprocess` and so on.
    pub name: &'static str,
    /// The program, as the App file has it.
    pub program: &'a str,
    /// The Job.
    pub job: &'a Job,
    /// How long it may take.
    pub limit: Duration,
    /// Lines of output that are kept from a failure.
    pub tail_lines: usize,
}

impl HookRun<'_> {
    /// Runs the hook to its end.
    ///
    /// # Errors
    /// When it can't be started, does not end in time, ends with an error or writes no proper result.
    pub async fn run(&self) -> Result<HookResult, HookFailure> {
        let failure = |reason: String| HookFailure { reason, return_code: None, tail: String::new() };
        let workdir = self.site.job_folder(&self.job.workdir).map_err(failure)?;
        fs::create_dir_all(&workdir)
            .map_err(|error| failure(format!("can't make the workdir {}: {}", workdir.display(), explain(&error))))?;
        let (log, offset) = self
            .open_log(&workdir)
            .map_err(|error| failure(format!("can't write copal.log in {}: {}", workdir.display(), explain(&error))))?;
        let result_file = tempfile::NamedTempFile::new()
            .map_err(|error| failure(format!("can't make a file for its result: {error}")))?;
        let status = self.execute(&workdir, &log, result_file.path()).await.map_err(&failure)?;
        let tail = || tail(&log, offset, self.tail_lines);
        match status {
            None => {
                let reason = format!("the {} hook took longer than {} s", self.name, self.limit.as_secs_f64());
                Err(HookFailure { reason, return_code: None, tail: tail() })
            }
            Some(status) if status.success() => read_result(result_file.path()).map_err(|reason| HookFailure {
                reason: format!("the {} hook: {reason}", self.name),
                return_code: Some(0),
                tail: tail(),
            }),
            Some(status) => {
                let how = match (status.code(), status.signal()) {
                    (Some(code), _) => format!("exit code {code}"),
                    (None, Some(number)) => Signal::try_from(number)
                        .map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().into()),
                    (None, None) => "no exit code".into(),
                };
                Err(HookFailure {
                    reason: format!("the {} hook ended with {how}", self.name),
                    return_code: status.code(),
                    tail: tail(),
                })
            }
        }
    }

    fn open_log(&self, workdir: &Path) -> io::Result<(File, u64)> {
        let mut log = OpenOptions::new().create(true).read(true).append(true).open(workdir.join("copal.log"))?;
        let time = Utc::now().format("%Y-%m-%dT%H:%M:%SZ");
        writeln!(log, "--- {time} {} {} ({})", self.name, self.program, self.job.state)?;
        let offset = log.seek(SeekFrom::End(0))?;
        Ok((log, offset))
    }

    /// `None` when it did not end in time.
    async fn execute(&self, workdir: &Path, log: &File, result: &Path) -> Result<Option<ExitStatus>, String> {
        let program = self.find_program()?;
        let output = || log.try_clone().map_err(|error| error.to_string());
        let mut path = self.programs.as_os_str().to_owned();
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        let mut child = Command::new(&program)
            .current_dir(workdir)
            .env("PATH", path)
            .env("COPAL_JOB_ID", self.job.id.to_string())
            .env("COPAL_JOB_STATE", self.job.state.as_str())
            .env("COPAL_SITE_PATH", self.site.root())
            .env("COPAL_WORKDIR", workdir)
            .env("COPAL_RESULT", result)
            // Whatever folder the hook changes to, and whatever HOME it sets.
            .env("COPAL_HOME", std::path::absolute(copal_home()).unwrap_or_else(|_| copal_home()))
            // Meant for whoever started the agent, not for what Apps run.
            .env_remove("COPAL_PASSWORD")
            .stdin(Stdio::piped())
            .stdout(output()?)
            .stderr(output()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                format!("the {} hook {} can't be run: {}", self.name, program.display(), explain(&error))
            })?;
        let group = self.guard.hold(child.id());
        let job = serde_json::to_vec(self.job).map_err(|error| error.to_string())?;
        let stdin = child.stdin.take();
        // A hook need not read it, and may leave somebody behind who keeps the pipe open without reading: its end is
        // its own exit alone.
        let feed = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&job).await;
            }
        });
        let ended = tokio::time::timeout(self.limit, child.wait()).await;
        feed.abort();
        let status = match ended {
            Ok(status) => Some(status.map_err(|error| error.to_string())?),
            Err(_) => {
                group.send(Signal::SIGTERM);
                let _ = tokio::time::timeout(STOP_GRACE, child.wait()).await;
                None
            }
        };
        Ok(status)
    }

    fn find_program(&self) -> Result<PathBuf, String> {
        if self.program.contains('/') {
            let path = self.site.apps().join(self.program);
            return if path.exists() {
                Ok(path)
            } else {
                Err(format!("the {} hook {} does not exist", self.name, path.display()))
            };
        }
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(self.program)).find(|path| path.is_file()).ok_or_else(
            || {
                format!(
                    "the {} hook {} is not on the agent's PATH; write ./{} for one in apps/",
                    self.name, self.program, self.program
                )
            },
        )
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{error}; is it executable (chmod +x)?"),
        io::ErrorKind::NotFound => format!("{error}; is the program of its first line (#!) there?"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("{error}; free some space"),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            format!("{error}; its first line must name a program, such as #!/bin/sh")
        }
        _ => error.to_string(),
    }
}

fn read_result(path: &Path) -> Result<HookResult, String> {
    let wrong = |what: String| format!("the result in $COPAL_RESULT {what}");
    // By its name, since the hook may have replaced the file.
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HookResult::default()),
        Err(error) => return Err(wrong(format!("can't be read: {error}"))),
    };
    let mut bytes = Vec::new();
    file.take(MAX_RESULT + 1).read_to_end(&mut bytes).map_err(|error| wrong(format!("can't be read: {error}")))?;
    if bytes.len() as u64 > MAX_RESULT {
        return Err(wrong(format!("is larger than {MAX_RESULT} bytes; keep large results in files")));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(HookResult::default());
    }
    let result: HookResult = serde_json::from_slice(&bytes).map_err(|error| {
        wrong(format!("is not a JSON object with state, data and state_data: {}", storable(&error.to_string())))
    })?;
    if [&result.data, &result.state_data]
        .into_iter()
        .any(|object| object.iter().any(|(key, value)| has_nul(key, value)))
    {
        return Err(wrong("has a NUL character (U+0000), which can't be stored".into()));
    }
    Ok(result)
}

fn has_nul(key: &str, value: &Value) -> bool {
    key.contains('\0')
        || match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(|item| has_nul("", item)),
            Value::Object(object) => object.iter().any(|(key, value)| has_nul(key, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
}

/// A text as a database can store it.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn tail(log: &File, offset: u64, lines: usize) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut log = log;
        let end = log.seek(SeekFrom::End(0))?;
        log.seek(SeekFrom::Start(offset.max(end.saturating_sub(MAX_TAIL))))?;
        let mut bytes = Vec::new();
        log.take(MAX_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    // What a database can't store is not worth losing the tail for.
    storable(&all[all.len().saturating_sub(lines)..].join("\n"))
}

#[cfg(test)]
mod tests;
