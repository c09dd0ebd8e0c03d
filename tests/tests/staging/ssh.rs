//! `rsync:` and `scp:` locations on an ssh server of this machine.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::SystemTime,
};

use copal_tests::{cut::Wire, laptop::LIMIT, ssh::SshServer, wait::wait_blocking};

use crate::depot::{Depot, tree};

/// What settings.yml needs to get in.
fn options(options: &[String]) -> String {
    format!("ssh_options: {}", serde_json::json!(options))
}

/// Arguments by which ssh gets in by way of a wire, whose port has no host key of its own. The first value of an option
/// counts for ssh.
fn any_host(server: &SshServer) -> Vec<String> {
    let mut options: Vec<String> =
        ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"].map(String::from).into();
    options.extend(server.options());
    options
}

/// A depot with the locations `there` (rsync) and `scp`, both its own folder by way of an ssh server.
fn by_ssh(start: fn(&copal_tests::process::Programs) -> SshServer) -> (Depot, SshServer) {
    // The depot's processes are the Laptop's, and so is the server: both end with it.
    let depot = Depot::new(&[], &[]);
    let server = start(&depot.laptop.programs);
    let authority = server.authority();
    let (rsync, scp) = (format!("rsync://{authority}{{folder}}"), format!("scp://{authority}{{folder}}"));
    depot.configure(&[("there", &rsync), ("scp", &scp)], &[&options(&server.options())]);
    depot.laptop.site(&["site", "sync"]);
    (depot, server)
}

/// Files and folders in and out, with names that shells and rsync have opinions about.
fn in_and_out(depot: &Depot, alias: &str) {
    let slot = |slot: &str, path: &str| format!("{slot}={alias}:{path}");
    depot.put("in/a b'c$(x)*.dat", "one\n");
    depot.put("in/tree/x y", "x\n");
    depot.put("in/tree/sub/z", "z\n");
    let job = depot.job(
        "one",
        &[
            &slot("input", "/in/a b'c$(x)*.dat"),
            &slot("tree", "/in/tree"),
            &slot("result", "/out dir/1/result.txt"),
            &slot("all", "/out dir/1/all"),
        ],
    );
    // Two Jobs want the same file; one of three wants a file that is not there.
    let same = depot.job("two", &[&slot("input", "/in/a b'c$(x)*.dat")]);
    let missing = depot.job("three", &[&slot("input", "/in/nothing")]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    depot.laptop.wait_state(same, "PREPROCESSED");
    assert_eq!((depot.read_work("one/input.dat"), depot.read_work("two/input.dat")), ("one\n".into(), "one\n".into()));
    assert_eq!(tree(&depot.workdir("one/tree")), tree(&depot.folder().join("in/tree")));
    let reason = depot.failure(missing);
    assert!(reason.contains("missing source"), "{reason}");

    fs::write(depot.workdir("one/result.txt"), "result\n").unwrap();
    // A folder there that is a link stays one.
    fs::create_dir_all(depot.folder().join("elsewhere")).unwrap();
    symlink("elsewhere", depot.folder().join("out dir")).unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("elsewhere/1/result.txt"), "result\n");
    assert_eq!(depot.read("elsewhere/1/all/tree/sub/z"), "z\n");
    assert_eq!(depot.read("elsewhere/1/all/input.dat"), "one\n");
}

#[test]
fn rsync_carries_in_and_out() {
    let (depot, _server) = by_ssh(SshServer::start);
    in_and_out(&depot, "there");
}

#[test]
fn scp_carries_in_and_out() {
    let (depot, _server) = by_ssh(SshServer::start);
    in_and_out(&depot, "scp");
}

#[test]
fn where_rsync_is_missing_there_is_a_way_too() {
    let (depot, _server) = by_ssh(SshServer::without_rsync);
    in_and_out(&depot, "there");
}

