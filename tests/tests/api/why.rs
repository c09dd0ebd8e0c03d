//! `GET /jobs/{id}/why`: one answer to why a Job is not running.

use copal_tests::{World, id};
use serde_json::{Value, json};

/// Code and message of what weighs most.
async fn why(world: &World, job: i64) -> (String, String) {
    let answer = world.user.get(&format!("/jobs/{job}/why")).await.ok();
    assert_eq!(answer["job_id"], job);
    let first: &Value = &answer["reasons"][0];
    let text = |key: &str| first[key].as_str().unwrap_or_else(|| panic!("{answer} has no {key}")).to_owned();
    (text("code"), text("message"))
}

async fn code(world: &World, job: i64) -> String {
    why(world, job).await.0
}

#[tokio::test]
async fn a_job_is_explained_all_its_life() {
    let world = World::new().await;
    let user = &world.user;
    user.put(&format!("/sites/{}", world.site), &json!({"transfer_locations": {"aps": "file://aps"}})).await.ok();
    let slots = json!({"command": "true", "hooks": {"preprocess": true},
        "transfers": {"input": {"required": false, "direction": "in", "local_path": "x"}}});
    let app = user.app(world.site, "Staged", &slots).await;
    let parent = id(&world.plain_job(&json!({"workdir": "parent"})).await);
    let inputs = json!({"transfers": {"input": {"location_alias": "aps", "path": "/data/x"}}, "parent_ids": [parent],
        "tags": {"system": "H2O"}, "num_nodes": 2, "wall_time_min": 20});
    let job = id(&user.job(app, &inputs).await);

    let (reason, message) = why(&world, job).await;
    assert_eq!(reason, "dependency");
    assert!(message.contains(&format!("Job {parent}")) && message.contains("PREPROCESSED"), "{message}");

    user.set_state(parent, "JOB_FINISHED").await;
    let (reason, message) = why(&world, job).await;
    assert_eq!(reason, "staging");
    assert!(message.contains("aps:/data/x"), "{message}");

    let transfer = user.ids("/transfers/").await[0];
    user.put(&format!("/transfers/{transfer}"), &json!({"state": "done"})).await.ok();
    assert_eq!(code(&world, job).await, "hook");

    user.set_state(job, "PREPROCESSED").await;
    assert_eq!(code(&world, job).await, "no_allocation");

    let batch_job = user.batch_job(world.site, &json!({"num_nodes": 4, "filter_tags": {"system": "D2O"}})).await;
    let (reason, message) = why(&world, job).await;
    assert_eq!((&*reason, message.contains("system=D2O")), ("tags", true), "{message}");
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "finished"})).await.ok();

    let batch_job = user.batch_job(world.site, &json!({"num_nodes": 4})).await;
    assert_eq!(code(&world, job).await, "queued");
    let queued = json!({"state": "queued", "scheduler_id": 5, "status_info": {"reason": "AssocGrpCpuLimit"}});
    user.put(&format!("/batch-jobs/{batch_job}"), &queued).await.ok();
    let (reason, message) = why(&world, job).await;
    assert_eq!((&*reason, message.contains("AssocGrpCpuLimit")), ("queued", true), "{message}");

    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running"})).await.ok();
    assert_eq!(code(&world, job).await, "no_launcher");
    let session = user.session(world.site, Some(batch_job)).await;
    assert_eq!(code(&world, job).await, "order");

    let ago = (chrono::Utc::now() - chrono::TimeDelta::minutes(15)).format("%Y-%m-%dT%H:%M:%S").to_string();
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"start_time": ago})).await.ok();
    assert_eq!(code(&world, job).await, "walltime");

    user.acquire(session, &json!({})).await;
    assert_eq!(code(&world, job).await, "running");
    user.report(session, job, &["RUNNING", "RUN_ERROR"]).await;
    let (reason, message) = why(&world, job).await;
    assert_eq!(reason, "ended");
    assert!(message.contains("No restart after an error is left"), "{message}");
}

#[tokio::test]
async fn a_partition_is_judged_by_itself() {
    let world = World::new().await;
    let user = &world.user;
    let partitions = json!([{"job_mode": "mpi", "num_nodes": 1, "filter_tags": {"role": "leader"}},
        {"job_mode": "serial", "num_nodes": 3, "filter_tags": {"role": "worker"}}]);
    let fields = json!({"num_nodes": 4, "partitions": partitions});
    let batch_job = user.batch_job(world.site, &fields).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running"})).await.ok();
    user.session(world.site, Some(batch_job)).await;
    let with_role = |role: &str, ranks: i64| {
        let fields = json!({"workdir": format!("{role}{ranks}"), "tags": {"role": role}, "ranks_per_node": ranks});
        let world = &world;
        async move { code(world, id(&world.plain_job(&fields).await)).await }
    };
    assert_eq!(with_role("worker", 1).await, "order");
    assert_eq!(with_role("leader", 2).await, "order");
    assert_ne!(with_role("worker", 2).await, "order");
    assert_eq!(with_role("none", 1).await, "tags");
}

#[tokio::test]
async fn a_shape_that_no_node_can_hold_is_named() {
    let world = World::new().await;
    let job = id(&world.plain_job(&json!({"ranks_per_node": 8})).await);
    let shape = json!({"node_shape": {"cpus": 4, "gpus": 0, "mem_mb": 0}});
    world.user.put(&format!("/sites/{}", world.site), &shape).await.ok();
    let (code, message) = why(&world, job).await;
    assert_eq!((&*code, message.contains("8 CPUs")), ("shape", true), "{message}");
}

#[tokio::test]
async fn a_new_job_is_refused_at_the_field_that_asks_for_too_much() {
    let world = World::new().await;
    let shape = json!({"node_shape": {"cpus": 4, "gpus": 1, "mem_mb": 1000}});
    world.user.put(&format!("/sites/{}", world.site), &shape).await.ok();
    for (field, value) in [("ranks_per_node", json!(8)), ("gpus_per_rank", json!(2)), ("mem_mb", json!(2000))] {
        let job = json!([{"workdir": "a", "app_id": world.plain, field: value}]);
        let refused = world.user.post("/jobs/", &job).await.refused(422);
        assert_eq!(refused["errors"][0]["loc"][2], json!(field), "{refused}");
    }
}
