//! `POST /job-arrays/`: many Jobs by one request, the same as if each had been made by itself.

use copal_tests::{Api, World, id, world::with};
use reqwest::Method;
use serde_json::{Value, json};

fn template(app: i64, fields: &Value) -> Value {
    with(json!({"app_id": app, "workdir": "seeds/{index:04}"}), fields)
}

async fn array(user: &Api, body: &Value) -> Value {
    user.post("/job-arrays/", body).await.created()
}

/// What all Jobs of an equal description have in common.
fn comparable(mut job: Value) -> Value {
    for field in ["id", "last_update", "array_id", "array_index"] {
        job.as_object_mut().unwrap().remove(field);
    }
    job
}

#[tokio::test]
async fn an_array_is_the_jobs_that_would_have_been_made_one_by_one() {
    let world = World::new().await;
    let user = &world.user;
    user.put(&format!("/sites/{}", world.site), &json!({"transfer_locations": {"aps": "file://aps"}})).await.ok();
    let app = json!({"command": "run {{seed}} {{mode}}", "parameters": {
        "seed": {"required": true}, "mode": {"required": false, "default": "{index}"}},
        "transfers": {"input": {"required": false, "direction": "in", "local_path": "x"}}});
    let app = user.app(world.site, "Sim", &app).await;
    let parent = id(&world.plain_job(&json!({"workdir": "parent"})).await);
    let fields = |seed: &str, index: &str, padded: &str| {
        json!({"parameters": {"seed": seed}, "tags": {"system": "H2O", "n": format!("x{index}ü")},
            "num_nodes": 2, "priority": 3, "data": {"a": [1]}, "parent_ids": [parent], "mem_mb": 100, "max_restarts": 2,
            "checkpoint": {"signal": "SIGUSR1", "grace_sec": 5.0}, "account": "physics", "wall_time_min": 7,
            "transfers": {"input": {"location_alias": "aps", "path": format!("/in/{padded}/f")}}})
    };
    let body = json!({"first": 8, "last": 13, "step": 2,
        "job": template(app, &fields("{index}", "{index}", "{index:03}"))});
    let made = array(user, &body).await;
    assert_eq!(made["count"], 3);
    let jobs = user.list(&format!("/jobs/?array_id={}", made["array_id"])).await;
    assert_eq!(jobs.len(), 3);
    assert_eq!(jobs[0]["id"], made["first_job_id"]);
    for (job, index) in jobs.iter().zip([8, 10, 12]) {
        assert_eq!((&job["array_index"], &job["array_id"]), (&json!(index), &made["array_id"]));
        let alone = with(
            fields(&index.to_string(), &index.to_string(), &format!("{index:03}")),
            &json!({"workdir": format!("seeds/{index:04}")}),
        );
        let alone = user.job(app, &alone).await;
        assert_eq!(comparable(job.clone()), comparable(alone.clone()));
        assert_eq!(job["parameters"]["mode"], "{index}", "a default of the App is no template");
        assert_eq!(user.history(id(job)).await, user.history(id(&alone)).await);
        let transfer = |job: &Value| {
            let path = format!("/transfers/?job_id={}", id(job));
            async move { user.list(&path).await[0]["remote_path"].clone() }
        };
        assert_eq!(transfer(job).await, transfer(&alone).await);
        let tagged = user.ids(&format!("/jobs/?tags=n:x{index}ü&tags=system:H2O")).await;
        assert_eq!(tagged, [id(job), id(&alone)]);
    }
    // They wait for their parent, and go on with it.
    assert_eq!(jobs[0]["state"], "AWAITING_PARENTS");
    user.set_state(parent, "JOB_FINISHED").await;
    assert_eq!(user.state(id(&jobs[2])).await, "READY");
}

