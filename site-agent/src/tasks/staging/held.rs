//! What the staging service knows of a batch that it holds. What is done with batches is `staging.rs`; a try of
//! one is `crate::staging::trip`.

use std::collections::BTreeMap;

use copal_schemas::{
    TransferId,
    transfer::{Direction, DueTransfer, TransferItem},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::staging::StagingError;

/// Transfers that are carried together, at every try.
pub(super) struct Held {
    pub(super) alias: String,
    pub(super) direction: Direction,
    pub(super) transfers: BTreeMap<TransferId, DueTransfer>,
    /// Tries that failed since the last one that got something through.
    pub(super) failed_tries: u32,
    /// When the next try may begin.
    pub(super) not_before: Instant,
    /// What happened in the present try.
    pub(super) trip: Option<OnTrip>,
}

#[derive(Default)]
pub(super) struct OnTrip {
    pub(super) stop: CancellationToken,
    pub(super) got_through: bool,
    pub(super) failures: Vec<(TransferId, StagingError)>,
}

impl Held {
    /// Whether a transfer goes the same way, so that it may be carried together with these.
    pub(super) fn is_for(&self, transfer: &TransferItem) -> bool {
        self.alias == transfer.location_alias && self.direction == transfer.direction
    }

    /// An empty batch of transfers like this one.
    pub(super) fn of(due: &DueTransfer) -> Self {
        Self {
            alias: due.transfer.location_alias.clone(),
            direction: due.transfer.direction,
            transfers: BTreeMap::new(),
            failed_tries: 0,
            not_before: Instant::now(),
            trip: None,
        }
    }
}

/// How many more transfers a batch may have; the limit may have been another one when it got those that it has.
pub(super) fn room(batch: Option<&Held>, limit: usize) -> usize {
    limit.saturating_sub(batch.map_or(0, |batch| batch.transfers.len()))
}

/// The batch that a transfer was taken with. Its name becomes a folder's, and anybody with the user's login may have
/// written it: what is none of ours is a batch of its own.
pub(super) fn batch_name(transfer: &TransferItem) -> String {
    let name = Uuid::parse_str(&transfer.task_id).ok().map(|key| key.to_string());
    name.filter(|name| *name == transfer.task_id).unwrap_or_else(|| Uuid::new_v4().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn due(id: i64) -> DueTransfer {
        serde_json::from_value(json!({
            "state": "active", "task_id": "", "transfer_info": {}, "id": id, "job_id": 1, "direction": "in",
            "local_path": "x", "remote_path": "/x", "location_alias": "a", "recursive": false, "workdir": "x"
        }))
        .unwrap()
    }

    #[test]
    fn a_batch_has_no_room_when_the_limit_was_lowered() {
        let mut batch = Held::of(&due(1));
        batch.transfers.extend([1, 2].map(|id| (TransferId(id), due(id))));
        assert_eq!([3, 2, 1].map(|limit| room(Some(&batch), limit)), [1, 0, 0]);
        assert_eq!(room(None, 3), 3);
    }

    #[test]
    fn a_batch_has_no_name_that_leads_out_of_the_staging_area() {
        let mut transfer = due(1).transfer;
        for other in ["", "..", "../../important", "/etc", "9B2D3F0E-0000-4000-8000-000000000000"] {
            transfer.task_id = other.into();
            let name = batch_name(&transfer);
            assert!(name != other && Uuid::parse_str(&name).is_ok(), "{other}: {name}");
        }
        let own = Uuid::new_v4().to_string();
        transfer.task_id.clone_from(&own);
        assert_eq!(batch_name(&transfer), own);
    }
}
