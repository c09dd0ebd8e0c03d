//! What the parts of a pass make of single answers. Whole passes are in `pass_tests`.

use copal_schemas::{SiteId, StringMap, batch_job::JobMode};

use super::{
    ending::{ending_reason, last_complaint, tail},
    *,
};

fn batch_job(state: BatchJobState) -> BatchJob {
    BatchJob {
        num_nodes: 1,
        wall_time_min: 60,
        job_mode: JobMode::Mpi,
        optional_params: StringMap::new(),
        filter_tags: StringMap::new(),
        partitions: None,
        id: BatchJobId(1),
        site_id: SiteId(1),
        scheduler_id: Some(SchedulerId("41".into())),
        project: "proj".into(),
        queue: "debug".into(),
        state,
        status_info: [("script".into(), "/s.sh".into())].into(),
        start_time: None,
        end_time: None,
    }
}

#[test]
fn only_news_is_reported() {
    let id = SchedulerId("41".into());
    let start = Some(Utc::now());
    let queued = Status::Queued { reason: Some("Priority".into()) };
    let patch = alive_patch(&batch_job(BatchJobState::Queued), Some(&id), &queued).unwrap();
    assert_eq!(patch.state, None);
    assert_eq!(patch.status_info.unwrap()["reason"], "Priority");
    let running = Status::Running { start };
    let patch = alive_patch(&batch_job(BatchJobState::Queued), Some(&id), &running).unwrap();
    assert_eq!((patch.state, patch.start_time), (Some(BatchJobState::Running), Some(start)));
    let known = BatchJob { start_time: start, ..batch_job(BatchJobState::Running) };
    assert!(alive_patch(&known, Some(&id), &running).is_none());
}

#[test]
fn a_doomed_batch_job_keeps_its_state_until_it_is_over() {
    let id = SchedulerId("41".into());
    let patch = alive_patch(
        &batch_job(BatchJobState::PendingDeletion),
        Some(&id),
        &Status::Running { start: Some(Utc::now()) },
    );
    assert_eq!(patch.unwrap().state, None);
}

#[test]
fn pitfall_039_an_id_that_was_found_later_is_reported() {
    let lost = BatchJob { scheduler_id: None, ..batch_job(BatchJobState::PendingSubmission) };
    let id = SchedulerId("41".into());
    let patch = alive_patch(&lost, Some(&id), &Status::Queued { reason: None }).unwrap();
    assert_eq!(patch.scheduler_id, Some(Some(id)));
    assert_eq!(patch.state, Some(BatchJobState::Queued));
}

#[test]
fn the_tail_of_an_output_is_short_and_printable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.out");
    assert_eq!(tail(&path), None);
    fs::write(&path, b"  \n").unwrap();
    assert_eq!(tail(&path), None);
    let mut text = "line\n".repeat(5_000).into_bytes();
    text.extend(b"caf\xe9 \0 module: command not found\n");
    fs::write(&path, text).unwrap();
    let tail = tail(&path).unwrap();
    assert_eq!(tail.lines().count(), 10);
    assert!(tail.ends_with("caf\u{fffd} \u{fffd} module: command not found"));
}

#[test]
fn an_ending_is_told_in_a_few_words() {
    let ending = |reason, exit_code, signal: Option<&str>| Ending {
        start: None,
        end: None,
        reason,
        exit_code,
        signal: signal.map(Into::into),
    };
    assert_eq!(ending_reason(&ending(EndReason::Completed, Some(0), None)), "completed");
    assert_eq!(ending_reason(&ending(EndReason::Failed, Some(3), None)), "failed: exit code 3");
    assert_eq!(ending_reason(&ending(EndReason::Failed, None, Some("SIGKILL"))), "failed: SIGKILL");
    assert_eq!(last_complaint("x\nbash: module: command not found\n\n").unwrap(), "bash: module: command not found");
    assert_eq!(last_complaint("2026-11-30T12:59:37Z  INFO placed Jobs 3"), None);
}
