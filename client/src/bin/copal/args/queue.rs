//! `copal queue …`

use copal_schemas::batch_job::{BatchJobState, JobMode, Partition};

use super::{SiteOption, Yes, key_value};
use crate::{ids::IdList, suggest};

/// What to do with BatchJobs.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  copal queue submit -n 2 -t 60 -j mpi\n  copal queue ls --site all")]
pub(crate) enum Command {
    /// Ask a Site's scheduler for nodes, in which a launcher runs Jobs.
    #[command(after_help = "\
Examples:
  copal queue submit -n 1 -t 30 -j serial
  copal queue submit --site=my-site -q QUEUE -A PROJECT -n 128 -t 70 -j mpi -x mig_count=3
  copal queue submit -n 4 -t 60 -q Q -A P -j mpi --tag system=H2O --tag scale=4
  copal queue submit -n 128 -t 60 -q Q -A P -p mpi:2:role=leader -p serial:126:role=worker")]
    Submit(Box<Submit>),
    /// List BatchJobs that are not over, with the reasons of refused ones.
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  copal queue ls
  copal queue ls --history --site=all
  copal queue ls --scheduler-id 4711
  copal queue ls --state running -q debug --tag system=H2O -o wide"
    )]
    Ls(Box<List>),
    /// Show one BatchJob with everything that is known of it, above all why it was refused.
    #[command(after_help = "Example:\n  copal queue show 7")]
    Show {
        /// Its id.
        id: i64,
    },
    /// Follow BatchJobs live, until Ctrl-C.
    #[command(after_help = "Examples:\n  copal queue watch\n  copal queue watch --site all")]
    Watch(SiteOption),
    /// End the BatchJob with this id of the scheduler: `queue rm --scheduler-id` in Balsam's words.
    #[command(after_help = "Example:\n  copal queue term 4711")]
    Term {
        /// The scheduler's id, as `copal queue ls` shows it.
        #[arg(value_name = "ID")]
        scheduler_id: String,
        #[command(flatten)]
        site: SiteOption,
        #[command(flatten)]
        yes: Yes,
    },
    /// Take BatchJobs out of the queue, or end running ones.
    #[command(after_help = "\
Examples:
  copal queue rm 7
  copal queue rm 7 8 10-12
  copal queue rm --scheduler-id 4711
  copal queue rm --all --site my-site --dry-run")]
    Rm {
        /// Their ids and ranges of ids, as `copal queue ls` shows them.
        #[arg(value_name = "IDS", required_unless_present_any = ["scheduler_id", "all"])]
        ids: Vec<IdList>,
        /// The one with this id of the scheduler.
        #[arg(long, value_name = "ID")]
        scheduler_id: Option<String>,
        /// All that are not over at the Sites meant.
        #[arg(long, conflicts_with_all = ["ids", "scheduler_id"])]
        all: bool,
        /// Change nothing; show which are meant.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        site: SiteOption,
        #[command(flatten)]
        yes: Yes,
    },
}

/// Which BatchJobs are listed.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Those that are over, too.
    #[arg(short = 'h', long)]
    pub(crate) history: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
    /// Only the one with this id of the scheduler.
    #[arg(long, value_name = "ID")]
    pub(crate) scheduler_id: Option<String>,
    /// In these states, with commas or repeated. Example: --state queued,running
    #[arg(short = 's', long = "state", value_name = "STATE", value_parser = batch_job_state, value_delimiter = ',')]
    pub(crate) states: Vec<BatchJobState>,
    /// In this queue.
    #[arg(short = 'q', long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,
    /// That run Jobs with these tags.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) site: SiteOption,
}

/// Reads a BatchJob's state, in any case.
fn batch_job_state(text: &str) -> Result<BatchJobState, String> {
    let lower = text.to_ascii_lowercase();
    let names: Vec<&str> = BatchJobState::ALL.iter().map(|state| state.as_str()).collect();
    BatchJobState::ALL
        .iter()
        .copied()
        .find(|state| state.as_str() == lower)
        .ok_or_else(|| format!("{text:?} is not a BatchJob's state; {}", suggest::choice(&lower, &names, "")))
}

/// A BatchJob.
#[derive(Debug, clap::Args)]
pub(crate) struct Submit {
    /// Nodes. May be left out with -p, which says it for each part.
    #[arg(short = 'n', long, value_name = "NODES", required_unless_present = "partitions",
          value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) num_nodes: Option<i32>,
    /// Minutes.
    #[arg(short = 't', long, value_name = "MINUTES", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) wall_time_min: i32,
    /// The scheduler's queue. May be left out where the Site has only one.
    #[arg(short = 'q', long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,
    /// Who pays. May be left out where the Site has only one project.
    #[arg(short = 'A', long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    /// How the launcher runs Jobs: mpi for Jobs of any size, serial for floods of one-rank Jobs.
    #[arg(short = 'j', long, value_name = "MODE", required_unless_present = "partitions")]
    pub(crate) job_mode: Option<JobMode>,
    /// Run only Jobs with these tags. Example: --tag system=H2O
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// A parameter that the Site declares for its template. Example: -x mig_count=3
    #[arg(short = 'x', long = "extra-param", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) optional_params: Vec<(String, String)>,
    /// A part of the nodes with a launcher of its own. Example: -p mpi:2:role=leader
    #[arg(short = 'p', long = "part", value_name = "MODE:NODES[:KEY=VALUE]...")]
    pub(crate) partitions: Vec<Partition>,
    #[command(flatten)]
    pub(crate) site: SiteOption,
}
