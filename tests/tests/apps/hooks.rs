//! Hooks, good and bad.

use std::{fs, os::unix::fs::symlink};

use copal_tests::wait::wait_blocking;
use serde_json::Value;

use crate::laptop::{LIMIT, Laptop};

/// The event that made a Job FAILED.
fn failure(laptop: &Laptop, job: i64) -> Value {
    laptop.wait_state(job, "FAILED");
    let events = laptop.json(&["events", "ls", "--job", &job.to_string()]);
    let event = events.as_array().unwrap().iter().find(|event| event["to_state"] == "FAILED");
    event.unwrap()["data"].clone()
}

#[test]
fn a_bad_hook_fails_its_job_with_the_reason_and_others_go_on() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let settings = laptop.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("hook_timeout_sec: 600", "hook_timeout_sec: 3")).unwrap();
    laptop.site(&["site", "start"]);
    let bad = [
        ("Fails", "echo first; echo it broke >&2; exit 3", "ended with exit code 3"),
        ("Killed", "kill -9 $$", "ended with SIGKILL"),
        ("Hangs", "echo waiting; sleep 1000 & wait", "took longer than 3 s"),
        ("Garbage", "head -c 100000 /dev/urandom > $COPAL_RESULT", "is not a JSON object"),
        ("BadJson", "echo '{\"data\": ' > $COPAL_RESULT", "is not a JSON object"),
        ("Nul", r#"printf '{"data": {"x": "a\\u0000b"}}' > $COPAL_RESULT"#, "has a NUL character"),
        ("Huge", "head -c 5000000 /dev/zero | tr '\\0' x > $COPAL_RESULT", "is larger than"),
        ("NoState", "echo '{\"state\": \"DONE\"}' > $COPAL_RESULT", "DONE"),
        ("Illegal", "echo '{\"state\": \"JOB_FINISHED\"}' > $COPAL_RESULT", "the hook asked for JOB_FINISHED"),
    ];
    for (name, script, _) in bad {
        laptop.script(&format!("{name}.sh"), &format!("#!/bin/bash\n{script}\n"));
    }
    laptop.script("NoProgram.sh", "#!/no/such/program\n");
    fs::write(laptop.site_path().join("apps/Plain.sh"), "#!/bin/sh\n").unwrap();
    laptop.script("Good.sh", "#!/bin/sh\nprintf 'odd \\377\\000 output\\n'\n");
    let more = [
        ("NoProgram", "the program of its first line"),
        ("Plain", "is it executable (chmod +x)?"),
        ("Missing", "Missing.sh does not exist"),
    ];
    let names: Vec<(&str, &str)> =
        bad.iter().map(|(name, _, reason)| (*name, *reason)).chain(more).chain([("Good", "")]).collect();
    for (name, _) in &names {
        fs::write(
            laptop.site_path().join(format!("apps/{name}.yml")),
            format!("name: {name}\ncommand: 'true'\nhooks: {{preprocess: ./{name}.sh}}\n"),
        )
        .unwrap();
    }
    laptop.site(&["app", "sync"]);
    let jobs: Vec<(i64, &str, &str)> = names
        .iter()
        .map(|(name, reason)| (laptop.job(&["-a", name, "-w", &format!("bad/{name}")]), *name, *reason))
        .collect();
    for (job, name, reason) in &jobs {
        if *name == "Good" {
            laptop.wait_state(*job, "PREPROCESSED");
            continue;
        }
        let data = failure(&laptop, *job);
        let text = data["reason"].as_str().unwrap_or_default();
        assert!(text.contains(reason), "{name}: {data}");
    }
    let of = |name: &str| jobs.iter().find(|job| job.1 == name).unwrap().0;
    let data = failure(&laptop, of("Fails"));
    assert_eq!((&data["return_code"], &data["error_tail"]), (&3.into(), &"first\nit broke".into()));
    assert_eq!(failure(&laptop, of("Hangs"))["error_tail"], "waiting");
    // What people see without asking for events.
    let shown = laptop.site(&["job", "show", &of("Fails").to_string()]);
    assert!(shown.contains("it broke"), "{shown}");
}

#[test]
fn hooks_run_at_the_same_time_and_jobs_without_one_never_wait_for_them() {
    let laptop = Laptop::with_site(1);
    // Four hooks (`num_workers`) that wait for each other: one after the other they would never end.
    laptop.script(
        "meet.sh",
        "#!/bin/bash\ncd \"$COPAL_SITE_PATH\"\ntouch here.$COPAL_JOB_ID\n\
         until [ \"$(ls here.* | wc -l)\" = 4 ]; do sleep 0.05; done\n",
    );
    laptop.app("Meet", "command: 'true'\nhooks: {preprocess: ./meet.sh}");
    laptop.app("Plain", "command: 'true'");
    let jobs: Vec<i64> = (0..4).map(|index| laptop.job(&["-a", "Meet", "-w", &format!("meet/{index}")])).collect();
    let plain = laptop.job(&["-a", "Plain", "-w", "plain"]);
    assert_eq!(laptop.state(plain), "PREPROCESSED", "the service alone carries it so far");
    for job in jobs {
        laptop.wait_state(job, "PREPROCESSED");
    }
}

