//! One user's ids look to another like ids that do not exist: in paths, queries and bodies, for
//! reads and writes.

use copal_tests::{Answer, Api, World, id, world::with};
use reqwest::Method;
use serde_json::{Value, json};

use crate::wire::{fill, operations};

/// Ann's things, all of them, and Bob, who has a Site and an App of his own.
struct Neighbours {
    world: World,
    bob: Api,
    bobs_site: i64,
    bobs_app: i64,
    job: i64,
    batch_job: i64,
    session: i64,
    transfer: i64,
}

async fn neighbours() -> Neighbours {
    let world = World::new().await;
    let ann = &world.user;
    ann.put(&format!("/sites/{}", world.site), &json!({"transfer_locations": {"aps": "file://aps"}})).await.ok();
    let slots = json!({"transfers": {"input": {"required": false, "direction": "in", "local_path": "x"}}});
    let staged = ann.app(world.site, "Staged", &slots).await;
    let inputs = json!({"transfers": {"input": {"location_alias": "aps", "path": "/x"}}, "tags": {"k": "v"}});
    let job = id(&ann.job(staged, &inputs).await);
    let transfer = ann.ids("/transfers/").await[0];
    let batch_job = ann.batch_job(world.site, &json!({})).await;
    let session = ann.session(world.site, Some(batch_job)).await;
    let bob = world.service.user("bob").await;
    let bobs_site = bob.site("bobs").await;
    let bobs_app = bob.app(bobs_site, "Plain", &json!({"command": "true"})).await;
    Neighbours { bob, bobs_site, bobs_app, job, batch_job, session, transfer, world }
}

/// All that Ann can read, to see that nothing changed.
async fn snapshot(user: &Api) -> Vec<Value> {
    let mut all = Vec::new();
    for path in ["/sites/", "/apps/", "/jobs/", "/batch-jobs/", "/transfers/", "/events/"] {
        all.push(user.get(path).await.ok());
    }
    // Their own calls move the heartbeats of Sessions.
    all.push(json!(user.ids("/sessions/").await));
    all
}

#[tokio::test]
async fn every_operation_with_an_id_refuses_another_users() {
    let all = neighbours().await;
    let before = snapshot(&all.world.user).await;
    let document = all.world.service.api().get("/openapi.json").await.ok();
    let mut tried = 0;
    for (path, method, _) in operations(&document) {
        if !path.contains('{') || path.starts_with("/auth/") {
            continue;
        }
        let foreign = match path.split('/').nth(1).unwrap() {
            "sites" => all.world.site,
            "apps" => all.world.app,
            "jobs" => all.job,
            "batch-jobs" => all.batch_job,
            "sessions" => all.session,
            "transfers" => all.transfer,
            other => panic!("{path}: give an id of another user's {other} to this test"),
        };
        let body = body_for(&path, &method);
        // An owner's single update answers 400 for an unknown Job, by the contract.
        let expected = if (path.as_str(), &method) == ("/jobs/{id}", &Method::PUT) { 400 } else { 404 };
        for id in [foreign, 999_999] {
            let filled = fill(&path, &id.to_string());
            let answer = all.bob.send(all.bob.request(method.clone(), &filled).json(&body)).await;
            assert_eq!(answer.status, expected, "{method} {filled}: {answer:?}");
            answer.refused(expected);
        }
        tried += 1;
    }
    assert!(tried >= 18, "only {tried} operations take an id");
    assert_eq!(snapshot(&all.world.user).await, before);
}

/// A body that is good, so that only the id can be at fault.
fn body_for(path: &str, method: &Method) -> Value {
    match (path, method.as_str()) {
        ("/sessions/{id}", "POST") => json!({"max_num_jobs": 1, "filter_tags": {}}),
        ("/sessions/{id}/updates", _) => json!({"batch_key": uuid::Uuid::new_v4(), "updates": []}),
        ("/jobs/{id}", "PUT") => json!({"state": "FAILED"}),
        ("/batch-jobs/{id}" | "/transfers/{id}", "PUT") => json!({}),
        ("/sites/{id}" | "/apps/{id}", "PUT") => json!({"name": "stolen"}),
        _ => json!({}),
    }
}

