//! `http:` locations, with a server that cuts, refuses and lies, and `https:` with a real one.

use std::{fs, net::TcpStream, os::unix::fs::PermissionsExt};

use copal_tests::{
    cut::Wire,
    laptop::{LIMIT, refused},
    process::{describe, free_port},
    python,
    tls::Authority,
    wait::wait_blocking,
    web::{Odd, WebServer},
};
use serde_json::json;

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
    // Enough, also on a loaded machine, that none gets through before the file has changed.
    (0..5).for_each(|_| server.next("/x", Odd::Status(503)));
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
    // Another Job's transfer does not wait behind it.
    depot.put("small", "small\n");
    let beside = depot.job("beside", &["input=web:/small"]);
    depot.laptop.wait_state(beside, "PREPROCESSED");
    assert_eq!(depot.laptop.state(job), "READY");
    depot.laptop.site(&["job", "cancel", &job.to_string(), "-y"]);
    wait_blocking("its part to be deleted", LIMIT, || match tree(&depot.workdir(".staging")).len() {
        0 => Ok(()),
        left => Err(format!("{left} files; {}", depot.laptop.logs())),
    });
}

#[test]
fn a_login_is_not_sent_in_the_clear_to_another_machine() {
    let locations = [("plain", "http://data.example.org/x")];
    let depot = Depot::new(&locations, &[]);
    let path = depot.laptop.site_path().join("secrets.yml");
    fs::write(&path, "plain: {token: t0ken}\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    depot.configure(&locations, &["credentials_file: secrets.yml"]);
    let told = refused(&depot.laptop.try_site(&["site", "sync"]), 1);
    assert!(told.contains("make it https://") && !told.contains("t0ken"), "{told}");
    let reason = depot.failure(depot.job("x", &["input=plain:/x"]));
    assert!(reason.contains("make it https://") && !reason.contains("t0ken"), "{reason}");
}

#[test]
fn a_web_server_by_https_with_a_login_and_an_authority_of_its_own() {
    const CUT: u64 = 3_000_000;
    let depot = Depot::new(&[], &[]);
    let (programs, port) = (&depot.laptop.programs, free_port());
    let authority = Authority::new(programs.home());
    depot.put("x", "x\n");
    let content: String = (0..800_000).map(|line| format!("{line}\n")).collect();
    depot.put("big.dat", &content);
    let config = json!({
        "host": "127.0.0.1", "port": port, "provider_mapping": {"/": {"root": depot.folder()}},
        "http_authenticator": {"accept_digest": false, "default_to_digest": false},
        "simple_dc": {"user_mapping": {"*": {"ann": {"password": "pass word"}}}},
        "ssl_certificate": authority.server, "ssl_private_key": authority.key,
    });
    let file = programs.home().join("wsgidav.json");
    fs::write(&file, config.to_string()).unwrap();
    let program = python::environment("wsgidav").join("wsgidav");
    let server = programs.start(program.to_str().unwrap(), &["-c", file.to_str().unwrap()]);
    wait_blocking("the web server to listen", LIMIT * 2, || {
        TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| format!("{error}; {}", server.log()))
    });
    let secrets = |password: &str| {
        let path = depot.laptop.site_path().join("secrets.yml");
        let login = format!("{{username: ann, password: {password}}}");
        fs::write(&path, format!("web: {login}\ncut: {login}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    secrets("wrong");
    let wire = Wire::to(port, &[CUT]);
    let (web, cut) = (format!("https://localhost:{port}"), format!("https://127.0.0.1:{}", wire.port()));
    let locations = [("web", web.as_str()), ("cut", cut.as_str())];
    depot.configure(&locations, &["credentials_file: secrets.yml"]);
    depot.laptop.site(&["site", "sync"]);

    // An authority that nobody knows: no login is sent there.
    let job = depot.job("x", &["input=web:/x", "result=web:/result.txt"]);
    let reason = depot.failure(job);
    assert!(reason.contains("certificate") && reason.contains("transfers.ca_file"), "{reason}");
    assert!(!server.log().contains("GET /x"), "{}", server.log());
    fs::copy(&authority.certificate, depot.laptop.site_path().join("lab-ca.pem")).unwrap();
    depot.configure(&locations, &["credentials_file: secrets.yml", "ca_file: lab-ca.pem"]);
    // Known, but the password is wrong.
    depot.set_state(job, "READY");
    let reason = depot.failure(job);
    assert!(reason.contains("401") && reason.contains("transfers.credentials_file"), "{reason}");
    secrets("pass word");
    depot.set_state(job, "READY");
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("x/input.dat"), "x\n");
    fs::write(depot.workdir("x/result.txt"), "result\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("result.txt"), "result\n");

    // A connection that breaks.
    let job = depot.job("big", &["input=cut:/big.dat"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("big/input.dat"), content);
    let bytes = wire.bytes();
    assert!(bytes.len() == 2 && bytes[1] < content.len() as u64 - CUT / 2, "it began anew: {bytes:?}");
    // A file that is none.
    fs::write(depot.laptop.site_path().join("lab-ca.pem"), "no certificate\n").unwrap();
    let job = depot.job("none", &["input=web:/x"]);
    let reason = depot.failure(job);
    assert!(reason.contains("lab-ca.pem: there is no certificate in it"), "{reason}");
    let check =
        depot.laptop.programs.command("copal-agent").arg("check").current_dir(depot.laptop.site_path()).output();
    let check = check.unwrap();
    assert!(!check.status.success() && describe(&check).contains("lab-ca.pem"), "{}", describe(&check));
}
