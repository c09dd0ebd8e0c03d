//! One try of a batch: what is sent is taken out of the workdirs, the adapter carries, what arrived is
//! moved into the workdirs. Says of each transfer how it went, as soon as that is known.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use copal_client::SiteDir;
use copal_schemas::{
    JsonObject, TransferId,
    settings::TransferSettings,
    transfer::{Direction, DueTransfer},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Batch, Cause, Item, Location, Report, Run, Secrets, StagingError,
    area::{Area, Place},
    carry,
};
use crate::guard::Guard;

/// Reports that are taken at once: files that get their names together.
const AT_ONCE: usize = 5_000;
/// Messages that come within this time of each other are taken together,
const GAP: Duration = Duration::from_millis(20);
/// for no longer than this.
const LONGEST_GATHERING: Duration = Duration::from_secs(1);

/// What one transfer has to say.
#[derive(Clone, Debug)]
pub enum Said {
    /// It ended: with its size in bytes, or why not.
    Ended(Result<u64, StagingError>),
    /// Something to keep about it.
    Note(JsonObject),
}

/// A batch that is to be tried.
#[derive(Clone, Debug)]
pub struct Trip {
    /// Names the batch.
    pub key: String,
    /// The location's alias.
    pub alias: String,
    /// Which way.
    pub direction: Direction,
    /// Its transfers.
    pub transfers: Vec<DueTransfer>,
    /// The Site.
    pub site: SiteDir,
    /// How it stages, as the settings are now.
    pub settings: TransferSettings,
    /// Ends the programs that carry, should the agent be killed.
    pub guard: Arc<Guard>,
    /// Where its files are put together.
    pub area: Area,
    /// When to stop.
    pub stop: CancellationToken,
    /// When the agent itself ends.
    pub agent_stop: CancellationToken,
}

/// Takes the messages that come right behind others, up to a limit: what many files need together costs hardly more than
/// what one needs alone.
pub async fn gather<T>(inbox: &mut mpsc::UnboundedReceiver<T>, into: &mut Vec<T>, limit: usize) {
    let end = Instant::now() + LONGEST_GATHERING;
    let mut room = limit;
    while room > 0 && Instant::now() < end {
        match tokio::time::timeout(GAP, inbox.recv_many(into, room)).await {
            Ok(more) if more > 0 => room -= more,
            _ => break,
        }
    }
}

impl Trip {
    /// Tries the batch; every transfer ends with one [`Said::Ended`].
    pub async fn run(self, said: mpsc::UnboundedSender<(TransferId, Said)>) {
        let mut open: BTreeSet<TransferId> = self.transfers.iter().map(|due| due.transfer.id).collect();
        let mut end = |id: TransferId, outcome: Result<u64, StagingError>| {
            if open.remove(&id) {
                // Whoever listens ends before this only when the agent ends.
                let _ = said.send((id, Said::Ended(outcome)));
            }
        };
        let (batch, places) = match self.prepare(&mut end).await {
            Ok(prepared) => prepared,
            Err(error) => {
                self.transfers.iter().for_each(|due| end(due.transfer.id, Err(error.clone())));
                return;
            }
        };
        let mut outcome = Ok(());
        if !batch.items.is_empty() {
            let (reports, mut inbox) = mpsc::unbounded_channel();
            let run = Run {
                secrets: Secrets::new(&self.site, &self.settings),
                site: self.site.clone(),
                settings: self.settings.clone(),
                guard: Arc::clone(&self.guard),
                stop: self.stop.clone(),
                agent_stop: self.agent_stop.clone(),
                reports,
            };
            let carrying = async {
                let outcome = carry(&batch, &run).await;
                // The last sender: the inbox ends.
                drop(run);
                outcome
            };
            let receiving = async {
                let mut some = Vec::new();
                while inbox.recv_many(&mut some, AT_ONCE).await > 0 {
                    let room = AT_ONCE - some.len();
                    gather(&mut inbox, &mut some, room).await;
                    let mut arrived = Vec::new();
                    for report in some.drain(..) {
                        match report {
                            Report::Arrived { id, bytes, at } => arrived.push((id, bytes, at)),
                            Report::Failed { id, error } => end(id, Err(error)),
                            Report::Note { id, info } => drop(said.send((id, Said::Note(info)))),
                        }
                    }
                    self.settle(&places, arrived, &mut end).await;
                }
            };
            (outcome, ()) = tokio::join!(carrying, receiving);
        }
        let rest = outcome.err().unwrap_or_else(|| {
            StagingError::new(Cause::Local, "nothing was said about it; this is a fault of the agent")
        });
        self.transfers.iter().for_each(|due| end(due.transfer.id, Err(rest.clone())));
    }

