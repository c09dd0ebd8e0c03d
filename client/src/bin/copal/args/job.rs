//! `copal job …`

use std::path::PathBuf;

use clap_complete::engine::ArgValueCompleter;
use copal_schemas::JobState;

use super::{SiteOption, Yes, job_state, key_value};
use crate::{array::ArraySpec, complete, ids::IdList};

/// What to do with Jobs.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  copal job create -a Hello -w demo/1 -p name=world
  copal job ls --state FAILED
  copal job show 7
  copal job why 7")]
pub(crate) enum Command {
    /// Create one Job, or many: with --array, from a table, or from a file of commands.
    #[command(after_help = "\
Examples:
  copal job create -a Hello -w demo/1 -p name=world
  copal job create -a Sim -w run/7 -n 2 -rpn 4 -g 1 --tag system=H2O --parent 5 --parent 6 -y
  copal job create -a Sim --array 0-99 -w 'seeds/{index:06}' -p 'seed={index}' -y
  copal job create -a Sim --array 0-49999%200 -w 'seeds/{index:06}' -p 'seed={index}' --dry-run
  copal job create -a Sim --from runs.csv -w 'runs/{index}' --dry-run
  copal job create --from jobs.jsonl --skip-bad -y
  copal job create --commands commands.txt --tag campaign=july -y

--from: each row is a Job. Columns are app, workdir, the resources (num_nodes, ranks_per_node, gpus_per_rank,
mem_mb, wall_time_min, ...), priority, parent_ids, tags.NAME, data.NAME, launch_params.NAME and param.NAME, which may
be written as NAME alone. Options hold for the rows that leave them out; {index} is the row's number, from 1.
--commands: each line is a shell command, run in this folder; its output goes to job.out in the Job's folder.")]
    Create(Box<Create>),
    /// Run an existing script (shell, Slurm or PBS) as a Job, with the variables that it expects.
    #[command(after_help = "\
Examples:
  copal job submit train.sh
  copal job submit sweep.sbatch --array 0-9 --dry-run
  copal job submit --tag campaign=july -t 30 job.pbs input.dat

Lines with #SBATCH and #PBS say what it needs and how it is called; what has no meaning here is told. The script is
copied into the Site's scripts folder, so the command runs on the Site's machine. Dependencies are ids of Jobs here.")]
    Submit(Box<Submit>),
    /// List Jobs.
    #[command(after_help = "\
Examples:
  copal job ls
  copal job ls --site=123,my-site --tag experiment=XPCS --tag system=H2O
  copal job ls --state JOB_FINISHED --limit 20
  copal job ls --by-state --tag system=H2O
  copal job ls --array 12 --exclude-state JOB_FINISHED
  copal job ls --fields id,workdir,tags.system,return_code -o csv
  copal job ls --site all -o jsonl > jobs.jsonl")]
    Ls(Box<List>),
    /// Show one Job: fields, runs, the last output of a failed run, events.
    #[command(after_help = "Examples:\n  copal job show 7\n  copal job show 7 -o json")]
    Show {
        /// Its id.
        id: i64,
    },
    /// Say why a Job is not running.
    #[command(after_help = "Examples:\n  copal job why 7\n  copal job why 7 -o json")]
    Why {
        /// Its id.
        id: i64,
    },
    /// Wait until all selected Jobs are finished. Exit code 1 when any failed, 3 on the time-out.
    #[command(after_help = "\
Examples:
  copal job wait 12-20
  copal job wait --tag system=H2O --timeout 600")]
    Wait {
        #[command(flatten)]
        selection: Box<Selection>,
        /// Give up after so many seconds, with exit code 3.
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
    },
    /// Follow the selected Jobs live until all are at an end.
    #[command(after_help = "Examples:\n  copal job watch\n  copal job watch --tag system=H2O")]
    Watch {
        #[command(flatten)]
        selection: Box<Selection>,
    },
    /// Cancel Jobs: waiting ones fail at once, running ones are killed.
    #[command(after_help = "Examples:\n  copal job cancel 7\n  copal job cancel --tag system=H2O -y")]
    Cancel(Box<Change>),
    /// Delete Jobs and their events. Those that a launcher holds are left, and then the exit code is 1.
    #[command(
        after_help = "Examples:\n  copal job rm 41,42,43\n  copal job rm --tag workflow=temp-test --dry-run\n  copal job rm --all -y"
    )]
    Rm(Box<Change>),
    /// Change Jobs.
    #[command(after_help = "\
Examples:
  copal job modify 7 --priority 10
  copal job modify --tag system=H2O --state FAILED --set-state RESTART_READY -y
  copal job modify 12-20 --set-tag batch=2 --remove-tag old -npc 4")]
    Modify(Box<Modify>),
}

