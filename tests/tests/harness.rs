//! The harness itself: what it starts it also stops, whatever happens to the command it runs.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use copal_tests::{
    Service, Settings,
    at_site::AtSite,
    postgres::TestDatabase,
    process::{Programs, Running, describe},
    wait::{LIMIT, wait_blocking},
};
use nix::sys::signal::Signal;

/// `copal-test-env run` with a shell command, its folder in this test's home.
fn environment(programs: &Programs, script: &str) -> Command {
    let mut command = programs.command("copal-test-env");
    command.args(["run", "--", "sh", "-c", script]).env("TMPDIR", programs.home());
    command
}

fn clusters(programs: &Programs) -> Vec<String> {
    let entries = fs::read_dir(programs.home()).expect("the home exists");
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("copal-test-pg-")).collect()
}

#[test]
fn a_command_runs_with_a_cluster_that_is_gone_afterwards() {
    let programs = Programs::new();
    let output = environment(&programs, "echo \"$COPAL_TEST_DATABASE_URL\"; exit 7").output().expect("it starts");
    assert_eq!(output.status.code(), Some(7), "{}", describe(&output));
    let url = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(url.starts_with("postgresql:///postgres?"), "{url}");
    assert_eq!(clusters(&programs), [""; 0]);
    assert_eq!(programs.left(), [""; 0]);
}

#[test]
fn a_signal_ends_the_command_and_the_cluster() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let programs = Programs::new();
        let ready = programs.home().join("ready");
        let mut child =
            environment(&programs, "trap 'exit 9' TERM INT; touch \"$HOME/ready\"; while :; do sleep 0.1; done")
                .spawn()
                .expect("it starts");
        wait_blocking("the command to start", LIMIT, || if ready.exists() { Ok(()) } else { Err("no file".into()) });
        assert_eq!(clusters(&programs).len(), 1);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), signal).expect("it runs");
        let status = child.wait().expect("it is this test's child");
        assert_eq!(status.code(), Some(9), "{signal}");
        assert_eq!(clusters(&programs), [""; 0]);
    }
}

#[test]
fn a_process_left_behind_fails_the_run() {
    let programs = Programs::new();
    // A stranger to the shell: its own session, no open output.
    let script = "setsid sleep 600 </dev/null >/dev/null 2>&1 & exit 0";
    let output = environment(&programs, script).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    assert!(text.contains("sleep 600"), "{text}");
}

#[test]
fn a_command_that_is_not_there() {
    let programs = Programs::new();
    let mut command = programs.command("copal-test-env");
    let output = command.args(["run", "--", "/no/such/program"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
}

#[test]
fn a_cluster_for_one_process_ends_with_it() {
    let programs = Programs::new();
    let mut command = programs.command("copal-test-env");
    command.arg("serve").env("TMPDIR", programs.home()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let (input, mut output) = (child.stdin.take(), child.stdout.take().expect("stdout is a pipe"));
    let mut byte = [0];
    std::io::Read::read_exact(&mut output, &mut byte).expect("it prints a URL");
    assert_eq!(clusters(&programs).len(), 1);
    drop(input);
    assert!(child.wait().expect("it is this test's child").success());
    assert_eq!(clusters(&programs), [""; 0]);
}

async fn databases(observer: &TestDatabase) -> Vec<String> {
    let mut connection = observer.connect().await;
    sqlx::query_scalar("select datname from pg_database").fetch_all(&mut connection).await.expect("rows")
}

#[tokio::test]
async fn each_test_has_a_database_that_goes_with_it() {
    let observer = TestDatabase::create().await;
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let url = service.database().url();
    let name = url.split(['/', '?']).find(|part| part.starts_with("test_")).expect("a name of its own").to_owned();
    assert!(databases(&observer).await.contains(&name));
    drop(service);
    assert!(!databases(&observer).await.contains(&name));
}

#[test]
fn programs_that_run_are_seen_and_stopped() {
    let programs = Programs::new();
    let shell = "/bin/sh";
    assert!(Path::new(shell).exists());
    let mut nested: Running = programs.start(shell, &["-c", "(sleep 600 & wait) & wait"]);
    wait_blocking("three processes", LIMIT, || match programs.left().len() {
        count if count >= 3 => Ok(()),
        count => Err(count.to_string()),
    });
    for line in programs.left() {
        let pid: i32 = line.split(':').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    }
    assert_eq!(nested.wait(Duration::from_secs(10)), -9);
    wait_blocking("nothing to be left", LIMIT, || match programs.left() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

/// A Site's folder without a Site.
struct Folder(tempfile::TempDir);

impl AtSite for Folder {
    fn site_folder(&self) -> PathBuf {
        self.0.path().into()
    }

    fn copal_command(&self) -> Command {
        Command::new("false")
    }
}

#[test]
fn what_a_failure_prints_holds_no_credential() {
    let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
    for (name, text) in [("log/agent.log", "it began"), ("qsubmit/7.launcher-login.yml", "token: t0p")] {
        let path = folder.site_folder().join(name);
        fs::create_dir(path.parent().expect("a folder")).expect("the folder is this test's own");
        fs::write(path, text).expect("the folder is this test's own");
    }
    let logs = folder.ends_of_logs();
    assert!(logs.contains("it began") && !logs.contains("t0p"), "{logs}");
}
