//! `/transfers/` and what staging does to Jobs (contract, sections 5 and 6).

use copal_tests::{Api, World, id};
use serde_json::{Value, json};

/// A Site with a location, an App with two inputs and an output, and a Job that uses all three.
struct Staging {
    world: World,
    app: i64,
    job: i64,
}

async fn staging() -> Staging {
    let world = World::new().await;
    let user = &world.user;
    let locations =
        json!({"transfer_locations": {"aps": "file://aps", "als": "globus://8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0"}});
    user.put(&format!("/sites/{}", world.site), &locations).await.ok();
    let slots = json!({"transfers": {
        "geometry": {"required": true, "direction": "in", "local_path": "geometry.xyz"},
        "basis": {"required": false, "direction": "in", "local_path": "basis", "recursive": true},
        "result": {"required": false, "direction": "out", "local_path": "out/result.h5"}}});
    let app = user.app(world.site, "Staged", &slots).await;
    let job = id(&user.job(app, &json!({"tags": {"k": "v"}, "transfers": all_slots()})).await);
    Staging { app, job, world }
}

fn all_slots() -> Value {
    json!({
        "geometry": {"location_alias": "aps", "path": "/data/./1.xyz"},
        "basis": {"location_alias": "aps", "path": "/data/basis"},
        "result": {"location_alias": "als", "path": "/results/1.h5"}})
}

async fn items(user: &Api, query: &str) -> Vec<i64> {
    user.ids(&format!("/transfers/?{query}")).await
}

#[tokio::test]
async fn a_job_is_born_with_its_transfers() {
    let Staging { world, job, .. } = staging().await;
    let user = &world.user;
    assert_eq!(user.state(job).await, "READY");
    assert_eq!(user.history(job).await, ["CREATED", "READY"]);
    let mut rows = user.list("/transfers").await;
    rows.sort_by_key(|row| row["local_path"].as_str().unwrap().to_owned());
    let common = |row: &Value| {
        assert_eq!((&row["job_id"], &row["task_id"], &row["transfer_info"]), (&json!(job), &json!(""), &json!({})));
    };
    rows.iter().for_each(common);
    let facts: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!([
                row["local_path"],
                row["remote_path"],
                row["location_alias"],
                row["direction"],
                row["state"],
                row["recursive"]
            ])
        })
        .collect();
    assert_eq!(
        facts,
        [
            json!(["basis", "/data/basis", "aps", "in", "pending", true]),
            json!(["geometry.xyz", "/data/1.xyz", "aps", "in", "pending", false]),
            json!(["out/result.h5", "/results/1.h5", "als", "out", "awaiting_job", false]),
        ]
    );
    assert_eq!(user.get(&format!("/transfers/{}", id(&rows[0]))).await.ok(), rows[0]);
}

#[tokio::test]
async fn unknown_slots_and_locations_make_no_job() {
    let Staging { world, app, .. } = staging().await;
    let user = &world.user;
    let before = user.count("/jobs/").await;
    for (transfers, status) in [
        (json!({"geometri": {"location_alias": "aps", "path": "/x"}}), 400),
        (json!({"geometry": {"location_alias": "nowhere", "path": "/x"}}), 400),
        (json!({"geometry": {"location_alias": "aps", "path": "relative"}}), 422),
        (json!({"geometry": {"location_alias": "aps"}}), 422),
        (json!({"geometry": "aps:/x"}), 422),
    ] {
        let body = json!([{"app_id": app, "workdir": "x", "transfers": transfers}]);
        user.post("/jobs/", &body).await.refused(status);
    }
    assert_eq!(user.count("/jobs/").await, before);
    // A required slot may be left out: the contract enforces it at no place.
    user.job(app, &json!({"workdir": "bare"})).await;
}

#[tokio::test]
async fn the_last_input_stages_the_job_in() {
    let Staging { world, job, .. } = staging().await;
    let user = &world.user;
    let inputs = items(user, "direction=in").await;
    let one = user.put(&format!("/transfers/{}", inputs[0]), &json!({"state": "done", "task_id": "t-1"})).await.ok();
    assert_eq!((&one["state"], &one["task_id"]), (&json!("done"), &json!("t-1")));
    assert_eq!(user.state(job).await, "READY");
    let body = json!([{"id": inputs[1], "state": "done", "transfer_info": {"bytes": 12}}]);
    let answer = user.patch("/transfers/", &body).await.ok();
    assert_eq!(answer[0]["transfer_info"], json!({"bytes": 12}));
    assert_eq!(user.state(job).await, "STAGED_IN");
    assert_eq!(user.history(job).await, ["CREATED", "READY", "STAGED_IN"]);
    assert_eq!(user.list("/events/?to_state=STAGED_IN").await[0]["data"], json!({}));
}

