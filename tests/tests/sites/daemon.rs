//! The agent as a daemon: alone at its Site, told of new settings, kept by systemd.

use std::{fs, time::Duration};

use copal_tests::{
    at_site::AtSite,
    laptop::{Laptop, refused},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::change_settings;

fn this_host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn agent_pid(laptop: &Laptop) -> i32 {
    let pids = laptop.pids("copal-agent --site");
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

#[test]
fn new_settings_take_effect_without_losing_what_runs() {
    let laptop = Laptop::with_site(1);
    let pid = agent_pid(&laptop);
    laptop.app("Long", "command: sleep 600");
    let job = laptop.job(&["-a", "Long", "-w", "long"]);
    let first = laptop.allocation("serial", 10);
    laptop.wait_state(job, "RUNNING");
    let second = laptop.allocation("serial", 10);
    laptop.wait_batch_job(second, "queued");

    change_settings(&laptop, "local_nodes: 1", "local_nodes: 2");
    change_settings(&laptop, "max_nodes: 1000,", "max_nodes: 2,");
    let changes = laptop.json(&["site", "sync"]);
    assert_eq!(changes["agent"]["changes"]["scheduler.local_nodes"], serde_json::json!([1, 2]), "{changes}");
    assert_eq!(changes["agent"]["agent"], format!("pid {pid}"), "{changes}");
    assert_eq!(changes["agent"]["applied"], true, "{changes}");
    assert!(changes["settings"]["allowed_queues"].is_string(), "{changes}");
    // The second node is there, and the first still runs what it ran.
    laptop.wait_batch_job(second, "running");
    assert_eq!((laptop.state(job).as_str(), agent_pid(&laptop)), ("RUNNING", pid));
    assert_eq!(laptop.history(job).iter().filter(|state| *state == "RUNNING").count(), 1);
    let text = laptop.try_site(&["site", "sync"]);
    let said = String::from_utf8_lossy(&text.stderr);
    assert!(said.contains("The settings are as before.") && said.contains(&format!("pid {pid}")), "{said}");

    // A mistake changes nothing, neither here nor at the agent.
    change_settings(&laptop, "local_nodes: 2", "lokal_nodes: 3");
    let text = refused(&laptop.try_site(&["site", "sync"]), 1);
    assert!(text.contains("settings.yml") && text.contains("lokal_nodes"), "{text}");
    kill(Pid::from_raw(pid), Signal::SIGHUP).unwrap();
    laptop.wait_status("the settings before it hold");
    change_settings(&laptop, "lokal_nodes: 3", "local_nodes: 2");
    laptop.site(&["site", "sync"]);
    for id in [first, second] {
        laptop.site(&["queue", "rm", &id.to_string()]);
        laptop.wait_batch_job(id, "finished");
    }
}

#[test]
fn a_site_has_one_agent() {
    let laptop = Laptop::with_site(1);
    let pid = agent_pid(&laptop);
    // Starting it again is no fault; a second one by hand is told where the first runs.
    let text = laptop.try_site(&["site", "start"]);
    assert!(String::from_utf8_lossy(&text.stderr).contains(&format!("runs already: pid {pid}")));
    let path = laptop.site_path();
    let second = laptop.programs.run("copal-agent", &["--site", path.to_str().unwrap()]);
    let text = refused(&second, 1);
    assert!(text.contains("already") && text.contains(&format!("pid {pid} on {}", this_host())), "{text}");
    assert_eq!(agent_pid(&laptop), pid);

    pitfall_074_another_machine_has_the_site(&laptop);
    the_unit_of_systemd_runs_the_agent(&laptop);
}

/// The files that an agent on another machine leaves, on a file system that does not carry its lock.
fn pitfall_074_another_machine_has_the_site(laptop: &Laptop) {
    let files = [laptop.site_path().join("agent.pid"), laptop.site_path().join("log/agent-status.json")];
    let move_to_other_host = |path: &std::path::Path| {
        let text = fs::read_to_string(path).unwrap();
        text.replace(&this_host(), "login-two")
    };
    laptop.wait_status("well");
    let texts: Vec<String> = files.iter().map(|path| move_to_other_host(path)).collect();
    laptop.site(&["site", "stop"]);
    files.iter().zip(&texts).for_each(|(path, text)| fs::write(path, text).unwrap());
    let text = refused(&laptop.try_site(&["site", "start"]), 1);
    assert!(text.contains("runs on login-two"), "{text}");
    let text = refused(&laptop.try_site(&["site", "rm", "-y"]), 1);
    assert!(text.contains("on login-two"), "{text}");
    assert!(laptop.site(&["site", "status"]).contains("runs on login-two"));
    // It falls silent: its machine is gone.
    let mut status: serde_json::Value = serde_json::from_str(&texts[1]).unwrap();
    status["updated"] = "2026-01-01T00:00:00Z".into();
    fs::write(&files[1], status.to_string()).unwrap();
    assert!(laptop.site(&["site", "status"]).contains("is silent"));
    laptop.site(&["site", "start"]);

    // Two that took the Site at the same moment: the last to write its name has it, the other gives way.
    fs::write(&files[0], &texts[0]).unwrap();
    copal_tests::wait::wait_blocking("the agent to give way", copal_tests::laptop::LIMIT, || {
        match laptop.pids("copal-agent --site").len() {
            0 => Ok(()),
            _ => Err(laptop.logs()),
        }
    });
    assert_eq!(fs::read_to_string(&files[0]).unwrap(), texts[0], "the other's name stays");
    fs::write(&files[0], "").unwrap();
}

fn the_unit_of_systemd_runs_the_agent(laptop: &Laptop) {
    let unit = laptop.site(&["site", "unit"]);
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("an ExecStart");
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('"')).collect();
    let mut agent = laptop.programs.start(words[0], &words[1..]);
    // Its name is in the lock's file a moment before it hears signals.
    copal_tests::wait::wait_blocking("the agent to work", copal_tests::laptop::LIMIT, || {
        match laptop.json(&["site", "status"])["status"].clone() {
            status if status["pid"] == agent.pid() && status["services"]["site"]["failures"] == 0 => Ok(()),
            status => Err(status.to_string()),
        }
    });
    for wanted in ["Restart=on-failure", "KillMode=process", "WantedBy=default.target"] {
        assert!(unit.contains(wanted), "{unit}");
    }
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait(Duration::from_secs(60)), 0);
}

/// A password that is given to a command in its environment is for that command alone.
#[test]
fn what_a_site_runs_does_not_have_its_owners_password() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    laptop.copal_with_password("correct horse", &["site", "start", laptop.site_path().to_str().unwrap()]);
    let environment = fs::read(format!("/proc/{}/environ", agent_pid(&laptop))).unwrap();
    let names: Vec<_> = environment.split(|byte| *byte == 0).filter(|line| line.starts_with(b"COPAL_")).collect();
    let names = names.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>().join(" ");
    assert!(names.contains("COPAL_HOME=") && !names.contains("COPAL_PASSWORD"), "{names}");
}