#[tokio::test]
async fn ids_in_bodies_are_the_users_own() {
    let all = neighbours().await;
    let (ann, bob) = (&all.world.user, &all.bob);
    let before = snapshot(ann).await;
    let own_job = id(&bob.job(all.bobs_app, &json!({})).await);
    let own_batch_job = bob.batch_job(all.bobs_site, &json!({})).await;

    let app = json!({"site_id": all.world.site, "name": "Mine", "serialized_class": "", "source_code": ""});
    bob.post("/apps/", &app).await.refused(404);
    bob.put(&format!("/apps/{}", all.bobs_app), &json!({"site_id": all.world.site})).await.refused(404);
    let job = |fields: Value| {
        let body = json!([with(json!({"app_id": all.bobs_app, "workdir": "w"}), &fields)]);
        async move { bob.post("/jobs/", &body).await }
    };
    job(json!({"app_id": all.world.app})).await.refused(404);
    job(json!({"parent_ids": [all.job]})).await.refused(404);
    let array = |fields: Value| {
        let template = with(json!({"app_id": all.bobs_app, "workdir": "w/{index}"}), &fields);
        async move { bob.post("/job-arrays/", &json!({"last": 1, "job": template})).await }
    };
    array(json!({"app_id": all.world.app})).await.refused(404);
    array(json!({"parent_ids": [all.job]})).await.refused(404);
    job(json!({"dependencies": [{"job_id": all.job, "kind": "afterany"}]})).await.refused(404);
    let request = json!({"site_id": all.world.site, "project": "p", "queue": "q", "num_nodes": 1, "wall_time_min": 1,
        "job_mode": "mpi"});
    bob.post("/batch-jobs/", &request).await.refused(400);
    bob.post("/sessions/", &json!({"site_id": all.world.site})).await.refused(400);
    bob.post("/sessions/", &json!({"site_id": all.bobs_site, "batch_job_id": all.batch_job})).await.refused(400);

    bob.patch("/jobs/", &json!([{"id": own_job, "num_nodes": 7}, {"id": all.job, "num_nodes": 7}])).await.refused(400);
    let patch = json!([{"id": own_batch_job, "state": "queued"}, {"id": all.batch_job, "state": "queued"}]);
    bob.patch("/batch-jobs/", &patch).await.refused(400);
    bob.patch("/transfers/", &json!([{"id": all.transfer, "state": "done"}])).await.refused(400);
    let answer = bob.put(&format!("/jobs/{own_job}"), &json!({"batch_job_id": all.batch_job})).await;
    assert!(matches!(answer.status, 400 | 404 | 422), "a Job was put into another user's BatchJob: {answer:?}");

    let session = bob.session(all.bobs_site, None).await;
    assert_eq!(
        bob.acquire(session, &json!({"states": ["READY", "STAGED_IN"], "app_ids": [all.world.app]})).await,
        [json!(null); 0]
    );
    let late = bob.update(session, &[json!({"job_id": all.job, "state": "FAILED"})]).await;
    assert_eq!(late["rejected"][0]["reason"], "not_held");

    assert_eq!(bob.get_job(own_job).await["num_nodes"], 1);
    assert_eq!(bob.get(&format!("/batch-jobs/{own_batch_job}")).await.ok()["state"], "pending_submission");
    assert_eq!(snapshot(ann).await, before);
}

#[tokio::test]
async fn lists_and_bulk_calls_reach_only_the_users_own() {
    let all = neighbours().await;
    let (ann, bob) = (&all.world.user, &all.bob);
    let before = snapshot(ann).await;
    for path in [
        "/jobs/".to_owned(),
        format!("/jobs/?id={}", all.job),
        format!("/jobs/?site_id={}", all.world.site),
        format!("/jobs/?app_id={}", all.world.app),
        "/jobs/?tags=k:v".into(),
        format!("/jobs/?parent_id={}", all.job),
        format!("/jobs/?batch_job_id={}", all.batch_job),
        format!("/sites/?id={}", all.world.site),
        "/sites/?name=laptop".into(),
        format!("/apps/?site_id={}", all.world.site),
        "/apps/?site_name=laptop".into(),
        format!("/batch-jobs/?id={}", all.batch_job),
        format!("/batch-jobs/?site_id={}", all.world.site),
        format!("/sessions/?id={}", all.session),
        format!("/transfers/?job_id={}", all.job),
        format!("/transfers/?site_id={}", all.world.site),
        "/transfers/?tags=k:v".into(),
        "/events/".into(),
        format!("/events/?job_id={}", all.job),
        format!("/events/?batch_job_id={}", all.batch_job),
        "/events/?tags=k:v".into(),
    ] {
        assert_eq!(bob.get(&path).await.ok(), json!({"count": 0, "results": []}), "{path}");
    }
    assert_eq!(bob.get("/jobs/by-state").await.ok(), json!({}));
    for query in ["", "?tags=k:v", &format!("?id={}", all.job)] {
        assert_eq!(bob.put(&format!("/jobs/{query}"), &json!({"state": "FAILED"})).await.ok(), json!(0));
        bob.delete(&format!("/jobs/{query}")).await.deleted();
        let answer: Answer = bob.post(&format!("/jobs/cancel{query}"), &json!({})).await;
        assert_eq!(answer.ok(), json!({"cancelled": 0, "stopping": 0}));
    }
    assert_eq!(snapshot(ann).await, before);
}

#[tokio::test]
async fn an_idempotency_key_is_the_users_own() {
    let all = neighbours().await;
    let post = |user: &Api, app: i64| {
        let body = json!([{"app_id": app, "workdir": "once"}]);
        let request = user.request(Method::POST, "/jobs/").header("Idempotency-Key", "the-same-key").json(&body);
        let user = user.clone();
        async move { user.send(request).await.created() }
    };
    let anns = post(&all.world.user, all.world.plain).await;
    let bobs = post(&all.bob, all.bobs_app).await;
    assert_ne!(id(&anns[0]), id(&bobs[0]));
}
