//! Python virtual environments with the packages that tests drive, each made once in the target folder.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use nix::fcntl::{Flock, FlockArg};

use crate::process::{describe, program_dir};

/// The `bin` folder of an environment that has the packages of `tests/python/<name>.txt`.
///
/// # Panics
/// When the environment can't be made.
#[must_use]
pub fn environment(name: &str) -> PathBuf {
    let requirements = scripts().join(format!("{name}.txt"));
    let target = program_dir().parent().expect("a profile's folder is in the target folder").join("python").join(name);
    fs::create_dir_all(&target).expect("the target folder can be written");
    // Tests in several processes may want it at once.
    let lock = File::create(target.join("lock")).expect("the target folder can be written");
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error).expect("a file can be locked");

    let (environment, stamp) = (target.join("venv"), target.join("installed.txt"));
    let interpreter = environment.join("bin/python");
    let wanted = fs::read(&requirements).expect("the requirements file is in the source tree");
    if !interpreter.exists() || fs::read(&stamp).ok() != Some(wanted.clone()) {
        let _ = fs::remove_file(&stamp);
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment));
        run(Command::new(&interpreter)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
            .arg(&requirements));
        fs::write(&stamp, wanted).expect("the target folder can be written");
    }
    environment.join("bin")
}

/// The folder with requirements files and scripts.
#[must_use]
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} can't be started: {error}"));
    assert!(output.status.success(), "{command:?}: {}", describe(&output));
}
