//! `copal app …`

use clap_complete::engine::ArgValueCompleter;

use super::{SiteOption, Yes, key_value};
use crate::complete;

/// What to do with Apps.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  copal app sync\n  copal app ls --site all\n  copal app show Hello")]
pub(crate) enum Command {
    /// Tell the service what is in this Site's apps/*.yml.
    #[command(after_help = "Examples:\n  copal app sync\n  copal app sync --site my-site")]
    Sync(SiteOption),
    /// List Apps.
    #[command(after_help = "Examples:\n  copal app ls\n  copal app ls --site all -o json")]
    Ls(SiteOption),
    /// Show one App with its parameters and transfer slots, and the command as it would run for given parameters.
    #[command(
        after_help = "Examples:\n  copal app show Hello\n  copal app show 17\n  copal app show Hello -p name=world"
    )]
    Show {
        /// Its name or id.
        #[arg(add = ArgValueCompleter::new(complete::apps))]
        app: String,
        /// A parameter of the command that is shown. Example: -p name=world
        #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", value_parser = key_value)]
        parameters: Vec<(String, String)>,
        #[command(flatten)]
        site: SiteOption,
    },
    /// Delete an App with its Jobs from the service. Its file stays.
    #[command(after_help = "Examples:\n  copal app rm Hello\n  copal app rm Hello --site my-site -y")]
    Rm {
        /// Its name or id.
        #[arg(add = ArgValueCompleter::new(complete::apps))]
        app: String,
        #[command(flatten)]
        site: SiteOption,
        #[command(flatten)]
        yes: Yes,
    },
}
