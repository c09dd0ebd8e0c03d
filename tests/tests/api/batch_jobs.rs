//! `/batch-jobs/` (contract, section 7).

use copal_tests::{World, id};
use serde_json::{Value, json};

fn request(site: i64) -> Value {
    json!({"site_id": site, "project": "physics", "queue": "debug", "num_nodes": 4, "wall_time_min": 30,
        "job_mode": "serial"})
}

#[tokio::test]
async fn a_new_batch_job_waits_for_submission() {
    let world = World::new().await;
    let created = world.user.post("/batch-jobs/", &request(world.site)).await.created();
    for (key, value) in [
        ("state", json!("pending_submission")),
        ("scheduler_id", json!(null)),
        ("status_info", json!({})),
        ("start_time", json!(null)),
        ("end_time", json!(null)),
        ("optional_params", json!({})),
        ("filter_tags", json!({})),
        ("partitions", json!(null)),
    ] {
        assert_eq!(created[key], value, "{key}");
    }
    for (key, value) in request(world.site).as_object().unwrap() {
        assert_eq!(&created[key], value, "{key}");
    }
    assert_eq!(world.user.get(&format!("/batch-jobs/{}", id(&created))).await.ok(), created);
}

#[tokio::test]
async fn partitions_tags_and_params_read_back() {
    let world = World::new().await;
    let mut body = request(world.site);
    body["partitions"] = json!([{"job_mode": "mpi", "num_nodes": 1, "filter_tags": {"role": "leader"}},
        {"job_mode": "serial", "num_nodes": 3}]);
    body["optional_params"] = json!({"mig_count": 3});
    body["filter_tags"] = json!({"system": "H2O", "step": 2});
    let created = world.user.post("/batch-jobs/", &body).await.created();
    assert_eq!(created["partitions"][0]["filter_tags"], json!({"role": "leader"}));
    assert_eq!(created["partitions"][1], json!({"job_mode": "serial", "num_nodes": 3, "filter_tags": {}}));
    assert_eq!(created["optional_params"], json!({"mig_count": "3"}));
    assert_eq!(created["filter_tags"], json!({"system": "H2O", "step": "2"}));
}

#[tokio::test]
async fn bad_batch_jobs_are_refused() {
    let world = World::new().await;
    let post = |change: Value| {
        let body = copal_tests::world::with(request(world.site), &change);
        let user = world.user.clone();
        async move { user.post("/batch-jobs/", &body).await }
    };
    post(json!({"site_id": 999_999})).await.refused(400);
    post(json!({"job_mode": "gpu"})).await.invalid("job_mode");
    post(json!({"num_nodes": null})).await.invalid("num_nodes");
    post(json!({"num_nodes": "many"})).await.invalid("num_nodes");
    post(json!({"optional_params": {"a": null}})).await.invalid("optional_params");
    post(json!({"partitions": [{"job_mode": "mpi"}]})).await.invalid("partitions");
    for missing in ["site_id", "project", "queue", "num_nodes", "wall_time_min", "job_mode"] {
        let mut body = request(world.site);
        body.as_object_mut().unwrap().remove(missing);
        world.user.post("/batch-jobs/", &body).await.invalid(missing);
    }
    assert_eq!(world.user.count("/batch-jobs/").await, 0);
}

/// The answer that the Site's agent would give, given at once.
#[tokio::test]
async fn what_the_site_forbids_is_refused_with_the_reason() {
    let world = World::new().await;
    let limits = json!({"allowed_projects": ["physics"], "optional_batch_job_params": {"mig_count": ""},
        "allowed_queues": {"debug": {"max_nodes": 4, "max_walltime": 30, "max_queued_jobs": 2}}});
    world.user.put(&format!("/sites/{}", world.site), &limits).await.ok();
    for (change, word) in [
        (json!({"project": "chemistry"}), "project \"chemistry\" is not allowed here; allowed: physics"),
        (json!({"queue": "prod"}), "queue \"prod\" is not allowed here; allowed: debug"),
        (json!({"num_nodes": 5}), "5 nodes are asked for; queue debug allows 4"),
        (json!({"wall_time_min": 31}), "31 minutes are asked for; queue debug allows 30"),
        (json!({"optional_params": {"mig": 3}}), "optional param \"mig\" is not declared here; declared: mig_count"),
    ] {
        let body = copal_tests::world::with(request(world.site), &change);
        let refused = world.user.post("/batch-jobs/", &body).await.created();
        assert_eq!((&refused["state"], &refused["status_info"]["error"]), (&json!("submit_failed"), &json!(word)));
        assert!(refused["end_time"].is_string(), "{refused}");
    }
    for state in ["pending_submission", "pending_submission", "submit_failed"] {
        assert_eq!(world.user.post("/batch-jobs/", &request(world.site)).await.created()["state"], state);
    }
    // Those that wait no more make room.
    let first = world.user.ids("/batch-jobs/?state=pending_submission").await[0];
    world.user.put(&format!("/batch-jobs/{first}"), &json!({"state": "running"})).await.ok();
    assert_eq!(world.user.post("/batch-jobs/", &request(world.site)).await.created()["state"], "pending_submission");
}

