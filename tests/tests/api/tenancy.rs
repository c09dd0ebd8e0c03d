//! One user's ids look to another like ids that do not exist: in paths, queries and bodies, for
//! reads and writes.

use std::collections::BTreeSet;

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
    array: i64,
    event: i64,
    login: i64,
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
    let template = json!({"app_id": world.plain, "workdir": "array/{index}"});
    let array = ann.post("/job-arrays/", &json!({"last": 2, "job": template})).await.created();
    let (event, login) = (ann.ids("/events/").await[0], ann.ids("/auth/logins/").await[0]);
    let bob = world.service.user("bob").await;
    let bobs_site = bob.site("bobs").await;
    let bobs_app = bob.app(bobs_site, "Plain", &json!({"command": "true"})).await;
    let array = array["array_id"].as_i64().unwrap();
    Neighbours { bob, bobs_site, bobs_app, job, batch_job, session, transfer, array, event, login, world }
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

/// Operations that take no id of anybody's things. Every other one is tried here with another user's; one that is new
/// and takes none has to be named here, so that nobody forgets to ask.
const WITHOUT_IDS: &[(&str, &str)] = &[
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/auth/how"),
    ("POST", "/auth/password/register"),
    ("POST", "/auth/password/login"),
    ("GET", "/auth/password/me"),
    ("POST", "/auth/device/login"),
    ("POST", "/auth/device/token"),
    ("GET", "/auth/oauth/ALCF/login/device"),
    ("POST", "/auth/oauth/ALCF/login/device"),
    ("POST", "/auth/token"),
    ("POST", "/auth/revoke"),
    ("POST", "/auth/launcher"),
    ("GET", "/auth/logins/"),
    ("POST", "/sites/"),
    // Their answers have no end; `stream::other_users_see_nothing_of_it` and `subscribe::nobody_hears_of_others` read them.
    ("GET", "/events/stream"),
    ("GET", "/subscribe-user"),
];

/// Fields and parameters that are named like ids and are none of the service's.
const NO_IDS: &[&str] = &["scheduler_id", "globus_endpoint_id", "task_id", "after_id"];

fn is_id(name: &str) -> bool {
    (name == "id" || name.ends_with("_id") || name.ends_with("_ids")) && !NO_IDS.contains(&name)
}

/// The query parameters of an operation that are ids.
fn id_filters(operation: &Value) -> Vec<&str> {
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let in_query = parameters.iter().filter(|parameter| parameter["in"] == "query");
    in_query.filter_map(|parameter| parameter["name"].as_str()).filter(|name| is_id(name)).collect()
}

/// The fields of an operation's JSON body that are ids, however deep.
fn id_fields(document: &Value, operation: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    look_for_ids(document, &operation["requestBody"]["content"]["application/json"]["schema"], &mut found, 0);
    found
}

fn look_for_ids(document: &Value, schema: &Value, found: &mut BTreeSet<String>, depth: usize) {
    assert!(depth < 32, "a schema that holds itself");
    match schema {
        Value::Object(object) => {
            if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                let named = document.pointer(reference.trim_start_matches('#')).unwrap();
                look_for_ids(document, named, found, depth + 1);
            }
            for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if is_id(name) {
                    found.insert(name.clone());
                }
                look_for_ids(document, property, found, depth + 1);
            }
            for part in ["items", "additionalProperties", "allOf", "anyOf", "oneOf"] {
                look_for_ids(document, object.get(part).unwrap_or(&Value::Null), found, depth + 1);
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| look_for_ids(document, part, found, depth + 1)),
        _ => {}
    }
}

impl Neighbours {
    /// Ann's id of the kind that a path's collection has.
    fn of_path(&self, path: &str) -> i64 {
        match path.split('/').nth(1).unwrap() {
            "sites" => self.world.site,
            "apps" => self.world.app,
            "jobs" => self.job,
            "batch-jobs" => self.batch_job,
            "sessions" => self.session,
            "transfers" => self.transfer,
            "events" => self.event,
            "auth" => self.login,
            other => panic!("{path}: give an id of another user's {other} to this test"),
        }
    }

    /// Ann's id that a filter of this name means.
    fn of_filter(&self, path: &str, name: &str) -> i64 {
        match name {
            "id" => self.of_path(path),
            "site_id" => self.world.site,
            "app_id" => self.world.app,
            "job_id" | "parent_id" => self.job,
            "batch_job_id" => self.batch_job,
            "array_id" => self.array,
            "session_id" => self.session,
            other => panic!("{path}: give another user's {other} to this test"),
        }
    }
}

