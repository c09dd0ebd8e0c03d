//! Parents and children (contract, section 5, rule 7; DESIGN, section 3).

use copal_tests::{World, id};
use serde_json::{Value, json};

async fn child(world: &World, name: &str, fields: Value) -> i64 {
    id(&world.plain_job(&copal_tests::world::with(json!({"workdir": name}), &fields)).await)
}

fn after(parent: i64, kind: &str) -> Value {
    json!({"dependencies": [{"job_id": parent, "kind": kind}]})
}

#[tokio::test]
async fn a_child_waits_for_all_of_its_parents() {
    let world = World::new().await;
    let user = &world.user;
    let parents = world.plain_jobs(2).await;
    let job = child(&world, "child", json!({"parent_ids": parents})).await;
    let row = user.get_job(job).await;
    assert_eq!((&row["state"], &row["parent_ids"]), (&json!("AWAITING_PARENTS"), &json!(parents)));
    assert_eq!(user.history(job).await, ["CREATED", "AWAITING_PARENTS"]);
    user.set_state(parents[0], "JOB_FINISHED").await;
    assert_eq!(user.state(job).await, "AWAITING_PARENTS");
    user.set_state(parents[1], "JOB_FINISHED").await;
    assert_eq!(user.state(job).await, "PREPROCESSED");
    assert_eq!(user.history(job).await, ["CREATED", "AWAITING_PARENTS", "STAGED_IN", "PREPROCESSED"]);
    let staged = &user.list(&format!("/events/?job_id={job}&to_state=STAGED_IN")).await[0];
    assert_eq!(staged["data"]["message"], "Skipped stage in");
}

#[tokio::test]
async fn a_child_of_finished_parents_does_not_wait() {
    let world = World::new().await;
    let parents = world.plain_jobs(2).await;
    for parent in &parents {
        world.user.set_state(*parent, "JOB_FINISHED").await;
    }
    let job = child(&world, "child", json!({"parent_ids": [parents[0], parents[1], parents[0]]})).await;
    assert_eq!(world.user.state(job).await, "PREPROCESSED");
}

#[tokio::test]
async fn one_bulk_update_frees_the_children_of_many() {
    let world = World::new().await;
    let user = &world.user;
    let parents = world.plain_jobs(50).await;
    let children: Vec<i64> = {
        let job = |(index, parent): (usize, &i64)| json!({"app_id": world.plain, "workdir": format!("c/{index}"), "parent_ids": [parent]});
        user.jobs(&parents.iter().enumerate().map(job).collect::<Vec<_>>()).await.iter().map(id).collect()
    };
    let reduce = child(&world, "reduce", json!({"parent_ids": children})).await;
    let finish = |ids: &[i64]| -> Value { ids.iter().map(|id| json!({"id": id, "state": "JOB_FINISHED"})).collect() };
    user.patch("/jobs/", &finish(&parents)).await.ok();
    assert_eq!(
        user.get("/jobs/by-state").await.ok(),
        json!({"JOB_FINISHED": 50, "PREPROCESSED": 50, "AWAITING_PARENTS": 1})
    );
    user.patch("/jobs/", &finish(&children)).await.ok();
    assert_eq!(user.state(reduce).await, "PREPROCESSED");
}

#[tokio::test]
async fn failure_travels_down_the_graph() {
    let world = World::new().await;
    let user = &world.user;
    let root = world.plain_jobs(1).await[0];
    let mut chain = vec![root];
    for level in 0..6 {
        let parent = *chain.last().unwrap();
        chain.push(child(&world, &format!("level/{level}"), json!({"parent_ids": [parent]})).await);
    }
    let other = world.plain_job(&json!({"workdir": "other"})).await;
    user.set_state(root, "FAILED").await;
    for job in &chain[1..] {
        assert_eq!(user.state(*job).await, "FAILED");
        let event = user.list(&format!("/events/?job_id={job}&limit=1")).await.remove(0);
        assert_eq!(event["from_state"], "AWAITING_PARENTS");
        let text = event["data"].to_string();
        assert!(event["data"]["reason"].is_string() || event["data"]["message"].is_string(), "no reason in {text}");
    }
    assert_eq!(user.state(id(&other)).await, "PREPROCESSED");
}

