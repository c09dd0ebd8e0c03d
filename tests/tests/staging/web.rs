//! `http:` locations, with a server that cuts, refuses and lies.

use std::fs;

use copal_tests::{
    laptop::LIMIT,
    wait::wait_blocking,
    web::{Odd, WebServer},
};

use crate::depot::{Depot, tree};

/// A depot whose folder is on the web.
fn on_the_web(settings: &[&str]) -> (Depot, WebServer) {
    let depot = Depot::new(&[], settings);
    let server = WebServer::start(&depot.folder());
    depot.configure(&[("web", &format!("http://{}", server.authority()))], settings);
    depot.laptop.site(&["site", "sync"]);
    (depot, server)
}

#[test]
fn a_file_that_is_cut_goes_on_where_it_was() {
    let (depot, server) = on_the_web(&[]);
    let content: String = (0..300_000).map(|line| format!("{line}\n")).collect();
    depot.put("big.dat", &content);
    server.next("/big.dat", Odd::CutAfter(1_000_000));
    server.next("/big.dat", Odd::Status(503));
    server.next("/big.dat", Odd::CutAfter(300_000));
    let job = depot.job("big", &["input=web:/big.dat", "result=web:/result.txt"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("big/input.dat"), content);
    let ranges: Vec<u64> = server
        .seen("/big.dat")
        .into_iter()
        .filter_map(|(_, range)| range?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
        .collect();
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    assert!(ranges[0] > 0 && ranges[0] == ranges[1] && ranges[2] > ranges[1], "{ranges:?}");

    // Out, by PUT; and not before the server has it whole.
    server.next("/result.txt", Odd::Status(500));
    fs::write(depot.workdir("big/result.txt"), "result\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("result.txt"), "result\n");
}

#[test]
fn a_file_that_changed_or_has_another_digest_starts_anew() {
    let (depot, server) = on_the_web(&[]);
    depot.put("x", "old".repeat(100_000));
    server.next("/x", Odd::CutAfter(100_000));
    server.next("/x", Odd::Status(503));
    let job = depot.job("changed", &["input=web:/x"]);
    depot.wait_why(job, "503");
    depot.put("x", "new!".repeat(1_000));
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("changed/input.dat"), "new!".repeat(1_000));

    depot.put("y", "y\n");
    server.header("/y", "Repr-Digest: sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:");
    let job = depot.job("digest", &["input=web:/y"]);
    let reason = depot.failure(job);
    assert!(reason.contains("checksum") && reason.contains("digest"), "{reason}");
    assert!(!depot.workdir("digest/input.dat").exists());
    // The digest of "y\n".
    server.header("/y", "Digest: MD5=AJUgBTsAOG0Rc/OYjFXRkg==,SHA-256=O7Krtp67J/v+Y8djliTG7F4zG4QaW8jD68ELkoXpCHc=");
    depot.set_state(job, "READY");
    depot.laptop.wait_state(job, "PREPROCESSED");
}

#[test]
fn pitfall_130_131_each_cause_is_tried_again_by_its_own_rule_and_names_the_remedy() {
    let (depot, server) = on_the_web(&[]);
    depot.put("x", "x\n");
    // No space there: held up, shown, and over when there is some.
    server.next("/out", Odd::Status(507));
    let job = depot.job("full", &["result=web:/out"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    fs::create_dir_all(depot.workdir("full")).unwrap();
    fs::write(depot.workdir("full/result.txt"), "result\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.wait_why(job, "no space left");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("out"), "result\n");
    // Not let in: at once, with the step that is needed.
    server.next("/x", Odd::Status(401));
    let job = depot.job("denied", &["input=web:/x"]);
    let reason = depot.failure(job);
    assert!(reason.contains("permission") && reason.contains("transfers.credentials_file"), "{reason}");
    assert_eq!(server.seen("/x").len(), 1);
    // Not there: twice more, in case a file server is late.
    let job = depot.job("missing", &["input=web:/missing"]);
    assert!(depot.failure(job).contains("missing source"));
    assert_eq!(server.seen("/missing").len(), 3);
    // No folder by http.
    let job = depot.job("folder", &["tree=web:/tree"]);
    assert!(depot.failure(job).contains("http has no folders"));
}

#[test]
fn an_agent_that_is_killed_in_the_middle_goes_on_where_it_was() {
    let (depot, server) = on_the_web(&[]);
    let content = "0123456789".repeat(300_000);
    depot.put("big.dat", &content);
    server.next("/big.dat", Odd::HoldAfter(2_000_000));
    let job = depot.job("killed", &["input=web:/big.dat"]);
    wait_blocking("two megabytes to arrive", LIMIT, || {
        let parts = tree(&depot.workdir(".staging"));
        let size = parts.iter().map(|(_, content)| content.len()).max().unwrap_or(0);
        if size >= 1_500_000 { Ok(()) } else { Err(format!("{size} bytes; {}", depot.laptop.logs())) }
    });
    assert!(!depot.workdir("killed/input.dat").exists());
    for pid in depot.laptop.pids("copal-agent") {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    wait_blocking("the agent to be gone", LIMIT, || {
        if depot.laptop.pids("copal-agent").is_empty() { Ok(()) } else { Err("it lives".into()) }
    });
    depot.laptop.site(&["site", "start"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("killed/input.dat"), content);
    let ranges: Vec<Option<String>> = server.seen("/big.dat").into_iter().map(|(_, range)| range).collect();
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert!(ranges[1].is_some(), "{ranges:?}");
}

#[test]
fn a_job_that_is_cancelled_stops_its_transfer() {
    let (depot, server) = on_the_web(&["service_period: 0.2"]);
    depot.put("big.dat", "x".repeat(1_000_000));
    server.next("/big.dat", Odd::HoldAfter(500_000));
    let job = depot.job("cancelled", &["input=web:/big.dat"]);
    depot.wait_why(job, "on its way");
    depot.laptop.site(&["job", "cancel", &job.to_string(), "-y"]);
    wait_blocking("its part to be deleted", LIMIT, || match tree(&depot.workdir(".staging")).len() {
        0 => Ok(()),
        left => Err(format!("{left} files; {}", depot.laptop.logs())),
    });
    // Another Job's transfer does not wait behind it.
    depot.put("small", "small\n");
    let job = depot.job("next", &["input=web:/small"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
}
