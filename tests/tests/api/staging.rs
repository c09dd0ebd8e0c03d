//! `/transfers/due` and `job_error`: what a Site's agent asks and tells while it stages.

use std::time::Duration;

use copal_tests::{World, id};
use serde_json::{Value, json};

/// A world with an App that has an input and an output, and a location.
async fn world() -> (World, i64) {
    let world = World::new().await;
    let user = &world.user;
    let locations = json!({"transfer_locations": {"home": "rsync://host/"}});
    user.put(&format!("/sites/{}", world.site), &locations).await.ok();
    let slots = json!({"command": "true", "hooks": {}, "transfers": {
        "input": {"required": false, "direction": "in", "local_path": "in"},
        "other": {"required": false, "direction": "in", "local_path": "other"},
        "output": {"required": false, "direction": "out", "local_path": "out"}}});
    let app = user.app(world.site, "Staged", &slots).await;
    (world, app)
}

fn slots(names: &[&str]) -> Value {
    names.iter().map(|name| (name.to_string(), json!({"location_alias": "home", "path": "/x"}))).collect()
}

async fn due(world: &World, more: &str) -> Vec<Value> {
    let path = format!("/transfers/due?site_id={}{more}", world.site);
    world.user.get(&path).await.ok().as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn transfers_are_due_while_their_job_waits_for_them() {
    let (world, app) = world().await;
    let user = &world.user;
    let parent = id(&user.job(app, &json!({"workdir": "parent"})).await);
    let job = json!({"workdir": "w/1", "parent_ids": [parent], "transfers": slots(&["input", "output"])});
    let job = id(&user.job(app, &job).await);
    assert_eq!(due(&world, "").await, [] as [Value; 0], "a Job that waits for its parent stages nothing");
    user.set_state(parent, "JOB_FINISHED").await;
    let input = due(&world, "").await;
    assert_eq!(input.len(), 1);
    assert_eq!(
        (&input[0]["workdir"], &input[0]["local_path"], &input[0]["job_id"]),
        (&json!("w/1"), &json!("in"), &json!(job))
    );
    user.patch("/transfers/", &json!([{"id": input[0]["id"], "state": "active", "task_id": "b"}])).await.ok();
    assert_eq!(due(&world, "").await.len(), 0);
    assert_eq!(due(&world, "&state=active&state=inactive").await[0]["task_id"], "b");
    user.patch("/transfers/", &json!([{"id": input[0]["id"], "state": "done"}])).await.ok();
    assert_eq!(user.state(job).await, "PREPROCESSED");
    user.set_state(job, "RUN_DONE").await;
    assert_eq!(user.state(job).await, "POSTPROCESSED");
    let output = due(&world, "").await;
    assert_eq!((output.len(), &output[0]["local_path"]), (1, &json!("out")));
    user.set_state(job, "FAILED").await;
    assert_eq!(due(&world, "").await.len(), 0, "nobody waits for a failed Job's output");
}

#[tokio::test]
async fn who_waits_for_transfers_is_told_at_once() {
    let (world, app) = world().await;
    let started = std::time::Instant::now();
    let asked = tokio::time::timeout(Duration::from_secs(25), due(&world, "&wait_sec=30"));
    let made = async {
        // Not before the question is there: a look at the service takes longer than sending one.
        world.user.get("/jobs/").await.ok();
        world.user.job(app, &json!({"transfers": slots(&["input"])})).await
    };
    let (asked, _) = tokio::join!(asked, made);
    assert_eq!(asked.expect("woken").len(), 1);
    assert!(started.elapsed() < Duration::from_secs(25));
    assert_eq!(due(&world, "&limit=0&wait_sec=0").await.len(), 0);
    world.user.get("/transfers/due").await.invalid("site_id");
    world.user.get(&format!("/transfers/due?site_id={}&wait_sec=31", world.site)).await.invalid("wait_sec");
    world.user.get(&format!("/transfers/due?site_id={}&wait_sec=NaN", world.site)).await.invalid("wait_sec");
}

#[tokio::test]
async fn pitfall_128_129_a_job_fails_with_its_transfer_and_goes_on_when_it_is_taken_back() {
    let (world, app) = world().await;
    let user = &world.user;
    let job = id(&user.job(app, &json!({"workdir": "w", "transfers": slots(&["input", "other"])})).await);
    let inputs = due(&world, "").await;
    user.patch("/transfers/", &json!([{"id": inputs[0]["id"], "state": "done"}])).await.ok();
    let failed = json!([{"id": inputs[1]["id"], "state": "error", "transfer_info": {"error": "no"}, "job_error": "can't stage in: no"}]);
    user.patch("/transfers/", &failed).await.ok();
    assert_eq!(user.state(job).await, "FAILED");
    assert_eq!(
        user.list(&format!("/events/?job_id={job}&to_state=FAILED")).await[0]["data"],
        json!({"reason": "can't stage in: no"})
    );
    // A Job that is elsewhere meanwhile is left alone.
    user.set_state(job, "RESTART_READY").await;
    user.patch("/transfers/", &failed).await.ok();
    assert_eq!(user.state(job).await, "RESTART_READY");
    user.set_state(job, "READY").await;
    let again = due(&world, "").await;
    assert_eq!((again.len(), &again[0]["id"]), (1, &inputs[1]["id"]), "only what failed is tried again");
    user.patch("/transfers/", &json!([{"id": inputs[1]["id"], "state": "done"}])).await.ok();
    assert_eq!(user.state(job).await, "PREPROCESSED");
}

#[tokio::test]
async fn nobody_sees_what_is_due_at_another_users_site() {
    let (world, app) = world().await;
    world.user.job(app, &json!({"transfers": slots(&["input"])})).await;
    let path = format!("/transfers/due?site_id={}", world.site);
    assert_eq!(world.user.get(&path).await.ok().as_array().map(Vec::len), Some(1));
    let stranger = world.service.user("bob").await;
    assert_eq!(stranger.get(&path).await.ok(), json!([]));
}
