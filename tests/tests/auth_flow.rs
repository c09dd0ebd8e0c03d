//! Credentials of people, agents and launchers on one machine: each renews its own, outlives the user's,
//! and none is found where others look.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use copal_tests::{
    Api,
    browser::Browser,
    laptop::{LIMIT, Laptop, refused},
    wait::wait_blocking,
};

/// Says that it runs, and ends when a file is there.
const GATED: &str = "command: echo up > up; while [ ! -e ../go ]; do sleep 0.1; done; echo done";
const PASSWORD: &str = "correct horse";

/// What a credentials file has of a kind.
fn field(path: &Path, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = match value.unwrap_or_else(|| panic!("no {name} in {}", path.display())) {
        // A long text, on a line of its own.
        ">-" => lines.next().unwrap_or_default().trim(),
        short => short,
    };
    value.trim_matches(['"', '\'']).to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o777
}

fn wait_gone(laptop: &Laptop, path: &Path) {
    wait_blocking(&format!("{} to be gone", path.display()), LIMIT, || match path.exists() {
        false => Ok(()),
        true => Err(laptop.logs()),
    });
}

fn client_file(laptop: &Laptop) -> PathBuf {
    laptop.programs.home().join(".copal/client.yml")
}

fn log_in(laptop: &Laptop) {
    let url = format!("http://127.0.0.1:{}", laptop.port);
    laptop.copal_with_password(PASSWORD, &["login", "--url", &url, "--username", "ann"]);
}

/// Makes the service refuse every access token that it gave so far, as if all had lapsed.
fn lapse_all_tokens(laptop: &Laptop, sample: &str) {
    laptop.programs.run_ok("copal-server", &["rotate-keys", "--retire-all"]);
    let api = Api::new(&format!("http://127.0.0.1:{}", laptop.port)).with_token(sample);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    wait_blocking("tokens to be refused", LIMIT, || match runtime.block_on(api.get("/auth/password/me")).status {
        401 => Ok(()),
        status => Err(status.to_string()),
    });
}

/// The secrets of a credentials file, for the search at the end.
fn note(secrets: &mut BTreeSet<String>, path: &Path) {
    for name in ["token", "refresh_token"] {
        secrets.insert(field(path, name));
    }
}

/// Fails when a file other than those made for it, or a command line, has one of the secrets.
fn assert_kept(laptop: &Laptop, secrets: &BTreeSet<String>) {
    assert!(secrets.iter().all(|secret| secret.len() > 20), "{secrets:?}");
    let home = laptop.programs.home();
    let patterns = home.join("patterns");
    fs::write(&patterns, secrets.iter().map(|secret| format!("{secret}\n")).collect::<String>()).unwrap();
    let found = Command::new("grep")
        .args(["-rlaF", "--exclude=patterns", "--exclude=client.yml", "--exclude=agent.yml"])
        .args(["--exclude=*.launcher-secret.yml", "--exclude=*.launcher-login.yml", "-f"])
        .args([&patterns, home])
        .output()
        .unwrap();
    fs::remove_file(&patterns).unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files with secrets");
    for line in laptop.programs.left() {
        assert!(!secrets.iter().any(|secret| line.contains(secret)), "a command line with a secret");
    }
}

