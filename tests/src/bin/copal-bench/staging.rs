//! Staging: small files by rsync against one bare rsync of the same tree, and a large file by http that
//! is cut in the middle.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use copal_tests::{
    ssh::SshServer,
    web::{Odd, WebServer},
};
use serde_json::{Value, json};

use crate::{stage::Stage, table::Table};

/// Between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(100);
/// Jobs in one call.
const CALL: usize = 1_000;

/// How much is measured.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Small files.
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Bytes of each.
    #[arg(long, default_value_t = 1_024)]
    file_bytes: usize,
    /// How often each of the small files is staged.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MiB of the large file.
    #[arg(long, default_value_t = 2_048)]
    large_mib: u64,
}

pub(crate) async fn measure(options: &Options) -> Table {
    let stage = Stage::new().await;
    let mut table = Table::default();
    let depot = stage.site().with_file_name("depot");
    let server = SshServer::start(stage.programs());
    let web = WebServer::start(&depot);
    settings(&stage, &server, &web, &depot);
    let app = app(&stage).await;
    stage.copal(&["site", "start"]);
    // First, on an agent that has done nothing yet.
    large_file(options, &stage, &web, &depot, app, &mut table).await;
    small_files(options, &stage, &server, &depot, app, &mut table).await;
    stage.copal(&["site", "stop"]);
    table
}

async fn small_files(options: &Options, stage: &Stage, server: &SshServer, depot: &Path, app: i64, table: &mut Table) {
    let content = vec![b'x'; options.file_bytes];
    for index in 0..options.files {
        let path = depot.join(name(index));
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("an own folder");
        fs::write(path, &content).expect("an own folder");
    }
    // By turns, since what else the machine does comes and goes.
    let (mut bare, mut folder, mut files) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for round in 0..options.rounds {
        bare += bare_rsync(server, depot, &stage.site().with_file_name(format!("bare-{round}")));
        folder += one_folder(stage, app, round).await;
        bare += bare_rsync(server, depot, &stage.site().with_file_name(format!("again-{round}")));
        files += one_each(options, stage, app, round).await;
    }
    bare /= 2;
    let rate = |time: Duration| (options.files * options.rounds) as f64 / time.as_secs_f64();
    for (what, time) in [("in one folder of one Job", folder), ("one for each of as many Jobs", files)] {
        table.at_least(
            format!("{} small files by rsync, {what}, against one bare rsync", options.files),
            bare.as_secs_f64() / time.as_secs_f64(),
            0.5,
            format!("{:.0} files/s against {:.0} files/s, {} rounds", rate(time), rate(bare), options.rounds),
        );
    }
}

/// All small files for one Job, from its creation on.
async fn one_folder(stage: &Stage, app: i64, round: usize) -> Duration {
    let others = stage.count("PREPROCESSED").await;
    let job = json!([{"app_id": app, "workdir": format!("folder/{round}"),
        "transfers": {"tree": {"location_alias": "there", "path": "/small"}}}]);
    let start = Instant::now();
    stage.api.post("/jobs/", &job).await.created();
    wait(stage, others + 1, start).await
}

/// Each small file for a Job of its own. They are made while no agent runs, so that staging alone is measured.
async fn one_each(options: &Options, stage: &Stage, app: i64, round: usize) -> Duration {
    let others = stage.count("PREPROCESSED").await;
    stage.copal(&["site", "stop"]);
    for first in (0..options.files).step_by(CALL) {
        let job = |index: usize| {
            let path = format!("/{}", name(index));
            json!({"app_id": app, "workdir": format!("files/{round}/{index:06}"),
                "transfers": {"input": {"location_alias": "there", "path": path}}})
        };
        let jobs: Vec<Value> = (first..(first + CALL).min(options.files)).map(job).collect();
        stage.api.post("/jobs/", &Value::Array(jobs)).await.created();
    }
    let start = Instant::now();
    stage.copal(&["site", "start"]);
    wait(stage, others + options.files, start).await
}

