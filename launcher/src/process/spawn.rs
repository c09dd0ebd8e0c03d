//! Starting one program in a folder with its output in a file: what is needed for it, and what it means when it can't
//! be had. The process itself is made by [`super::birth`].

use std::{
    env,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

use copal_schemas::StringMap;
use nix::unistd::Pid;

use super::{
    birth::{Birth, Texts, text_of},
    group::Group,
};

/// What to start.
#[derive(Debug)]
pub struct Spec<'a> {
    /// The program and its arguments. A program without a slash is looked up on PATH, one with a slash
    /// is relative to the workdir.
    pub argv: &'a [String],
    /// The folder to run in.
    pub workdir: &'a Path,
    /// Variables set besides those of this process.
    pub env: &'a StringMap,
    /// Variables of this process that it must not get.
    pub unset: &'a [&'a str],
    /// Where standard output and error go; `None` throws them away.
    pub output: Option<File>,
    /// The control group that it is in from its start.
    pub group: Option<&'a Group>,
    /// Whether the system kills it when the calling thread ends.
    pub is_bound: bool,
}

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command is empty.
    #[error("the command is empty")]
    Empty,
    /// There is no such program.
    #[error("{0} is not found{1}")]
    MissingProgram(String, &'static str),
    /// It is there but may not be executed.
    #[error("{0} is not executable; run `chmod +x` on it, or name its interpreter in the command")]
    NotExecutable(PathBuf),
    /// It is neither a program for this machine nor a script that names its interpreter.
    #[error("{0} is neither a program of this kind of machine nor a script that begins with #!")]
    NotAProgram(PathBuf),
    /// The interpreter that a script names is not there.
    #[error("{script} needs the interpreter {interpreter}, which is not found")]
    MissingInterpreter {
        /// The script.
        script: PathBuf,
        /// What its first line names.
        interpreter: String,
    },
    /// The disk or the quota is full.
    #[error("the disk or the quota is full: can't make {path}")]
    DiskFull {
        /// What was to be made.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder can't be made or entered.
    #[error("can't use the workdir {path}")]
    Workdir {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The output file can't be made.
    #[error("can't write the output file {path}")]
    Output {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Arguments and environment are too long.
    #[error("the arguments and the environment of the command are too long for this system")]
    TooLong,
    /// No process can be made now.
    #[error("can't start {program}: no process or memory is left on the node")]
    NoProcess {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something else.
    #[error("can't start {program}")]
    Other {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SpawnError {
    /// A word for programs, which the Job's event carries as `reason`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty_command",
            Self::MissingProgram(..) => "missing_program",
            Self::NotExecutable(_) => "not_executable",
            Self::NotAProgram(_) => "not_a_program",
            Self::MissingInterpreter { .. } => "missing_interpreter",
            Self::DiskFull { .. } => "disk_full",
            Self::Workdir { .. } => "workdir",
            Self::Output { .. } => "output",
            Self::TooLong => "too_long",
            Self::NoProcess { .. } => "no_process",
            Self::Other { .. } => "start_failed",
        }
    }

    /// The whole chain of causes as one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Makes the workdir where it is missing.
///
/// # Errors
/// [`SpawnError::Workdir`] and [`SpawnError::DiskFull`].
pub fn make_workdir(path: &Path) -> Result<(), SpawnError> {
    // One call is all it takes for nearly every Job: its parent is there, itself is not.
    let made = match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(path),
        other => other,
    };
    made.map_err(|source| match is_full(&source) {
        true => SpawnError::DiskFull { path: path.into(), source },
        false => SpawnError::Workdir { path: path.into(), source },
    })
}

/// Opens `job.out` in the workdir for a new run. What an earlier run left is kept as `job.out.1`,
/// `job.out.2`…, by the number of that run.
///
/// # Errors
/// [`SpawnError::Output`] and [`SpawnError::DiskFull`].
pub fn open_output(workdir: &Path, earlier_runs: i32) -> Result<(File, PathBuf), SpawnError> {
    let path = workdir.join("job.out");
    if earlier_runs > 0 {
        let kept = workdir.join(format!("job.out.{earlier_runs}"));
        // It is not there when that run could not be started.
        if !kept.exists() {
            let _ = fs::rename(&path, kept);
        }
    }
    // Append, so that what several processes write at the same time is not overwritten.
    match OpenOptions::new().create(true).append(true).custom_flags(libc::O_TRUNC).open(&path) {
        Ok(file) => Ok((file, path)),
        Err(source) if is_full(&source) => Err(SpawnError::DiskFull { path, source }),
        Err(source) => Err(SpawnError::Output { path, source }),
    }
}

/// Starts a program as the leader of a process group of its own, with nothing on its standard input. Nobody waits
/// for it: that is [`super::end`]'s.
///
/// # Errors
/// [`SpawnError`] that names what is missing.
pub fn spawn(spec: &Spec<'_>) -> Result<Pid, SpawnError> {
    let name = spec.argv.first().filter(|name| !name.is_empty()).ok_or(SpawnError::Empty)?;
    let program = locate(name, spec.workdir, spec.env.get("PATH").map(OsStr::new))?;
    start(spec, &program).map_err(|source| explain(program, spec.workdir, source))
}

fn start(spec: &Spec<'_>, program: &Path) -> io::Result<Pid> {
    let nothing = nothing()?.as_fd();
    Birth {
        program: &text_of(program)?,
        arguments: &Texts::arguments(spec.argv)?,
        environment: &Texts::environment(spec.env, spec.unset)?,
        workdir: &text_of(spec.workdir)?,
        input: nothing,
        output: spec.output.as_ref().map_or(nothing, AsFd::as_fd),
        group: spec.group.map(Group::fd),
        is_bound: spec.is_bound,
    }
    .start()
}

/// `/dev/null`, opened once.
fn nothing() -> io::Result<&'static File> {
    static NOTHING: OnceLock<File> = OnceLock::new();
    if let Some(file) = NOTHING.get() {
        return Ok(file);
    }
    let file = File::options().read(true).write(true).open("/dev/null")?;
    Ok(NOTHING.get_or_init(|| file))
}

/// The file of a program. A name without a slash is searched as a shell does it, on the PATH that the program gets.
fn locate(name: &str, workdir: &Path, path: Option<&OsStr>) -> Result<PathBuf, SpawnError> {
    if name.contains('/') {
        // An absolute name replaces the workdir.
        return Ok(workdir.join(name));
    }
    let mut forbidden = None;
    let search = path.map(OsStr::to_owned).or_else(|| env::var_os("PATH"));
    for folder in search.iter().flat_map(env::split_paths) {
        let candidate = workdir.join(folder).join(name);
        if nix::unistd::access(&candidate, nix::unistd::AccessFlags::X_OK).is_ok() {
            if candidate.is_file() {
                return Ok(candidate);
            }
        } else if candidate.is_file() {
            forbidden = Some(candidate);
        }
    }
    match forbidden {
        Some(path) => Err(SpawnError::NotExecutable(path)),
        None if workdir.join(name).is_file() => Err(SpawnError::MissingProgram(
            name.into(),
            " on PATH; did you mean the one in the workdir, with ./ before it?",
        )),
        None => Err(SpawnError::MissingProgram(name.into(), " on PATH")),
    }
}

/// What the error of a start means. The system tells a missing folder, program and interpreter alike.
fn explain(program: PathBuf, workdir: &Path, source: io::Error) -> SpawnError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) if !workdir.is_dir() => SpawnError::Workdir { path: workdir.into(), source },
        Some(libc::ENOENT | libc::ENOTDIR) if !program.exists() => {
            SpawnError::MissingProgram(program.display().to_string(), "")
        }
        Some(libc::ENOENT) => SpawnError::MissingInterpreter { interpreter: interpreter(&program), script: program },
        Some(libc::EACCES | libc::EPERM) => {
            let executable =
                fs::metadata(&program).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
            let enterable = nix::unistd::access(workdir, nix::unistd::AccessFlags::X_OK).is_ok();
            match (executable, enterable) {
                (_, false) => SpawnError::Workdir { path: workdir.into(), source },
                (false, true) => SpawnError::NotExecutable(program),
                (true, true) => SpawnError::Other { program, source },
            }
        }
        Some(libc::ENOEXEC) => SpawnError::NotAProgram(program),
        Some(libc::E2BIG) => SpawnError::TooLong,
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => SpawnError::NoProcess { program, source },
        _ => SpawnError::Other { program, source },
    }
}