#[tokio::test]
async fn every_operation_is_tried_or_takes_no_id() {
    let all = neighbours().await;
    let document = all.world.service.api().get("/openapi.json").await.ok();
    let listed: BTreeSet<(String, String)> =
        operations(&document).into_iter().map(|(path, method, _)| (method.to_string(), path)).collect();
    for (method, path) in WITHOUT_IDS {
        assert!(listed.contains(&((*method).to_owned(), (*path).to_owned())), "{method} {path} is no operation");
    }
    for (path, method, operation) in operations(&document) {
        let takes_ids =
            path.contains('{') || !id_filters(operation).is_empty() || !id_fields(&document, operation).is_empty();
        let without = WITHOUT_IDS.contains(&(method.as_str(), path.as_str()));
        assert!(takes_ids || without, "{method} {path}: does it take another user's ids? Say so in WITHOUT_IDS if not");
        assert!(!path.contains('{') || !without, "{method} {path} takes an id");
    }
}

#[tokio::test]
async fn every_operation_with_an_id_in_its_path_refuses_another_users() {
    let all = neighbours().await;
    let before = snapshot(&all.world.user).await;
    let document = all.world.service.api().get("/openapi.json").await.ok();
    let mut tried = 0;
    for (path, method, _) in operations(&document) {
        if !path.contains('{') {
            continue;
        }
        let body = body_for(&path, &method);
        // An owner's single update answers 400 for an unknown Job, by the contract.
        let expected = if (path.as_str(), &method) == ("/jobs/{id}", &Method::PUT) { 400 } else { 404 };
        for id in [all.of_path(&path), 999_999] {
            let filled = fill(&path, &id.to_string());
            let answer = all.bob.send(all.bob.request(method.clone(), &filled).json(&body)).await;
            assert_eq!(answer.status, expected, "{method} {filled}: {answer:?}");
            answer.refused(expected);
        }
        tried += 1;
    }
    assert!(tried >= 20, "only {tried} operations take an id");
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

/// Nothing was found, and nothing done.
fn is_nothing(answer: &Value) -> bool {
    match answer {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Array(rows) => rows.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
        _ => false,
    }
}

#[tokio::test]
async fn every_filter_by_another_users_id_finds_nothing() {
    let all = neighbours().await;
    let before = snapshot(&all.world.user).await;
    let document = all.world.service.api().get("/openapi.json").await.ok();
    let mut tried = 0;
    for (path, method, operation) in operations(&document) {
        if WITHOUT_IDS.contains(&(method.as_str(), path.as_str())) {
            continue;
        }
        for name in id_filters(operation) {
            let query = format!("{path}?{name}={}", all.of_filter(&path, name));
            let answer = all.bob.send(all.bob.request(method.clone(), &query).json(&json!({}))).await;
            let nothing = match answer.status {
                200 | 204 => is_nothing(&answer.body),
                400 | 404 => true,
                _ => false,
            };
            assert!(nothing, "{method} {query}: {answer:?}");
            tried += 1;
        }
    }
    assert!(tried >= 40, "only {tried} filters are ids");
    assert_eq!(snapshot(&all.world.user).await, before);
}

/// What the service says to a body with another user's id.
enum Told {
    Refused(u16),
    /// It takes the body, in which the id means nothing.
    Nothing(fn(&Value) -> bool),
}

/// For each field of a body that is an id, a request with Ann's id there, and else only what is Bob's.
fn bodies(all: &Neighbours, own: &Own) -> Vec<(&'static str, &'static str, &'static str, String, Value, Told)> {
    use Told::{Nothing, Refused};
    let mut cases = Vec::new();
    let mut add = |method, path: &'static str, field, id: Option<i64>, body: Value, told| {
        let filled = id.map_or_else(|| path.to_owned(), |id| fill(path, &id.to_string()));
        cases.push((method, path, field, filled, body, told));
    };
    let app = json!({"site_id": all.world.site, "name": "Mine", "serialized_class": "", "source_code": ""});
    add("POST", "/apps/", "site_id", None, app, Refused(404));
    add("PUT", "/apps/{id}", "site_id", Some(all.bobs_app), json!({"site_id": all.world.site}), Refused(404));

    let foreign = [
        ("app_id", json!({"app_id": all.world.app})),
        ("parent_ids", json!({"parent_ids": [all.job]})),
        ("job_id", json!({"dependencies": [{"job_id": all.job, "kind": "afterany"}]})),
    ];
    for (field, fields) in foreign {
        let job = with(json!({"app_id": all.bobs_app, "workdir": "w"}), &fields);
        add("POST", "/jobs/", field, None, json!([job]), Refused(404));
        let template = with(json!({"app_id": all.bobs_app, "workdir": "w/{index}"}), &fields);
        add("POST", "/job-arrays/", field, None, json!({"last": 1, "job": template}), Refused(404));
    }
    let joined = json!({"array_id": all.array, "last": 1, "job": {"app_id": all.bobs_app, "workdir": "w/{index}"}});
    add("POST", "/job-arrays/", "array_id", None, joined, Refused(404));
    let mixed = json!([{"id": own.job, "num_nodes": 7}, {"id": all.job, "num_nodes": 7}]);
    add("PATCH", "/jobs/", "id", None, mixed, Refused(400));
    let moved = json!({"batch_job_id": all.batch_job});
    add("PATCH", "/jobs/", "batch_job_id", None, json!([with(moved.clone(), &json!({"id": own.job}))]), Refused(400));
    add("PUT", "/jobs/", "batch_job_id", None, moved.clone(), Refused(400));
    add("PUT", "/jobs/{id}", "batch_job_id", Some(own.job), moved, Refused(400));

    let request = json!({"site_id": all.world.site, "project": "p", "queue": "q", "num_nodes": 1, "wall_time_min": 1,
        "job_mode": "mpi"});
    add("POST", "/batch-jobs/", "site_id", None, request, Refused(400));
    let mixed = json!([{"id": own.batch_job, "state": "queued"}, {"id": all.batch_job, "state": "queued"}]);
    add("PATCH", "/batch-jobs/", "id", None, mixed, Refused(400));
    add("PATCH", "/transfers/", "id", None, json!([{"id": all.transfer, "state": "done"}]), Refused(400));
    let claim = json!({"site_id": all.world.site, "task_id": "bobs", "limit": 9});
    add("POST", "/transfers/due", "site_id", None, claim, Nothing(is_nothing));

    add("POST", "/sessions/", "site_id", None, json!({"site_id": all.world.site}), Refused(400));
    let borrowed = json!({"site_id": all.bobs_site, "batch_job_id": all.batch_job});
    add("POST", "/sessions/", "batch_job_id", None, borrowed, Refused(400));
    let wanted = json!({"max_num_jobs": 9, "filter_tags": {}, "states": ["READY", "STAGED_IN"],
        "app_ids": [all.world.app]});
    add("POST", "/sessions/{id}", "app_ids", Some(own.session), wanted, Nothing(is_nothing));
    let late = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [{"job_id": all.job, "state": "FAILED"}]});
    let not_held: fn(&Value) -> bool =
        |answer| answer["accepted"] == 0 && answer["rejected"][0]["reason"] == "not_held";
    add("POST", "/sessions/{id}/updates", "job_id", Some(own.session), late, Nothing(not_held));
    cases
}

