//! The walk-through of `docs/GRAPHS.md`: a graph over two Sites that grows until it has converged, as its user types it.
//! Site `beamline` makes data and stages them out; Site `cluster` stages them in, computes, and stages its results to an
//! S3 store; a hook makes the next round at both.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use copal_tests::{
    LIMIT,
    exchange::ask,
    laptop::Laptop,
    pages,
    process::{Running, describe, free_port},
    store,
    wait::wait_blocking,
};

/// The two Sites of the page, with its Apps and hooks, and the store.
struct World {
    _server: Running,
    store: u16,
    laptop: Laptop,
}

impl World {
    fn new() -> Self {
        let laptop = Laptop::new();
        let store = free_port();
        let home = laptop.programs.home().to_owned();
        let depot = home.join("depot");
        fs::create_dir(&depot).unwrap();
        let files = pages::files("GRAPHS.md");
        for site in ["beamline", "cluster"] {
            laptop.copal(&["site", "init", site, "--name", site, "--platform", "local", "-y"]);
            let path = home.join(site).join("settings.yml");
            let transfers = &files.iter().find(|(name, _)| name == &format!("{site}/settings.yml")).unwrap().1;
            let transfers = transfers
                .replace("/shared/depot", depot.to_str().unwrap())
                .replace("https://s3.example.org", &format!("http://127.0.0.1:{store}"));
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace("idle_ttl_sec: 60", "idle_ttl_sec: 600");
            let start = text.find("transfers:\n").unwrap();
            let end = start + text[start..].find("\n\n").unwrap();
            fs::write(&path, format!("{}{}{}", &text[..start], transfers.trim_end(), &text[end..])).unwrap();
        }
        for (name, text) in files.iter().filter(|(name, _)| !name.ends_with("/settings.yml")) {
            let path = home.join(name);
            fs::write(&path, text).unwrap();
            let mode = if name.ends_with("secrets.yml") { 0o600 } else { 0o755 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let server = store::start(&laptop.programs, store);
        Self { _server: server, store, laptop }
    }

    fn folder(&self, site: &str) -> PathBuf {
        self.laptop.programs.home().join(site)
    }

    /// A command in a Site's folder that must succeed.
    #[track_caller]
    fn at(&self, site: &str, arguments: &[&str]) -> String {
        let output = self.run(site, arguments);
        assert!(output.status.success(), "copal {}: {}{}", arguments.join(" "), describe(&output), self.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run(&self, site: &str, arguments: &[&str]) -> Output {
        let mut command = self.laptop.programs.command("copal");
        command.current_dir(self.folder(site)).args(arguments).output().unwrap()
    }

    fn logs(&self) -> String {
        let log = |site: &str| fs::read_to_string(self.folder(site).join("log/agent.log")).unwrap_or_default();
        format!("\n--- beamline\n{}\n--- cluster\n{}", log("beamline"), log("cluster"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for site in ["beamline", "cluster"] {
            drop(self.run(site, &["site", "stop"]));
        }
        for pid in self.laptop.pids("local-run") {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
    }
}

#[test]
fn a_graph_over_two_sites_grows_until_it_has_converged() {
    let world = World::new();
    for site in ["beamline", "cluster"] {
        world.at(site, &["site", "sync"]);
        world.at(site, &["app", "sync"]);
        world.at(site, &["site", "start"]);
        world.at(site, &["queue", "submit", "-n", "1", "-t", "10", "-j", "serial"]);
    }
    let first = ["job", "create", "-a", "Measure", "-w", "round/1", "-p", "guess=1", "-s", "image=depot:/round-1.dat"];
    world.at("beamline", &[&first[..], &["--tag", "campaign=root", "-y"]].concat());
    let second = ["job", "create", "-a", "Improve", "-w", "round/1", "-p", "round=1", "--parent", "1"];
    let slots = ["-s", "image=depot:/round-1.dat", "-s", "result=store:/round-1.txt"];
    world.at("cluster", &[&second[..], &slots, &["--tag", "campaign=root", "-y"]].concat());

    let mut watch = world.laptop.programs.command("copal");
    watch
        .args(["job", "watch", "--site", "all", "--tag", "campaign=root"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let jobs = wait_blocking("the last round", Duration::from_secs(120), || {
        let text = world.at("cluster", &["job", "ls", "--site", "all", "--tag", "campaign=root", "-o", "json"]);
        let jobs: serde_json::Value = serde_json::from_str(&text).unwrap();
        let all = jobs.as_array().unwrap();
        let over = all.iter().all(|job| job["state"] == "JOB_FINISHED");
        let converged = all.iter().any(|job| job["data"]["converged"] == true);
        if over && converged { Ok(jobs.clone()) } else { Err(format!("{text}{}", world.logs())) }
    });
    let jobs = jobs.as_array().unwrap();
    let last = jobs.iter().find(|job| job["data"]["converged"] == true).unwrap();
    let root: f64 = last["data"]["guess"].as_f64().unwrap();
    assert!((root - 2_f64.sqrt()).abs() < 1e-6, "{last}");
    let rounds = last["data"]["round"].as_i64().unwrap();
    assert!(rounds > 2 && jobs.len() == 2 * usize::try_from(rounds).unwrap(), "{rounds} rounds, {} Jobs", jobs.len());
    // Every round's result is in the store.
    for round in 1..=rounds {
        let head = format!(
            "GET /lab/root/round-{round}.txt HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nAuthorization: of its owner\r\n\r\n",
            world.store
        );
        let answer = ask(world.store, &head, b"").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "round {round}: {}", String::from_utf8_lossy(&answer));
    }
    // Whoever watched saw all of it, also the Jobs that came later, and was told when it was over.
    let status =
        wait_blocking("`copal job watch` to end", LIMIT, || watch.try_wait().unwrap().ok_or_else(|| "it runs".into()));
    let output = watch.wait_with_output().unwrap();
    assert!(status.success(), "{}", describe(&output));
    let seen = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = seen.lines().collect();
    let last = format!("  {} JOB_FINISHED", jobs.len());
    assert!(lines.last().is_some_and(|line| line.ends_with(&last)), "{}", describe(&output));
    // Which of the states on the way last long enough to be seen is chance.
    let on_the_way = ["AWAITING_PARENTS", "READY", "PREPROCESSED", "RUNNING", "POSTPROCESSED"];
    let saw_the_way = lines.iter().any(|line| on_the_way.iter().any(|state| line.contains(state)));
    assert!(saw_the_way, "{}", describe(&output));
}