#[tokio::test]
async fn a_child_of_a_failed_parent_fails_when_it_is_made() {
    let world = World::new().await;
    let parent = world.plain_jobs(1).await[0];
    world.user.set_state(parent, "FAILED").await;
    let job = child(&world, "late", json!({"parent_ids": [parent]})).await;
    assert_eq!(world.user.state(job).await, "FAILED");
}

#[tokio::test]
async fn children_wait_again_when_their_parent_is_restarted() {
    let world = World::new().await;
    let user = &world.user;
    let parent = world.plain_jobs(1).await[0];
    let job = child(&world, "child", json!({"parent_ids": [parent]})).await;
    let grandchild = child(&world, "grandchild", json!({"parent_ids": [job]})).await;
    user.set_state(parent, "FAILED").await;
    assert_eq!(user.state(grandchild).await, "FAILED");
    user.set_state(parent, "RESTART_READY").await;
    assert_eq!(user.state(job).await, "AWAITING_PARENTS");
    assert_eq!(user.state(grandchild).await, "AWAITING_PARENTS");
    user.set_state(parent, "JOB_FINISHED").await;
    assert_eq!(user.state(job).await, "PREPROCESSED");
}

#[tokio::test]
async fn every_kind_of_dependency_is_met_by_its_end() {
    let world = World::new().await;
    let user = &world.user;
    let parents = world.plain_jobs(2).await;
    let mut children = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        for kind in ["afterok", "afternotok", "afterany"] {
            children.push(child(&world, &format!("{kind}/{index}"), after(*parent, kind)).await);
        }
    }
    for job in &children {
        assert_eq!(user.state(*job).await, "AWAITING_PARENTS");
    }
    user.set_state(parents[0], "JOB_FINISHED").await;
    user.set_state(parents[1], "FAILED").await;
    let mut states = Vec::new();
    for job in children {
        states.push(user.state(job).await);
    }
    let (ready, failed) = ("PREPROCESSED", "FAILED");
    assert_eq!(states, [ready, failed, ready, failed, ready, ready]);
}

#[tokio::test]
async fn a_clean_up_job_runs_after_a_chain_failed() {
    let world = World::new().await;
    let user = &world.user;
    let first = world.plain_jobs(1).await[0];
    let second = child(&world, "second", json!({"parent_ids": [first]})).await;
    let clean = child(&world, "clean", after(second, "afternotok")).await;
    user.set_state(first, "FAILED").await;
    assert_eq!(user.state(second).await, "FAILED");
    assert_eq!(user.state(clean).await, "PREPROCESSED");
}

#[tokio::test]
async fn a_deleted_parent_leaves_no_child_waiting_for_ever() {
    let world = World::new().await;
    let user = &world.user;
    let parent = world.plain_jobs(1).await[0];
    let job = child(&world, "child", json!({"parent_ids": [parent]})).await;
    user.delete(&format!("/jobs/{parent}")).await.deleted();
    let row = user.get_job(job).await;
    assert_eq!(row["state"], "FAILED", "a parent that is gone can never finish");
}

#[tokio::test]
async fn unknown_parents_and_kinds_are_refused() {
    let world = World::new().await;
    let user = &world.user;
    let parent = world.plain_jobs(1).await[0];
    let post = |fields: Value| {
        let body = json!([copal_tests::world::with(json!({"app_id": world.plain, "workdir": "c"}), &fields)]);
        async move { user.post("/jobs/", &body).await }
    };
    post(json!({"parent_ids": [parent, 999_999]})).await.refused(404);
    post(after(999_999, "afterok")).await.refused(404);
    post(after(parent, "afterwards")).await.invalid("dependencies");
    post(json!({"parent_ids": [-1]})).await.refused(404);
    assert_eq!(user.count("/jobs/").await, 1);
}
