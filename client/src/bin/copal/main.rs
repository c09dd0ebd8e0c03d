//! `copal`, the command: parses the command line, runs one command, prints why it failed.

mod args;
mod argv;
mod array;
mod commands;
mod context;
mod failure;
mod follow;
mod human;
mod ids;
mod output;
mod prompt;
mod selection;
mod sites;
mod table;

use std::{env, process::ExitCode};

use clap::Parser;

use crate::{args::Cli, context::Context, failure::Failure, human::Clock, output::Output};

fn main() -> ExitCode {
    let cli = Cli::parse_from(argv::rewrite(env::args_os()));
    let context = Context { out: Output::new(cli.output), clock: Clock::here() };
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(commands::run(context, cli.command)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // `copal job ls | head` is no failure.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            context.out.failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
