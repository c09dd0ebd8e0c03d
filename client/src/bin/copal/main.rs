//! `copal`, the command: parses the command line, runs one command, prints why it failed.

mod args;
mod argv;
mod array;
mod bulk;
mod commands;
mod complete;
mod context;
mod failure;
mod follow;
mod human;
mod ids;
mod interrupt;
mod live;
mod output;
mod prompt;
mod records;
mod rows;
mod script;
mod selection;
mod sites;
mod suggest;
mod table;

use std::{env, process::ExitCode};

use clap::{CommandFactory, Parser, error::ErrorKind};
use clap_complete::CompleteEnv;

use crate::{args::Cli, context::Context, failure::Failure, human::Clock, output::Output};

fn main() -> ExitCode {
    // Only does something, and ends the program, when a shell asks for completions.
    CompleteEnv::with_factory(Cli::command).var(commands::COMPLETE_VARIABLE).complete();
    let cli = match Cli::try_parse_from(argv::rewrite(env::args_os())) {
        Ok(cli) => cli,
        Err(error) if is_help(&error) => error.exit(),
        Err(error) => {
            let failure = Failure::from(error);
            Output::default().failure(&failure);
            return ExitCode::from(failure.exit_code());
        }
    };
    interrupt::listen();
    let context = Context { out: Output::new(cli.output, cli.fields), clock: Clock::here() };
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

/// Whether clap's answer is help that was asked for, or the help of a command that is not complete.
fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}
