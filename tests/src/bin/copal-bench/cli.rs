//! The command's figures, with many Jobs on the service: creating them, looking at them, writing all
//! of them out. The real `copal`, the real service on its embedded Postgres, each run timed from its
//! start to its end as somebody at a terminal sees it.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use copal_tests::laptop::Laptop;

use crate::table::Table;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many Jobs there are when lists are timed.
    #[arg(long, default_value_t = 1_000_000)]
    jobs: u64,
    /// How many Jobs are created by one command.
    #[arg(long, default_value_t = 50_000)]
    created: u64,
    /// How often each list is asked for; the median counts.
    #[arg(long, default_value_t = 7)]
    samples: usize,
}

/// The longest that creating may take, in seconds.
const CREATED_SEC: f64 = 5.0;
/// The longest that a list may take, in seconds.
const LISTED_SEC: f64 = 1.0;
/// How much more memory all Jobs may need than a hundredth of them.
const MEMORY_RATIO: f64 = 1.2;
/// BatchJobs in the list of them.
const BATCH_JOBS: usize = 200;
/// Lines after which memory is looked at.
const LINES_A_LOOK: u64 = 500;

pub(crate) fn measure(options: &Options) -> Table {
    let mut table = Table::default();
    let laptop = Laptop::new();
    laptop.init_site(1);
    laptop.app("Sim", "command: 'sim {{seed}}'\nparameters: {seed: {required: true}}");
    creating(&laptop, options, &mut table);
    for _ in 0..BATCH_JOBS {
        laptop.site(&["queue", "submit", "-n", "1", "-t", "30", "-j", "mpi"]);
    }
    listing(&laptop, options, &mut table);
    streaming(&laptop, options, &mut table);
    table
}

/// Seconds of one command that must succeed.
fn timed(laptop: &Laptop, arguments: &[&str]) -> f64 {
    let start = Instant::now();
    let mut command = laptop.programs.command("copal");
    let output = command.current_dir(laptop.site_path()).args(arguments).output().expect("copal starts");
    let seconds = start.elapsed().as_secs_f64();
    assert!(output.status.success(), "copal {}: {}", arguments.join(" "), copal_tests::process::describe(&output));
    seconds
}

fn array(laptop: &Laptop, first: u64, count: u64, folder: &str, more: &[&str]) -> f64 {
    let range = format!("{first}-{}", first + count - 1);
    let folder = format!("{folder}/{{index:07}}");
    let line = ["job", "create", "-a", "Sim", "--array", &range, "-w", &folder, "-p", "seed={index}", "-y"];
    timed(laptop, &[&line[..], more].concat())
}

fn creating(laptop: &Laptop, options: &Options, table: &mut Table) {
    let created = options.created;
    let rate = |seconds: f64| format!("{:.0} Jobs/s", created as f64 / seconds);
    let seconds = array(laptop, 0, created, "array", &["--tag", "system=H2O"]);
    table.at_most(format!("`job create --array`, {created} Jobs"), seconds, CREATED_SEC, " s", rate(seconds));
    let rows: String = (0..created).map(|row| format!("rows/{row},{row},H2O\n")).collect();
    fs::write(laptop.site_path().join("rows.csv"), format!("workdir,seed,tags.system\n{rows}"))
        .expect("the Site's folder can be written");
    let seconds = timed(laptop, &["job", "create", "-a", "Sim", "--from", "rows.csv", "-y"]);
    table.at_most(format!("`job create --from`, {created} rows"), seconds, CREATED_SEC, " s", rate(seconds));
    let rest = options.jobs.saturating_sub(2 * created);
    if rest > 0 {
        let seconds = array(laptop, 0, rest, "rest", &["--tag", "system=D2O"]);
        println!("{rest} more Jobs in {seconds:.1} s, {:.0} Jobs/s", rest as f64 / seconds);
    }
}

fn listing(laptop: &Laptop, options: &Options, table: &mut Table) {
    for arguments in [
        &["job", "ls"][..],
        &["job", "ls", "--by-state"],
        &["job", "ls", "--tag", "system=H2O", "--state", "PREPROCESSED"],
        &["job", "ls", "--ordering", "-last_update", "--limit", "100"],
        &["job", "ls", "--array", "1", "--by-state"],
        &["queue", "ls", "--site=all"],
    ] {
        let mut seconds: Vec<f64> = (0..options.samples).map(|_| timed(laptop, arguments)).collect();
        seconds.sort_by(f64::total_cmp);
        let (median, most) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        table.at_most(
            format!("`{}`, {} Jobs", arguments.join(" "), options.jobs),
            median,
            LISTED_SEC,
            " s",
            format!("slowest of {}: {most:.2} s", seconds.len()),
        );
    }
}

fn streaming(laptop: &Laptop, options: &Options, table: &mut Table) {
    // Two pages at least, so that both hold as much at a time.
    let few = (options.jobs / 100).max(10_000).min(options.jobs);
    let (_, _, small) = stream(laptop, few);
    let (lines, seconds, large) = stream(laptop, options.jobs);
    table.at_most(
        format!("`job ls -o jsonl`: memory for {lines} Jobs against {few}"),
        large / small,
        MEMORY_RATIO,
        " times",
        format!("{large:.1} MiB against {small:.1} MiB; {seconds:.1} s, {:.0} Jobs/s", lines as f64 / seconds),
    );
}

/// Lines, seconds, and the most memory in MiB of a list of so many Jobs.
fn stream(laptop: &Laptop, jobs: u64) -> (u64, f64, f64) {
    let start = Instant::now();
    let limit = jobs.to_string();
    let mut command = laptop.programs.command("copal");
    command.current_dir(laptop.site_path()).args(["job", "ls", "-o", "jsonl", "--limit", &limit]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("copal starts");
    let status = format!("/proc/{}/status", child.id());
    let most = || {
        let text = fs::read_to_string(&status).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
    };
    let (mut lines, mut memory) = (0, 0.0);
    let mut text = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let mut line = Vec::new();
    while text.read_until(b'\n', &mut line).expect("a pipe can be read") > 0 {
        line.clear();
        lines += 1;
        if lines % LINES_A_LOOK == 0 {
            // It only grows, so the last look before the end is the most.
            memory = most().unwrap_or(memory);
        }
    }
    assert!(child.wait().expect("a child can be awaited").success());
    (lines, start.elapsed().as_secs_f64(), memory)
}
