//! The service's figures: the program itself on its own Postgres, asked over HTTP, beside the same
//! statements sent straight to that Postgres, and a large database beside a small one, by turns.

mod bench;
mod crowd;
mod latency;
mod python;
mod rates;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

pub(crate) use python::PythonOptions;

use self::{bench::Bench, latency::Latencies};
use crate::table::Table;

/// What is measured, and how much of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Jobs in the small database.
    #[arg(long, default_value_t = 10_000)]
    small: usize,
    /// Jobs in the large database.
    #[arg(long, default_value_t = 1_000_000)]
    large: usize,
    /// Events in the large database.
    #[arg(long, default_value_t = 10_000_000)]
    events: usize,
    /// Calls of 1,000 Jobs by which rates are measured.
    #[arg(long, default_value_t = 20)]
    calls: usize,
    /// Calls by which latencies are measured.
    #[arg(long, default_value_t = 60)]
    samples: usize,
    /// Event streams, and as many long polls, that are open while other requests are timed; 0 leaves that out.
    #[arg(long, default_value_t = 1_000)]
    waiting: usize,
    /// Keep the large database in this folder, and use the one that is there: filling takes longer than measuring.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Only fill the database that is kept.
    #[arg(long, requires = "keep")]
    fill_only: bool,
    /// Leave the large database's cluster up at the end, to look at plans; its URL is printed.
    #[arg(long)]
    pause: bool,
}

/// Measures all of it.
pub(crate) async fn measure(options: &Options) -> Table {
    let mut table = Table::default();
    let mut large = Bench::open(options.keep.as_deref()).await;
    large.fill(options.large, options.events).await;
    if options.fill_only {
        large.close().await;
        return table;
    }
    let mut small = Bench::open(None).await;
    small.fill(options.small, 0).await;
    Latencies::take(&small, &large, options.samples).await.compare(&mut table);
    for (bench, size) in [(&mut small, "small"), (&mut large, "large")] {
        rates::creates(bench, &mut table, options.calls, size).await;
        rates::updates(bench, &mut table, options.calls, size).await;
    }
    small.close().await;
    latency::singles(&mut large, &mut table, options.samples * 3).await;
    latency::wake_ups(&mut large, &mut table, options.samples * 2).await;
    if options.waiting > 0 {
        crowd::measure(&mut large, &mut table, options.waiting, options.samples * 10).await;
    }
    latency::deletion(&mut large, &mut table).await;
    if options.pause {
        println!("the database is at {}; Enter ends it", large.database_url());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a terminal");
    }
    large.close().await;
    table
}

/// Measures what Balsam's users see: a plain Python client.
pub(crate) async fn measure_python(options: &PythonOptions) -> Table {
    python::measure(options).await
}

/// Sends, reads the answer to its end without decoding it, and gives how long that took.
async fn sent(request: reqwest::RequestBuilder) -> Duration {
    let (client, request) = request.build_split();
    let request = request.expect("a request");
    let name = format!("{} {}", request.method(), request.url());
    let start = Instant::now();
    let answer = client.execute(request).await.expect("the service answers");
    let status = answer.status();
    let body = answer.bytes().await.expect("the service answers");
    let took = start.elapsed();
    assert!(status.is_success(), "{name}: {status} {}", String::from_utf8_lossy(&body));
    took
}

/// The same in milliseconds.
async fn timed(request: reqwest::RequestBuilder) -> f64 {
    sent(request).await.as_secs_f64() * 1e3
}

/// The value below which this part of the times is.
fn percentile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let place = ((times.len() as f64 - 1.0) * part).round() as usize;
    times.get(place).copied().unwrap_or(f64::NAN)
}
