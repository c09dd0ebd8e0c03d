//! Jobs that a launcher gives back, because none of its nodes can hold them or because they wait there in vain.

use copal_tests::{World, id};
use serde_json::{Value, json};

fn ids(jobs: &[Value]) -> Vec<i64> {
    jobs.iter().map(id).collect()
}

/// Reports that a Session gives Jobs back.
async fn release(world: &World, session: i64, jobs: &[i64], message: impl Into<Value>) -> Value {
    let message = message.into();
    let release: Vec<Value> = jobs.iter().map(|job| json!({"job_id": job, "message": message})).collect();
    let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [], "release": release});
    world.user.post(&format!("/sessions/{session}/updates"), &body).await.ok()
}

async fn reasons(world: &World, job: i64) -> Vec<(String, String)> {
    let why = world.user.get(&format!("/jobs/{job}/why")).await.ok();
    let text = |reason: &Value, key: &str| reason[key].as_str().unwrap().to_owned();
    why["reasons"].as_array().unwrap().iter().map(|reason| (text(reason, "code"), text(reason, "message"))).collect()
}

#[tokio::test]
async fn a_job_that_was_given_back_goes_to_others_only_and_says_why() {
    let world = World::new().await;
    let jobs = world.plain_jobs(3).await;
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    world.user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running", "scheduler_id": 1})).await.ok();
    let body = json!({"site_id": world.site, "batch_job_id": batch_job});
    let small = id(&world.user.post("/sessions/", &body).await.created());
    assert_eq!(ids(&world.user.acquire(small, &json!({"max_num_jobs": 2})).await), jobs[..2]);

    let running = [json!({"job_id": jobs[1], "state": "RUNNING"})];
    world.user.update(small, &running).await;
    // One that runs, one that it does not hold and one that does not exist stay as they are.
    let given_back = [jobs[0], jobs[1], jobs[2], 999_999];
    assert_eq!(release(&world, small, &given_back, "a node has 4 GPUs").await, json!({"accepted": 0, "rejected": []}));
    let row = world.user.get(&format!("/jobs/{}", jobs[0])).await.ok();
    assert_eq!((&row["state"], &row["session_id"]), (&json!("PREPROCESSED"), &Value::Null));
    assert_eq!(world.user.get(&format!("/jobs/{}", jobs[1])).await.ok()["session_id"], small);
    assert!(!world.user.history(jobs[0]).await.contains(&"FAILED".to_owned()));

    // The same launcher is not given it again, whether it waits or not; another one is.
    assert_eq!(ids(&world.user.acquire(small, &json!({})).await), jobs[2..]);
    assert!(world.user.acquire(small, &json!({"wait_sec": 0.3})).await.is_empty());
    let (code, message) = reasons(&world, jobs[0]).await.remove(0);
    assert_eq!(code, "shape");
    assert!(message.contains(&format!("BatchJob {batch_job}")) && message.contains("4 GPUs"), "{message}");
    let large = world.session().await;
    assert_eq!(ids(&world.user.acquire(large, &json!({})).await), jobs[..1]);

    // What it told is known after its end.
    world.user.delete(&format!("/sessions/{large}")).await.deleted();
    world.user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "finished"})).await.ok();
    let told = reasons(&world, jobs[0]).await;
    assert_eq!(told.iter().map(|(code, _)| code.as_str()).collect::<Vec<_>>(), ["no_allocation", "shape"], "{told:?}");
}

/// What it gave back is the best of its kind, and comes behind many that do not fit at all.
#[tokio::test]
async fn a_kind_that_was_given_back_hides_no_other() {
    let world = World::new().await;
    let job = |workdir: &str, priority: i64, minutes: i64| json!({"app_id": world.plain, "workdir": workdir, "parameters": {}, "priority": priority, "wall_time_min": minutes});
    world.user.post("/job-arrays/", &json!({"last": 249, "job": job("long/{index}", 5, 600)})).await.created();
    let made = world.user.post("/jobs/", &json!([job("best", 1, 5), job("next", 0, 6)])).await.created();
    let (best, next) = (id(&made[0]), id(&made[1]));
    let session = world.session().await;
    let one = json!({"max_num_jobs": 1, "max_wall_time_min": 60});
    assert_eq!(ids(&world.user.acquire(session, &one).await), [best]);
    release(&world, session, &[best], "too little memory").await;
    assert_eq!(ids(&world.user.acquire(session, &one).await), [next]);
    assert!(world.user.acquire(session, &one).await.is_empty());
}

