//! A service that is away, a login that is ended, a disk that is full: shown, waited for, and over by themselves.

use std::{fs, path::Path, process::Command};

use copal_tests::{Api, at_site::AtSite, laptop::Laptop, process::describe};
use nix::sys::signal::Signal;

#[test]
fn an_outage_of_the_service_is_shown_and_passes() {
    let mut laptop = Laptop::with_site(1);
    laptop.wait_status("well");
    let server = laptop.server.take().unwrap();
    server.signal(Signal::SIGKILL);
    drop(server);
    laptop.wait_status("can't reach the service at http://127.0.0.1");
    // It is tried again and again.
    laptop.wait_status(" times");
    let services = laptop.json(&["site", "status"])["status"]["services"].clone();
    let ill = services.as_object().unwrap().values().find(|service| service["failures"].as_i64() > Some(0)).unwrap();
    assert!(ill["last_error_time"].is_string() && ill["last_success"].is_string(), "{services}");

    let (server, _) = laptop.programs.start_server(laptop.port, &[]);
    laptop.server = Some(server);
    all_is_well(&laptop);
    let id = laptop.allocation("serial", 10);
    laptop.wait_batch_job(id, "finished");
}

#[test]
fn a_login_that_was_ended_is_shown_until_its_owner_logs_in() {
    let laptop = Laptop::with_site(1);
    laptop.wait_status("well");
    let url = format!("http://127.0.0.1:{}", laptop.port);
    let login = fs::read_to_string(laptop.site_path().join("agent.yml")).unwrap();
    let token = login.lines().find_map(|line| line.strip_prefix("refresh_token: ")).expect("a refresh token");
    laptop.copal(&["logout"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Api::new(&url).post_form("/auth/revoke", &[("token", token.trim_matches('"'))])).deleted();
    let text = laptop.wait_status("does not accept the Site's login any more; run `copal login`");
    assert!(text.contains("runs, pid"), "{text}");

    laptop.copal_with_password("correct horse", &["login", "--url", &url, "--username", "ann"]);
    all_is_well(&laptop);
    let id = laptop.allocation("serial", 10);
    laptop.wait_batch_job(id, "finished");
}

/// Waits until no task of the agent has failed when it was last tried.
fn all_is_well(laptop: &Laptop) {
    copal_tests::wait::wait_blocking("all tasks to be well again", copal_tests::laptop::LIMIT, || {
        let status = laptop.json(&["site", "status"])["status"]["services"].clone();
        let services = status.as_object().unwrap();
        if services.values().all(|service| service["failures"] == 0) { Ok(()) } else { Err(status.to_string()) }
    });
}

/// A file system of its own for `qsubmit/`, which is filled up; unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(folder: &'a Path) -> Self {
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(folder).output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        Self(folder)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn pitfall_075_a_full_disk_loses_no_batch_job() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root may mount the small disk that this test fills");
        return;
    }
    let laptop = Laptop::new();
    laptop.init_site(1);
    let folder = laptop.site_path().join("qsubmit");
    let disk = SmallDisk::mount(&folder);
    let filler = folder.join("filler");
    while fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&filler)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]))
        .is_ok()
    {}
    laptop.site(&["site", "start"]);
    let id = laptop.allocation("serial", 10);
    laptop.wait_status("No space left on device");
    assert_eq!(laptop.batch_job(id)["state"], "pending_submission");
    fs::remove_file(&filler).unwrap();
    laptop.wait_batch_job(id, "finished");
    laptop.site(&["site", "stop"]);
    drop(disk);
}
