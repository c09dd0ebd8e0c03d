//! `copal queue …`

use copal_schemas::batch_job::{JobMode, Partition};

use super::{SiteOption, key_value};

/// What to do with BatchJobs.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  copal queue submit -n 2 -t 60 -j mpi\n  copal queue ls --site all")]
pub(crate) enum Command {
    /// Ask a Site's scheduler for nodes, in which a launcher runs Jobs.
    #[command(after_help = "\
Examples:
  copal queue submit -n 1 -t 30 -j serial
  copal queue submit --site=my-site -q QUEUE -A PROJECT -n 128 -t 70 -j mpi -x mig_count=3 --tag system=H2O
  copal queue submit -n 128 -t 60 -q Q -A P -p mpi:2:role=leader -p serial:126:role=worker")]
    Submit(Box<Submit>),
    /// List BatchJobs that are not over, with the reasons of refused ones.
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  copal queue ls\n  copal queue ls --history --site=all"
    )]
    Ls {
        /// Those that are over, too.
        #[arg(short = 'h', long)]
        history: bool,
        /// Print help.
        #[arg(long, action = clap::ArgAction::Help)]
        help: Option<bool>,
        #[command(flatten)]
        site: SiteOption,
    },
    /// Take BatchJobs out of the queue, or end running ones.
    #[command(after_help = "Examples:\n  copal queue rm 7\n  copal queue rm 7 8 9")]
    Rm {
        /// Their ids, as `copal queue ls` shows them.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<i64>,
    },
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