#[tokio::test]
async fn outputs_wait_for_the_job_and_then_finish_it() {
    let Staging { world, job, .. } = staging().await;
    let user = &world.user;
    let child = id(&world.job(&json!({"workdir": "child", "parent_ids": [job]})).await);
    let output = items(user, "direction=out").await[0];
    user.set_state(job, "RUN_DONE").await;
    assert_eq!(items(user, "state=awaiting_job").await, [output]);
    user.set_state(job, "POSTPROCESSED").await;
    assert_eq!(user.state(job).await, "POSTPROCESSED");
    assert_eq!(items(user, "state=pending&direction=out").await, [output]);
    user.put(&format!("/transfers/{output}"), &json!({"state": "active"})).await.ok();
    assert_eq!(user.state(job).await, "POSTPROCESSED");
    user.patch("/transfers/", &json!([{"id": output, "state": "done"}])).await.ok();
    assert_eq!(user.state(job).await, "JOB_FINISHED");
    assert_eq!(user.state(child).await, "STAGED_IN", "a Job that its last transfer finishes frees its children");
}

#[tokio::test]
async fn ready_waits_for_open_input() {
    let Staging { world, job, .. } = staging().await;
    let user = &world.user;
    user.set_state(job, "RUN_ERROR").await;
    user.set_state(job, "READY").await;
    assert_eq!(user.state(job).await, "READY");
    let done: Vec<Value> =
        items(user, "direction=in").await.into_iter().map(|item| json!({"id": item, "state": "done"})).collect();
    user.patch("/transfers/", &json!(done)).await.ok();
    assert_eq!(user.state(job).await, "STAGED_IN");
    user.set_state(job, "RUN_ERROR").await;
    user.set_state(job, "READY").await;
    assert_eq!(user.state(job).await, "STAGED_IN");
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let Staging { world, app, job } = staging().await;
    let user = &world.user;
    let other =
        id(&user.job(app, &json!({"workdir": "other", "transfers": {"geometry": all_slots()["geometry"]}})).await);
    user.put(&format!("/jobs/{other}"), &json!({"state": "FAILED"})).await.ok();
    let first = items(user, &format!("job_id={job}")).await;
    let second = items(user, &format!("job_id={other}")).await;
    assert_eq!((first.len(), second.len()), (3, 1));
    assert_eq!(items(user, &format!("job_id={job}&job_id={other}")).await.len(), 4);
    assert_eq!(items(user, "tags=k:v").await, first);
    assert_eq!(items(user, "tags=k:w").await, [0; 0]);
    assert_eq!(items(user, "job_state=FAILED").await, second);
    assert_eq!(items(user, &format!("site_id={}", world.site)).await.len(), 4);
    assert_eq!(items(user, "state=pending&state=awaiting_job").await.len(), 4);
    assert_eq!(items(user, &format!("id={}&id={}", first[0], second[0])).await, [first[0], second[0]]);
    user.get("/transfers/?direction=up").await.refused(422);
}

/// `TransferItem.objects.filter(…).update(…)` of Balsam's client.
#[tokio::test]
async fn all_that_match_are_updated_alike() {
    let Staging { world, app, job } = staging().await;
    let user = &world.user;
    let other = json!({"workdir": "other", "transfers": {"geometry": all_slots()["geometry"]}});
    let other = id(&user.job(app, &other).await);
    let (inputs, all) = (items(user, &format!("job_id={job}&direction=in")).await, items(user, "").await);
    let query = format!("/transfers/?id={}&id={}", inputs[0], inputs[1]);
    let answer = user.put(&query, &json!({"state": "done", "task_id": "t"})).await.ok();
    let ids: Vec<i64> = answer.as_array().unwrap().iter().map(id).collect();
    assert_eq!(ids, inputs);
    assert!(
        answer.as_array().unwrap().iter().all(|row| (&row["state"], &row["task_id"]) == (&json!("done"), &json!("t")))
    );
    assert_eq!((user.state(job).await.as_str(), user.state(other).await.as_str()), ("STAGED_IN", "READY"));
    let query = "/transfers/?job_state=READY&direction=in&state=pending";
    assert_eq!(user.put(query, &json!({"state": "done"})).await.ok().as_array().unwrap().len(), 1);
    assert_eq!(user.state(other).await, "STAGED_IN");
    assert_eq!(user.put(query, &json!({"state": "error"})).await.ok(), json!([]));
    user.put("/transfers/?state=lost", &json!({})).await.refused(422);
    user.put("/transfers/", &json!({"state": "lost"})).await.invalid("state");
    assert_eq!(user.put("/transfers/", &json!({"task_id": "all"})).await.ok().as_array().unwrap().len(), all.len());
}

#[tokio::test]
async fn bad_updates_change_nothing() {
    let Staging { world, .. } = staging().await;
    let user = &world.user;
    let item = items(user, "direction=in").await[0];
    user.patch("/transfers/", &json!([{"id": item, "state": "done"}, {"id": 999_999, "state": "done"}]))
        .await
        .refused(400);
    user.put(&format!("/transfers/{item}"), &json!({"state": "lost"})).await.invalid("state");
    user.put("/transfers/999999", &json!({"state": "done"})).await.refused(404);
    user.get("/transfers/999999").await.refused(404);
    user.post("/transfers/", &json!({})).await.refused(405);
    user.delete(&format!("/transfers/{item}")).await.refused(405);
    assert_eq!(user.get(&format!("/transfers/{item}")).await.ok()["state"], "pending");
}