#[test]
fn pitfall_125_agent_and_launcher_outlive_the_users_login_and_every_token() {
    let laptop = Laptop::embedded().and_site(1);
    laptop.app("Gated", GATED);
    let job = laptop.job(&["-a", "Gated", "-w", "gated"]);
    let batch_job = laptop.allocation("serial", 10);
    laptop.wait_file("gated", "up");
    // There is one node: this one waits in the queue.
    let waiting = laptop.allocation("serial", 10);
    let qsubmit = laptop.site_path().join("qsubmit");
    let file = |id: i64, kind: &str| qsubmit.join(format!("{id}.launcher-{kind}.yml"));
    wait_blocking("the secret of the waiting BatchJob", LIMIT, || match file(waiting, "secret").exists() {
        true => Ok(()),
        false => Err(laptop.logs()),
    });

    let (agent, launcher) = (laptop.site_path().join("agent.yml"), file(batch_job, "login"));
    let mut secrets = BTreeSet::new();
    for path in [&client_file(&laptop), &agent, &launcher] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        note(&mut secrets, path);
    }
    assert!(!file(batch_job, "secret").exists(), "a spent secret is still there");
    assert_eq!(mode(&file(waiting, "secret")), 0o600);
    secrets.insert(field(&file(waiting, "secret"), "secret"));
    let users = fs::read_to_string(client_file(&laptop)).unwrap();
    assert_kept(&laptop, &secrets);

    laptop.copal(&["logout"]);
    assert!(!client_file(&laptop).exists());
    let before = [field(&agent, "token"), field(&launcher, "token")];
    lapse_all_tokens(&laptop, &before[0]);
    wait_blocking("agent and launcher to renew their tokens", LIMIT, || {
        match field(&agent, "token") != before[0] && field(&launcher, "token") != before[1] {
            true => Ok(()),
            false => Err(laptop.logs()),
        }
    });
    note(&mut secrets, &agent);
    note(&mut secrets, &launcher);

    // Nobody is logged in: the run's end is reported, both allocations end, and their credentials go away.
    fs::write(laptop.site_path().join("data/go"), "").unwrap();
    wait_gone(&laptop, &launcher);
    wait_blocking("the waiting BatchJob's launcher to log in", LIMIT, || match file(waiting, "secret").exists() {
        false => Ok(()),
        true => Err(laptop.logs()),
    });
    wait_blocking("all credentials of ended BatchJobs to be gone", LIMIT, || {
        let left = fs::read_dir(&qsubmit).unwrap().map(|entry| entry.unwrap().file_name());
        match left.into_iter().find(|name| name.to_string_lossy().contains("launcher-")) {
            None => Ok(()),
            Some(name) => Err(format!("{name:?}; {}", laptop.logs())),
        }
    });

    // A copy of the file that was logged out is worth nothing.
    fs::write(client_file(&laptop), users).unwrap();
    fs::set_permissions(client_file(&laptop), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = refused(&laptop.try_site(&["whoami"]), 1);
    assert!(text.contains("copal login"), "{text}");
    log_in(&laptop);
    note(&mut secrets, &client_file(&laptop));
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(laptop.history(job).iter().filter(|state| *state == "RUNNING").count(), 1);
    assert_eq!(laptop.output("gated"), b"done\n");
    let told = laptop.site(&["events", "ls", "-o", "json"])
        + laptop.site(&["queue", "ls", "--history", "-o", "json"]).as_str();
    assert!(!secrets.iter().any(|secret| told.contains(secret)), "{told}");
    assert_kept(&laptop, &secrets);
}

#[test]
fn a_login_renews_itself() {
    let laptop = Laptop::embedded();
    let path = client_file(&laptop);
    let lapse = || {
        let text = fs::read_to_string(&path).unwrap();
        let expiry = field(&path, "token_expiry");
        fs::write(&path, text.replace(&expiry, "2026-01-01T00:00:00+00:00")).unwrap();
    };
    // By the clock here.
    lapse();
    let lapsed = field(&path, "token_expiry");
    assert!(laptop.copal(&["whoami"]).contains("ann"));
    // Two tokens of one login and one second are the same text: the time tells that there was a new one.
    assert_ne!(lapsed, field(&path, "token_expiry"));
    let second = field(&path, "token");
    // By the service, while several commands run at once.
    lapse_all_tokens(&laptop, &second);
    let commands: Vec<_> = (0..4)
        .map(|_| {
            let mut command = laptop.programs.command("copal");
            command.args(["site", "ls"]).spawn().unwrap()
        })
        .collect();
    for mut command in commands {
        assert!(command.wait().unwrap().success());
    }
    assert_ne!(field(&path, "token"), second);
    assert_eq!(mode(&path), 0o600);
    laptop.copal(&["logout"]);
    let text = refused(&laptop.programs.run("copal", &["whoami"]), 1);
    assert!(text.contains("not logged in"), "{text}");
    laptop.copal(&["logout"]);
}

