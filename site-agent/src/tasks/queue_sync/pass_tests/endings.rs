//! When a BatchJob counts as ended, and by which evidence.

use super::*;

impl World {
    /// Makes an absence look as old as one that counts.
    fn age(&mut self, id: BatchJobId) {
        let absence = self.sync.absences.get_mut(&id).unwrap();
        absence.since = Instant::now().checked_sub(ABSENT_FOR).unwrap();
        absence.looks = ABSENT_LOOKS;
    }

    fn launcher_exits(&self, id: BatchJobId, reason: ExitReason) {
        let exit = LauncherExit { reason, message: "said".into(), time: Utc::now(), runs: 1, host: None };
        exit.write(&self.dir.qsubmit(), id).unwrap();
    }
}

#[tokio::test]
async fn pitfall_045_an_id_that_never_comes_back_after_a_preemption_is_not_waited_for_for_ever() {
    let mut world = World::new();
    let id = world.submitted(1, Status::Running { start: None }).await;
    world.pass().await.unwrap();
    // Preempted and queued again under its id, or so it seems; then the site's policy cancels it.
    world.scheduler.set(&world.key(id), Status::Queued { reason: Some("BeginTime".into()) });
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Queued);
    world.scheduler.set(&world.key(id), Status::Absent);
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Queued);
    world.age(id);
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.info(id)["reason"].as_str()), (BatchJobState::Finished, "lost"));
    assert!(world.info(id)["evidence"].starts_with("for 120 s the scheduler did not list it"));
}

#[tokio::test]
async fn pitfall_031_047_a_launcher_that_gives_signs_of_life_is_alive_whatever_the_scheduler_lists() {
    let mut world = World::new();
    let id = world.submitted(1, Status::Running { start: None }).await;
    world.pass().await.unwrap();
    world.scheduler.set(&world.key(id), Status::Absent);
    for beat in 0..3 {
        world.desk.lock().heartbeats.insert(id, Utc::now() + chrono::TimeDelta::seconds(beat));
        world.pass().await.unwrap();
        world.age(id);
    }
    world.desk.lock().heartbeats.insert(id, Utc::now() + chrono::TimeDelta::seconds(9));
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Running);
    // It falls silent, and its Session is still open.
    world.age(id);
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.info(id)["reason"].as_str()), (BatchJobState::Finished, "lost"));
}

#[tokio::test]
async fn pitfall_047_what_decided_is_shown() {
    let mut world = World::new();
    let (by_scheduler, by_launcher) = (world.submitted(1, completed()).await, world.submitted(2, Status::Absent).await);
    world.launcher_exits(by_launcher, ExitReason::Idle);
    let never = world.add(3);
    world.set_state(never, BatchJobState::PendingDeletion);
    world.pass().await.unwrap();
    assert_eq!(world.info(by_scheduler)["evidence"], "the scheduler says so");
    assert!(world.info(by_launcher)["evidence"].starts_with("its launcher's exit record"));
    assert_eq!(world.info(never)["evidence"], "it was never submitted");
}

#[tokio::test]
async fn pitfall_074_what_the_script_said_is_attached_to_a_bad_end() {
    let mut world = World::new();
    let id = world.add(1);
    world.pass().await.unwrap();
    let output = world.dir.qsubmit().join(format!("{}.out", world.key(id)));
    fs::write(output, "loading modules\nbash: line 7: module: command not found\n").unwrap();
    let ending = Ending { exit_code: Some(127), ..Ending::now(EndReason::Failed) };
    world.scheduler.set(&world.key(id), Status::Ended(ending));
    world.pass().await.unwrap();
    let info = world.info(id);
    assert_eq!(info["reason"], "failed: exit code 127");
    assert_eq!(info["error"], "bash: line 7: module: command not found");
    assert!(info["output"].starts_with("loading modules"), "{info:?}");
}

#[tokio::test]
async fn pitfall_077_what_a_node_wrote_may_be_seen_later() {
    let mut world = World::new();
    let mut text = fs::read_to_string(world.dir.settings_path()).unwrap();
    text = text.replace("\"allowed_queues\"", "\"kind\": \"slurm\", \"allowed_queues\"");
    fs::write(world.dir.settings_path(), text).unwrap();
    world.restart_agent();
    let id = world.submitted(1, completed()).await;
    world.desk.lock().heartbeats.insert(id, Utc::now());
    // Its Session is open, and the exit record that says that all is written is not to be seen yet.
    world.pass().await.unwrap();
    world.pass().await.unwrap();
    assert!(!world.state(id).is_over());
    assert!(!world.desk.lock().told.iter().any(|line| line.ends_with("delivered")));
    world.launcher_exits(id, ExitReason::Idle);
    world.pass().await.unwrap();
    assert_eq!(world.state(id), BatchJobState::Finished);
    // A launcher that was killed writes none: that is not waited for for ever.
    let killed = world.submitted(2, completed()).await;
    world.desk.lock().heartbeats.insert(killed, Utc::now());
    world.pass().await.unwrap();
    assert!(!world.state(killed).is_over());
    world.sync.awaited.insert(killed, Instant::now().checked_sub(UNSEEN_FOR).unwrap());
    world.pass().await.unwrap();
    assert_eq!(world.state(killed), BatchJobState::Finished);
}

#[tokio::test]
async fn a_launcher_that_its_owner_stopped_was_cancelled_and_did_not_complete() {
    let mut world = World::new();
    let id = world.submitted(1, Status::Running { start: None }).await;
    world.set_state(id, BatchJobState::PendingDeletion);
    world.launcher_exits(id, ExitReason::Stopped);
    world.scheduler.set(&world.key(id), completed());
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.info(id)["reason"].as_str()), (BatchJobState::Finished, "cancelled"));
}

#[tokio::test]
async fn pitfall_009_024_what_can_not_be_read_ends_nothing_but_an_exit_record_does() {
    let mut world = World::new();
    let id = world.submitted(1, Status::Unknown).await;
    for _ in 0..5 {
        world.pass().await.unwrap();
    }
    assert!(!world.state(id).is_over() && world.sync.absences.is_empty());
    world.launcher_exits(id, ExitReason::Idle);
    world.pass().await.unwrap();
    assert_eq!((world.state(id), world.info(id)["reason"].as_str()), (BatchJobState::Finished, "completed"));
}