/// What the first line of a script names, or the loader of a program that lacks it.
fn interpreter(script: &Path) -> String {
    use std::io::Read;
    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    let text = String::from_utf8_lossy(&start);
    match text.lines().next().and_then(|line| line.strip_prefix("#!")) {
        // A script written on Windows names an interpreter that ends in a carriage return.
        Some(line) if read.is_ok() => format!("{:?}", line.trim_start_matches(' ')),
        _ => String::from("of its format (its dynamic loader)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::process::end::{Exit, reap};

    fn start(argv: &[&str], workdir: &Path) -> Result<Pid, SpawnError> {
        let argv: Vec<String> = argv.iter().map(|word| (*word).into()).collect();
        make_workdir(workdir)?;
        let (output, _) = open_output(workdir, 0)?;
        spawn(&Spec {
            argv: &argv,
            workdir,
            env: &StringMap::new(),
            unset: &[],
            output: Some(output),
            group: None,
            is_bound: false,
        })
    }

    fn script(folder: &Path, name: &str, text: &str, mode: u32) -> String {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("new/Straße 7");
        let reason = |argv: &[&str]| {
            let error = start(argv, &work).unwrap_err();
            (error.reason(), error.sentence())
        };
        assert_eq!(reason(&["no-such-program-here"]).0, "missing_program");
        assert_eq!(reason(&["/no/such/program"]).0, "missing_program");
        assert_eq!(reason(&["./x"]).0, "missing_program");
        assert_eq!(reason(&[""]).0, "empty_command");
        assert_eq!(reason(&[&script(folder.path(), "plain", "#!/bin/sh\n", 0o644)]).0, "not_executable");
        assert_eq!(reason(&[&script(folder.path(), "text", "hello\n", 0o755)]).0, "not_a_program");
        let (word, sentence) = reason(&[&script(folder.path(), "bad", "#!/no/python\n", 0o755)]);
        assert_eq!(word, "missing_interpreter");
        assert!(sentence.contains("/no/python"), "{sentence}");
        script(&work, "local", "#!/bin/sh\n", 0o755);
        assert!(reason(&["local"]).1.contains("./"), "a hint");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(start(&["true"], &file).unwrap_err().reason(), "workdir");
        assert_eq!(start(&["true"], &file.join("below")).unwrap_err().reason(), "workdir");
    }

    #[test]
    fn a_relative_program_is_in_the_workdir_and_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("w");
        make_workdir(&work).unwrap();
        script(&work, "say", "#!/bin/sh\necho \"$PWD $1\"; echo bad >&2\n", 0o755);
        assert_eq!(reap(start(&["./say", "a b"], &work).unwrap()).unwrap().exit, Exit::Code(0));
        let text = fs::read_to_string(work.join("job.out")).unwrap();
        assert_eq!(text, format!("{} a b\nbad\n", work.display()));
    }

    /// What a program prints that is started with these variables.
    fn printed(argv: &[&str], env: &StringMap, unset: &[&str]) -> (Pid, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let argv: Vec<String> = argv.iter().map(|word| (*word).into()).collect();
        let (output, path) = open_output(folder.path(), 0).unwrap();
        let spec = Spec {
            argv: &argv,
            workdir: folder.path(),
            env,
            unset,
            output: Some(output),
            group: None,
            is_bound: false,
        };
        let pid = spawn(&spec).unwrap();
        assert_eq!(reap(pid).unwrap().exit, Exit::Code(0));
        (pid, fs::read_to_string(path).unwrap().lines().map(String::from).collect())
    }

    #[test]
    fn it_gets_the_environment_that_it_should() {
        let env = StringMap::from([("HOME".into(), "/own home".into()), ("NEW".into(), "a=b".into())]);
        let script = "echo \"$HOME|$NEW|${PATH:+path}|${CARGO_MANIFEST_DIR-unset}\"; read x || echo end; \
                      ps -o pgid= -p $$ | tr -d ' '";
        let (pid, lines) = printed(&["sh", "-c", script], &env, &["CARGO_MANIFEST_DIR"]);
        assert_eq!(lines, ["/own home|a=b|path|unset".to_owned(), "end".into(), pid.to_string()]);
    }

    #[test]
    fn no_signal_is_blocked_and_a_broken_pipe_ends_it() {
        let words = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
        let (_, lines) = printed(&words, &StringMap::new(), &[]);
        let masks: Vec<u64> =
            lines.iter().map(|line| u64::from_str_radix(line.split('\t').next_back().unwrap(), 16).unwrap()).collect();
        assert_eq!((masks[0], masks[1] & (1 << (libc::SIGPIPE - 1))), (0, 0), "{lines:?}");
    }

    #[test]
    fn what_no_system_takes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(start(&["true", "a\0b"], folder.path()).unwrap_err().reason(), "start_failed");
        assert_eq!(start(&["true", &"x".repeat(4 << 20)], folder.path()).unwrap_err().reason(), "too_long");
    }

    #[test]
    fn the_output_of_earlier_runs_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for (earlier_runs, word) in [(0, "zero"), (1, "one"), (2, "two")] {
            let (output, _) = open_output(folder.path(), earlier_runs).unwrap();
            let argv = ["echo".to_owned(), word.to_owned()];
            let spec = Spec {
                argv: &argv,
                workdir: folder.path(),
                env: &StringMap::new(),
                unset: &[],
                output: Some(output),
                group: None,
                is_bound: false,
            };
            reap(spawn(&spec).unwrap()).unwrap();
        }
        assert_eq!(
            (read("job.out.1"), read("job.out.2"), read("job.out")),
            ("zero\n".into(), "one\n".into(), "two\n".into())
        );
    }
}