/// Bob's own things, which go into a body beside what is not his.
struct Own {
    job: i64,
    batch_job: i64,
    session: i64,
}

#[tokio::test]
async fn every_id_in_a_body_is_the_users_own() {
    let all = neighbours().await;
    let (ann, bob) = (&all.world.user, &all.bob);
    let own = Own {
        job: id(&bob.job(all.bobs_app, &json!({})).await),
        batch_job: bob.batch_job(all.bobs_site, &json!({})).await,
        session: bob.session(all.bobs_site, None).await,
    };
    let (before, bobs_before) = (snapshot(ann).await, snapshot(bob).await);
    let cases = bodies(&all, &own);

    let document = all.world.service.api().get("/openapi.json").await.ok();
    for (path, method, operation) in operations(&document) {
        for name in id_fields(&document, operation) {
            let tried = cases.iter().any(|case| (case.0, case.1, case.2) == (method.as_str(), &*path, &*name));
            assert!(tried, "{method} {path}: no test sends another user's {name}");
        }
    }
    for (method, _, field, path, body, told) in cases {
        let method: Method = method.parse().unwrap();
        let answer = bob.send(bob.request(method.clone(), &path).json(&body)).await;
        match told {
            Told::Refused(status) => drop(answer.refused(status)),
            Told::Nothing(is_nothing) => assert!(is_nothing(&answer.body), "{method} {path} {field}: {answer:?}"),
        }
    }
    assert_eq!(snapshot(ann).await, before);
    assert_eq!(snapshot(bob).await, bobs_before, "nothing half done");
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
