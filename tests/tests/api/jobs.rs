//! Making, changing and deleting Jobs (contract, section 5).

use copal_tests::{World, id, world::with};
use serde_json::{Value, json};

#[tokio::test]
async fn a_new_job_has_the_defaults() {
    let world = World::new().await;
    let created = world.job(&json!({"workdir": "a/./b//c"})).await;
    let job = world.user.get_job(id(&created)).await;
    for (key, value) in [
        ("workdir", json!("a/b/c")),
        ("tags", json!({})),
        ("app_id", json!(world.app)),
        ("session_id", json!(null)),
        ("serialized_parameters", json!("")),
        ("serialized_return_value", json!("")),
        ("serialized_exception", json!("")),
        ("batch_job_id", json!(null)),
        ("state", json!("STAGED_IN")),
        ("data", json!({})),
        ("return_code", json!(null)),
        ("pending_file_cleanup", json!(true)),
        ("parent_ids", json!([])),
        ("num_nodes", json!(1)),
        ("ranks_per_node", json!(1)),
        ("threads_per_rank", json!(1)),
        ("threads_per_core", json!(1)),
        ("gpus_per_rank", json!(0.0)),
        ("node_packing_count", json!(1)),
        ("wall_time_min", json!(0)),
        ("launch_params", json!({})),
    ] {
        assert_eq!(job[key], value, "{key}");
    }
    assert!(job["last_update"].as_str().unwrap().ends_with("+00:00"), "{job}");
    for key in ["app_id", "parent_ids", "state", "pending_file_cleanup", "workdir", "tags"] {
        assert_eq!(created[key], job[key], "{key}");
    }
    assert_eq!(world.user.list("/jobs").await, [job]);
}

#[tokio::test]
async fn jobs_come_back_in_the_order_asked_for() {
    let world = World::new().await;
    let jobs: Vec<Value> = (0..1000)
        .map(|index| json!({"app_id": world.app, "workdir": format!("w/{}", 1000 - index), "wall_time_min": index}))
        .collect();
    let created = world.user.jobs(&jobs).await;
    assert_eq!(created.len(), 1000);
    for (asked, made) in jobs.iter().zip(&created) {
        assert_eq!((&asked["workdir"], &asked["wall_time_min"]), (&made["workdir"], &made["wall_time_min"]));
    }
    assert!(created.windows(2).all(|pair| id(&pair[0]) < id(&pair[1])), "ids increase with the order");
}

#[tokio::test]
async fn one_bad_job_makes_none_of_the_call() {
    let world = World::new().await;
    let user = &world.user;
    let good = json!({"app_id": world.app, "workdir": "good"});
    let post = |bad: Value| {
        let body = json!([good, with(json!({"app_id": world.app, "workdir": "bad"}), &bad)]);
        async move { user.post("/jobs/", &body).await }
    };
    post(json!({"app_id": 999_999})).await.refused(404);
    post(json!({"parent_ids": [999_999]})).await.refused(404);
    post(json!({"workdir": "good"})).await.refused(400);
    post(json!({"workdir": "./good/"})).await.refused(400);
    post(json!({"transfers": {"unknown": {"location_alias": "aps", "path": "/x"}}})).await.refused(400);
    for (change, field) in [
        (json!({"workdir": "/abs"}), "workdir"),
        (json!({"workdir": "../up"}), "workdir"),
        (json!({"workdir": "a/../../up"}), "workdir"),
        (json!({"workdir": "x".repeat(257)}), "workdir"),
        (json!({"workdir": ""}), "workdir"),
        (json!({"workdir": null}), "workdir"),
        (json!({"num_nodes": null}), "num_nodes"),
        (json!({"num_nodes": "many"}), "num_nodes"),
        (json!({"node_packing_count": 0}), "node_packing_count"),
        (json!({"node_packing_count": -1}), "node_packing_count"),
        (json!({"num_nodes": 0}), "num_nodes"),
        (json!({"wall_time_min": 3_000_000_000_i64}), "wall_time_min"),
        (json!({"gpus_per_rank": "lots"}), "gpus_per_rank"),
        (json!({"tags": {"a": null}}), "tags"),
        (json!({"tags": {"a": ["b"]}}), "tags"),
        (json!({"tags": "a:b"}), "tags"),
        (json!({"data": []}), "data"),
        (json!({"serialized_parameters": "x".repeat(512_001)}), "serialized_parameters"),
        (json!({"parent_ids": ["x"]}), "parent_ids"),
        (json!({"transfers": {"in": {"location_alias": "aps"}}}), "transfers"),
    ] {
        let answer = post(change.clone()).await;
        assert_eq!(answer.status, 422, "{change}: {}", answer.body);
        let problem = answer.invalid(field);
        let loc = &problem["errors"][0]["loc"];
        assert_eq!((&loc[0], &loc[1]), (&json!("body"), &json!(1)), "{change}: {problem}");
    }
    assert_eq!(user.count("/jobs/").await, 0);
    assert_eq!(user.count("/events/").await, 0);
}

