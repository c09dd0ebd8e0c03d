//! Arrays that hold themselves to so many Jobs at once.

use copal_tests::{World, id};
use serde_json::{Value, json};

/// An array of a plain App with a limit, and the ids of its Jobs.
async fn limited(world: &World, jobs: i64, at_once: i64, fields: Value) -> (Value, Vec<i64>) {
    let job = copal_tests::world::with(json!({"app_id": world.plain, "workdir": "a/{index}"}), &fields);
    let body = json!({"first": 1, "last": jobs, "max_at_once": at_once, "job": job});
    let made = world.user.post("/job-arrays/", &body).await.created();
    let ids = world.user.ids(&format!("/jobs/?array_id={}", made["array_id"])).await;
    assert_eq!((ids[0], ids[ids.len() - 1]), (id_of(&made["first_job_id"]), id_of(&made["last_job_id"])));
    (made["array_id"].clone(), ids)
}

fn id_of(value: &Value) -> i64 {
    value.as_i64().unwrap()
}

async fn in_state(world: &World, state: &str) -> Vec<i64> {
    world.user.ids(&format!("/jobs/?state={state}")).await
}

#[tokio::test]
async fn no_more_than_the_limit_are_on_their_way_at_once() {
    let world = World::new().await;
    let user = &world.user;
    let (_, jobs) = limited(&world, 7, 2, json!({})).await;
    assert_eq!(user.history(jobs[0]).await, ["CREATED", "AWAITING_PARENTS", "STAGED_IN", "PREPROCESSED"]);
    let (one, other) = (world.session().await, world.session().await);
    assert_eq!(user.acquire(one, &json!({})).await.iter().map(id).collect::<Vec<_>>(), jobs[..2]);
    assert!(user.acquire(other, &json!({})).await.is_empty());
    let why = user.get(&format!("/jobs/{}/why", jobs[2])).await.ok();
    assert_eq!(why["reasons"][0]["code"], "array_limit", "{why}");
    assert_eq!(why["reasons"][0]["message"], "it waits for its turn: its array runs 2 Jobs at once");
    // The end of one is the turn of the next, whose launcher is woken.
    let waiting = user.clone();
    let waiting = tokio::spawn(async move { waiting.acquire(other, &json!({"wait_sec": 30})).await });
    user.report(one, jobs[1], &["RUNNING", "RUN_DONE"]).await;
    assert_eq!(waiting.await.unwrap().iter().map(id).collect::<Vec<_>>(), jobs[2..3]);
    // A run that ended with an error and is to be repeated keeps its place.
    user.put(&format!("/jobs/{}", jobs[0]), &json!({"max_restarts": 1})).await.ok();
    user.report(one, jobs[0], &["RUNNING", "RUN_ERROR"]).await;
    assert_eq!(user.state(jobs[0]).await, "RESTART_READY");
    assert_eq!(in_state(&world, "PREPROCESSED").await, jobs[2..3]);
    // A whole bulk that ends gives as many turns as there are places.
    for job in [jobs[0], jobs[2]] {
        user.set_state(job, "JOB_FINISHED").await;
    }
    assert_eq!(in_state(&world, "PREPROCESSED").await, jobs[3..5]);
    user.patch("/jobs/", &json!([{"id": jobs[3], "state": "FAILED"}, {"id": jobs[4], "state": "FAILED"}])).await.ok();
    assert_eq!(in_state(&world, "PREPROCESSED").await, jobs[5..7]);
}

