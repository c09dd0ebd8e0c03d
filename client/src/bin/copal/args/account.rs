//! Options of `register` and `login`.

use clap::Args;
use url::Url;

/// Which service, and as whom.
#[derive(Clone, Debug, Args)]
pub(crate) struct Enter {
    /// The service's address. Left out: the one logged in to last, else http://127.0.0.1:8642.
    #[arg(long, env = "COPAL_API_URL", value_name = "URL")]
    pub(crate) url: Option<Url>,
    /// Send the password over plain http to another machine.
    #[arg(long)]
    pub(crate) allow_insecure: bool,
    #[command(flatten)]
    pub(crate) account: Account,
}

/// How to log in.
#[derive(Clone, Debug, Args)]
pub(crate) struct Login {
    /// Approve the login in a browser, on this or another machine, instead of typing the password here.
    #[arg(long, conflicts_with_all = ["username", "password", "password_stdin"])]
    pub(crate) device: bool,
    #[command(flatten)]
    pub(crate) enter: Enter,
}

/// A name and how its password is had.
#[derive(Clone, Args)]
pub(crate) struct Account {
    /// The login name; asked for on a terminal.
    #[arg(short = 'u', long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// The password. Other users of this machine can read it in the process list: better set
    /// COPAL_PASSWORD or use --password-stdin.
    #[arg(long, value_name = "PASSWORD", conflicts_with = "password_stdin")]
    pub(crate) password: Option<String>,
    /// Read the password from stdin.
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("username", &self.username).finish_non_exhaustive()
    }
}