/// A new Job.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The App's name or id.
    #[arg(short = 'a', long, value_name = "APP", required_unless_present_any = ["from", "commands"],
          add = ArgValueCompleter::new(complete::apps))]
    pub(crate) app: Option<String>,
    /// The Job's folder, below the Site's data folder. With several Jobs it needs {index}.
    #[arg(short = 'w', long, value_name = "FOLDER", required_unless_present_any = ["from", "commands"])]
    pub(crate) workdir: Option<String>,
    /// A Job for each row of a file: csv, json or jsonl; - for stdin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["array", "commands"])]
    pub(crate) from: Option<PathBuf>,
    /// With --from, create the good rows when others are bad.
    #[arg(long, requires = "from")]
    pub(crate) skip_bad: bool,
    /// A Job for each line of a file, which is a shell command; - for stdin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["array", "app", "parameters", "transfers"])]
    pub(crate) commands: Option<PathBuf>,
    /// A parameter of the App. Example: -p name=world
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) parameters: Vec<(String, String)>,
    /// A Job for each index: FIRST-LAST[:STEP][,...][%MOST], of which MOST run at once. {index} and {index:06} in
    /// folder, parameters, tags and paths of transfers become the index. Example: --array 0-99
    #[arg(long, value_name = "RANGE")]
    pub(crate) array: Option<ArraySpec>,
    /// A tag. Example: --tag system=H2O
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// Nodes.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) num_nodes: i32,
    /// Ranks (processes) on each node. Balsam's -rpn.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) ranks_per_node: i32,
    /// Threads of each rank. Balsam's -tpr.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) threads_per_rank: i32,
    /// Hardware threads of one core that a rank's threads use. Balsam's -tpc.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) threads_per_core: i32,
    /// GPUs of each rank; 0.5 shares one.
    #[arg(short = 'g', long, value_name = "NUMBER", default_value_t = 0.0)]
    pub(crate) gpus_per_rank: f64,
    /// How many such Jobs may share a node. Balsam's -npc.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) node_packing_count: i32,
    /// Memory on each node in MiB.
    #[arg(long, value_name = "MIB")]
    pub(crate) mem_mb: Option<i64>,
    /// Minutes it will take, as far as you know; launchers with less time left do not take it.
    #[arg(short = 't', long, value_name = "MINUTES", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) wall_time_min: i32,
    /// Minutes after which it is stopped.
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) walltime_limit_min: Option<i32>,
    /// Runs after the first. Left out: as the App says.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) max_restarts: Option<i32>,
    /// Jobs that must finish first: ids and ranges. Balsam's -pid.
    #[arg(long = "parent", visible_alias = "parent-id", value_name = "IDS")]
    pub(crate) parents: Vec<IdList>,
    /// Higher runs first.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Passed through to the command that starts ranks. Balsam's -lp. Example: --launch-param cpu_affinity=depth
    #[arg(long = "launch-param", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) launch_params: Vec<(String, String)>,
    /// Where a slot of the App gets or puts its file. Example: -s input=home:/data/x.dat
    #[arg(short = 's', long = "stage-data", value_name = "SLOT=LOCATION:/PATH", value_parser = key_value)]
    pub(crate) transfers: Vec<(String, String)>,
    /// Create nothing; show the first Job, the last one and how many there would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) site: SiteOption,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

