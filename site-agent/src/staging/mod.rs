//! Moving files between locations and workdirs. A [`Batch`] is what one adapter carries at once: one
//! location, one direction. Adapters see the staging area only (`area.rs`): files and folders there are
//! whole when an adapter says so, and are moved into the workdir, or were taken from it, by code that can't be
//! led out of it. Which transfers there are, when they are tried again and what becomes of the Job is
//! `tasks/staging.rs`.
//!
//! **A new adapter** is a file here with an [`Adapter`], a [`Scheme`] and a line in [`carry`].

pub mod area;
pub mod authorities;
pub mod beneath;
pub mod error;
pub mod file;
pub mod globus;
pub mod http;
pub mod location;
pub mod program;
pub mod rsync;
pub mod s3;
pub mod secrets;
pub mod sftp;
pub mod ssh;
pub mod tree;
pub mod trip;

use std::{future::Future, path::PathBuf, sync::Arc};

use copal_client::SiteDir;
use copal_schemas::{JsonObject, TransferId, settings::TransferSettings, transfer::Direction};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use error::{Cause, StagingError};
pub use location::{Location, Scheme};
pub use secrets::Secrets;

use crate::guard::Guard;

/// What is carried together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Names the batch; the same at every try, also by the next agent after a crash.
    pub key: String,
    /// Where the other end is.
    pub location: Location,
    /// Which way.
    pub direction: Direction,
    /// What to carry; never empty.
    pub items: Vec<Item>,
    /// A folder of the adapter's own, there already, on the file system of the workdirs: for parts of files and other
    /// things that serve the next try. Deleted when the batch is over.
    pub scratch: PathBuf,
}

/// One file or folder.
#[derive(Clone, Debug)]
pub struct Item {
    /// The transfer.
    pub id: TransferId,
    /// The absolute path at the location, its base included, without `..`, doubled slashes or line breaks.
    pub remote: String,
    /// The path in the staging area. Inwards: to be made; what a try before this one left there may be used or
    /// replaced. Outwards: there, a plain file or a folder with nothing but plain files and folders in it.
    pub local: PathBuf,
    /// Whether a folder is meant, with all that is in it. It is merged into one that is there.
    pub recursive: bool,
    /// What the adapter noted at an earlier try, by [`Run::note`].
    pub info: JsonObject,
}

/// What an adapter has to say about one item while it carries.
#[derive(Clone, Debug)]
pub enum Report {
    /// It is where it belongs, whole and checked.
    Arrived {
        /// The transfer.
        id: TransferId,
        /// Its size, with all that is in a folder.
        bytes: u64,
        /// Where it is, if that is not its path in the staging area: a path of the batch's scratch folder.
        at: Option<PathBuf>,
    },
    /// It failed.
    Failed {
        /// The transfer.
        id: TransferId,
        /// Why.
        error: StagingError,
    },
    /// It is on its way, with something to keep for the next try or to show to people.
    Note {
        /// The transfer.
        id: TransferId,
        /// Laid over what is kept (`transfer_info`).
        info: JsonObject,
    },
}

/// What an adapter works with.
#[derive(Clone, Debug)]
pub struct Run {
    /// The Site.
    pub site: SiteDir,
    /// How it stages.
    pub settings: TransferSettings,
    /// The secrets of its locations.
    pub secrets: Secrets,
    /// Ends the programs that carry, should the agent be killed.
    pub guard: Arc<Guard>,
    /// When to stop: processes are ended, parts are kept for the next try.
    pub stop: CancellationToken,
    /// Whether the agent itself ends, so that work which goes on elsewhere without it may go on. A stop without that
    /// means that nobody waits for the transfers any more.
    pub agent_stop: CancellationToken,
    /// Where reports go.
    pub reports: mpsc::UnboundedSender<Report>,
}

impl Run {
    /// An item is where it belongs, whole and checked.
    pub fn arrived(&self, id: TransferId, bytes: u64) {
        self.report(Report::Arrived { id, bytes, at: None });
    }

    /// An item is in the scratch folder, whole and checked; the adapter has no more to do with it.
    pub fn arrived_at(&self, id: TransferId, bytes: u64, at: PathBuf) {
        self.report(Report::Arrived { id, bytes, at: Some(at) });
    }

    /// An item failed; others go on.
    pub fn failed(&self, id: TransferId, error: StagingError) {
        self.report(Report::Failed { id, error });
    }

    /// Keeps something about an item, for the next try and for people.
    pub fn note(&self, id: TransferId, info: JsonObject) {
        self.report(Report::Note { id, info });
    }

    fn report(&self, report: Report) {
        // Whoever listens ends before the adapter only when the agent ends.
        let _ = self.reports.send(report);
    }
}

/// One way of carrying.
pub trait Adapter {
    /// Carries a batch, and reports about each item as soon as its fate is known. Items without a report
    /// when this returns count as failed with the error that it gives; after `Ok` there are none.
    fn carry(&self, batch: &Batch, run: &Run) -> impl Future<Output = Result<(), StagingError>> + Send;
}

/// Carries a batch by the adapter of its location.
///
/// # Errors
/// For the items that nothing was reported of.
pub async fn carry(batch: &Batch, run: &Run) -> Result<(), StagingError> {
    match batch.location.scheme {
        Scheme::File => file::FileCopy.carry(batch, run).await,
        Scheme::Rsync => rsync::Rsync.carry(batch, run).await,
        Scheme::Scp => sftp::Sftp.carry(batch, run).await,
        Scheme::Http => http::Http.carry(batch, run).await,
        Scheme::S3 => s3::S3.carry(batch, run).await,
        Scheme::Globus => globus::Globus.carry(batch, run).await,
    }
}
