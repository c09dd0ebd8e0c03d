//! Deliveries to a service in memory.

use copal_client::spool::{SpoolHeader, SpoolWriter};
use copal_schemas::{JobId, JobState, JsonObject, problem::Problem, session::JobUpdate};

use super::*;

const SITE: SiteId = SiteId(3);

/// A service that takes no report with `data`, and no batch with one.
#[derive(Default)]
struct FakeService {
    /// The Jobs of the reports that it took, in order.
    taken: std::sync::Mutex<Vec<i64>>,
    ended: bool,
}

impl FakeService {
    fn taken(&self) -> Vec<i64> {
        self.taken.lock().unwrap().clone()
    }
}

impl Service for FakeService {
    async fn send(&self, _: SessionId, updates: &Updates) -> Result<UpdatesAnswer, ClientError> {
        if updates.updates.iter().any(|update| update.data.is_some()) {
            return Err(ClientError::Problem(Problem::new(ErrorCode::Invalid, "the data is too large").into()));
        }
        self.taken.lock().unwrap().extend(updates.updates.iter().map(|update| update.job_id.0));
        Ok(UpdatesAnswer { accepted: updates.updates.len(), rejected: Vec::new() })
    }

    async fn has_ended(&self, _: BatchJobId) -> Result<bool, ClientError> {
        Ok(self.ended)
    }

    /// Session 10 + N is that of BatchJob N.
    async fn sessions_of(&self, id: BatchJobId) -> Result<Vec<SessionId>, ClientError> {
        Ok(vec![SessionId(10 + id.0)])
    }
}

/// The file of a Session with a batch for each of these lists of Jobs; the service minds Jobs over 100.
fn leave(folder: &Path, session: i64, batch_job: Option<i64>, batches: &[&[i64]]) -> PathBuf {
    let batch_job_id = batch_job.map(BatchJobId);
    let header = SpoolHeader { site_id: SITE, session_id: SessionId(session), batch_job_id };
    let mut writer = SpoolWriter::open(folder, &header).unwrap();
    for jobs in batches {
        let update = |job: &i64| JobUpdate {
            job_id: JobId(*job),
            state: JobState::RunDone,
            state_timestamp: None,
            state_data: JsonObject::new(),
            return_code: Some(0),
            data: (*job > 100).then(JsonObject::new),
            usage: None,
        };
        let updates = jobs.iter().map(update).collect();
        writer.add(&Updates { batch_key: Uuid::new_v4(), updates, release: Vec::new() }).unwrap();
    }
    writer.path().to_owned()
}

impl Deliverer {
    /// Makes what began some time ago look older.
    async fn age(&self, by: Duration) {
        for known in self.known.lock().await.values_mut() {
            let older = |time: Instant| time.checked_sub(by).unwrap();
            known.unreadable = known.unreadable.map(older);
            known.refused = known.refused.map(|(key, since)| (key, older(since)));
        }
    }
}

#[tokio::test]
async fn what_a_killed_launcher_left_is_sent_in_parts_while_its_session_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let (service, deliverer) = (FakeService::default(), Deliverer::default());
    let deliver = async || deliverer.deliver_from(folder.path(), SITE, &service, None).await.unwrap();
    let path = leave(folder.path(), 7, None, &[&[1], &[2, 103, 4], &[5], &[106]]);
    deliver().await;
    deliver().await;
    // A launcher that lives would hear of it and send the second one in parts; what follows waits for that.
    assert_eq!(service.taken(), [1]);
    deliverer.age(HEARD_AFTER).await;
    deliver().await;
    assert_eq!(service.taken(), [1, 2, 103, 4, 5, 106]);
    assert!(path.exists());
}

#[tokio::test]
async fn a_file_that_was_written_anew_is_left_to_its_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let (service, deliverer) = (FakeService::default(), Deliverer::default());
    let deliver = async || deliverer.deliver_from(folder.path(), SITE, &service, None).await.unwrap();
    let path = leave(folder.path(), 7, None, &[&[101]]);
    deliver().await;
    deliverer.age(HEARD_AFTER).await;
    fs::remove_file(path).unwrap();
    leave(folder.path(), 7, None, &[&[102]]);
    deliver().await;
    assert!(service.taken().is_empty());
}

#[tokio::test]
async fn no_file_is_deleted_before_all_of_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (service, deliverer) = (FakeService { ended: true, ..FakeService::default() }, Deliverer::default());
    let deliver = async || deliverer.deliver_from(folder.path(), SITE, &service, None).await.unwrap();
    let path = leave(folder.path(), 12, Some(2), &[&[101], &[2]]);
    deliver().await;
    assert!(path.exists());
    deliverer.age(HEARD_AFTER).await;
    deliver().await;
    assert_eq!((service.taken(), path.exists()), (vec![101, 2], false));
}

#[tokio::test]
async fn one_file_that_can_not_be_read_keeps_no_other_from_arriving() {
    let folder = tempfile::tempdir().unwrap();
    let (service, deliverer) = (FakeService::default(), Deliverer::default());
    let deliver =
        async |ended: Option<i64>| deliverer.deliver_from(folder.path(), SITE, &service, ended.map(BatchJobId)).await;
    let unreadable = folder.path().join("session-11.jsonl");
    fs::create_dir(&unreadable).unwrap();
    let path = leave(folder.path(), 12, Some(2), &[&[1], &[2]]);
    let error = deliver(None).await.unwrap_err();
    assert!(format!("{error:#}").contains("session-11.jsonl"), "{error:#}");
    assert_eq!(service.taken(), [1, 2]);
    // It is another BatchJob's.
    deliver(Some(2)).await.unwrap();
    assert!(!path.exists());
    // That one is not called finished, until it is clear that waiting does not help.
    deliver(Some(1)).await.unwrap_err();
    deliverer.age(UNREADABLE_FOR).await;
    deliver(Some(1)).await.unwrap();
    assert!(folder.path().join("session-11.jsonl.unreadable").exists());
    deliver(None).await.unwrap();
}