#[tokio::test]
async fn places_of_cancelled_deleted_and_restarted_jobs_are_counted_right() {
    let world = World::new().await;
    let user = &world.user;
    let (_, jobs) = limited(&world, 9, 2, json!({})).await;
    // One that waits gives no place, and gets no turn; one whose turn it is gives its own.
    user.post(&format!("/jobs/cancel?id={}", jobs[2]), &json!({})).await.ok();
    assert_eq!(in_state(&world, "PREPROCESSED").await, jobs[..2]);
    user.post(&format!("/jobs/cancel?id={}", jobs[0]), &json!({})).await.ok();
    assert_eq!(in_state(&world, "PREPROCESSED").await, [jobs[1], jobs[3]]);
    user.delete(&format!("/jobs/{}", jobs[4])).await.deleted();
    user.delete(&format!("/jobs/{}", jobs[1])).await.deleted();
    assert_eq!(in_state(&world, "PREPROCESSED").await, [jobs[3], jobs[5]]);
    // An end that becomes another end is no second place.
    user.set_state(jobs[0], "JOB_FINISHED").await;
    assert_eq!(in_state(&world, "PREPROCESSED").await, [jobs[3], jobs[5]]);
    // What an owner restarts takes a place more, which the next end gives back to nobody.
    user.set_state(jobs[0], "RESTART_READY").await;
    user.set_state(jobs[0], "JOB_FINISHED").await;
    assert_eq!(in_state(&world, "PREPROCESSED").await, [jobs[3], jobs[5]]);
    // All of the rest in one go.
    user.post("/jobs/cancel", &json!({})).await.ok();
    assert_eq!(user.get("/jobs/by-state").await.ok(), json!({"JOB_FINISHED": 1, "FAILED": 6}));
}

#[tokio::test]
async fn more_jobs_may_join_an_array_and_its_limit() {
    let world = World::new().await;
    let user = &world.user;
    let parent = world.plain_jobs(1).await[0];
    let (array, jobs) = limited(&world, 2, 1, json!({"parent_ids": [parent]})).await;
    let job = json!({"app_id": world.plain, "workdir": "b/{index}"});
    let more = json!({"first": 5, "last": 6, "array_id": array, "job": job});
    let joined = user.post("/job-arrays/", &more).await.created();
    assert_eq!((&joined["array_id"], &joined["count"]), (&array, &json!(2)));
    assert_eq!(user.get(&format!("/jobs/by-state?array_id={array}")).await.ok(), json!({"AWAITING_PARENTS": 4}));
    // Turn and parent must both have come.
    assert_eq!(user.get(&format!("/jobs/{}/why", jobs[0])).await.ok()["reasons"][0]["code"], "dependency");
    user.set_state(parent, "JOB_FINISHED").await;
    assert_eq!(in_state(&world, "PREPROCESSED").await, jobs[..1]);
    user.set_state(jobs[0], "JOB_FINISHED").await;
    user.set_state(jobs[1], "JOB_FINISHED").await;
    assert_eq!(in_state(&world, "PREPROCESSED").await, [id_of(&joined["first_job_id"])]);
    // Without a limit more may join as well; what is not there can't be joined.
    let free = user.post("/job-arrays/", &json!({"last": 1, "job": job})).await.created();
    user.post("/job-arrays/", &json!({"first": 2, "last": 3, "array_id": free["array_id"], "job": job}))
        .await
        .created();
    assert_eq!(user.count(&format!("/jobs/?array_id={}&state=PREPROCESSED", free["array_id"])).await, 4);
    user.post("/job-arrays/", &json!({"last": 1, "array_id": 999, "job": job})).await.refused(404);
    user.post("/job-arrays/", &json!({"last": 1, "max_at_once": 0, "job": job})).await.invalid("max_at_once");
    user.post("/job-arrays/", &json!({"last": 1, "max_at_once": 2, "array_id": array, "job": job}))
        .await
        .invalid("max_at_once");
}

#[tokio::test]
async fn many_sessions_together_never_have_more_than_the_limit() {
    let world = World::new().await;
    let (_, jobs) = limited(&world, 60, 4, json!({})).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let (user, session) = (world.user.clone(), world.session().await);
        tasks.push(tokio::spawn(async move {
            let mut ran = Vec::new();
            loop {
                let taken = user.acquire(session, &json!({"max_num_jobs": 3})).await;
                let held = user.count("/jobs/?state=PREPROCESSED&state=RUNNING&limit=0").await;
                assert!(held <= 4, "{held} at once");
                for job in &taken {
                    user.report(session, id(job), &["RUNNING"]).await;
                }
                for job in &taken {
                    user.report(session, id(job), &["RUN_DONE"]).await;
                    ran.push(id(job));
                }
                let left = user.count("/jobs/?state=PREPROCESSED&state=AWAITING_PARENTS&state=RUNNING&limit=0").await;
                if left == 0 {
                    return ran;
                }
            }
        }));
    }
    let mut ran = Vec::new();
    for task in tasks {
        ran.extend(task.await.unwrap());
    }
    ran.sort_unstable();
    assert_eq!(ran, jobs);
}