#[tokio::test]
async fn updates_are_partial_and_answer_with_the_item() {
    let world = World::new().await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let path = format!("/batch-jobs/{batch_job}");
    let change = json!({"state": "running", "scheduler_id": 41, "status_info": {"reason": "none"},
        "start_time": "2026-11-30 10:06:02.078662", "status": "ignored"});
    let updated = user.put(&path, &change).await.ok();
    assert_eq!(updated["state"], "running");
    assert_eq!(updated["scheduler_id"], 41);
    assert_eq!(updated["start_time"], "2026-11-30T10:06:02.078662");
    assert_eq!(updated["status_info"], json!({"reason": "none"}));
    assert_eq!(updated["num_nodes"], 4);
    let replaced = user.put(&path, &json!({"status_info": {"x": "1"}, "start_time": null})).await.ok();
    assert_eq!(replaced["status_info"], json!({"x": "1"}));
    assert_eq!(replaced["start_time"], json!(null));
    assert_eq!(replaced["state"], "running");
    user.put(&path, &json!({"state": "asleep"})).await.invalid("state");
    user.put("/batch-jobs/999999", &json!({"state": "queued"})).await.refused(404);
}

#[tokio::test]
async fn a_bulk_update_is_all_or_nothing_and_answers_with_the_items() {
    let world = World::new().await;
    let user = &world.user;
    let ids = [user.batch_job(world.site, &json!({})).await, user.batch_job(world.site, &json!({})).await];
    let body = json!([{"id": ids[1], "state": "queued", "scheduler_id": 7}, {"id": ids[0], "state": "running"}]);
    let answer = user.patch("/batch-jobs/", &body).await.ok();
    let mut states: Vec<(i64, Value)> =
        answer.as_array().unwrap().iter().map(|item| (id(item), item["state"].clone())).collect();
    states.sort_by_key(|(id, _)| *id);
    assert_eq!(states, [(ids[0], json!("running")), (ids[1], json!("queued"))]);

    let half_known = json!([{"id": ids[0], "state": "finished"}, {"id": 999_999, "state": "finished"}]);
    user.patch("/batch-jobs/", &half_known).await.refused(400);
    let doubled = json!([{"id": ids[0], "state": "finished"}, {"id": ids[0], "state": "queued"}]);
    user.patch("/batch-jobs/", &doubled).await.refused(400);
    assert_eq!(user.get(&format!("/batch-jobs/{}", ids[0])).await.ok()["state"], "running");
}

/// What the Python client sends for `BatchJob.objects.filter(…).update(…)`.
#[tokio::test]
async fn a_query_update_changes_all_that_match() {
    let world = World::new().await;
    let user = &world.user;
    let mut ids = Vec::new();
    for scheduler_id in [41, 42, 43] {
        let made = user.batch_job(world.site, &json!({})).await;
        user.put(&format!("/batch-jobs/{made}"), &json!({"state": "queued", "scheduler_id": scheduler_id})).await.ok();
        ids.push(made);
    }
    let query = format!("/batch-jobs/?id={}&id={}&id=999999", ids[0], ids[2]);
    let answer = user.put(&query, &json!({"state": "pending_deletion"})).await.ok();
    assert_eq!(answer.as_array().unwrap().iter().map(id).collect::<Vec<_>>(), [ids[0], ids[2]]);
    assert_eq!(user.ids("/batch-jobs/?state=pending_deletion").await, [ids[0], ids[2]]);
    assert_eq!(
        user.put("/batch-jobs/?scheduler_id=42", &json!({"state": "running"})).await.ok()[0]["state"],
        "running"
    );
    assert_eq!(user.put("/batch-jobs/?scheduler_id=44", &json!({"state": "running"})).await.ok(), json!([]));
    user.put("/batch-jobs/?scheduler_id=42", &json!({"state": "asleep"})).await.invalid("state");
    user.put("/batch-jobs/?ordering=color", &json!({})).await.refused(422);
}

