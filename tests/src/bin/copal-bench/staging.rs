//! Staging: small files by rsync against one bare rsync of the same tree, and the agent's memory with large files: one
//! by http that is cut in the middle, one to an S3 store and back.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use copal_tests::{
    process::free_port,
    ssh::SshServer,
    store,
    web::{Odd, WebServer},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{stage::Stage, table::Table};

/// Between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(50);
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
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// MiB of the large file by http.
    #[arg(long, default_value_t = 2_048)]
    large_mib: u64,
    /// MiB of the large file to a store and back.
    #[arg(long, default_value_t = 1_024)]
    store_mib: u64,
    /// Only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// Memory with a large file by http.
    Large,
    /// Memory with a large object of a store.
    Store,
    /// The rate of small files.
    Small,
}

/// Where small files are below the depot.
#[derive(Clone, Copy, Debug)]
enum Tree {
    /// A hundred in each folder.
    Hundreds,
    /// Each in a folder of its own, as they are in the workdirs of their Jobs.
    Own,
}

impl Tree {
    /// Its folder.
    fn root(self) -> &'static str {
        match self {
            Self::Hundreds => "small",
            Self::Own => "own",
        }
    }

    /// The path of a file.
    fn name(self, index: usize) -> String {
        match self {
            Self::Hundreds => format!("small/{:02}/{index:06}.dat", index / 100),
            Self::Own => format!("own/{index:06}/input.dat"),
        }
    }
}

pub(crate) async fn measure(options: &Options) -> Table {
    let wanted = |figure: Figure| options.only.is_empty() || options.only.contains(&figure);
    let stage = Stage::new().await;
    let mut table = Table::default();
    let depot = stage.site().with_file_name("depot");
    let server = SshServer::start(stage.programs());
    let web = WebServer::start(&depot);
    let port = free_port();
    let _store = store::start(stage.programs(), port);
    settings(&stage, &server, &web, port, &depot);
    let app = app(&stage).await;
    stage.copal(&["site", "start"]);
    // First, on an agent that has done nothing yet.
    if wanted(Figure::Large) {
        large_file(options, &stage, &web, &depot, app, &mut table).await;
    }
    if wanted(Figure::Store) {
        large_object(options, &stage, app, &mut table).await;
    }
    if wanted(Figure::Small) {
        small_files(options, &stage, &server, &depot, app, &mut table).await;
    }
    stage.copal(&["site", "stop"]);
    table
}

