//! `copal-server`: parses, logs, starts the service and stops it on a signal: nothing else.

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::Parser as _;
use copal_server::{
    App, auth,
    config::{Cli, Command, Config},
    db,
    embedded::{self, EmbeddedPostgres},
    telemetry,
};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let cli = Cli::parse();
    telemetry::init();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the async runtime")
        .and_then(|runtime| runtime.block_on(run(cli)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not a log line: the operator reads this one. Nothing can be done where it fails.
            let _ = writeln!(std::io::stderr(), "copal-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        None => serve(cli.config).await,
        Some(Command::Migrate) => with_database(cli.config, async |_| Ok(())).await,
        Some(Command::RotateKeys { retire_all }) => {
            with_database(cli.config, async |pool| auth::rotate_now(pool, retire_all).await).await
        }
        Some(Command::DatabaseUrl) => {
            let url = embedded::running_url(&cli.config.home())?;
            writeln!(std::io::stdout(), "{url}").context("can't write to stdout")
        }
    }
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    // A signal during the start is obeyed right after it: half a start has nobody to stop what it
    // has started.
    let app = App::build(config).await?;
    tracing::info!(url = app.url(), "serving");
    app.run_until_stopped(stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Runs `work` on the database, for which the embedded one is started where it does not run.
async fn with_database(config: Config, work: impl AsyncFnOnce(&PgPool) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (postgres, url) = match &config.database_url {
        Some(url) => (None, url.clone()),
        // A service that runs holds the folder; its database can be used beside it.
        None => match embedded::running_url(&config.home()) {
            Ok(url) => (None, SecretString::from(url)),
            Err(_) => {
                let postgres = EmbeddedPostgres::start(&config.home()).await?;
                let url = SecretString::from(postgres.url());
                (Some(postgres), url)
            }
        },
    };
    let done = async {
        let pool = db::connect(&url).await?;
        let migrated = db::migrate(&pool).await;
        let done = match migrated {
            Ok(()) => work(&pool).await,
            Err(error) => Err(error),
        };
        pool.close().await;
        done
    }
    .await;
    if let Some(postgres) = postgres {
        postgres.stop().await?;
    }
    done
}

/// A token that SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal) cancel.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).context("can't listen for signals")?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(stop)
}
