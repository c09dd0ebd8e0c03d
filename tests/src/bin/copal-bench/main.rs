//! Benchmarks of Copal: each figure beside a bare measure of the same work, in one run on one machine.
//! `docs/PERFORMANCE.md` says what they mean. Here are the command line and the table; what is measured
//! is in the other files.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark ends at the first thing that goes wrong, and prints what it found"
)]

mod bare;
mod cli;
mod launcher;
mod machine;
mod service;
mod stage;
mod staging;
mod table;

use clap::{Parser, Subcommand};

/// Measures Copal on this machine.
#[derive(Parser)]
#[command(name = "copal-bench")]
struct Cli {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// The command with a million Jobs on the service: creating, listing, streaming.
    Cli(cli::Options),
    /// The launcher through the real service: throughput, latency, memory, CPU.
    Launcher(launcher::Options),
    /// The service on a database that it fills itself: rates, latencies, wake-ups.
    Service(service::Options),
    /// Staging: small files by rsync, a large one by http.
    Staging(staging::Options),
    /// The service as a plain Python client sees it, beside the original's figures.
    Python(service::PythonOptions),
}

#[tokio::main]
async fn main() {
    let table = match Cli::parse().subject {
        Subject::Cli(options) => cli::measure(&options),
        Subject::Launcher(options) => launcher::measure(&options).await,
        Subject::Service(options) => service::measure(&options).await,
        Subject::Staging(options) => staging::measure(&options).await,
        Subject::Python(options) => service::measure_python(&options).await,
    };
    println!("\n{table}");
}
