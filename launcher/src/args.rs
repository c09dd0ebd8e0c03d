//! The command line of `copal-launcher`. It only parses; what it means is found out in `main` and `pilot`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use copal_schemas::{
    BatchJobId, StringMap,
    batch_job::{JobMode, Partition},
};

use crate::worker::WorkerArgs;

/// Runs the Jobs of a Site on the nodes of an allocation.
///
/// The Site's job template calls this inside each allocation. By hand it works too, in a Site's folder:
/// `copal-launcher -j serial -t 10` runs serial Jobs on this machine for ten minutes.
#[derive(Clone, Debug, Parser)]
#[command(name = "copal-launcher", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    /// What a launcher does for itself.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What a pilot is told.
    #[command(flatten)]
    pub pilot: PilotArgs,
}

/// What a launcher does for itself.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Runs processes on one node for a launcher, which starts it.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Prints as JSON what this node has: how a launcher asks the other nodes of its allocation.
    #[command(hide = true)]
    Hardware,
}

/// What a pilot is told.
#[derive(Clone, Debug, Args)]
pub struct PilotArgs {
    /// The Site's folder; left out, the Site that the present folder is in.
    #[arg(long, value_name = "PATH")]
    pub site: Option<PathBuf>,
    /// The BatchJob that this runs in; left out when run by hand.
    #[arg(long, value_name = "ID")]
    pub batch_job_id: Option<BatchJobId>,
    /// mpi: each Job by the platform's MPI command; serial: Jobs of one rank, by a worker on each node. May be left out
    /// with -p, which says it for each part.
    #[arg(short = 'j', long = "job-mode", value_name = "MODE", required_unless_present = "partitions")]
    pub job_mode: Option<JobMode>,
    /// Minutes until everything must be over.
    #[arg(short = 't', long = "wall-time-min", value_name = "MIN", required = true, value_parser = positive)]
    pub wall_time_min: Option<f64>,
    /// A tag that a Job must have; may be given several times.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,
    /// A part of the nodes with a launcher of its own: MODE:NODES[:KEY=VALUE]…; may be given several times.
    #[arg(short = 'p', long = "partition", value_name = "PARTITION")]
    pub partitions: Vec<Partition>,
    /// The nodes of this partition: the place of the first one and their number. Used by the launcher itself.
    #[arg(long, hide = true, value_name = "FIRST:COUNT", value_parser = range)]
    pub nodes: Option<(usize, usize)>,
}

impl PilotArgs {
    /// The tags as a map.
    #[must_use]
    pub fn filter_tags(&self) -> StringMap {
        self.tags.iter().cloned().collect()
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of minutes".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be more than 0 minutes".into()) }
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a tag is KEY=VALUE, such as system=H2O")?;
    Ok((key.into(), value.into()))
}

fn range(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once(':').and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
    parts.filter(|(_, count)| *count > 0).ok_or_else(|| "must be FIRST:COUNT".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_of_a_job_template_is_read() {
        Cli::command().debug_assert();
        let line = "copal-launcher --site /s --batch-job-id 7 -j mpi -t 60 --tag a=b=c -p mpi:2:role=x -p serial:6";
        let args = Cli::parse_from(line.split(' ')).pilot;
        assert_eq!(args.batch_job_id, Some(BatchJobId(7)));
        assert_eq!(args.job_mode, Some(JobMode::Mpi));
        assert_eq!(args.wall_time_min, Some(60.0));
        assert_eq!(args.filter_tags().get("a").map(String::as_str), Some("b=c"));
        assert_eq!(args.partitions.len(), 2);
        for wrong in
            ["copal-launcher -j mpi", "copal-launcher -t 1", "copal-launcher -j gpu -t 1", "copal-launcher -j mpi -t 0"]
        {
            assert!(Cli::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
        let parts = Cli::parse_from("copal-launcher -t 1 -p mpi:2 -p serial:6".split(' ')).pilot;
        assert_eq!((parts.job_mode, parts.partitions.len()), (None, 2));
        let worker = Cli::parse_from(["copal-launcher", "worker", "--node", "3"]);
        assert!(matches!(worker.command, Some(Command::Worker(_))));
    }
}