#[tokio::test]
async fn a_pending_deletion_can_only_be_finished() {
    let world = World::new().await;
    let user = &world.user;
    let path = format!("/batch-jobs/{}", user.batch_job(world.site, &json!({})).await);
    user.put(&path, &json!({"state": "pending_deletion"})).await.ok();
    let updated = user.put(&path, &json!({"state": "running", "scheduler_id": 12})).await.ok();
    assert_eq!((&updated["state"], &updated["scheduler_id"]), (&json!("pending_deletion"), &json!(12)));
    let item = json!([{"id": updated["id"], "state": "queued", "status_info": {"a": "b"}}]);
    let updated = &user.patch("/batch-jobs/", &item).await.ok()[0];
    assert_eq!((&updated["state"], &updated["status_info"]), (&json!("pending_deletion"), &json!({"a": "b"})));
    assert_eq!(user.put(&path, &json!({"state": "finished"})).await.ok()["state"], "finished");
}

#[tokio::test]
async fn filters_narrow_and_order_the_list() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let a = user.batch_job(world.site, &json!({"filter_tags": {"system": "H2O", "k": "v"}, "queue": "prod"})).await;
    let b = user.batch_job(world.site, &json!({"filter_tags": {"system": "D2O"}})).await;
    let c = user.batch_job(other_site, &json!({})).await;
    let update = json!([
        {"id": a, "state": "running", "scheduler_id": 11, "start_time": "2026-01-02T00:00:00"},
        {"id": b, "state": "finished", "scheduler_id": 12, "start_time": "2026-01-01T00:00:00",
            "end_time": "2026-01-01T01:00:00"},
        {"id": c, "start_time": "2026-01-03T00:00:00"}]);
    user.patch("/batch-jobs/", &update).await.ok();
    for (query, ids) in [
        ("", vec![a, b, c]),
        ("site_id=SITE", vec![a, b]),
        ("state=running&state=finished", vec![a, b]),
        ("state=no_such_state", vec![]),
        ("scheduler_id=12", vec![b]),
        ("queue=prod", vec![a]),
        ("filter_tags=system:H2O", vec![a]),
        ("filter_tags=system:H2O&filter_tags=k:v", vec![a]),
        ("filter_tags=system:H2O&filter_tags=k:w", vec![]),
        ("ordering=start_time", vec![b, a, c]),
        ("ordering=-start_time", vec![c, a, b]),
        ("start_time_after=2026-01-02 00:00:00", vec![a, c]),
        ("start_time_before=2026-01-02 00:00:00", vec![a, b]),
        ("end_time_before=2026-01-01T01:00:00", vec![b]),
        ("end_time_after=2026-01-01T01:00:01", vec![]),
        ("limit=1&offset=1", vec![b]),
    ] {
        let query = query.replace("SITE", &world.site.to_string());
        assert_eq!(user.ids(&format!("/batch-jobs/?{query}")).await, ids, "{query}");
    }
    user.get("/batch-jobs/?ordering=color").await.refused(422);
}

#[tokio::test]
async fn a_deleted_batch_job_leaves_its_jobs_and_sessions() {
    let world = World::new().await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let session = user.session(world.site, Some(batch_job)).await;
    let job = id(&world.plain_job(&json!({})).await);
    assert_eq!(user.acquire(session, &json!({})).await[0]["batch_job_id"], batch_job);
    user.delete(&format!("/batch-jobs/{batch_job}")).await.deleted();
    user.delete(&format!("/batch-jobs/{batch_job}")).await.refused(404);
    assert_eq!(user.get_job(job).await["batch_job_id"], json!(null));
    let sessions = user.list("/sessions/").await;
    assert_eq!((&sessions[0]["id"], &sessions[0]["batch_job_id"]), (&json!(session), &json!(null)));
}

#[tokio::test]
async fn a_finished_batch_job_ends_its_sessions_at_once() {
    let world = World::new().await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let session = user.session(world.site, Some(batch_job)).await;
    let job = id(&world.plain_job(&json!({})).await);
    user.acquire(session, &json!({})).await;
    user.report(session, job, &["RUNNING"]).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "finished"})).await.ok();
    assert_eq!(user.ids("/sessions/").await, [0; 0]);
    let now = user.get_job(job).await;
    assert_eq!((&now["state"], &now["session_id"]), (&json!("RESTART_READY"), &json!(null)));
    let history = user.history(job).await;
    assert_eq!(history[history.len() - 3..], ["RUNNING", "RUN_TIMEOUT", "RESTART_READY"]);
}
