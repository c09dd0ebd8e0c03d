//! `copal events …`

use copal_schemas::JobState;

use clap_complete::engine::ArgValueCompleter;

use super::{SiteOption, job_state, key_value};
use crate::{complete, ids::IdList};

/// What to do with events.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  copal events ls --job 7")]
pub(crate) enum Command {
    /// List state changes of Jobs, newest first.
    #[command(after_help = "\
Examples:
  copal events ls --job 12-20
  copal events ls --to-state FAILED --after 2h
  copal events ls --tag system=H2O --from-state RUNNING --limit 20 -o json")]
    Ls(Box<List>),
    /// Print state changes of Jobs as they happen, until Ctrl-C.
    #[command(after_help = "\
Examples:
  copal events watch
  copal events watch --tag system=H2O --to-state FAILED
  copal events watch --site all -o jsonl")]
    Watch(Watch),
}

/// Which changes are watched.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Of these Jobs: ids and ranges.
    #[arg(long = "job", visible_alias = "job-id", value_name = "IDS")]
    pub(crate) jobs: Vec<IdList>,
    /// Of Jobs that run in this BatchJob.
    #[arg(long, value_name = "ID")]
    pub(crate) batch_job: Option<i64>,
    /// Of Jobs with these tags.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// From this state.
    #[arg(long = "from-state", visible_alias = "from", value_name = "STATE", value_parser = job_state,
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) from_state: Option<JobState>,
    /// To this state.
    #[arg(long = "to-state", visible_alias = "to", value_name = "STATE", value_parser = job_state,
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) to_state: Option<JobState>,
    #[command(flatten)]
    pub(crate) site: SiteOption,
}

/// Which events.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Of these Jobs: ids and ranges.
    #[arg(long = "job", visible_alias = "job-id", value_name = "IDS")]
    pub(crate) jobs: Vec<IdList>,
    /// Of Jobs that ran last in this BatchJob.
    #[arg(long, value_name = "ID")]
    pub(crate) batch_job: Option<i64>,
    /// The same by the scheduler's id.
    #[arg(long, value_name = "ID")]
    pub(crate) scheduler_id: Option<String>,
    /// Of Jobs with these tags.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// With this in the event's data. Example: --data reason=cancelled
    #[arg(long = "data", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) data: Vec<(String, String)>,
    /// From this state.
    #[arg(long = "from-state", visible_alias = "from", value_name = "STATE", value_parser = job_state,
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) from_state: Option<JobState>,
    /// To this state.
    #[arg(long = "to-state", visible_alias = "to", value_name = "STATE", value_parser = job_state,
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) to_state: Option<JobState>,
    /// At this time or later: 2h (ago), 13:05, 2026-11-30T13:05.
    #[arg(long, value_name = "TIME")]
    pub(crate) after: Option<String>,
    /// At this time or before.
    #[arg(long, value_name = "TIME")]
    pub(crate) before: Option<String>,
    /// timestamp for the oldest first, -timestamp for the newest first.
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, default_value = "-timestamp",
          value_parser = ["timestamp", "-timestamp"])]
    pub(crate) ordering: String,
    /// The most rows.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    pub(crate) limit: i64,
}
