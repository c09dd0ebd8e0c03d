//! `copal site …`

use std::path::PathBuf;

use super::{SiteOption, Yes};

/// What to do with Sites.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  copal site init ./my-site\n  copal site start\n  copal site ls")]
pub(crate) enum Command {
    /// Make a Site: a folder here, and its entry at the service.
    #[command(after_help = "\
Examples:
  copal site init ./my-site
  copal site init ~/sites/polaris --name polaris --platform local -y")]
    Init {
        /// The folder; made where it does not exist, empty otherwise.
        path: PathBuf,
        /// The Site's name, unique among yours. Left out: the folder's name.
        #[arg(short = 'n', long, value_name = "NAME")]
        name: Option<String>,
        /// The platform whose settings and job template are taken. Asked for on a terminal.
        #[arg(long, value_name = "PLATFORM")]
        platform: Option<String>,
        #[command(flatten)]
        yes: Yes,
    },
    /// List your Sites.
    #[command(after_help = "Examples:\n  copal site ls\n  copal site ls -o wide\n  copal site ls -o json")]
    Ls {
        /// Only these: this, active, an id, a name or a part of the path. Left out: all.
        #[arg(long, value_name = "SITES")]
        site: Option<String>,
    },
    /// Start the Site's agent in the background.
    #[command(after_help = "Examples:\n  copal site start\n  copal site start ./my-site")]
    Start(Folder),
    /// Run the Site's agent in the foreground, for service managers.
    #[command(after_help = "Example:\n  copal site run /srv/my-site")]
    Run(Folder),
    /// Stop the Site's agent. Running launchers go on.
    #[command(after_help = "Example:\n  copal site stop")]
    Stop(Folder),
    /// Show whether the Site's agent runs and how its services do.
    #[command(after_help = "Examples:\n  copal site status\n  copal site status -o json")]
    Status(Folder),
    /// Check the Site's files, and tell the service about its settings and Apps.
    #[command(after_help = "Examples:\n  copal site sync\n  copal site sync --site my-site")]
    Sync(Folder),
    /// Move a Site's folder on this machine, and tell the service.
    #[command(after_help = "Examples:\n  copal site mv ./old ./new\n  copal site mv ~/sites/a /scratch/a")]
    Mv {
        /// The folder now. Where it was moved by hand already, the folder where it is.
        from: PathBuf,
        /// The folder then. Left out: it was moved by hand.
        to: Option<PathBuf>,
    },
    /// Give a Site another name.
    #[command(after_help = "Examples:\n  copal site rename new-name\n  copal site rename new-name --site old-name")]
    Rename {
        /// The new name, unique among your Sites.
        name: String,
        #[command(flatten)]
        site: SiteOption,
    },
    /// Print a systemd user unit that keeps the Site's agent running.
    #[command(after_help = "Example:\n  copal site unit > ~/.config/systemd/user/copal-agent.service")]
    Unit(Folder),
    /// Delete a Site from the service with its Jobs. Its folder stays.
    #[command(
        after_help = "Examples:\n  copal site rm --site my-site\n  copal site rm --site my-site --force\n  copal site rm ./my-site -y"
    )]
    Rm {
        /// The Site of this folder. Left out: the one that this folder is in.
        #[arg(value_name = "FOLDER", conflicts_with = "site")]
        path: Option<PathBuf>,
        #[command(flatten)]
        site: SiteOption,
        #[command(flatten)]
        yes: Yes,
        /// Even while its agent runs or BatchJobs of it are not over; ask nothing.
        #[arg(long)]
        force: bool,
    },
}

/// A Site's folder on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Folder {
    /// The Site's folder. Left out: the one that this folder is in.
    #[arg(value_name = "FOLDER")]
    pub(crate) path: Option<PathBuf>,
    /// The Site by id, name or a part of its path; its folder must be on this machine.
    #[arg(long, value_name = "SITE", conflicts_with = "path")]
    pub(crate) site: Option<String>,
}
