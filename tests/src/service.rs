//! The real service, in this process, on a free port and a database of its own.

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use copal_server::{App, Config, config::Registration};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{api::Api, postgres::TestDatabase, world::PASSWORD};

/// What a test may want other than the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seconds that a Session lives after its last heartbeat.
    pub lease_sec: f64,
    /// Seconds that a silent Session is held while its BatchJob runs.
    pub lease_hold_sec: f64,
    /// Seconds between two looks for lapsed Sessions.
    pub sweep_sec: f64,
    /// Whether everybody may register.
    pub registration_open: bool,
    /// Days that events are kept; 0 for ever.
    pub event_retention_days: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_sec: 300.0,
            lease_hold_sec: 1800.0,
            sweep_sec: 5.0,
            registration_open: true,
            event_retention_days: 0,
        }
    }
}

/// A running service. Stops, and its database goes away with the last replica, when it goes out of scope.
#[derive(Debug)]
pub struct Service {
    running: Option<Running>,
    base: String,
    settings: Settings,
    database: Arc<TestDatabase>,
}

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Service {
    /// A service on a new database.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(settings: Settings) -> Self {
        Self::on(Arc::new(TestDatabase::create().await), settings).await
    }

    /// Another process's worth of service on the same database.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn replica(&self) -> Self {
        Self::on(Arc::clone(&self.database), self.settings).await
    }

    async fn on(database: Arc<TestDatabase>, settings: Settings) -> Self {
        let mut service = Self { running: None, base: String::new(), settings, database };
        service.restart().await;
        service
    }

    /// Stops it, where it runs, and starts it again on another port: see [`Service::base`].
    ///
    /// # Panics
    /// When it does not stop or start.
    pub async fn restart(&mut self) {
        self.stop().await;
        let mut config = Config::for_database(self.database.url());
        config.lease = Duration::from_secs_f64(self.settings.lease_sec);
        config.lease_hold = Duration::from_secs_f64(self.settings.lease_hold_sec);
        config.sweep = Duration::from_secs_f64(self.settings.sweep_sec);
        config.registration = if self.settings.registration_open { Registration::Open } else { Registration::Closed };
        config.event_retention_days = self.settings.event_retention_days;
        let stop = CancellationToken::new();
        let (started, address) = oneshot::channel();
        let token = stop.clone();
        // A runtime of its own, as in the program: the test's runtime has one thread, on which a
        // test that blocks would stop the service too.
        let thread = std::thread::spawn(move || serve(config, token, started));
        let address = address.await.expect("the service's thread answers").expect("the service starts");
        self.base = format!("http://{address}");
        self.running = Some(Running { stop, thread });
    }

    /// Stops it in order. Its database stays.
    ///
    /// # Panics
    /// When it does not stop in order.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.cancel();
            let ended = tokio::task::spawn_blocking(|| running.thread.join()).await.expect("joining does not panic");
            ended.expect("the service's thread does not panic").expect("the service stops in order");
        }
    }

    /// The base URL, without a slash at its end.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Anonymous requests.
    #[must_use]
    pub fn api(&self) -> Api {
        Api::new(&self.base)
    }

    /// The database behind it.
    #[must_use]
    pub fn database(&self) -> &TestDatabase {
        &self.database
    }

    /// A new user, logged in.
    ///
    /// # Panics
    /// When the name is taken.
    pub async fn user(&self, name: &str) -> Api {
        let api = self.api();
        api.post("/auth/password/register", &json!({"username": name, "password": PASSWORD})).await.created();
        let form = [("username", name), ("password", PASSWORD)];
        let token = api.post_form("/auth/password/login", &form).await.ok();
        api.with_token(token["access_token"].as_str().expect("a token"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.cancel();
            let ended = running.thread.join();
            if !std::thread::panicking() {
                ended.expect("the service's thread does not panic").expect("the service stops in order");
            }
        }
    }
}

fn serve(
    config: Config,
    stop: CancellationToken,
    started: oneshot::Sender<anyhow::Result<SocketAddr>>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match App::build(config).await {
            Ok(app) => {
                // A test that no longer waits has failed already.
                let _ = started.send(Ok(app.addr()));
                app.run_until_stopped(stop).await
            }
            Err(error) => {
                let _ = started.send(Err(error));
                Ok(())
            }
        }
    })
}
