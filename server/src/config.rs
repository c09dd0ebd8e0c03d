//! What the operator decides: flags, each with an environment variable.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use secrecy::SecretString;

use crate::db::sessions::Lease;

/// Copal's service: the REST API on Postgres.
#[derive(Debug, Parser)]
#[command(name = "copal-server", version, max_term_width = 100)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub config: Config,
}

/// What `copal-server` can do besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring the database's schema up to date and exit.
    #[command(after_help = "Example: copal-server migrate --database-url postgres://copal@db.example.org/copal")]
    Migrate,
    /// Make a new key that signs tokens. Running services take it up within seconds.
    #[command(after_help = "Keys rotate by themselves every month. Example: copal-server rotate-keys --retire-all")]
    RotateKeys {
        /// Refuse all access tokens that exist, as after a leak. Logins that renew themselves get new ones; end those
        /// with `POST /auth/revoke` or `DELETE /auth/logins/{id}`.
        #[arg(long)]
        retire_all: bool,
    },
    /// Print the URL of the embedded database, for psql and backups.
    #[command(after_help = "Example: psql \"$(copal-server database-url)\"")]
    DatabaseUrl,
}

/// Who may make an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Registration {
    /// Everybody who reaches the service.
    Open,
    /// Nobody.
    Closed,
}

/// The service's settings.
#[derive(Clone, Debug, Args)]
pub struct Config {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, env = "COPAL_LISTEN", default_value = "127.0.0.1:8642", value_name = "ADDRESS", global = true)]
    pub listen: SocketAddr,
    /// Postgres to use. Without it, the service runs a private one under $COPAL_HOME/postgres.
    #[arg(long, env = "COPAL_DATABASE_URL", hide_env_values = true, value_name = "URL", global = true)]
    pub database_url: Option<SecretString>,
    /// Where the service keeps the embedded database [default: ~/.copal].
    #[arg(long, env = "COPAL_HOME", value_name = "FOLDER", global = true)]
    pub home: Option<PathBuf>,
    /// Whether everybody may make an account.
    #[arg(long, env = "COPAL_REGISTRATION", default_value = "open", value_name = "WHO", global = true)]
    pub registration: Registration,
    /// A proxy in front ends TLS; its X-Forwarded-* headers are believed.
    #[arg(long, env = "COPAL_BEHIND_PROXY", global = true)]
    pub behind_proxy: bool,
    /// Certificate chain (PEM) for TLS.
    #[arg(long, env = "COPAL_TLS_CERT", requires = "tls_key", value_name = "FILE", global = true)]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate.
    #[arg(long, env = "COPAL_TLS_KEY", requires = "tls_cert", value_name = "FILE", global = true)]
    pub tls_key: Option<PathBuf>,
    /// Seconds that a Session lives after its last heartbeat.
    #[arg(long, env = "COPAL_LEASE_SEC", default_value = "300", value_parser = seconds, value_name = "SEC", global = true)]
    pub lease: Duration,
    /// Seconds that a silent Session is held while the scheduler says that its BatchJob runs, until that has really ended.
    #[arg(long, env = "COPAL_LEASE_HOLD_SEC", default_value = "1800", value_parser = seconds, value_name = "SEC", global = true)]
    pub lease_hold: Duration,
    /// Seconds between two looks for lapsed Sessions.
    #[arg(long, env = "COPAL_SWEEP_SEC", default_value = "5", value_parser = seconds, value_name = "SEC", global = true)]
    pub sweep: Duration,
    /// Seconds after which a connection is cut whose client takes in nothing of what it is sent, or sends nothing more of
    /// what it began.
    #[arg(long, env = "COPAL_CLIENT_TIMEOUT_SEC", default_value = "60", value_parser = seconds, value_name = "SEC", global = true)]
    pub client_timeout: Duration,
    /// Days for which events are kept; 0 keeps them all. Jobs and their runs stay.
    #[arg(long, env = "COPAL_EVENT_RETENTION_DAYS", default_value = "0", value_parser = clap::value_parser!(u32).range(..=100_000), value_name = "DAYS", global = true)]
    pub event_retention_days: u32,
}

impl Config {
    /// The folder of the embedded database's files: `--home`, or `~/.copal`, or `.copal` where
    /// there is no home.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.home.clone().unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".copal"))
    }

    /// What tests start from: a free port on loopback and the given database, all else as default.
    ///
    /// # Panics
    /// Never: the defaults are valid.
    #[must_use]
    pub fn for_database(url: impl Into<SecretString>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            database_url: Some(url.into()),
            home: None,
            registration: Registration::Open,
            behind_proxy: false,
            tls_cert: None,
            tls_key: None,
            lease: Duration::from_secs(300),
            lease_hold: Duration::from_secs(1800),
            sweep: Duration::from_secs(5),
            client_timeout: Duration::from_secs(60),
            event_retention_days: 0,
        }
    }

    /// How long silent Sessions are held.
    #[must_use]
    pub fn leases(&self) -> Lease {
        Lease { usual: self.lease, cut_off: self.lease_hold }
    }

    /// Refuses what would send passwords and tokens over a network in the clear.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.listen.ip().is_loopback() || self.behind_proxy || self.tls_cert.is_some(),
            "refusing to listen on {} without TLS: passwords and tokens would cross the network in the clear; \
             give --tls-cert and --tls-key, or --behind-proxy if a proxy in front ends TLS",
            self.listen
        );
        Ok(())
    }
}

/// Seconds, also with a fraction: tests use leases shorter than a second.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration >= Duration::from_millis(10) && duration <= Duration::from_secs(30 * 86_400) => {
            Ok(duration)
        }
        _ => Err("between 0.01 seconds and 30 days is wanted".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_network_needs_tls() {
        let mut config = Config::for_database("postgres://x");
        assert!(config.check().is_ok());
        config.listen = SocketAddr::from(([0, 0, 0, 0], 8642));
        assert!(config.check().is_err());
        config.behind_proxy = true;
        assert!(config.check().is_ok());
    }

    #[test]
    fn seconds_may_have_a_fraction() {
        assert_eq!(seconds("0.6"), Ok(Duration::from_millis(600)));
        for text in ["0", "-1", "x", "1e9", "NaN"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
