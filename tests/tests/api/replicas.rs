//! Two services on one database behave as one (DESIGN, section 4).

use std::collections::HashSet;

use copal_tests::{LIMIT, Settings, World, id, stream::EventStream, wait_for};
use serde_json::{Value, json};

#[tokio::test]
async fn what_one_writes_the_other_reads_at_once() {
    let world = World::new().await;
    let replica = world.service.replica().await;
    let there = world.user.at(replica.base());
    let job = id(&world.plain_job(&json!({})).await);
    assert_eq!(there.state(job).await, "PREPROCESSED");
    there.set_state(job, "FAILED").await;
    assert_eq!(world.user.state(job).await, "FAILED");
    let carol = replica.user("carol").await;
    carol.at(world.service.base()).get("/sites/").await.ok();
}

#[tokio::test]
async fn a_session_that_waits_at_one_is_woken_by_the_other() {
    let world = World::new().await;
    let replica = world.service.replica().await;
    let there = world.user.at(replica.base());
    let session = world.session().await;
    let waiting = tokio::spawn(async move { there.acquire(session, &json!({"wait_sec": 30})).await });
    let start = std::time::Instant::now();
    let job = id(&world.plain_job(&json!({})).await);
    assert_eq!(id(&waiting.await.unwrap()[0]), job);
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "woken only after {:?}", start.elapsed());
}

#[tokio::test]
async fn streams_of_both_show_all_changes_and_positions_are_shared() {
    let world = World::new().await;
    let replica = world.service.replica().await;
    let there = world.user.at(replica.base());
    let mut streams = [
        EventStream::open(&world.user, "/events/stream?kind=job", None).await,
        EventStream::open(&there, "/events/stream?kind=job", None).await,
    ];
    let first = id(&world.plain_job(&json!({"workdir": "first"})).await);
    let second = id(&there.job(world.plain, &json!({"workdir": "second"})).await);
    for stream in &mut streams {
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(stream.next().await.data["event"]["job_id"].as_i64().unwrap());
        }
        seen.dedup();
        assert_eq!(seen, [first, second]);
    }
    // A client whose replica is gone resumes at the other.
    let position = streams[0].last_id().unwrap();
    let third = id(&world.plain_job(&json!({"workdir": "third"})).await);
    let mut resumed = EventStream::open(&there, "/events/stream?kind=job", Some(&position)).await;
    assert_eq!(resumed.next().await.data["event"]["job_id"], third);
}

#[tokio::test]
async fn sweeps_of_both_free_a_job_once() {
    let settings = Settings { lease_sec: 0.6, sweep_sec: 0.05, ..Settings::default() };
    let world = World::with(settings).await;
    let _replica = world.service.replica().await;
    let user = &world.user;
    let jobs = world.plain_jobs(40).await;
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    let running: Vec<Value> = jobs.iter().map(|job| json!({"job_id": job, "state": "RUNNING"})).collect();
    user.update(session, &running).await;
    wait_for("the Session to lapse", LIMIT, || async {
        let states = user.get("/jobs/by-state").await.ok();
        if states == json!({"RESTART_READY": 40}) { Ok(()) } else { Err(states.to_string()) }
    })
    .await;
    assert_eq!(user.count("/events/?to_state=RUN_TIMEOUT").await, 40);
}

#[tokio::test]
async fn launchers_at_both_run_every_job_once() {
    let world = World::new().await;
    let replica = world.service.replica().await;
    let count = 600;
    world.plain_jobs(count).await;
    let workers = (0..8).map(|worker| {
        let user = if worker % 2 == 0 { world.user.clone() } else { world.user.at(replica.base()) };
        let site = world.site;
        tokio::spawn(async move {
            let session = user.session(site, None).await;
            let mut ran = Vec::new();
            let mut empty = 0;
            while empty < 3 {
                let held = user.acquire(session, &json!({"max_num_jobs": 20, "max_aggregate_nodes": 20})).await;
                empty = if held.is_empty() { empty + 1 } else { 0 };
                let updates: Vec<Value> = held
                    .iter()
                    .flat_map(|job| ["RUNNING", "RUN_DONE"].map(|state| json!({"job_id": id(job), "state": state})))
                    .collect();
                let answer = user.update(session, &updates).await;
                assert_eq!(answer, json!({"accepted": updates.len(), "rejected": []}));
                ran.extend(held.iter().map(id));
            }
            ran
        })
    });
    let mut all = Vec::new();
    for worker in futures_util::future::join_all(workers).await {
        all.extend(worker.unwrap());
    }
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "a Job ran twice");
    let states = world.user.get("/jobs/by-state").await.ok();
    assert_eq!(states["JOB_FINISHED"].as_u64().unwrap() as usize, all.len());
    assert_eq!(all.len(), count, "Jobs are left: {states}");
}

#[tokio::test]
async fn opposite_orders_of_ids_do_not_deadlock() {
    let world = World::new().await;
    let replica = world.service.replica().await;
    let jobs = world.plain_jobs(200).await;
    let writers = (0..6).map(|writer| {
        let user = if writer % 2 == 0 { world.user.clone() } else { world.user.at(replica.base()) };
        let mut order = jobs.clone();
        if writer % 3 == 0 {
            order.reverse();
        }
        tokio::spawn(async move {
            for round in 0..4 {
                let state = if (writer + round) % 2 == 0 { "RUNNING" } else { "RUN_TIMEOUT" };
                let body: Vec<Value> = order.iter().map(|job| json!({"id": job, "state": state})).collect();
                assert_eq!(user.patch("/jobs/", &json!(body)).await.ok(), json!(200));
            }
        })
    });
    for writer in futures_util::future::join_all(writers).await {
        writer.unwrap();
    }
}
