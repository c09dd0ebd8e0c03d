//! The command line of `copal-agent`: parses, starts, and turns the outcome into an exit code.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use copal_client::SiteDir;

use crate::{agent, check, discover, guard, scheduler::local_run};

/// Works for one Site: submits its BatchJobs, runs its hooks, until SIGTERM or Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "copal-agent",
    version,
    after_help = "Example: copal-agent --site /home/me/my-site\n\nUsers start it with `copal site start` or `copal site run`."
)]
struct Args {
    /// The Site's folder; left out, the Site that the present folder is in.
    #[arg(long, global = true, value_name = "PATH")]
    site: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks settings, job template and Apps of the Site; changes nothing.
    Check,
    /// Prints what the scheduler of this machine says about queues and accounts, as lines of a settings.yml.
    Discover {
        /// slurm or pbs.
        #[arg(long, value_name = "PLATFORM")]
        platform: String,
    },
    /// Ends what the agent has left running when it is killed; the agent starts it.
    #[command(hide = true, name = guard::COMMAND)]
    Guard,
    /// Supervises one script of the local scheduler; the agent starts it.
    #[command(hide = true)]
    LocalRun {
        /// The Site's qsubmit folder.
        #[arg(long)]
        folder: PathBuf,
        /// The BatchJob's key.
        #[arg(long)]
        key: String,
        /// Its pretended nodes.
        #[arg(long, value_delimiter = ',')]
        nodes: Vec<u32>,
    },
}

/// Runs the program with the process's arguments. Exit code 0: done, 1: it failed, 2: wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Some(Command::LocalRun { folder, key, nodes }) => {
            let nodes: BTreeSet<u32> = nodes.into_iter().collect();
            // The agent reads standard output until the script runs.
            return match local_run::run(&folder, &key, nodes) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&mut io::stdout(), &error),
            };
        }
        Some(Command::Guard) => guard::run(),
        Some(Command::Check) => site(args.site).and_then(|site| check::run(&site, &mut io::stdout())),
        Some(Command::Discover { platform }) => ask_scheduler(&platform),
        None => site(args.site).and_then(|site| agent::run(&site)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&mut io::stderr(), &error),
    }
}

fn ask_scheduler(platform: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(discover::run(platform, &mut io::stdout()))
}

fn fail(out: &mut impl Write, error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(out, "error: {error:#}");
    ExitCode::FAILURE
}

fn site(path: Option<PathBuf>) -> anyhow::Result<SiteDir> {
    let site = match path {
        // Absolute, since scripts run elsewhere carry it.
        Some(path) => SiteDir::new(std::path::absolute(&path)?),
        None => SiteDir::find().ok_or_else(|| anyhow::anyhow!("not inside a Site; give --site PATH"))?,
    };
    anyhow::ensure!(
        site.settings_path().is_file(),
        "{} is no Site: it has no settings.yml; make one with `copal site init`",
        site.root().display()
    );
    Ok(site)
}