#[test]
fn a_site_whose_login_was_ended_gets_a_new_one_with_the_users() {
    let laptop = Laptop::embedded().and_site(1);
    laptop.app("Gated", GATED);
    let agent = laptop.site_path().join("agent.yml");
    wait_blocking("the agent's login", LIMIT, || agent.exists().then_some(()).ok_or_else(|| laptop.logs()));
    let before = field(&agent, "refresh_token");
    let api = Api::new(&format!("http://127.0.0.1:{}", laptop.port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(api.post_form("/auth/revoke", &[("token", &before)])).deleted();
    wait_blocking("a new login", LIMIT, || match field(&agent, "refresh_token") == before {
        false => Ok(()),
        true => Err(laptop.logs()),
    });
    fs::write(laptop.site_path().join("data/go"), "").unwrap();
    let job = laptop.job(&["-a", "Gated", "-w", "gated"]);
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");

    // One that is of another Site is not used.
    laptop.site(&["site", "stop"]);
    let text = fs::read_to_string(&agent).unwrap();
    fs::write(&agent, text.replace("site_id: 1", "site_id: 7")).unwrap();
    laptop.site(&["site", "start"]);
    wait_blocking("a login for this Site", LIMIT, || match field(&agent, "site_id").as_str() {
        "1" => Ok(()),
        _ => Err(laptop.logs()),
    });
}

#[test]
fn a_device_login_is_approved_elsewhere() {
    let laptop = Laptop::embedded();
    laptop.copal(&["logout"]);
    let url = format!("http://127.0.0.1:{}", laptop.port);
    let mut login = laptop.programs.start("copal", &["login", "--device", "--url", &url]);
    let code = wait_blocking("the code", LIMIT, || {
        let log = login.log();
        let code = log.split_once("approve the code ").and_then(|(_, rest)| rest.split(['.', '\n']).next());
        code.map(str::to_owned).ok_or(log)
    });
    let api = Api::new(&url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let form = [("user_code", &*code), ("username", "ann"), ("password", PASSWORD), ("decision", "approve")];
    assert_eq!(runtime.block_on(api.post_form("/auth/oauth/ALCF/login/device", &form)).status, 200);
    assert_eq!(login.wait(Duration::from_secs(30)), 0, "{}", login.log());
    assert!(laptop.copal(&["whoami"]).contains("ann"));
    assert!(field(&client_file(&laptop), "refresh_token").starts_with("copal_refresh_"));
}

/// What `copal login --device` asks for, done in a real browser by reading, typing and clicking alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_logins_are_decided_in_the_browser() {
    let laptop = tokio::task::spawn_blocking(Laptop::embedded).await.unwrap();
    laptop.copal(&["logout"]);
    let url = format!("http://127.0.0.1:{}", laptop.port);
    let browser = Browser::start(&laptop.programs).await;
    for (decision, told, outcome) in [("deny", "Denied.", 1), ("approve", "Approved.", 0)] {
        let mut login = laptop.programs.start("copal", &["login", "--device", "--url", &url]);
        let earlier = login.log().matches("user_code=").count();
        let link = wait_blocking("the link", LIMIT, || {
            let log = login.log();
            let link = log.split_whitespace().filter(|word| word.contains("user_code=")).nth(earlier);
            link.map(str::to_owned).ok_or(log)
        });
        let code = link.split_once("user_code=").unwrap().1;
        browser.open(&link).await;
        let page = browser.text().await;
        assert!(page.contains("Approve a login") && page.contains("copal"), "{page}");
        assert_eq!(browser.element("user_code").await.prop("value").await.unwrap().unwrap(), code);
        browser.fill("username", "ann").await;
        browser.fill("password", "wrong").await;
        browser.click(decision).await;
        browser.wait_text("User name or password is wrong.").await;
        // The code is still there; only what was wrong is typed again.
        assert_eq!(browser.element("user_code").await.prop("value").await.unwrap().unwrap(), code);
        browser.fill("username", "ann").await;
        browser.fill("password", PASSWORD).await;
        browser.click(decision).await;
        browser.wait_text(told).await;
        assert!(!browser.element("user_code").await.is_displayed().await.unwrap(), "nothing is left to decide");
        assert_eq!(login.wait(Duration::from_secs(30)), outcome, "{}", login.log());
        browser.open(&link).await;
        browser.wait_text("This code is unknown, was decided on already, or has lapsed.").await;
    }
    assert!(laptop.copal(&["whoami"]).contains("ann"));
    browser.close().await;
    tokio::task::spawn_blocking(|| drop(laptop)).await.unwrap();
}