    /// The batch as its adapter sees it. Transfers that can't be carried end here.
    async fn prepare(
        &self,
        end: &mut impl FnMut(TransferId, Result<u64, StagingError>),
    ) -> Result<(Batch, BTreeMap<TransferId, Place>), StagingError> {
        let Some(url) = self.settings.transfer_locations.get(&self.alias) else {
            let message = format!("settings.yml has no location {:?} in transfers.transfer_locations", self.alias);
            return Err(StagingError::new(Cause::Settings, message));
        };
        let location = Location::parse(&self.alias, url)?;
        let area = &self.area;
        area.open_batch(&self.key)?;
        let mut items = Vec::new();
        let mut places = BTreeMap::new();
        for DueTransfer { transfer, workdir } in &self.transfers {
            match location.remote(&transfer.remote_path) {
                Ok(remote) => {
                    places.insert(
                        transfer.id,
                        Place {
                            workdir: workdir.clone(),
                            local_path: transfer.local_path.clone(),
                            recursive: transfer.recursive,
                            remote_name: remote.rsplit('/').next().unwrap_or_default().into(),
                        },
                    );
                    items.push(Item {
                        id: transfer.id,
                        remote,
                        local: area.item(&self.key, transfer.id),
                        recursive: transfer.recursive,
                        info: transfer.transfer_info.clone(),
                    });
                }
                Err(error) => end(transfer.id, Err(error)),
            }
        }
        if self.direction == Direction::Out {
            for (id, error) in self.take_out(&items, &places).await {
                items.retain(|item| item.id != id);
                end(id, Err(error));
            }
        }
        let scratch = area.scratch(&self.key);
        let batch = Batch { key: self.key.clone(), location, direction: self.direction, items, scratch };
        Ok((batch, places))
    }

    /// Gives the transfers whose files can't be sent.
    async fn take_out(&self, items: &[Item], places: &BTreeMap<TransferId, Place>) -> Vec<(TransferId, StagingError)> {
        let area = self.area.clone();
        let tasks: Vec<(TransferId, PathBuf, Place)> = items
            .iter()
            .filter_map(|item| Some((item.id, item.local.clone(), places.get(&item.id)?.clone())))
            .collect();
        let ids: Vec<TransferId> = tasks.iter().map(|(id, ..)| *id).collect();
        let work = tokio::task::spawn_blocking(move || {
            let take = |(id, to, place): (TransferId, PathBuf, Place)| Some((id, area.take_out(&place, &to).err()?));
            tasks.into_iter().filter_map(take).collect()
        });
        work.await.unwrap_or_else(|error| {
            let error = StagingError::new(Cause::Local, error.to_string());
            ids.into_iter().map(|id| (id, error.clone())).collect()
        })
    }

    /// What arrived gets its name.
    async fn settle(
        &self,
        places: &BTreeMap<TransferId, Place>,
        arrived: Vec<(TransferId, u64, Option<PathBuf>)>,
        end: &mut impl FnMut(TransferId, Result<u64, StagingError>),
    ) {
        if self.direction == Direction::Out {
            arrived.into_iter().for_each(|(id, bytes, _)| end(id, Ok(bytes)));
            return;
        }
        let (sizes, items): (Vec<_>, Vec<_>) = arrived
            .into_iter()
            .filter_map(|(id, bytes, at)| {
                let place = places.get(&id)?.clone();
                Some(((id, bytes), (at.unwrap_or_else(|| self.area.item(&self.key, id)), place)))
            })
            .unzip();
        let (tell, mut told) = mpsc::unbounded_channel();
        let area = self.area.clone();
        // Whoever listens ends after this.
        let work = tokio::task::spawn_blocking(move || area.bring_in(&items, |outcome| drop(tell.send(outcome))));
        // In the order of the items. The first ones are told of while the next ones get their names.
        let mut open = sizes.into_iter();
        while let Some(outcome) = told.recv().await {
            let Some((id, bytes)) = open.next() else { break };
            end(id, outcome.map(|()| bytes));
        }
        if let Err(error) = work.await {
            let error = StagingError::new(Cause::Local, error.to_string());
            open.for_each(|(id, _)| end(id, Err(error.clone())));
        }
    }
}
