//! The agent's services, one file each, and the loop that most of them share: a pass that looks at
//! everything and may be repeated at will, run when woken and by its period as the fallback.

pub mod elastic_queue;
pub mod file_cleaner;
pub mod hooks;
pub mod node_watch;
pub mod queue_maintainer;
pub mod queue_sync;
pub mod remote_apps;
mod reports;
mod requests;
pub mod site_refresh;
pub mod spool;
pub mod staging;
pub mod wake;

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use copal_client::{ClientError, SiteDir};
use copal_schemas::{problem::ErrorCode, site::Site};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, Backoff},
    guard::Guard,
    settings::SettingsFile,
    status::StatusBoard,
};

/// The longest wait after a failed pass.
pub const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// The least time between two passes, however often they are woken.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// What every service works with. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The Site's folder.
    pub dir: SiteDir,
    /// The Site, as the service knew it when the agent started.
    pub site: Arc<Site>,
    /// Its settings.
    pub settings: Arc<SettingsFile>,
    /// The way to the service.
    pub api: Arc<Api>,
    /// The folder of Copal's programs.
    pub programs: Arc<PathBuf>,
    /// Ends what services run, should the agent be killed.
    pub guard: Arc<Guard>,
    /// Where services show how they fare.
    pub board: StatusBoard,
    /// What wakes them.
    pub wakes: Arc<Wakes>,
    /// Who delivers launchers' reports.
    pub spool: Arc<spool::Deliverer>,
    /// When they must end.
    pub stop: CancellationToken,
}

/// One bell for each service that something can wake.
#[derive(Default)]
pub struct Wakes {
    /// A BatchJob was made or changed.
    pub scheduler: Notify,
    /// Hooks may have something to do that no long poll would tell.
    pub hooks: Notify,
    /// The Site's record must be told again.
    pub site: Notify,
    /// An App of the Site may have been made or changed through the API.
    pub apps: Notify,
    /// How Jobs fare on the nodes is to be looked at again.
    pub nodes: Notify,
    /// Everything is to be looked at again; else the elastic queue keeps to its period, so that BatchJobs that end
    /// at once don't call for the next ones.
    pub elastic_queue: Notify,
    /// Everything is to be looked at again; else the queue maintainer keeps to its period.
    pub queue_maintainer: Notify,
    /// A launcher may have left reports.
    pub spool: Notify,
    /// Transfers that wait for a new try may be tried at once.
    pub staging: Notify,
}

impl Wakes {
    /// Wakes everybody.
    pub fn all(&self) {
        let bells = [
            &self.scheduler,
            &self.hooks,
            &self.site,
            &self.apps,
            &self.nodes,
            &self.elastic_queue,
            &self.queue_maintainer,
            &self.spool,
            &self.staging,
        ];
        for bell in bells {
            bell.notify_one();
        }
    }
}

/// A service that works in passes.
pub trait Passes: Send {
    /// Its name on the board.
    const NAME: &'static str;

    /// Looks at everything and does what is to do. Gives a word about it for people, and how long to wait
    /// until the next pass when nothing rings.
    fn pass(&mut self) -> impl Future<Output = anyhow::Result<(String, Duration)>> + Send;

    /// Waits for a reason to run a pass now; one that came since the last wait counts.
    fn rung(&self) -> impl Future<Output = ()> + Send;
}

/// Runs passes until the agent stops. A failed pass is shown on the board and tried again, for ever, with
/// growing waits. A pass that has begun is finished.
pub async fn run_passes<P: Passes>(context: &Context, mut service: P) {
    let mut backoff = Backoff::new(MAX_BACKOFF);
    while !context.stop.is_cancelled() {
        let pass = match context.dir.qsubmit().is_dir() {
            true => service.pass().await,
            false => Err(gone(&context.dir)),
        };
        let wait = match pass {
            Ok((detail, period)) => {
                backoff.reset();
                context.board.success(P::NAME, detail);
                period
            }
            Err(error) => {
                context.board.failure(P::NAME, &describe(context, &error));
                if let Some(error) = error.downcast_ref() {
                    mend_login(context, error).await;
                }
                backoff.next_wait()
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => {}
            () = service.rung() => tokio::time::sleep(MIN_PAUSE).await,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Without its folder nothing may be asked for, submitted or held to be over.
fn gone(dir: &SiteDir) -> anyhow::Error {
    anyhow::anyhow!(
        "the Site's folder {} is gone, so nothing is done; if it was moved, run `copal site stop` where it is now, then \
         `copal site mv` and `copal site start`",
        dir.root().display()
    )
}

/// Gets a new credential where an error says that the service does not accept the present one; the next
/// call uses it.
pub async fn mend_login(context: &Context, error: &ClientError) {
    if error.code() == Some(ErrorCode::Unauthenticated)
        && let Err(error) = context.api.log_in_again().await
    {
        tracing::warn!("the Site gets no new login: {error}");
    }
}

/// An error with its causes in one line, and the remedy where the user has one.
pub fn describe(context: &Context, error: &anyhow::Error) -> String {
    match error.downcast_ref::<ClientError>() {
        Some(error) => context.api.explain(error),
        None => format!("{error:#}"),
    }
}
