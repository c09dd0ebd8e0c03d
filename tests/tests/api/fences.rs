//! What keeps a Job from running twice at the same time: how long a silent Session is held and that its holder knows it,
//! credentials and BatchJobs that end before their launcher, and Jobs that their owner takes away while they run.

use copal_tests::{Api, LIMIT, Settings, World, id, wait_for};
use serde_json::{Value, json};

/// Silent Sessions end within a test, those of BatchJobs that may run later.
fn short() -> Settings {
    Settings { lease_sec: 0.6, lease_hold_sec: 6.0, sweep_sec: 0.1, ..Settings::default() }
}

async fn signals(world: &World, session: i64) -> Value {
    world.user.get(&format!("/sessions/{session}/signals")).await.ok()
}

/// A session of a BatchJob in this state, with a Job that runs.
async fn held(world: &World, state: &str) -> (i64, i64, i64) {
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    world.user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": state})).await.ok();
    let session = world.user.session(world.site, Some(batch_job)).await;
    (batch_job, session, world.running_job(session).await)
}

#[tokio::test]
async fn pitfall_104_a_holder_is_told_for_how_long_it_is_held() {
    let settings = Settings { lease_sec: 100.0, lease_hold_sec: 1_000.0, ..Settings::default() };
    let world = World::with(settings).await;
    let alone = world.session().await;
    assert_eq!(signals(&world, alone).await["held_sec"], 100.0);
    for (state, seconds) in [("queued", 100.0), ("running", 1_000.0), ("pending_deletion", 1_000.0)] {
        let (_, session, _) = held(&world, state).await;
        assert_eq!(signals(&world, session).await["held_sec"], seconds, "{state}");
    }
}

#[tokio::test]
async fn pitfall_104_a_silent_session_is_held_while_its_batch_job_is_being_ended_or_was_deleted() {
    let world = World::with(short()).await;
    let user = &world.user;
    let (ending, of_ending, first) = held(&world, "running").await;
    let (deleted, of_deleted, second) = held(&world, "running").await;
    // The launchers were told that they are held for long, and hear nothing of this.
    user.put(&format!("/batch-jobs/{ending}"), &json!({"state": "pending_deletion"})).await.ok();
    user.delete(&format!("/batch-jobs/{deleted}")).await.deleted();
    let loose = world.session().await;
    world.wait_until_gone(loose).await;
    for job in [first, second] {
        assert_eq!(user.state(job).await, "RUNNING", "its launcher may only be cut off");
    }
    world.wait_until_gone(of_ending).await;
    world.wait_until_gone(of_deleted).await;
    for job in [first, second] {
        assert_eq!(user.state(job).await, "RESTART_READY");
    }
}

/// A BatchJob, and its launcher with a login of its own and a Session.
async fn launched(world: &World) -> (i64, Api, i64) {
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    let secret = world.user.post(&format!("/batch-jobs/{batch_job}/launcher-secret"), &json!({})).await.created();
    let form = [("secret", secret["secret"].as_str().unwrap())];
    let tokens = world.service.api().post_form("/auth/launcher", &form).await.ok();
    let launcher = world.service.api().with_token(tokens["access_token"].as_str().unwrap());
    let session = launcher.session(world.site, Some(batch_job)).await;
    (batch_job, launcher, session)
}