/// What an elastic queue asks: which Jobs would more of these nodes start?
#[tokio::test]
async fn jobs_that_no_node_of_a_queue_can_hold_can_be_left_out() {
    let world = World::new().await;
    let jobs = world.plain_jobs(4).await;
    let list = format!("/jobs/?site_id={}&not_given_back_in=debug", world.site);
    let left = async || world.user.ids(&list).await;
    for number in 1..=2 {
        let batch_job = world.user.batch_job(world.site, &json!({"queue": "debug"})).await;
        world
            .user
            .put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running", "scheduler_id": number}))
            .await
            .ok();
        let body = json!({"site_id": world.site, "batch_job_id": batch_job});
        let session = id(&world.user.post("/sessions/", &body).await.created());
        assert_eq!(world.user.acquire(session, &json!({})).await.len(), 4);
        let release = |job: i64, for_now: bool| json!({"job_id": job, "message": "no GPU", "for_now": for_now});
        let mut given_back = vec![release(jobs[0], false), release(jobs[1], true)];
        // One allocation is not enough: the nodes of a queue may differ.
        given_back.extend((number == 1).then(|| release(jobs[2], false)));
        let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [], "release": given_back});
        world.user.post(&format!("/sessions/{session}/updates"), &body).await.ok();
        if number == 1 {
            assert_eq!(left().await, jobs);
        }
        world.user.delete(&format!("/sessions/{session}")).await.deleted();
    }
    assert_eq!(left().await, jobs[1..]);
    assert_eq!(world.user.get(&format!("{list}&limit=0")).await.ok()["count"], 3);
    let other = format!("/jobs/?site_id={}&not_given_back_in=prod", world.site);
    assert_eq!(world.user.ids(&other).await, jobs);
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let since = format!("{list}&not_given_back_since={}", later.format("%Y-%m-%dT%H:%M:%S"));
    assert_eq!(world.user.ids(&since).await, jobs);
    // With another shape it is a matter of its own, and one that runs has shown that it can be held.
    world.user.put(&format!("/jobs/{}", jobs[0]), &json!({"ranks_per_node": 2})).await.ok();
    assert_eq!(left().await, jobs);
}

#[tokio::test]
async fn a_job_that_asks_for_less_may_be_given_again() {
    let world = World::new().await;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    world.user.acquire(session, &json!({})).await;
    release(&world, session, &[job], "a node has 4 CPUs").await;
    world.user.put(&format!("/jobs/{job}"), &json!({"priority": 3})).await.ok();
    assert!(world.user.acquire(session, &json!({})).await.is_empty());
    world.user.put(&format!("/jobs/{job}"), &json!({"ranks_per_node": 2})).await.ok();
    assert_eq!(ids(&world.user.acquire(session, &json!({})).await), [job]);
}

#[tokio::test]
async fn a_job_that_was_given_back_wakes_who_waits() {
    let world = World::new().await;
    let jobs = world.plain_jobs(1).await;
    let (first, second) = (world.session().await, world.session().await);
    world.user.acquire(first, &json!({})).await;
    let wait = json!({"wait_sec": 30});
    let (got, _) = tokio::join!(world.user.acquire(second, &wait), release(&world, first, &jobs, "a node has 4 CPUs"));
    assert_eq!(ids(&got), jobs);
}

#[tokio::test]
async fn a_job_that_only_waited_in_vain_goes_to_anybody() {
    let world = World::new().await;
    let jobs = world.plain_jobs(2).await;
    let session = world.session().await;
    assert_eq!(ids(&world.user.acquire(session, &json!({})).await), jobs);
    release(&world, session, &jobs[..1], Value::Null).await;
    let held = world.user.ids(&format!("/jobs/?session_id={session}")).await;
    assert_eq!(held, jobs[1..]);
    assert!(reasons(&world, jobs[0]).await.iter().all(|(code, _)| code != "shape"));
    assert_eq!(ids(&world.user.acquire(session, &json!({})).await), jobs[..1]);
}