async fn small_files(options: &Options, stage: &Stage, server: &SshServer, depot: &Path, app: i64, table: &mut Table) {
    let content = vec![b'x'; options.file_bytes];
    for path in
        (0..options.files).flat_map(|index| [Tree::Hundreds, Tree::Own].map(|tree| depot.join(tree.name(index))))
    {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("an own folder");
        fs::write(path, &content).expect("an own folder");
    }
    let copies = stage.site().with_file_name("bare");
    fs::create_dir(&copies).expect("an own folder");
    let bare = |tree: Tree, name: String| bare_rsync(server, depot, tree, &copies.join(name));
    // By turns, since what else the machine does comes and goes; and the median, since a file system may take its time
    // once in a while.
    let mut rows = [
        ("in one folder of one Job, against one bare rsync", Tree::Hundreds, Vec::new(), Vec::new()),
        (
            "one for each of as many Jobs, from folders of a hundred, against the same",
            Tree::Hundreds,
            Vec::new(),
            Vec::new(),
        ),
        (
            "one for each of as many Jobs, each in its folder, against one bare rsync of these",
            Tree::Own,
            Vec::new(),
            Vec::new(),
        ),
    ];
    for (row, (_, tree, alone, staged)) in rows.iter_mut().enumerate() {
        for round in 0..options.rounds {
            alone.push(bare(*tree, format!("{row}-{round}")));
            staged.push(match row {
                0 => one_folder(stage, app, round).await,
                _ => one_each(options, stage, app, *tree, round).await,
            });
        }
    }
    let rate = |time: Duration| options.files as f64 / time.as_secs_f64();
    for (what, _, alone, staged) in rows {
        let [alone, staged] = [alone, staged].map(median);
        table.at_least(
            format!("{} small files by rsync, {what}", options.files),
            alone.as_secs_f64() / staged.as_secs_f64(),
            0.5,
            format!(
                "{:.0} files/s against {:.0} files/s, medians of {} rounds",
                rate(staged),
                rate(alone),
                options.rounds
            ),
        );
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// All small files for one Job, from its creation on.
async fn one_folder(stage: &Stage, app: i64, round: u8) -> Duration {
    let others = stage.count("PREPROCESSED").await;
    let job = json!([{"app_id": app, "workdir": format!("folder/{round}"),
        "transfers": {"tree": {"location_alias": "there", "path": "/small"}}}]);
    let start = Instant::now();
    stage.api.post("/jobs/", &job).await.created();
    wait(stage, others + 1, start).await
}

/// Each small file for a Job of its own. The agent is held while they are made, so that staging alone is measured.
async fn one_each(options: &Options, stage: &Stage, app: i64, tree: Tree, round: u8) -> Duration {
    let others = stage.count("PREPROCESSED").await;
    let agent = Pid::from_raw(stage.pid_of("copal-agent"));
    kill(agent, Signal::SIGSTOP).expect("the agent runs");
    for first in (0..options.files).step_by(CALL) {
        let job = |index: usize| {
            let path = format!("/{}", tree.name(index));
            json!({"app_id": app, "workdir": format!("files/{}-{round}/{index:06}", tree.root()),
                "transfers": {"input": {"location_alias": "there", "path": path}}})
        };
        let jobs: Vec<Value> = (first..(first + CALL).min(options.files)).map(job).collect();
        stage.api.post("/jobs/", &Value::Array(jobs)).await.created();
    }
    let start = Instant::now();
    kill(agent, Signal::SIGCONT).expect("the agent runs");
    wait(stage, others + options.files, start).await
}

async fn large_file(options: &Options, stage: &Stage, web: &WebServer, depot: &Path, app: i64, table: &mut Table) {
    let size = options.large_mib * 1024 * 1024;
    let file = fs::File::create(depot.join("large")).expect("an own folder");
    file.set_len(size).expect("an own file");
    web.next("/large", Odd::CutAfter(size / 2));
    let others = stage.count("PREPROCESSED").await;
    let before = peak_memory_mib(stage);
    forget_peak(stage);
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

/// A large file to the store and back, by parts.
async fn large_object(options: &Options, stage: &Stage, app: i64, table: &mut Table) {
    let before = peak_memory_mib(stage);
    forget_peak(stage);
    let there = stage.count("PREPROCESSED").await;
    let object = json!({"location_alias": "store", "path": "/large"});
    let job = json!([{"app_id": app, "workdir": "up", "transfers": {"output": object}}]);
    let job = copal_tests::id(&stage.api.post("/jobs/", &job).await.created()[0]);
    let workdir = stage.site().join("data/up");
    fs::create_dir_all(&workdir).expect("an own folder");
    let size = options.store_mib * 1024 * 1024;
    fs::File::create(workdir.join("output.dat")).and_then(|file| file.set_len(size)).expect("an own file");
    let finished = stage.count("JOB_FINISHED").await;
    let start = Instant::now();
    stage.api.put(&format!("/jobs/{job}"), &json!({"state": "RUN_DONE"})).await.ok();
    let up = wait_in(stage, "JOB_FINISHED", finished + 1, start).await;
    let job = json!([{"app_id": app, "workdir": "down", "transfers": {"input": object}}]);
    let start = Instant::now();
    stage.api.post("/jobs/", &job).await.created();
    let down = wait(stage, there + 1, start).await;
    let arrived = fs::metadata(stage.site().join("data/down/input.dat")).expect("it was staged in").len();
    assert_eq!(arrived, size, "the large object is not whole");
    let after = peak_memory_mib(stage);
    let rate = |time: Duration| options.store_mib as f64 / time.as_secs_f64();
    table.at_most(
        format!("agent's peak memory with {} MiB to an S3 store and back", options.store_mib),
        after,
        // Four parts of 8 MiB on their way, each with a copy or two in the web client, and the agent itself.
        128.0,
        " MiB",
        format!("{before:.0} MiB before; {:.0} MiB/s up, {:.0} MiB/s down", rate(up), rate(down)),
    );
}

fn settings(stage: &Stage, server: &SshServer, web: &WebServer, store: u16, depot: &Path) {
    fs::create_dir_all(depot).expect("an own folder");
    let locations = json!({
        "there": format!("rsync://{}{}", server.authority(), depot.display()),
        "web": format!("http://{}", web.authority()),
        "store": "s3://lab",
    });
    let secrets = stage.site().join("secrets.yml");
    fs::write(&secrets, "store: {access_key_id: bench, secret_access_key: bench}\n").expect("an own folder");
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).expect("an own file");
    let file = stage.site().join("settings.yml");
    let text = fs::read_to_string(&file).expect("`site init` made it");
    let lines = format!(
        "transfer_locations: {locations}\n  ssh_options: {}\n  retry_wait_sec: 0.1\n  credentials_file: secrets.yml\n  \
         s3: {{store: {{endpoint: 'http://127.0.0.1:{store}'}}}}",
        json!(server.options())
    );
    fs::write(file, text.replace("transfer_locations: {}", &lines)).expect("an own folder");
    stage.copal(&["site", "sync"]);
}

async fn app(stage: &Stage) -> i64 {
    let text = "name: Stage\ncommand: /bin/true\ntransfers:\n  \
                input: {direction: in, required: false, local_path: input.dat}\n  \
                tree: {direction: in, required: false, local_path: ., recursive: true}\n  \
                output: {direction: out, required: false, local_path: output.dat}\n";
    fs::write(stage.site().join("apps/Stage.yml"), text).expect("an own folder");
    stage.copal(&["app", "sync"]);
    copal_tests::id(&stage.api.list("/apps/?name=Stage").await[0])
}

/// Waits until so many Jobs are staged in.
async fn wait(stage: &Stage, count: usize, start: Instant) -> Duration {
    wait_in(stage, "PREPROCESSED", count, start).await
}

/// Waits until so many Jobs are in a state.
async fn wait_in(stage: &Stage, state: &str, count: usize, start: Instant) -> Duration {
    loop {
        let there = stage.count(state).await;
        if there >= count {
            return start.elapsed();
        }
        let failed = stage.count("FAILED").await;
        assert!(
            failed == 0 && start.elapsed() < Duration::from_secs(1_800),
            "{there} of {count} Jobs in {state}, {failed} failed"
        );
        tokio::time::sleep(LOOK).await;
    }
}

fn bare_rsync(server: &SshServer, depot: &Path, tree: Tree, to: &Path) -> Duration {
    let mut ssh = vec!["ssh".to_owned(), "-p".to_owned(), server.port().to_string()];
    ssh.extend(server.options());
    let host = server.authority();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    let start = Instant::now();
    let status = Command::new("rsync")
        .args(["-rt", "-e", &ssh.join(" ")])
        .arg(format!("{host}:{}/{}/", depot.display(), tree.root()))
        .arg(format!("{}/", to.display()))
        .stdin(Stdio::null())
        .status()
        .expect("rsync is installed");
    assert!(status.success(), "rsync: {status}");
    start.elapsed()
}

/// Lets the agent's peak memory begin anew.
fn forget_peak(stage: &Stage) {
    let pid = stage.pid_of("copal-agent");
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the agent is this user's own");
}

/// The most memory that the agent has had, in MiB.
fn peak_memory_mib(stage: &Stage) -> f64 {
    let pid = stage.pid_of("copal-agent");
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}