#[tokio::test]
async fn the_size_of_a_call_is_bounded() {
    let world = World::new().await;
    let job = |index: usize| json!({"app_id": world.plain, "workdir": format!("w/{index}")});
    let jobs: Vec<Value> = (0..5001).map(job).collect();
    let problem = world.user.post("/jobs/", &json!(jobs)).await.refused(400);
    assert_eq!(problem["code"], "bulk_too_large");
    assert_eq!(world.user.jobs(&jobs[..5000]).await.len(), 5000);
    assert_eq!(world.user.count("/jobs/").await, 5000);
    world.user.post("/jobs/", &json!({"app_id": world.app, "workdir": "x"})).await.refused(422);
    let empty = world.user.post("/jobs/", &json!([])).await;
    assert!(matches!(empty.status, 201 | 400 | 422), "{empty:?}");

    let updates: Vec<Value> = (0..5001).map(|index| json!({"id": index, "num_nodes": 2})).collect();
    world.user.patch("/jobs/", &json!(updates)).await.refused(400);
    world.plain_job(&json!({"workdir": "one more"})).await;
    world.user.put("/jobs/", &json!({"num_nodes": 2})).await.refused(400);
    assert_eq!(world.user.count("/jobs/").await, 5001);
    let untouched = world.user.list("/jobs/?limit=1&ordering=-id").await;
    assert_eq!(untouched[0]["num_nodes"], 1);
}

#[tokio::test]
async fn values_are_read_leniently_as_the_python_client_sends_them() {
    let world = World::new().await;
    let fields = json!({
        "num_nodes": "2", "wall_time_min": 59.97, "gpus_per_rank": "0.5", "ranks_per_node": 4.0,
        "tags": {"int": 1, "float": 1.0, "half": 2.5, "flag": true, "text": "x"},
        "launch_params": {"cpu_affinity": 1}, "parameters": {"unknown": "ignored"}, "no_such_field": [1, 2]
    });
    let job = world.job(&fields).await;
    assert_eq!(job["num_nodes"], 2);
    assert_eq!(job["wall_time_min"], 59);
    assert_eq!(job["gpus_per_rank"], 0.5);
    assert_eq!(job["ranks_per_node"], 4);
    assert_eq!(job["tags"], json!({"int": "1", "float": "1.0", "half": "2.5", "flag": "True", "text": "x"}));
    assert_eq!(job["launch_params"], json!({"cpu_affinity": "1"}));
}

#[tokio::test]
async fn workdirs_of_earlier_calls_may_come_again() {
    let world = World::new().await;
    world.job(&json!({"workdir": "same"})).await;
    world.job(&json!({"workdir": "same"})).await;
    assert_eq!(world.user.count("/jobs/?workdir__contains=same").await, 2);
}