async fn large_file(options: &Options, stage: &Stage, web: &WebServer, depot: &Path, app: i64, table: &mut Table) {
    let size = options.large_mib * 1024 * 1024;
    let file = fs::File::create(depot.join("large")).expect("an own folder");
    file.set_len(size).expect("an own file");
    web.next("/large", Odd::CutAfter(size / 2));
    let others = stage.count("PREPROCESSED").await;
    let before = peak_memory_mib(stage);
    let job = json!([{"app_id": app, "workdir": "large",
        "transfers": {"input": {"location_alias": "web", "path": "/large"}}}]);
    let start = Instant::now();
    stage.api.post("/jobs/", &job).await.created();
    let time = wait(stage, others + 1, start).await;
    let there = fs::metadata(stage.site().join("data/large/input.dat")).expect("it was staged in").len();
    assert_eq!(there, size, "the large file is not whole");
    let ranges: Vec<Option<String>> = web.seen("/large").into_iter().map(|(_, range)| range).collect();
    assert!(ranges.len() == 2 && ranges[1].is_some(), "it did not go on where it was: {ranges:?}");
    let after = peak_memory_mib(stage);
    table.at_most(
        format!(
            "agent's peak memory with a file of {} MiB by http, cut in the middle, against that before",
            options.large_mib
        ),
        after / before,
        1.5,
        " times",
        format!(
            "{after:.0} MiB against {before:.0} MiB; {:.0} MiB/s; the second request asked for {}",
            options.large_mib as f64 / time.as_secs_f64(),
            ranges[1].as_deref().unwrap_or_default()
        ),
    );
}

/// The path of a small file below the depot.
fn name(index: usize) -> String {
    format!("small/{:02}/{index:06}.dat", index / 100)
}

fn settings(stage: &Stage, server: &SshServer, web: &WebServer, depot: &Path) {
    fs::create_dir_all(depot).expect("an own folder");
    let locations = json!({
        "there": format!("rsync://{}{}", server.authority(), depot.display()),
        "web": format!("http://{}", web.authority()),
    });
    let file = stage.site().join("settings.yml");
    let text = fs::read_to_string(&file).expect("`site init` made it");
    let lines =
        format!("transfer_locations: {locations}\n  ssh_options: {}\n  retry_wait_sec: 0.1", json!(server.options()));
    fs::write(file, text.replace("transfer_locations: {}", &lines)).expect("an own folder");
    stage.copal(&["site", "sync"]);
}

async fn app(stage: &Stage) -> i64 {
    let text = "name: Stage\ncommand: /bin/true\ntransfers:\n  \
                input: {direction: in, required: false, local_path: input.dat}\n  \
                tree: {direction: in, required: false, local_path: ., recursive: true}\n";
    fs::write(stage.site().join("apps/Stage.yml"), text).expect("an own folder");
    stage.copal(&["app", "sync"]);
    copal_tests::id(&stage.api.list("/apps/?name=Stage").await[0])
}

/// Waits until so many Jobs are staged in.
async fn wait(stage: &Stage, count: usize, start: Instant) -> Duration {
    loop {
        let staged = stage.count("PREPROCESSED").await;
        if staged >= count {
            return start.elapsed();
        }
        let failed = stage.count("FAILED").await;
        assert!(
            failed == 0 && start.elapsed() < Duration::from_secs(1_800),
            "{staged} of {count} Jobs, {failed} failed"
        );
        tokio::time::sleep(LOOK).await;
    }
}

fn bare_rsync(server: &SshServer, depot: &Path, to: &Path) -> Duration {
    let mut ssh = vec!["ssh".to_owned(), "-p".to_owned(), server.port().to_string()];
    ssh.extend(server.options());
    let host = server.authority();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    let start = Instant::now();
    let status = Command::new("rsync")
        .args(["-rt", "-e", &ssh.join(" ")])
        .arg(format!("{host}:{}/small/", depot.display()))
        .arg(format!("{}/", to.display()))
        .stdin(Stdio::null())
        .status()
        .expect("rsync is installed");
    assert!(status.success(), "rsync: {status}");
    start.elapsed()
}

/// The most memory that the agent has had, in MiB.
fn peak_memory_mib(stage: &Stage) -> f64 {
    let pid = stage.pid_of("copal-agent");
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}
