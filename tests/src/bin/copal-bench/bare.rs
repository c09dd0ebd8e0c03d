//! The same work without Copal: loops that start processes and wait for them, as many at a time, with
//! nothing kept about them. `std::process::Command` as used here is a `posix_spawn`.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Processes in a second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Calls `run` for 0 to `count`, `at_a_time` calls at a time.
fn repeat(count: usize, at_a_time: usize, run: impl Fn(usize) + Sync) -> Duration {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    run(index);
                }
            });
        }
    });
    start.elapsed()
}

fn end(command: &mut Command) {
    let status = command.process_group(0).stdin(Stdio::null()).status().expect("the command starts");
    assert!(status.success(), "{command:?}: {status}");
}

/// A command again and again, its output thrown away.
pub(crate) fn commands(argv: &[String], folder: &Path, count: usize, at_a_time: usize) -> Duration {
    repeat(count, at_a_time, |_| {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        end(&mut command);
    })
}

/// `/bin/true` in a new folder each, its output in a file there.
pub(crate) fn with_files(folder: &Path, count: usize, at_a_time: usize) -> Duration {
    fs::create_dir_all(folder).expect("a folder for folders");
    repeat(count, at_a_time, |index| {
        let workdir = folder.join(format!("{index:06}"));
        fs::create_dir(&workdir).expect("a new folder");
        let output: File =
            OpenOptions::new().create(true).append(true).open(workdir.join("job.out")).expect("a new file");
        let mut command = Command::new("/bin/true");
        command.current_dir(&workdir).stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        end(&mut command);
    })
}
