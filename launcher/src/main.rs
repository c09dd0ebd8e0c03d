//! `copal-launcher`: reads the command line and hands over to the pilot, to partitions, or to a worker.

use std::process::ExitCode;

use clap::Parser;
use copal_launcher::{
    args::{Cli, Command},
    hardware, logs, memory, partition, pilot, worker,
};
use tracing::error;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Worker(args)) => {
            logs::init(None, "info");
            worker::run(args)
        }
        Some(Command::Hardware) => hardware::print(),
        None if cli.pilot.partitions.is_empty() => {
            memory::keep_small();
            pilot::run(&cli.pilot)
        }
        None => partition::run(&cli.pilot),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logs::init(None, "info");
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