#[tokio::test]
async fn a_bulk_update_answers_with_a_bare_number() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(3).await;
    let body =
        json!([{"id": jobs[2], "num_nodes": 8}, {"id": jobs[0], "tags": {"k": "v"}, "state_message": "ignored"}]);
    assert_eq!(user.patch("/jobs/", &body).await.ok(), json!(2));
    assert_eq!(user.get_job(jobs[2]).await["num_nodes"], 8);
    assert_eq!(user.get_job(jobs[0]).await["tags"], json!({"k": "v"}));
    assert_eq!(user.get_job(jobs[1]).await["num_nodes"], 1);
    assert_eq!(user.patch("/jobs/", &json!([])).await.ok(), json!(0));

    user.patch("/jobs/", &json!([{"id": jobs[0], "num_nodes": 5}, {"id": 999_999, "num_nodes": 5}])).await.refused(400);
    user.patch("/jobs/", &json!([{"id": jobs[0], "num_nodes": 5}, {"id": jobs[0], "num_nodes": 6}])).await.refused(400);
    user.patch("/jobs/", &json!([{"id": jobs[0], "num_nodes": 5}, {"num_nodes": 6}])).await.refused(422);
    user.patch("/jobs/", &json!([{"id": jobs[0], "num_nodes": 5}, {"id": jobs[1], "num_nodes": 0}])).await.refused(422);
    assert_eq!(user.get_job(jobs[0]).await["num_nodes"], 1);
}

#[tokio::test]
async fn single_and_query_updates_answer_with_a_number() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(4).await;
    let path = format!("/jobs/{}", jobs[0]);
    assert_eq!(user.put(&path, &json!({"data": {"a": 1}, "wall_time_min": 5})).await.ok(), json!(1));
    user.put("/jobs/999999", &json!({"num_nodes": 2})).await.refused(400);
    let query = format!("/jobs/?id={}&id={}&id={}", jobs[1], jobs[2], 999_999);
    assert_eq!(user.put(&query, &json!({"num_nodes": 3})).await.ok(), json!(2));
    assert_eq!(user.put("/jobs/?tags=no:such", &json!({"num_nodes": 4})).await.ok(), json!(0));
    assert_eq!(user.put("/jobs/", &json!({"return_code": 7})).await.ok(), json!(4));
    let rows = user.list("/jobs/").await;
    let nodes: Vec<&Value> = rows.iter().map(|row| &row["num_nodes"]).collect();
    assert_eq!(nodes, [1, 3, 3, 1]);
    assert!(rows.iter().all(|row| row["return_code"] == 7));
    assert_eq!(user.put(&path, &json!({"return_code": null})).await.ok(), json!(1));
    assert_eq!(user.get_job(jobs[0]).await["return_code"], json!(null));
}

#[tokio::test]
async fn an_update_replaces_maps_and_leaves_the_rest() {
    let world = World::new().await;
    let user = &world.user;
    let parent = id(&world.job(&json!({"workdir": "parent"})).await);
    let job = id(&world.job(&json!({"tags": {"a": "1", "b": "2"}, "data": {"x": 1}, "parent_ids": [parent]})).await);
    let before = user.get_job(job).await;
    let change = json!({"tags": {"c": "3"}, "data": {"y": [1, {"z": null}]}, "app_id": world.plain, "parent_ids": [],
        "serialized_return_value": "r", "serialized_exception": "e", "pending_file_cleanup": "no"});
    user.put(&format!("/jobs/{job}"), &change).await.ok();
    let after = user.get_job(job).await;
    assert_eq!(after["tags"], json!({"c": "3"}));
    assert_eq!(after["data"], json!({"y": [1, {"z": null}]}));
    assert_eq!((&after["app_id"], &after["parent_ids"]), (&before["app_id"], &before["parent_ids"]));
    assert_eq!((&after["serialized_return_value"], &after["serialized_exception"]), (&json!("r"), &json!("e")));
    assert_eq!(after["pending_file_cleanup"], false);
    assert_eq!(user.ids("/jobs/?tags=a:1").await, [0; 0]);
    assert_eq!(user.ids("/jobs/?tags=c:3").await, [job]);
}

#[tokio::test]
async fn every_update_is_strictly_later() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    let mut before = world.user.get_job(job).await["last_update"].clone();
    for _ in 0..20 {
        world.user.put(&format!("/jobs/{job}"), &json!({})).await.ok();
        let after = world.user.get_job(job).await["last_update"].clone();
        assert!(after.as_str() > before.as_str(), "{after} is not later than {before}");
        before = after;
    }
}