/// An existing script.
#[derive(Debug, clap::Args)]
pub(crate) struct Submit {
    /// The script.
    #[arg(value_name = "SCRIPT", value_hint = clap::ValueHint::FilePath)]
    pub(crate) script: PathBuf,
    /// Its arguments.
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
    /// The Job's folder, below the Site's data folder. Left out: one below scripts/, named after the Job.
    #[arg(short = 'w', long, value_name = "FOLDER")]
    pub(crate) workdir: Option<String>,
    /// A Job for each index, in place of what the script says.
    #[arg(long, value_name = "RANGE")]
    pub(crate) array: Option<ArraySpec>,
    /// The Job's name, in place of what the script says.
    #[arg(short = 'J', long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Nodes, in place of what the script says.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) num_nodes: Option<i32>,
    /// Minutes that it may take, in place of what the script says.
    #[arg(short = 't', long, value_name = "MINUTES", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) wall_time_min: Option<i32>,
    /// A tag. Example: --tag system=H2O
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// Jobs that must finish first: ids and ranges.
    #[arg(long = "parent", value_name = "IDS")]
    pub(crate) parents: Vec<IdList>,
    /// Higher runs first.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Create nothing; show what there would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) site: SiteOption,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

/// Which Jobs. All that is given must hold.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Ids and ranges of ids: 7 or 12-20,31.
    #[arg(value_name = "IDS")]
    pub(crate) positional: Vec<IdList>,
    /// The same as an option.
    #[arg(short = 'i', long = "id", value_name = "IDS")]
    pub(crate) ids: Vec<IdList>,
    /// In these states, with commas or repeated. Example: --state FAILED,RUN_ERROR
    #[arg(short = 's', long = "state", value_name = "STATE", value_parser = job_state, value_delimiter = ',',
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) states: Vec<JobState>,
    /// In none of these states. Balsam's -ns.
    #[arg(long = "exclude-state", value_name = "STATE", value_parser = job_state, value_delimiter = ',',
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) exclude_states: Vec<JobState>,
    /// With these tags. Example: --tag system=H2O
    #[arg(short = 't', long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) tags: Vec<(String, String)>,
    /// Of this App, by name or id.
    #[arg(short = 'a', long, value_name = "APP", add = ArgValueCompleter::new(complete::apps))]
    pub(crate) app: Option<String>,
    /// With this text in their folder.
    #[arg(short = 'w', long, value_name = "TEXT")]
    pub(crate) workdir: Option<String>,
    /// That ran last in this BatchJob.
    #[arg(long, value_name = "ID")]
    pub(crate) batch_job: Option<i64>,
    /// Of this array, which `job create --array` tells.
    #[arg(long, value_name = "ID")]
    pub(crate) array: Option<i64>,
    /// That depend on these Jobs.
    #[arg(long = "parent", visible_alias = "parent-id", value_name = "IDS")]
    pub(crate) parents: Vec<IdList>,
    /// Changed at this time or later: 2h (ago), 13:05, 2026-11-30T13:05.
    #[arg(long, value_name = "TIME")]
    pub(crate) after: Option<String>,
    /// Changed at this time or before.
    #[arg(long, value_name = "TIME")]
    pub(crate) before: Option<String>,
    #[command(flatten)]
    pub(crate) site: SiteOption,
}

/// Options of `job ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Only how many there are in each state.
    #[arg(long)]
    pub(crate) by_state: bool,
    /// All columns, as with -o wide; with --by-state also the states without Jobs.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The most rows. Left out: 1000 in a table, all in json, jsonl and csv.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) limit: Option<i64>,
    /// In this order: id, last_update, state or workdir, with - before it for descending.
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true,
          value_parser = ["id", "-id", "last_update", "-last_update", "state", "-state", "workdir", "-workdir"])]
    pub(crate) ordering: Option<String>,
}

/// Options of `job cancel` and `job rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Every Job of the Sites meant.
    #[arg(long)]
    pub(crate) all: bool,
    /// Change nothing; show which Jobs are meant.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

/// Options of `job modify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Modify {
    #[command(flatten)]
    pub(crate) change: Change,
    /// The state to set, off the usual way if need be. Example: --set-state RESTART_READY
    #[arg(long, value_name = "STATE", value_parser = job_state, help_heading = "Changes",
          add = ArgValueCompleter::new(complete::states))]
    pub(crate) set_state: Option<JobState>,
    /// Adds or changes a tag.
    #[arg(long = "set-tag", value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Changes")]
    pub(crate) set_tags: Vec<(String, String)>,
    /// Removes a tag.
    #[arg(long = "remove-tag", value_name = "KEY", help_heading = "Changes")]
    pub(crate) remove_tags: Vec<String>,
    /// Changes a parameter.
    #[arg(short = 'p', long = "set-param", value_name = "NAME=VALUE", value_parser = key_value, help_heading = "Changes")]
    pub(crate) set_parameters: Vec<(String, String)>,
    /// Higher runs first.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, help_heading = "Changes")]
    pub(crate) priority: Option<i32>,
    /// Nodes.
    #[arg(short = 'n', long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) num_nodes: Option<i32>,
    /// Ranks on each node. Balsam's -rpn.
    #[arg(long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) ranks_per_node: Option<i32>,
    /// Threads of each rank. Balsam's -tpr.
    #[arg(long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) threads_per_rank: Option<i32>,
    /// Hardware threads of one core that a rank's threads use. Balsam's -tpc.
    #[arg(long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) threads_per_core: Option<i32>,
    /// GPUs of each rank.
    #[arg(short = 'g', long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) gpus_per_rank: Option<f64>,
    /// How many such Jobs may share a node. Balsam's -npc.
    #[arg(long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) node_packing_count: Option<i32>,
    /// Memory on each node in MiB.
    #[arg(long, value_name = "MIB", help_heading = "Changes")]
    pub(crate) mem_mb: Option<i64>,
    /// Minutes it will take.
    #[arg(long, value_name = "MINUTES", help_heading = "Changes")]
    pub(crate) wall_time_min: Option<i32>,
    /// Minutes after which it is stopped.
    #[arg(long, value_name = "MINUTES", help_heading = "Changes")]
    pub(crate) walltime_limit_min: Option<i32>,
    /// Runs after the first.
    #[arg(long, value_name = "NUMBER", help_heading = "Changes")]
    pub(crate) max_restarts: Option<i32>,
}
