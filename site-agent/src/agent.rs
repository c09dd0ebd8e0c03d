//! The agent as a whole: takes the Site's lock, starts every service, and ends them all in good order.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use copal_client::SiteDir;
use copal_schemas::{SiteId, problem::ErrorCode, site::Site};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, Backoff, LoginError},
    guard::Guard,
    lock::{self, SiteLock},
    logging,
    settings::SettingsFile,
    status::StatusBoard,
    tasks::{
        Context, MAX_BACKOFF, Wakes, elastic_queue, file_cleaner, hooks, node_watch, queue_maintainer, queue_sync,
        remote_apps, site_refresh, spool, staging, wake,
    },
};

/// How often the agent makes sure that the Site is still its own.
const LOCK_PERIOD: Duration = Duration::from_secs(10);

/// How long services may take to end before the agent ends without them. Nothing is lost then: each
/// of them can be cut off at any point.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Works for a Site until SIGTERM or SIGINT.
///
/// # Errors
/// When another agent has the Site, when settings or credentials can't be used, when the service has no such Site.
pub fn run(dir: &SiteDir) -> anyhow::Result<()> {
    dir.create_folders()?;
    let settings = SettingsFile::open(dir)?;
    let lock = SiteLock::take(dir)?;
    let first = settings.current().0;
    logging::init(dir, &first.logging.level)?;
    let api = Api::open(dir, first.site_id)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(serve(dir, settings, api, &lock));
    // Tasks that did not end in time end here.
    runtime.shutdown_timeout(Duration::from_millis(100));
    drop(lock);
    outcome
}

/// The folder of Copal's programs, which sit side by side.
///
/// # Errors
/// When the kernel does not say where this program is.
pub fn programs() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("can't find out where this program is")?;
    Ok(program.parent().context("this program has no folder")?.to_path_buf())
}

async fn serve(dir: &SiteDir, settings: SettingsFile, api: Api, lock: &SiteLock) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let wakes = Arc::new(Wakes::default());
    tokio::spawn(listen_for_signals(stop.clone(), Arc::clone(&wakes))?);
    let site_id = settings.current().0.site_id;
    let board = StatusBoard::new(dir, site_id, api.root());
    let written = CancellationToken::new();
    let keeper = tokio::spawn(board.clone().keep_written(written.clone()));
    settings.apply();
    tracing::info!(site.id = site_id.0, pid = std::process::id(), "the agent of {} started", dir.root().display());

    let work = async {
        let outcome = work(dir, settings, api, board, wakes, &stop).await;
        // Whatever the outcome, nobody needs the watch any more.
        stop.cancel();
        outcome
    };
    let (outcome, kept) = tokio::join!(work, keep_lock(dir, lock, &stop));
    written.cancel();
    let _ = keeper.await;
    tracing::info!("the agent stopped");
    outcome.and(kept)
}

/// Makes sure that the Site is still this agent's, until the agent stops.
///
/// # Errors
/// When another agent has it: then this one stops.
async fn keep_lock(dir: &SiteDir, lock: &SiteLock, stop: &CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOCK_PERIOD) => {}
        }
        if let Some(other) = lock.usurper(dir) {
            let what = format!("another agent has this Site ({}); this one stops", lock::describe(&other));
            tracing::error!("{what}");
            stop.cancel();
            anyhow::bail!(what);
        }
    }
}

/// Meets the service and works until the agent stops.
async fn work(
    dir: &SiteDir,
    settings: SettingsFile,
    api: Api,
    board: StatusBoard,
    wakes: Arc<Wakes>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match first_contact(&api, &settings, &board, stop).await {
        Ok(Some(site)) => {
            let context = Context {
                dir: dir.clone(),
                site: Arc::new(site),
                settings: Arc::new(settings),
                api: Arc::new(api),
                programs: Arc::new(programs()?),
                guard: Arc::new(Guard::start().context("can't start the guard of hooks and transfers")?),
                board,
                wakes,
                spool: Arc::default(),
                stop: stop.clone(),
            };
            run_services(&context).await;
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => {
            tracing::error!("{error:#}");
            Err(error)
        }
    }
}

async fn run_services(context: &Context) {
    let mut services = JoinSet::new();
    services.spawn(wake::run(context.clone()));
    services.spawn(queue_sync::run(context.clone()));
    services.spawn(hooks::run(context.clone()));
    services.spawn(spool::run(context.clone()));
    services.spawn(site_refresh::run(context.clone()));
    services.spawn(remote_apps::run(context.clone()));
    services.spawn(node_watch::run(context.clone()));
    services.spawn(elastic_queue::run(context.clone()));
    services.spawn(queue_maintainer::run(context.clone()));
    services.spawn(staging::run(context.clone()));
    services.spawn(file_cleaner::run(context.clone()));
    // A service returns only when the agent stops; one that panicked takes the agent down, for a supervisor to restart.
    while let Some(ended) = services.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            tracing::error!("a service failed by a fault of its own: {error}");
            context.stop.cancel();
        }
        if context.stop.is_cancelled() {
            break;
        }
    }
    let rest = async { while services.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_LIMIT, rest).await.is_err() {
        tracing::warn!("some services did not end within {} s; they are cut off", STOP_LIMIT.as_secs());
    }
}

/// Waits for the service, for as long as that is away, and logs in. `None` when the agent is stopped meanwhile.
async fn first_contact(
    api: &Api,
    settings: &SettingsFile,
    board: &StatusBoard,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Site>> {
    let site_id = settings.current().0.site_id;
    let mut backoff = Backoff::new(MAX_BACKOFF);
    loop {
        let answer = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            answer = meet(api, site_id) => answer,
        };
        match answer {
            Ok(site) => return Ok(Some(site)),
            Err(LoginError::Client(error)) if error.code() == Some(ErrorCode::NotFound) => anyhow::bail!(
                "{} has no Site {site_id} of yours; is the right user logged in (`copal whoami`), \
                 or was the Site removed? `copal site init` makes a new one",
                api.root()
            ),
            Err(error) => {
                let text = match &error {
                    LoginError::Client(error) => api.explain(error),
                    error => error.to_string(),
                };
                board.failure("site", &text);
                let wait = backoff.next_wait();
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = tokio::time::sleep(wait) => {}
                }
            }
        }
    }
}

/// Logs in where that is to be done, and asks for the Site.
async fn meet(api: &Api, site_id: SiteId) -> Result<Site, LoginError> {
    api.log_in().await?;
    match api.client().get_site(site_id).await {
        Err(error) if error.code() == Some(ErrorCode::Unauthenticated) => api.log_in_again().await?,
        answer => return Ok(answer?),
    }
    Ok(api.client().get_site(site_id).await?)
}

/// SIGTERM and SIGINT stop the agent, SIGHUP makes it look at everything again, settings included.
fn listen_for_signals(
    stop: CancellationToken,
    wakes: Arc<Wakes>,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: looking at everything again");
                    wakes.all();
                }
            }
        }
        tracing::info!("stopping");
        stop.cancel();
    })
}
