//! `file:` locations, and what holds for every kind of location.

use std::{fs, os::unix::fs::symlink};

use copal_tests::{
    gate::Gate,
    laptop::{LIMIT, refused},
    wait::wait_blocking,
};

use crate::depot::{Depot, tree};

const HERE: &[(&str, &str)] = &[("here", "file://{folder}")];

#[test]
fn files_and_folders_come_in_and_results_go_out_after_success() {
    let depot = Depot::new(HERE, &[]);
    depot.put("in/1.dat", "one\n");
    depot.put("in/tree/a", "a\n");
    depot.put("in/tree/b/c", "c\n");
    // A link at the location is what it leads to.
    symlink("1.dat", depot.folder().join("in/latest")).unwrap();
    let job = depot.job(
        "demo/1",
        &["input=here:/in/latest", "tree=here:/in/tree", "result=here:/out/1/result.txt", "all=here:/out/1/all"],
    );
    let here = depot.job("demo/2", &["here=here:/in"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    depot.laptop.wait_state(here, "PREPROCESSED");
    assert_eq!(depot.laptop.history(job), ["READY", "STAGED_IN", "PREPROCESSED"]);
    assert_eq!(depot.read_work("demo/1/input.dat"), "one\n");
    assert_eq!(tree(&depot.workdir("demo/1/tree")), [("a", "a\n"), ("b/c", "c\n")].map(|(a, b)| (a.into(), b.into())));
    assert_eq!(tree(&depot.workdir("demo/2")), tree(&depot.folder().join("in")));
    // What is staged in is the Job's own: changing it changes nothing at the location.
    fs::write(depot.workdir("demo/1/input.dat"), "changed\n").unwrap();
    assert_eq!(depot.read("in/1.dat"), "one\n");

    // A run that failed stages nothing out.
    let failed = depot.job("demo/3", &["result=here:/out/3/result.txt"]);
    depot.laptop.wait_state(failed, "PREPROCESSED");
    fs::create_dir_all(depot.workdir("demo/3")).unwrap();
    fs::write(depot.workdir("demo/3/result.txt"), "bad\n").unwrap();
    depot.set_state(failed, "RUN_ERROR");

    fs::write(depot.workdir("demo/1/result.txt"), "result\n").unwrap();
    depot.put("out/1/all/older", "kept\n");
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("out/1/result.txt"), "result\n");
    assert_eq!(
        (depot.read("out/1/all/input.dat"), depot.read("out/1/all/older")),
        ("changed\n".into(), "kept\n".into())
    );
    assert_eq!(depot.read("out/1/all/tree/b/c"), "c\n");
    assert!(!depot.folder().join("out/3").exists());
    // Nothing is left behind; Jobs go on before that is cleared.
    wait_blocking("nothing to be left", LIMIT, || {
        let is_left = |(path, _): &(String, String)| path.contains(".staging") || path.contains("copal-part");
        let left: Vec<_> = tree(&depot.workdir(".")).into_iter().filter(is_left).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn pitfall_128_129_a_transfer_that_fails_fails_its_job_before_it_runs() {
    let depot = Depot::new(HERE, &[]);
    depot.put("good", "good\n");
    depot.put("tree/x", "x\n");
    let bad = depot.job("bad", &["input=here:/good", "tree=here:/tree", "here=here:/nothing"]);
    let good = depot.job("good", &["input=here:/good"]);
    let reason = depot.failure(bad);
    assert!(
        reason.contains("can't stage in . from here:/nothing: missing source") && reason.contains("does not exist"),
        "{reason}"
    );
    assert_eq!(depot.laptop.history(bad), ["READY", "FAILED"]);
    depot.laptop.wait_state(good, "PREPROCESSED");
    // Once it is mended, the Job goes on where it was.
    depot.put("nothing/y", "y\n");
    depot.set_state(bad, "READY");
    depot.laptop.wait_state(bad, "PREPROCESSED");
    assert_eq!((depot.read_work("bad/y"), depot.read_work("bad/input.dat")), ("y\n".into(), "good\n".into()));
}

#[test]
fn what_leads_out_of_a_workdir_or_a_location_is_refused() {
    let depot = Depot::new(HERE, &[]);
    depot.put("good", "good\n");
    let secret = depot.laptop.programs.home().join("secret");
    fs::write(&secret, "secret\n").unwrap();
    // In: through a link in the workdir, and through a link at the location.
    let outside = depot.laptop.programs.home().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(depot.workdir("in")).unwrap();
    symlink(&outside, depot.workdir("in/tree")).unwrap();
    depot.put("tree/x", "x\n");
    symlink(&secret, depot.folder().join("link")).unwrap();
    let written = depot.job("in", &["tree=here:/tree"]);
    let read = depot.job("read", &["input=here:/link"]);
    for job in [written, read] {
        let reason = depot.failure(job);
        assert!(reason.contains("forbidden path"), "{reason}");
    }
    assert_eq!(tree(&outside), []);
    assert!(!depot.workdir("read/input.dat").exists());
    // Out: a link to elsewhere, alone and in a folder.
    for (workdir, slot) in [("out1", "result=here:/out/1"), ("out2", "all=here:/out/2")] {
        let job = depot.job(workdir, &[slot]);
        depot.laptop.wait_state(job, "PREPROCESSED");
        fs::create_dir_all(depot.workdir(workdir)).unwrap();
        symlink(&secret, depot.workdir(workdir).join("result.txt")).unwrap();
        depot.set_state(job, "RUN_DONE");
        let reason = depot.failure(job);
        assert!(reason.contains("can't stage out") && reason.contains("leads out"), "{reason}");
    }
    assert!(!depot.folder().join("out").exists());
    // A location that nobody declared, and paths with dots, make no Job at all.
    for slot in ["input=there:/x", "input=here:x"] {
        let output = depot.laptop.try_site(&["job", "create", "-a", "Stage", "-w", "no", "-s", slot, "-y"]);
        assert!(!output.status.success());
    }
    let output = depot.laptop.try_site(&["job", "create", "-a", "Stage", "-w", "no", "-s", "input=there:/x", "-y"]);
    assert!(refused(&output, 2).contains("no location \"there\""));
}

#[test]
fn a_location_that_is_gone_from_the_settings_is_the_reason_that_why_gives() {
    let depot = Depot::new(HERE, &["max_concurrent_transfers: 1"]);
    depot.laptop.site(&["site", "stop"]);
    depot.put("good", "good\n");
    let job = depot.job("w", &["input=here:/good"]);
    depot.wait_why(job, "1 file is not staged in yet (to be started, such as here:/good)");
    depot.configure(&[], &[]);
    depot.laptop.site(&["site", "start"]);
    let reason = depot.failure(job);
    assert!(reason.contains("settings.yml has no location \"here\""), "{reason}");
}

/// A gate by which the agent, and nobody else, speaks to the service. The agent is stopped.
fn gate_of_the_agent(depot: &Depot) -> Gate {
    let login = depot.laptop.site_path().join("agent.yml");
    wait_blocking("the agent's login", LIMIT, || if login.exists() { Ok(()) } else { Err(depot.laptop.logs()) });
    depot.laptop.site(&["site", "stop"]);
    let gate = Gate::before(depot.laptop.port);
    let text = fs::read_to_string(&login).unwrap();
    fs::write(&login, text.replace(&format!(":{}", depot.laptop.port), &format!(":{}", gate.port()))).unwrap();
    gate
}

#[test]
fn what_an_answer_that_got_lost_had_given_is_staged_all_the_same() {
    let depot = Depot::new(HERE, &["service_period: 0.2"]);
    depot.put("in/1.dat", "one\n");
    let gate = gate_of_the_agent(&depot);
    gate.lose("POST /transfers/due", "\"active\"", 1);
    depot.laptop.site(&["site", "start"]);
    let job = depot.job("demo/1", &["input=here:/in/1.dat"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(gate.to_lose(), 0, "the answer that gave it was lost");
    assert_eq!(depot.read_work("demo/1/input.dat"), "one\n");
}

#[test]
fn what_is_claimed_is_staged_though_the_service_is_silent_about_what_else_is_due() {
    let depot = Depot::new(HERE, &[]);
    depot.put("in/1.dat", "one\n");
    let gate = gate_of_the_agent(&depot);
    gate.hold_after("POST /transfers/due", "\"active\"");
    depot.laptop.site(&["site", "start"]);
    let job = depot.job("demo/1", &["input=here:/in/1.dat"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("demo/1/input.dat"), "one\n");
    // What the answer brings when it comes after all is a batch of its own.
    let late = depot.job("demo/2", &["input=here:/in/1.dat"]);
    gate.release();
    depot.laptop.wait_state(late, "PREPROCESSED");
    assert_eq!(depot.read_work("demo/2/input.dat"), "one\n");
}