#[tokio::test]
async fn jobs_are_deleted_by_id_and_by_query() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(5).await;
    user.delete(&format!("/jobs/{}", jobs[0])).await.deleted();
    user.delete(&format!("/jobs/{}", jobs[0])).await.refused(404);
    user.get(&format!("/jobs/{}", jobs[0])).await.refused(404);
    user.delete(&format!("/jobs/?id={}&id={}", jobs[1], jobs[2])).await.deleted();
    assert_eq!(user.ids("/jobs/").await, jobs[3..]);
    user.delete("/jobs/?tags=no:such").await.deleted();
    assert_eq!(user.count("/jobs/").await, 2);
    user.delete("/jobs/").await.deleted();
    assert_eq!(user.count("/jobs/").await, 0);
}

#[tokio::test]
async fn a_held_job_is_not_deleted() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(2).await;
    let session = world.session().await;
    user.acquire(session, &json!({"max_num_jobs": 1})).await;
    user.delete("/jobs/").await.deleted();
    assert_eq!(user.ids("/jobs/").await, [jobs[0]]);
    user.delete(&format!("/jobs/{}", jobs[0])).await.deleted();
    assert_eq!(user.ids("/jobs/").await, [jobs[0]]);
    user.delete(&format!("/sessions/{session}")).await.deleted();
    user.delete("/jobs/").await.deleted();
    assert_eq!(user.count("/jobs/").await, 0);
}

#[tokio::test]
async fn the_same_idempotency_key_makes_nothing_again() {
    let world = World::new().await;
    let user = &world.user;
    let post = |key: &'static str, body: Value| {
        let request = user.request(reqwest::Method::POST, "/jobs/").header("Idempotency-Key", key).json(&body);
        user.send(request)
    };
    let body = json!([{"app_id": world.plain, "workdir": "once"}]);
    let first = post("7d0a1f1c-0000-4000-8000-000000000001", body.clone()).await.created();
    let second = post("7d0a1f1c-0000-4000-8000-000000000001", body.clone()).await.created();
    assert_eq!(id(&first[0]), id(&second[0]));
    assert_eq!(user.count("/jobs/").await, 1);
    let other = json!([{"app_id": world.plain, "workdir": "other"}]);
    post("7d0a1f1c-0000-4000-8000-000000000001", other).await.refused(409);
    post("7d0a1f1c-0000-4000-8000-000000000002", body).await.created();
    assert_eq!(user.count("/jobs/").await, 2);
}

#[tokio::test]
async fn the_order_of_fields_makes_no_other_request() {
    let world = World::new().await;
    let user = &world.user;
    let app = world.plain;
    let post = async |path: &str, key: &str, body: String| {
        let request = user.request(reqwest::Method::POST, path).header("Idempotency-Key", key);
        user.send(request.header("Content-Type", "application/json").body(body)).await.created()
    };
    let one = format!(
        r#"{{"app_id": {app}, "workdir": "w", "tags": {{"a": "1", "b": "2"}}, "data": {{"x": [{{"m": 1, "n": 2}}], "y": 0}}}}"#
    );
    let other = format!(
        r#"{{"data": {{"y": 0, "x": [{{"n": 2, "m": 1}}]}}, "workdir": "w", "tags": {{"b": "2", "a": "1"}}, "app_id": {app}}}"#
    );
    let first = post("/jobs/", "jobs", format!("[{one}]")).await;
    assert_eq!(post("/jobs/", "jobs", format!("[{other}]")).await, first);
    let first = post("/job-arrays/", "array", format!(r#"{{"last": 0, "job": {one}}}"#)).await;
    assert_eq!(post("/job-arrays/", "array", format!(r#"{{"job": {other}, "last": 0}}"#)).await, first);
    assert_eq!(user.count("/jobs/").await, 2);
}

#[tokio::test]
async fn calls_with_one_key_at_the_same_time_make_one_job() {
    let world = World::new().await;
    let user = &world.user;
    let body = json!([{"app_id": world.plain, "workdir": "once"}]);
    let calls = (0..8).map(|_| {
        let request = user.request(reqwest::Method::POST, "/jobs/").header("Idempotency-Key", "k-1").json(&body);
        user.send(request)
    });
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 409)), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.status == 201), "{answers:?}");
    assert_eq!(user.count("/jobs/").await, 1);
}