#[test]
fn pitfall_130_131_errors_of_the_far_end_have_their_cause_and_their_remedy() {
    let (depot, server) = by_ssh(SshServer::start);
    let authority = server.authority();
    // The key of somebody else: at once, with the command that must work first.
    depot.put("x", "x\n");
    let key = server.folder().join("host");
    let there = format!("rsync://{authority}{{folder}}");
    let scp = format!("scp://{authority}{{folder}}");
    depot.configure(&[("there", &there), ("scp", &scp)], &[&options(&server.options_with(&key))]);
    for alias in ["there", "scp"] {
        let job = depot.job(&format!("{alias}/denied"), &[&format!("input={alias}:/x")]);
        let reason = depot.failure(job);
        assert!(reason.contains("permission") && reason.contains("ssh -o BatchMode=yes"), "{alias}: {reason}");
    }
    // Nobody listens: held up, then there.
    let wire = Wire::to(server.port(), &[0, 0]);
    let cut = format!("rsync://{}{{folder}}", server.authority_at(wire.port()));
    depot.configure(&[("there", &cut)], &[&options(&any_host(&server))]);
    let job = depot.job("cut", &["input=there:/x"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert!(wire.bytes().len() >= 3, "{:?}", wire.bytes());
    // A file where the folder should be.
    depot.put("file", "");
    let job = depot.job("out", &["result=there:/file/result.txt"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    fs::create_dir_all(depot.workdir("out")).unwrap();
    fs::write(depot.workdir("out/result.txt"), "result\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    let reason = depot.failure(job);
    assert!(reason.contains("the place to write to"), "{reason}");
    assert_eq!(depot.read("file"), "");
}

/// Bytes that neither ssh nor rsync could make smaller.
fn noise(size: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    (0..size).map(|_| random()).collect()
}

#[test]
fn a_job_waits_for_its_own_file_and_not_for_all_of_the_batch() {
    const SIZE: usize = 12_000_000;
    let (depot, server) = by_ssh(SshServer::start);
    let wire = Wire::holding(server.port(), SIZE as u64 / 2);
    let content = noise(SIZE);
    depot.put("a.dat", "small\n");
    depot.put("b.dat", &content);
    let there = format!("rsync://{}{{folder}}", server.authority_at(wire.port()));
    depot.configure(&[("there", &there), ("here", "file://{folder}")], &[&options(&any_host(&server))]);
    depot.laptop.site(&["site", "sync"]);
    depot.laptop.site(&["site", "stop"]);
    // The last poll of an agent that was stopped may still get the first one.
    let other = depot.job("c", &["input=here:/a.dat"]);
    // These are due when the agent looks, so that they are one batch.
    let [small, large] = ["a", "b"].map(|name| depot.job(name, &[&format!("input=there:/{name}.dat")]));
    depot.laptop.site(&["site", "start"]);
    depot.laptop.wait_state(other, "PREPROCESSED");
    depot.laptop.wait_state(small, "PREPROCESSED");
    assert_eq!(depot.read_work("a/input.dat"), "small\n");
    assert!(!depot.workdir("b/input.dat").exists());
    assert_eq!(wire.bytes().len(), 1, "they are one batch");
    wire.release();
    depot.laptop.wait_state(large, "PREPROCESSED");
    assert!(fs::read(depot.workdir("b/input.dat")).unwrap() == content);
    assert_eq!(wire.bytes().len(), 1);
}

#[test]
fn a_large_file_that_is_cut_goes_on_where_it_was() {
    const CUT: u64 = 6_000_000;
    const SIZE: usize = 12_000_000;
    let (depot, server) = by_ssh(SshServer::start);
    let wire = Wire::to(server.port(), &[CUT]);
    let content = noise(SIZE);
    depot.put("big.dat", &content);
    let there = format!("rsync://{}{{folder}}", server.authority_at(wire.port()));
    depot.configure(&[("there", &there)], &[&options(&any_host(&server))]);
    let job = depot.job("big", &["input=there:/big.dat"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert!(fs::read(depot.workdir("big/input.dat")).unwrap() == content);
    let bytes = wire.bytes();
    assert_eq!(bytes.len(), 2, "{bytes:?}");
    assert!(bytes[1] < SIZE as u64 - CUT / 2, "the second try began from the start: {bytes:?}");
}

/// Where a file would be whole of which a try has left a part: beside the folder of parts.
fn place_of(name: &str, below: &Path) -> Option<PathBuf> {
    fs::read_dir(below).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).find_map(
        |folder| match folder.ends_with(".copal-part") && folder.join(name).exists() {
            true => Some(below.join(name)),
            false => place_of(name, &folder),
        },
    )
}

/// Makes a try of Jobs that stage `x` and `sub/x` end while `x` is half here, and then what an agent leaves that is killed
/// when it is whole: a file with this content, as old as the others. Gives the Jobs; the agent is stopped, and the next two
/// connections are one that breaks before anything is compared and one that holds.
fn killed_with_x_left(depot: &Depot, server: &SshServer, left: &[u8]) -> [i64; 2] {
    let wire = Wire::holding(server.port(), left.len() as u64 / 2);
    let go_by = |wire: &Wire| {
        let there = format!("rsync://{}{{folder}}", server.authority_at(wire.port()));
        depot.configure(&[("there", &there), ("here", "file://{folder}")], &[&options(&any_host(server))]);
    };
    go_by(&wire);
    depot.laptop.site(&["site", "sync"]);
    depot.laptop.site(&["site", "stop"]);
    // The last poll of an agent that was stopped may still get the first one.
    depot.put("first", "");
    let other = depot.job("first", &["input=here:/first"]);
    let jobs = ["x", "sub/x"].map(|name| depot.job(name, &[&format!("input=there:/{name}")]));
    depot.laptop.site(&["site", "start"]);
    depot.laptop.wait_state(other, "PREPROCESSED");
    let half = left.len() as u64 / 2;
    wait_blocking("the first half", LIMIT, || {
        if wire.bytes().iter().any(|bytes| *bytes >= half) { Ok(()) } else { Err(depot.laptop.logs()) }
    });
    depot.laptop.site(&["site", "stop"]);
    let place = place_of("x", &depot.laptop.site_path().join("data/.staging")).unwrap();
    fs::write(&place, left).unwrap();
    age(&place);
    go_by(&Wire::to(server.port(), &[0]));
    jobs
}

/// Makes a file one of 1970, as all files of which rsync must not think that they are others by their time.
fn age(path: &Path) {
    File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
}

#[test]
fn what_a_killed_try_left_is_compared_before_a_job_gets_it() {
    let (depot, server) = by_ssh(SshServer::start);
    let content = noise(6_000_000);
    depot.put("x", &content);
    depot.put("sub/x", "another\n");
    age(&depot.folder().join("x"));
    let [job, other] = killed_with_x_left(&depot, &server, &content);
    depot.put("x", "changed since\n");
    depot.laptop.site(&["site", "start"]);
    for job in [job, other] {
        depot.laptop.wait_state(job, "PREPROCESSED");
    }
    assert_eq!(
        (depot.read_work("x/input.dat"), depot.read_work("sub/x/input.dat")),
        ("changed since\n".into(), "another\n".into())
    );
}

#[test]
fn what_a_killed_try_left_is_never_taken_for_a_file_of_another_folder() {
    let (depot, server) = by_ssh(SshServer::start);
    let (content, mut another) = (noise(6_000_000), noise(6_000_000));
    another.reverse();
    for (name, content) in [("x", &content), ("sub/x", &another)] {
        depot.put(name, content);
        age(&depot.folder().join(name));
    }
    let [job, other] = killed_with_x_left(&depot, &server, &content);
    // The batch is of one folder below the former one now.
    depot.laptop.site(&["job", "rm", &job.to_string(), "-y"]);
    depot.laptop.site(&["site", "start"]);
    depot.laptop.wait_state(other, "PREPROCESSED");
    assert!(fs::read(depot.workdir("sub/x/input.dat")).unwrap() == another);
}