#[tokio::test]
async fn a_plain_array_is_runnable_counted_and_told_of() {
    let world = World::new().await;
    let user = &world.user;
    let session = world.session().await;
    let waiting = user.clone();
    let waiting = tokio::spawn(async move { waiting.acquire(session, &json!({"wait_sec": 30})).await });
    let made = array(user, &json!({"last": 9_999, "job": template(world.plain, &json!({"tags": {"k": "v"}}))})).await;
    assert_eq!(made["count"], 10_000);
    assert_eq!(waiting.await.unwrap().len(), 100, "the waiting Session is woken");
    assert_eq!(user.get("/jobs/by-state").await.ok(), json!({"PREPROCESSED": 10_000}));
    let by_array = format!("/jobs/by-state?array_id={}&state=PREPROCESSED", made["array_id"]);
    assert_eq!(user.get(&by_array).await.ok(), json!({"PREPROCESSED": 10_000}));
    assert_eq!(user.count("/jobs/?tags=k:v&limit=0").await, 10_000);
    assert_eq!(user.count("/events/?limit=0").await, 20_000);
    let last = made["first_job_id"].as_i64().unwrap() + 9_999;
    assert_eq!(user.get_job(last).await["workdir"], "seeds/9999");
    assert_eq!(user.history(last).await, ["CREATED", "STAGED_IN", "PREPROCESSED"]);
    let cancelled = user.post(&format!("/jobs/cancel?array_id={}", made["array_id"]), &json!({})).await.ok();
    assert_eq!(cancelled, json!({"cancelled": 10_000, "stopping": 0}));
}

#[tokio::test]
async fn a_repeated_request_makes_no_second_array() {
    let world = World::new().await;
    let post = |last: i64| {
        let body = json!({"last": last, "job": template(world.plain, &json!({}))});
        let request = world.user.request(Method::POST, "/job-arrays/").header("Idempotency-Key", "one").json(&body);
        world.user.send(request)
    };
    let first = post(4).await.created();
    assert_eq!(post(4).await.created(), first);
    post(5).await.refused(409);
    assert_eq!(world.user.count("/jobs/").await, 5);
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_is_made() {
    let world = World::new().await;
    let user = &world.user;
    let app = json!({"command": "true", "parameters": {"mode": {"required": true, "choices": ["1", "2"]}}});
    let picky = user.app(world.site, "Picky", &app).await;
    let job = |fields: Value| template(world.plain, &fields);
    for (field, body) in [
        ("last", json!({"last": 1_000_000, "job": job(json!({}))})),
        ("last", json!({"first": 3, "last": 2, "job": job(json!({}))})),
        ("last", json!({"job": job(json!({}))})),
        ("last", json!({"last": i64::MAX, "job": job(json!({}))})),
        ("first", json!({"first": -1, "last": 2, "job": job(json!({}))})),
        ("step", json!({"last": 2, "step": 0, "job": job(json!({}))})),
        ("job", json!({"last": 2})),
        ("workdir", json!({"last": 2, "job": job(json!({"workdir": "same"}))})),
        ("workdir", json!({"last": 2, "job": job(json!({"workdir": "{index:x}"}))})),
        ("workdir", json!({"last": 2, "job": job(json!({"workdir": "/abs/{index}"}))})),
        ("workdir", json!({"last": 2, "job": job(json!({"workdir": "a/../../{index}"}))})),
        ("tags", json!({"last": 2, "job": job(json!({"tags": {"k": "{index:99}"}}))})),
        ("num_nodes", json!({"last": 2, "job": job(json!({"num_nodes": 0}))})),
        ("parameters", json!({"last": 2, "job": job(json!({"parameters": {"unknown": "{index}"}}))})),
        (
            "parameters",
            json!({"first": 1, "last": 3, "job": template(picky, &json!({"parameters": {"mode": "{index}"}}))}),
        ),
    ] {
        user.post("/job-arrays/", &body).await.invalid(field);
    }
    user.post("/job-arrays/", &json!({"last": 1, "job": template(999_999, &json!({}))})).await.refused(404);
    user.post("/job-arrays/", &json!({"last": 1, "job": job(json!({"parent_ids": [999_999]}))})).await.refused(404);
    let slot = json!({"transfers": {"no": {"location_alias": "a", "path": "/x"}}});
    user.post("/job-arrays/", &json!({"last": 1, "job": job(slot)})).await.refused(400);
    assert_eq!(user.count("/jobs/").await, 0);
    let fits = json!({"first": 1, "last": 2, "job": template(picky, &json!({"parameters": {"mode": "{index}"}}))});
    assert_eq!(array(user, &fits).await["count"], 2);
}

#[tokio::test]
async fn hostile_texts_are_only_texts() {
    let world = World::new().await;
    let hostile = r#"'; drop table jobs; -- {index} "\ %s $1 {{x}}"#;
    let fields = json!({"workdir": format!("{}{{index}}", hostile.replace("{index}", "")), "tags": {hostile: hostile}});
    let made = array(&world.user, &json!({"last": 1, "job": template(world.plain, &fields)})).await;
    let jobs = world.user.list(&format!("/jobs/?array_id={}", made["array_id"])).await;
    assert_eq!(jobs[1]["tags"][hostile], hostile.replace("{index}", "1"));
}
