//! `/transfers/due` and `job_error`: what a Site's agent asks and tells while it stages.

use std::{collections::BTreeSet, time::Duration};

use copal_tests::{World, id};
use serde_json::{Value, json};

/// A world with an App that has an input and an output, and a location.
async fn world() -> (World, i64) {
    let world = World::new().await;
    let user = &world.user;
    let locations = json!({"transfer_locations": {"home": "rsync://host/", "tape": "scp://host/"}});
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

/// Takes a batch.
async fn claim(world: &World, task: &str, limit: usize, wait_sec: u32) -> Vec<Value> {
    let body = json!({"site_id": world.site, "task_id": task, "limit": limit, "wait_sec": wait_sec});
    world.user.post("/transfers/due", &body).await.ok().as_array().cloned().unwrap_or_default()
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

#[tokio::test]
async fn two_who_take_at_once_never_get_the_same_transfer() {
    let (world, app) = world().await;
    let job =
        |index: usize| json!({"app_id": app, "workdir": format!("w/{index}"), "transfers": slots(&["input", "other"])});
    let jobs: Vec<Value> = (0..300).map(job).collect();
    world.user.post("/jobs/", &json!(jobs)).await.created();
    let take_all = async |agent: usize| -> Vec<(i64, String)> {
        let mut taken = Vec::new();
        for batch in 0.. {
            let task = format!("{agent}-{batch}");
            let rows = claim(&world, &task, 17, 0).await;
            if rows.is_empty() {
                break;
            }
            assert!(rows.iter().all(|row| row["state"] == "active" && row["task_id"] == *task), "{rows:?}");
            taken.extend(rows.iter().map(|row| (id(row), task.clone())));
        }
        taken
    };
    let (a, b, c) = tokio::join!(take_all(0), take_all(1), take_all(2));
    let all: Vec<(i64, String)> = [a, b, c].concat();
    let ids: BTreeSet<i64> = all.iter().map(|(id, _)| *id).collect();
    assert_eq!((all.len(), ids.len()), (600, 600), "each once");
    // Whoever took it is who the service names.
    let active = due(&world, "&state=active").await;
    let named: BTreeSet<(i64, String)> =
        active.iter().map(|row| (id(row), row["task_id"].as_str().unwrap().to_owned())).collect();
    assert_eq!(named, all.into_iter().collect());
}

#[tokio::test]
async fn of_two_who_wait_each_gets_what_is_new() {
    let (world, app) = world().await;
    let made = async {
        // Not before the questions are there: a look at the service takes longer than sending one.
        world.user.get("/jobs/").await.ok();
        for index in 0..2 {
            let job = json!({"workdir": format!("w/{index}"), "transfers": slots(&["input"])});
            world.user.job(app, &job).await;
        }
    };
    let (one, other, ()) = tokio::join!(claim(&world, "a", 1, 30), claim(&world, "b", 1, 30), made);
    assert_eq!((one.len(), other.len()), (1, 1));
    assert_ne!(one[0]["id"], other[0]["id"]);
}

#[tokio::test]
async fn a_batch_is_of_one_location_and_one_direction() {
    let (world, app) = world().await;
    let user = &world.user;
    let out = id(&user.job(app, &json!({"workdir": "out", "transfers": slots(&["output"])})).await);
    user.set_state(out, "RUN_DONE").await;
    let tape = json!({"workdir": "tape", "transfers": {"input": {"location_alias": "tape", "path": "/x"}}});
    user.job(app, &tape).await;
    user.job(app, &json!({"workdir": "in", "transfers": slots(&["input", "other", "output"])})).await;
    let mut seen = Vec::new();
    for task in ["1", "2", "3", "4"] {
        let rows = claim(&world, task, 100, 0).await;
        let of = |key: &str| rows.first().map_or("", |row| row[key].as_str().unwrap()).to_owned();
        assert!(rows.iter().all(|row| row["location_alias"] == *of("location_alias")));
        assert!(rows.iter().all(|row| row["direction"] == *of("direction")));
        seen.push((of("workdir"), rows.len()));
    }
    let expected = [("out", 1), ("tape", 1), ("in", 2), ("", 0)];
    assert_eq!(seen, expected.map(|(workdir, count)| (workdir.to_owned(), count)));
    for (field, value) in
        [("task_id", json!("")), ("limit", json!(0)), ("limit", json!(5_001)), ("wait_sec", json!(31))]
    {
        let mut body = json!({"site_id": world.site, "task_id": "x", "limit": 1});
        body[field] = value;
        user.post("/transfers/due", &body).await.invalid(field);
    }
}

/// The Jobs whose transfers are due, without taking them.
async fn due_jobs(world: &World) -> Vec<i64> {
    due(world, "").await.iter().map(|transfer| transfer["job_id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn what_leaves_its_step_is_due_no_more_until_it_comes_back() {
    let (world, app) = world().await;
    let user = &world.user;
    let job = |index: usize| json!({"app_id": app, "workdir": format!("w/{index}"), "tags": {"n": index.to_string()}, "transfers": slots(&["input", "output"])});
    let jobs: Vec<i64> = user.jobs(&(0..5).map(job).collect::<Vec<_>>()).await.iter().map(id).collect();
    assert_eq!(due_jobs(&world).await, jobs);
    user.post("/jobs/cancel?tags=n:0", &json!({})).await.ok();
    user.delete(&format!("/jobs/{}", jobs[1])).await.deleted();
    user.set_state(jobs[2], "PREPROCESSED").await;
    user.set_state(jobs[3], "POSTPROCESSED").await;
    let outputs = user.list(&format!("/transfers/?job_id={}&direction=out", jobs[3])).await;
    let listed = due(&world, "").await;
    let ids = |rows: &[Value]| rows.iter().map(id).collect::<Vec<_>>();
    assert_eq!(listed.iter().map(|row| row["job_id"].as_i64().unwrap()).collect::<Vec<_>>(), [jobs[4], jobs[3]]);
    assert_eq!(id(&listed[1]), id(&outputs[0]), "its output and not its input");
    // Nor are they taken.
    let first = claim(&world, "a", 100, 0).await;
    let second = claim(&world, "b", 100, 0).await;
    assert_eq!((ids(&first), ids(&second)), (vec![id(&listed[0])], vec![id(&outputs[0])]));
    assert_eq!(claim(&world, "c", 100, 0).await.len(), 0);
    // What is taken back to its step is due again, what somebody has is not.
    for job in [jobs[0], jobs[2], jobs[4]] {
        user.set_state(job, "FAILED").await;
        user.set_state(job, "READY").await;
    }
    assert_eq!(due_jobs(&world).await, [jobs[0], jobs[2]]);
    assert_eq!(due(&world, "&state=active").await.len(), 2);
}

#[tokio::test]
async fn what_is_given_back_is_due_and_what_waits_for_another_try_is_not() {
    let (world, app) = world().await;
    let user = &world.user;
    let job = id(&user.job(app, &json!({"workdir": "w", "transfers": slots(&["input", "other"])})).await);
    let taken = claim(&world, "a", 100, 0).await;
    let set = async |index: usize, state: &str| {
        user.patch("/transfers/", &json!([{"id": taken[index]["id"], "state": state}])).await.ok();
    };
    set(0, "inactive").await;
    set(1, "done").await;
    assert_eq!(claim(&world, "b", 100, 0).await.len(), 0, "one waits for its next try, one is done");
    assert_eq!(due(&world, "&state=active&state=inactive&state=done").await.len(), 1);
    // Somebody wants both anew.
    set(0, "pending").await;
    set(1, "pending").await;
    assert_eq!(claim(&world, "c", 100, 0).await.len(), 2);
    set(0, "done").await;
    set(1, "done").await;
    assert_eq!(user.state(job).await, "PREPROCESSED");
    // The Job is past the step: nobody waits for what its owner sets back.
    set(0, "pending").await;
    assert_eq!(claim(&world, "d", 100, 0).await.len(), 0);
}

#[tokio::test]
async fn those_of_arrays_and_of_children_are_due_when_their_jobs_are_ready() {
    let (world, app) = world().await;
    let user = &world.user;
    let parent = id(&user.job(app, &json!({"workdir": "parent"})).await);
    let template = |workdir: &str, parents: &[i64]| json!({"app_id": app, "workdir": workdir, "parameters": {}, "parent_ids": parents, "transfers": slots(&["input", "output"])});
    user.post("/job-arrays/", &json!({"last": 2, "job": template("waits/{index}", &[parent])})).await.created();
    user.post("/job-arrays/", &json!({"last": 2, "job": template("limited/{index}", &[]), "max_at_once": 1}))
        .await
        .created();
    user.post("/job-arrays/", &json!({"last": 2, "job": template("ready/{index}", &[])})).await.created();
    let workdirs = async || -> Vec<String> {
        let rows = claim(&world, "x", 100, 0).await;
        rows.iter().map(|row| row["workdir"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(workdirs().await, ["limited/0", "ready/0", "ready/1", "ready/2"]);
    user.set_state(parent, "JOB_FINISHED").await;
    assert_eq!(workdirs().await, ["waits/0", "waits/1", "waits/2"]);
}

#[tokio::test]
async fn a_report_may_prefer_no_answer() {
    let (world, app) = world().await;
    let job = id(&world.user.job(app, &json!({"workdir": "w", "transfers": slots(&["input"])})).await);
    let input = id(&due(&world, "").await[0]);
    let report = |id: i64| {
        let request = world.user.request(reqwest::Method::PATCH, "/transfers/");
        request.header("Prefer", "respond-async, return=minimal").json(&json!([{"id": id, "state": "done"}]))
    };
    world.user.send(report(input + 1_000)).await.refused(400);
    assert_eq!(world.user.send(report(input)).await.status, 204);
    assert_eq!(world.user.state(job).await, "PREPROCESSED");
}