#[test]
fn a_graph_grows_from_a_hook_with_the_users_own_login() {
    let laptop = Laptop::with_site(1);
    laptop.script(
        "next.sh",
        "#!/bin/bash\nset -e\nround=$(cat round)\n\
         echo \"{\\\"data\\\": {\\\"round\\\": $round}}\" > \"$COPAL_RESULT\"\n\
         [ \"$round\" -ge 3 ] || copal job create -a Round -w \"round/$((round + 1))\" -p round=$((round + 1)) --parent \"$COPAL_JOB_ID\" -y\n",
    );
    laptop.app(
        "Round",
        "command: echo {{round}} > round\nparameters: {round: {required: true}}\nhooks: {postprocess: ./next.sh}\n\
         cleanup_files: [round, 'link/*']",
    );
    let first = laptop.job(&["-a", "Round", "-w", "round/1", "-p", "round=1"]);
    // Cleaning up must not follow this.
    let outside = laptop.site_path().join("outside");
    fs::create_dir_all(laptop.site_path().join("data/round/1")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "").unwrap();
    symlink(&outside, laptop.site_path().join("data/round/1/link")).unwrap();
    laptop.allocation("serial", 10);
    laptop.wait_state(first, "JOB_FINISHED");
    let last = wait_blocking("three rounds", LIMIT, || {
        let jobs = laptop.json(&["job", "ls", "--state", "JOB_FINISHED"]);
        let jobs = jobs.as_array().unwrap();
        if jobs.len() == 3 { Ok(jobs[2].clone()) } else { Err(format!("{jobs:?}; {}", laptop.logs())) }
    });
    assert_eq!((&last["workdir"], &last["data"]["round"]), (&"round/3".into(), &3.into()));
    let first = laptop.show(first);
    assert_eq!(last["id"].as_i64().unwrap(), first["id"].as_i64().unwrap() + 2);
    // The login of the user never shows in what hooks and agent write.
    let login = fs::read_to_string(laptop.programs.home().join(".copal/client.yml")).unwrap();
    let tokens: Vec<&str> = login.split_whitespace().filter(|word| word.starts_with("eyJ")).collect();
    let log = fs::read_to_string(laptop.site_path().join("data/round/1/copal.log")).unwrap();
    assert!(log.contains("postprocess ./next.sh (RUN_DONE)") && log.contains("Created Job 2 of Round"), "{log}");
    let logs = format!("{log}{}", laptop.logs());
    assert!(!tokens.is_empty() && !tokens.iter().any(|token| logs.contains(token)), "{tokens:?}");
    clean_up_is_done(&laptop, &outside);
}

fn clean_up_is_done(laptop: &Laptop, outside: &std::path::Path) {
    // The first look of the file cleaner came before the Jobs were; SIGHUP does not hurry it, a new agent does.
    laptop.site(&["site", "stop"]);
    laptop.site(&["site", "start"]);
    wait_blocking("the files to be deleted", LIMIT, || {
        let left: Vec<bool> =
            (1..=3).map(|round| laptop.site_path().join(format!("data/round/{round}/round")).exists()).collect();
        if left == [false; 3] { Ok(()) } else { Err(format!("{left:?}; {}", laptop.logs())) }
    });
    assert!(outside.join("keep").exists());
    wait_blocking("all Jobs to be marked", LIMIT, || {
        let jobs = laptop.json(&["job", "ls"]);
        let pending = jobs.as_array().unwrap().iter().filter(|job| job["pending_file_cleanup"] == true).count();
        if pending == 0 { Ok(()) } else { Err(format!("{pending} are not")) }
    });
    // Once: what a finished Job's folder gets later stays.
    let later = laptop.site_path().join("data/round/1/round");
    fs::write(&later, "later").unwrap();
    laptop.site(&["site", "stop"]);
    laptop.site(&["site", "start"]);
    wait_blocking("a look of the file cleaner", LIMIT, || {
        let status = fs::read_to_string(laptop.site_path().join("log/agent-status.json")).unwrap_or_default();
        if status.contains("0 files of 0 Jobs") { Ok(()) } else { Err(status) }
    });
    assert!(later.exists());
}

#[test]
fn hooks_end_with_an_agent_that_is_killed_and_run_again_with_the_next() {
    let laptop = Laptop::with_site(1);
    laptop.script(
        "once.sh",
        "#!/bin/bash\n[ -e tried ] && exit 0\nbash -c 'trap \"\" TERM; echo $$ > child; sleep 1000' &\n\
         touch tried; echo $$ > hook; wait\n",
    );
    laptop.app("Once", "command: 'true'\nhooks: {preprocess: ./once.sh}");
    let job = laptop.job(&["-a", "Once", "-w", "once"]);
    let processes: Vec<i32> =
        ["hook", "child"].map(|file| laptop.wait_file("once", file).trim().parse().unwrap()).into();
    let lives = |pid: &i32| laptop.programs.left().iter().any(|line| line.starts_with(&format!("{pid}:")));
    assert!(processes.iter().all(lives));
    for pid in laptop.pids("copal-agent") {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    wait_blocking("the hook and its child to be gone", LIMIT, || {
        let left: Vec<&i32> = processes.iter().filter(|pid| lives(pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} live; {}", laptop.logs())) }
    });
    laptop.site(&["site", "start"]);
    laptop.wait_state(job, "PREPROCESSED");
}
