//! The command line as types. Here it is only parsed; what a name or a selector means is found
//! out by the commands.

pub(crate) mod account;
pub(crate) mod app;
pub(crate) mod events;
pub(crate) mod job;
pub(crate) mod queue;
pub(crate) mod site;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use copal_schemas::job_state::{JobState, UnknownState};

use crate::{complete, output::Format, suggest};

/// Run large campaigns of jobs on many machines through pilot jobs.
#[derive(Debug, Parser)]
#[command(
    name = "copal",
    version,
    max_term_width = 110,
    propagate_version = true,
    after_help = "\
Examples:
  copal register --url http://127.0.0.1:8642
  copal site init ./my-site --name my-site --platform local -y
  copal app sync
  copal job create -a Hello -w demo/1 -p name=world
  copal queue submit -n 1 -t 30 -j mpi
  copal job wait --tag system=H2O

Inside a Site's folder that Site is meant, elsewhere all active Sites; --site says otherwise.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the time-out of `job wait`, 130 Ctrl-C."
)]
pub(crate) struct Cli {
    /// How data is written to stdout: `-o json` is one JSON value.
    #[arg(short = 'o', long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Only these fields, by their JSON names: id,state,tags.system
    #[arg(long, global = true, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an account at a service and log in.
    #[command(after_help = "\
Examples:
  copal register
  copal register --url https://copal.example.org --username ann
  printf %s \"$SECRET\" | copal register --username ann --password-stdin")]
    Register(account::Enter),
    /// Log in to a service. The token is kept in $COPAL_HOME/client.yml (default ~/.copal).
    #[command(after_help = "\
Examples:
  copal login
  copal login --url https://copal.example.org --username ann
  copal login --device
  COPAL_PASSWORD=\"$SECRET\" copal login --username ann")]
    Login(account::Login),
    /// Forget the stored token.
    #[command(after_help = "Example:\n  copal logout")]
    Logout,
    /// Say who is logged in, and where.
    #[command(after_help = "Examples:\n  copal whoami\n  copal whoami -o json")]
    Whoami,
    /// Make, run and list Sites.
    #[command(subcommand)]
    Site(site::Command),
    /// Tell the service which Apps a Site has.
    #[command(subcommand)]
    App(app::Command),
    /// Create, follow and change Jobs.
    #[command(subcommand)]
    Job(job::Command),
    /// Ask a Site's scheduler for nodes.
    #[command(subcommand)]
    Queue(queue::Command),
    /// See what happened to Jobs.
    #[command(subcommand)]
    Events(events::Command),
    /// Check credentials, service, clock, Site folder, scheduler, MPI, GPUs and disk; say how to mend each.
    #[command(after_help = "Examples:\n  copal doctor\n  copal doctor -o json")]
    Doctor,
    /// Write completions for a shell to stdout. They know your Sites and Apps.
    #[command(after_help = "\
Examples:
  copal completions bash > ~/.local/share/bash-completion/completions/copal
  copal completions zsh > ~/.zfunc/_copal
  copal completions fish > ~/.config/fish/completions/copal.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a folder.
    #[command(after_help = "Example:\n  copal man ~/.local/share/man/man1")]
    Man {
        /// The folder; made where it does not exist.
        folder: PathBuf,
    },
}

/// Which Sites are meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SiteOption {
    /// Which Sites: this, all, active, an id, a name or a part of the path; several with commas.
    /// Left out: this Site inside its folder, else all active ones. Example: --site theta,42
    #[arg(long, value_name = "SITES", add = ArgValueCompleter::new(complete::sites))]
    pub(crate) site: Option<String>,
}

/// A confirmation in advance.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Yes {
    /// Ask nothing; the answer is yes.
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

/// Reads `KEY=VALUE`.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.into())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// Reads a Job's state, in any case.
pub(crate) fn job_state(text: &str) -> Result<JobState, String> {
    text.to_ascii_uppercase().parse().map_err(|_: UnknownState| {
        match suggest::nearest(text, JobState::ALL.iter().map(|state| state.as_str())) {
            Some(near) => format!("{text:?} is not a job state; did you mean {near}?"),
            None => UnknownState(text.into()).to_string(),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_and_every_option_a_help() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("copal "), "{path} has no example");
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path} {} has no help", argument.get_id());
            }
            command.get_subcommands().for_each(|command| walk(command, &path));
        }
        walk(&Cli::command(), "");
    }

    #[test]
    fn the_examples_of_the_help_are_command_lines() {
        fn walk(command: &clap::Command, seen: &mut usize) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().map(str::trim) {
                let Some(start) = line.find("copal ").filter(|_| line.starts_with("copal") || line.contains("| copal"))
                else {
                    continue;
                };
                let words = shlex::split(line[start..].split(" > ").next().unwrap()).unwrap();
                let words = crate::argv::rewrite(words.into_iter().map(Into::into));
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{line}: {error}");
                }
                *seen += 1;
            }
            command.get_subcommands().for_each(|command| walk(command, seen));
        }
        let mut seen = 0;
        walk(&Cli::command(), &mut seen);
        assert!(seen > 40, "only {seen} examples");
    }

    #[test]
    fn pairs_keep_later_equal_signs() {
        assert_eq!(key_value("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert_eq!(key_value("a=").unwrap(), ("a".into(), String::new()));
        assert!(key_value("=b").is_err());
        assert!(key_value("ab").is_err());
    }
}
