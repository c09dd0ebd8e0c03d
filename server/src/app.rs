//! The running service: binds the port, wires database, routes and tasks, and stops in order.
//! The program and the tests start the same thing.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use actix_web::{App as ActixApp, HttpServer, dev::Server, web};
use anyhow::Context as _;
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{self, KeyRing},
    config::Config,
    db,
    embedded::EmbeddedPostgres,
    feed::Feed,
    metrics, routes, tasks, telemetry, tls,
};

/// How long requests that run when the service stops may take to end.
const SHUTDOWN_SEC: u64 = 10;
/// How long an idle connection is kept: longer than the 90 s for which Copal's own clients do, so
/// that none is closed just as a request is sent on it.
const KEEP_ALIVE: Duration = Duration::from_secs(100);

/// What every handler and every task has at hand; cheap to clone. Handlers take it as
/// `web::Data<Shared>`.
#[derive(Clone)]
pub struct Shared {
    /// Connections to the database.
    pub pool: PgPool,
    /// What the operator decided.
    pub config: Arc<Config>,
    /// The keys that sign tokens.
    pub keys: Arc<KeyRing>,
    /// Wakes what waits for changes.
    pub feed: Feed,
    /// Cancelled when the service stops: long polls and streams end then.
    pub stop: CancellationToken,
}

/// A service that is bound to its port and ready to run.
pub struct App {
    server: Server,
    addr: SocketAddr,
    shared: Shared,
    tasks: JoinSet<()>,
    postgres: Option<EmbeddedPostgres>,
}

impl App {
    /// Binds the port, starts the embedded Postgres where the config names no database, migrates.
    ///
    /// # Errors
    /// One sentence with the remedy: port in use, no database, bad certificate.
    pub async fn build(config: Config) -> anyhow::Result<Self> {
        config.check()?;
        let listener = TcpListener::bind(config.listen).with_context(|| {
            format!("can't listen on {}; choose another address with --listen, port 0 takes a free one", config.listen)
        })?;
        let addr = listener.local_addr().context("can't tell the port")?;
        cut_stuck_clients(&listener, config.client_timeout)?;
        let tls = tls::server_config(&config)?;
        let (postgres, url) = match &config.database_url {
            Some(url) => (None, url.clone()),
            None => {
                let postgres = EmbeddedPostgres::start(&config.home()).await?;
                let url = SecretString::from(postgres.url());
                (Some(postgres), url)
            }
        };
        // From here on a failure must not leave the embedded Postgres behind.
        match Self::wire(config, &url, listener, tls).await {
            Ok((server, shared, tasks)) => Ok(Self { server, addr, shared, tasks, postgres }),
            Err(error) => {
                if let Some(postgres) = postgres {
                    postgres.stop().await?;
                }
                Err(error)
            }
        }
    }

    async fn wire(
        config: Config,
        url: &SecretString,
        listener: TcpListener,
        tls: Option<rustls::ServerConfig>,
    ) -> anyhow::Result<(Server, Shared, JoinSet<()>)> {
        let pool = db::connect(url).await?;
        db::migrate(&pool).await?;
        let shared = Shared {
            keys: Arc::new(KeyRing::load(&pool).await?),
            pool,
            config: Arc::new(config),
            feed: Feed::new(),
            stop: CancellationToken::new(),
        };
        // Loops that run beside the requests; all end when `shared.stop` is cancelled.
        let mut loops = JoinSet::new();
        tasks::start(&shared, &mut loops);
        metrics::install();
        loops.spawn(metrics::upkeep(shared.stop.clone()));
        loops.spawn(auth::tidy(shared.clone()));
        let data = web::Data::new(shared.clone());
        let server = HttpServer::new(move || {
            ActixApp::new()
                .app_data(data.clone())
                .wrap(actix_web::middleware::from_fn(auth::guard))
                .wrap(actix_web::middleware::from_fn(telemetry::observe))
                .configure(routes::table)
                .default_service(web::to(routes::no_route))
        })
        .workers(thread::available_parallelism().map_or(2, usize::from))
        .keep_alive(KEEP_ALIVE)
        // Small messages both ways: Nagle's algorithm would add 40 ms stalls.
        .tcp_nodelay(true)
        .disable_signals()
        .shutdown_timeout(SHUTDOWN_SEC);
        let server = match tls {
            Some(tls) => server.listen_rustls_0_23(listener, tls),
            None => server.listen(listener),
        }
        .context("can't serve on the port")?
        .run();
        Ok((server, shared, loops))
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL for clients on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.shared.config.tls_cert.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/", self.addr)
    }

    /// Serves until `stop` is cancelled; then ends long polls and streams, lets the requests that
    /// run end, and stops the embedded Postgres last.
    ///
    /// # Errors
    /// When the server breaks, or Postgres does not stop.
    pub async fn run_until_stopped(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let handle = self.server.handle();
        let token = self.shared.stop.clone();
        let mut server = std::pin::pin!(self.server);
        let served = tokio::select! {
            outcome = &mut server => outcome,
            () = stop.cancelled() => {
                token.cancel();
                // The server future has to be polled for the stop to come about.
                let (outcome, ()) = tokio::join!(server, handle.stop(true));
                outcome
            }
        };
        token.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.shared.pool.close().await;
        if let Some(postgres) = self.postgres {
            postgres.stop().await?;
        }
        served.context("the HTTP server broke")
    }
}

/// Connections inherit it from the listening socket. Without it a client that is gone, or that lives and reads nothing,
/// would hold its connection, and what waits to be sent on it, for ever.
fn cut_stuck_clients(listener: &TcpListener, after: Duration) -> anyhow::Result<()> {
    let milliseconds = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    setsockopt(listener, TcpUserTimeout, &milliseconds).context("can't set a time-out for connections")
}