async fn wait_until_refused(launcher: &Api) {
    wait_for("the credential to be refused", LIMIT, || async {
        match launcher.get("/auth/password/me").await.status {
            401 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
}

/// Only the end of a BatchJob is a reason to kill what runs and to forget what it came to.
#[tokio::test]
async fn a_launcher_whose_credential_was_taken_away_does_not_hear_that_its_session_ended() {
    let world = World::new().await;
    let user = &world.user;
    let (_, without_login, first) = launched(&world).await;
    for login in user.list("/auth/logins/").await {
        if login["batch_job_id"].is_i64() {
            user.delete(&format!("/auth/logins/{}", id(&login))).await.deleted();
        }
    }
    let (batch_job, without_record, second) = launched(&world).await;
    user.delete(&format!("/batch-jobs/{batch_job}")).await.deleted();
    for (launcher, session) in [(without_login, first), (without_record, second)] {
        wait_until_refused(&launcher).await;
        let answer = launcher.get(&format!("/sessions/{session}/signals")).await;
        assert_eq!(answer.refused(401)["code"], "unauthenticated");
        assert!(user.ids("/sessions/").await.contains(&session));
    }
}

#[tokio::test]
async fn pitfall_104_a_launcher_that_comes_back_after_its_batch_job_hears_that_its_session_ended() {
    let world = World::new().await;
    let user = &world.user;
    let (batch_job, launcher, session) = launched(&world).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "finished"})).await.ok();
    wait_until_refused(&launcher).await;
    // To be refused for want of a credential would be a reason to let the runs go on.
    let updates = json!({"batch_key": uuid::Uuid::new_v4(), "updates": []});
    for answer in [
        launcher.get(&format!("/sessions/{session}/signals")).await,
        launcher.post(&format!("/sessions/{session}/updates"), &updates).await,
        launcher.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": batch_job})).await,
    ] {
        assert_eq!(answer.refused(404)["code"], "session_ended");
    }
}

#[tokio::test]
async fn a_batch_job_that_is_over_gets_no_more_sessions() {
    let world = World::new().await;
    let user = &world.user;
    for state in ["finished", "submit_failed"] {
        let batch_job = user.batch_job(world.site, &json!({})).await;
        user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": state})).await.ok();
        let refused = user.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": batch_job})).await;
        assert!(refused.refused(400)["detail"].as_str().unwrap().contains("over"));
    }
    assert_eq!(user.ids("/sessions/").await, [0; 0]);
}

#[tokio::test]
async fn a_job_that_its_owner_takes_out_of_running_runs_nowhere_else_before_its_launcher_let_go() {
    let world = World::new().await;
    let user = &world.user;
    let (first, second) = (world.session().await, world.session().await);
    for way in [&["RESTART_READY"][..], &["FAILED", "RESTART_READY"], &["STAGED_IN"]] {
        let job = world.running_job(first).await;
        for state in way {
            user.set_state(job, state).await;
        }
        let state = user.state(job).await;
        assert!(["RESTART_READY", "PREPROCESSED"].contains(&state.as_str()), "{way:?}: {state}");
        assert!(user.acquire(second, &json!({})).await.is_empty(), "{way:?}: it still runs");
        assert_eq!(signals(&world, first).await["cancel"], json!([job]));
        // Whatever the run came to, it does not count.
        let answer = user.update(first, &[json!({"job_id": job, "state": "RUN_DONE", "return_code": 0})]).await;
        assert_eq!(answer, json!({"accepted": 1, "rejected": []}));
        assert_eq!(signals(&world, first).await["cancel"], json!([]));
        assert_eq!(user.state(job).await, state);
        let taken = user.acquire(second, &json!({})).await;
        assert_eq!(taken.iter().map(id).collect::<Vec<_>>(), [job]);
        // Its next run is not meant.
        user.report(second, job, &["RUNNING"]).await;
        assert_eq!(signals(&world, second).await["cancel"], json!([]));
        user.report(second, job, &["RUN_DONE"]).await;
        assert_eq!(user.state(job).await, "JOB_FINISHED");
    }
    // The end of the Session lets go of it as well.
    let job = world.running_job(first).await;
    user.set_state(job, "FAILED").await;
    user.delete(&format!("/sessions/{first}")).await.deleted();
    let row = user.get_job(job).await;
    assert_eq!((&row["state"], &row["session_id"]), (&json!("FAILED"), &json!(null)));
    user.delete(&format!("/jobs/{job}")).await.deleted();
    user.get(&format!("/jobs/{job}")).await.refused(404);
}
