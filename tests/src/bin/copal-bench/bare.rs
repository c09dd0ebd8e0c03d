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

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};

/// A stretch of bare work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare {
    pub(crate) count: usize,
    pub(crate) time: Duration,
    /// CPU seconds of the loop and of what it started.
    pub(crate) cpu_sec: f64,
}

impl Bare {
    /// This and another stretch.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, time: self.time + other.time, cpu_sec: self.cpu_sec + other.cpu_sec }
    }

    pub(crate) fn rate(self) -> f64 {
        rate(self.count, self.time)
    }

    /// CPU microseconds a process.
    pub(crate) fn cpu_us(self) -> f64 {
        self.cpu_sec * 1e6 / self.count as f64
    }
}

/// Seconds of CPU time that this process and its ended children have used.
fn cpu_sec() -> f64 {
    let of = |who: UsageWho| {
        let usage = getrusage(who).expect("usage is always known");
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}

/// Processes in a second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Calls `run` for 0 to `count`, `at_a_time` calls at a time; also says which of these places calls.
fn repeat(count: usize, at_a_time: usize, run: impl Fn(usize, usize) + Sync) -> Bare {
    let next = AtomicUsize::new(0);
    let (start, cpu) = (Instant::now(), cpu_sec());
    thread::scope(|scope| {
        for place in 0..at_a_time {
            let (next, run) = (&next, &run);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    run(index, place);
                }
            });
        }
    });
    Bare { count, time: start.elapsed(), cpu_sec: cpu_sec() - cpu }
}

fn end(command: &mut Command) {
    let status = command.process_group(0).stdin(Stdio::null()).status().expect("the command starts");
    assert!(status.success(), "{command:?}: {status}");
}

/// A command again and again, with more variables than this process has, its output thrown away.
pub(crate) fn commands(
    argv: &[String],
    env: &[(String, String)],
    folder: &Path,
    count: usize,
    at_a_time: usize,
) -> Bare {
    // Runs of Open MPI 4 that share a folder for their files may trip over each other.
    let own = |place: usize| {
        env.iter().map(move |(name, value)| match name.as_str() {
            "OMPI_MCA_orte_tmpdir_base" => (name.clone(), format!("{value}-{place}")),
            _ => (name.clone(), value.clone()),
        })
    };
    repeat(count, at_a_time, |_, place| {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).envs(own(place)).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        end(&mut command);
    })
}

/// `/bin/true` in a new folder each, its output in a file there.
pub(crate) fn with_files(folder: &Path, count: usize, at_a_time: usize) -> Bare {
    fs::create_dir_all(folder).expect("a folder for folders");
    repeat(count, at_a_time, |index, _| {
        let workdir = folder.join(format!("{index:06}"));
        fs::create_dir(&workdir).expect("a new folder");
        let output: File =
            OpenOptions::new().create(true).append(true).open(workdir.join("job.out")).expect("a new file");
        let mut command = Command::new("/bin/true");
        command.current_dir(&workdir).stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        end(&mut command);
    })
}
