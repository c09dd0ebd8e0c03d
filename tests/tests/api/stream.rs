//! `GET /events/stream`: changes as they happen (DESIGN, section 4).

use copal_tests::{World, id, stream::EventStream};
use serde_json::{Value, json};

/// The next change that is about this Job, as `to_state`.
async fn job_states(stream: &mut EventStream, count: usize) -> Vec<(i64, String)> {
    let mut states = Vec::new();
    while states.len() < count {
        let change = stream.next().await;
        if change.data["kind"] == "job" {
            let event = &change.data["event"];
            states.push((event["job_id"].as_i64().unwrap(), event["to_state"].as_str().unwrap().to_owned()));
        }
    }
    states
}

#[tokio::test]
async fn changes_of_jobs_batch_jobs_and_sites_arrive() {
    let world = World::new().await;
    let user = &world.user;
    let mut stream = EventStream::open(user, "/events/stream", None).await;
    let job = id(&world.plain_job(&json!({})).await);
    assert_eq!(job_states(&mut stream, 2).await, [(job, "STAGED_IN".into()), (job, "PREPROCESSED".into())]);

    let batch_job = user.batch_job(world.site, &json!({})).await;
    let change = stream.next().await;
    assert_eq!((change.event.as_str(), &change.data["kind"]), ("batch_job", &json!("batch_job")));
    assert_eq!(change.data["batch_job"], user.get(&format!("/batch-jobs/{batch_job}")).await.ok());

    let site = user.put(&format!("/sites/{}", world.site), &json!({"path": "/new"})).await.ok();
    let change = stream.next().await;
    assert_eq!((&change.data["kind"], &change.data["site"]), (&json!("site"), &site));

    user.delete(&format!("/batch-jobs/{batch_job}")).await.deleted();
    let change = stream.next().await;
    assert_eq!(change.data, json!({"kind": "batch_job_deleted", "site_id": world.site, "batch_job_id": batch_job}));
    user.delete(&format!("/sites/{}", world.site)).await.deleted();
    let change = stream.next().await;
    assert_eq!(change.data, json!({"kind": "site_deleted", "site_id": world.site}));
}

#[tokio::test]
async fn filters_narrow_the_stream() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let other_app = user.app(other_site, "Plain", &json!({"command": "true"})).await;
    let mut here = EventStream::open(user, &format!("/events/stream?site_id={}", world.site), None).await;
    let mut tagged = EventStream::open(user, "/events/stream?tags=k:v&tags=n:1&kind=job", None).await;
    let mut batch_jobs = EventStream::open(user, "/events/stream?kind=batch_job", None).await;
    user.job(other_app, &json!({})).await;
    let plain = id(&world.plain_job(&json!({"workdir": "plain", "tags": {"k": "v"}})).await);
    let both = id(&world.plain_job(&json!({"workdir": "both", "tags": {"k": "v", "n": 1}})).await);
    let batch_job = user.batch_job(other_site, &json!({})).await;
    let seen: Vec<i64> = job_states(&mut here, 4).await.into_iter().map(|(job, _)| job).collect();
    assert_eq!(seen, [plain, plain, both, both]);
    assert_eq!(job_states(&mut tagged, 1).await[0].0, both);
    assert_eq!(id(&batch_jobs.next().await.data["batch_job"]), batch_job);
    user.get("/events/stream?kind=nonsense").await.refused(422);
}

#[tokio::test]
async fn a_stream_resumes_without_gap_or_repeat() {
    let world = World::new().await;
    let user = &world.user;
    let mut stream = EventStream::open(user, "/events/stream?kind=job", None).await;
    let mut jobs = Vec::new();
    let mut seen = Vec::new();
    for turn in 0..6 {
        let job = id(&world.plain_job(&json!({"workdir": format!("w/{turn}")})).await);
        jobs.push(job);
        if turn % 2 == 0 {
            seen.extend(job_states(&mut stream, 1).await);
            let last = stream.last_id().expect("each change has an id");
            drop(stream);
            stream = EventStream::open(user, "/events/stream?kind=job", Some(&last)).await;
        }
    }
    seen.extend(job_states(&mut stream, 12 - seen.len()).await);
    let expected: Vec<(i64, String)> =
        jobs.into_iter().flat_map(|job| [(job, "STAGED_IN".to_owned()), (job, "PREPROCESSED".to_owned())]).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn concurrent_changes_are_all_seen_once() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(60).await;
    let mut stream = EventStream::open(user, "/events/stream?kind=job", None).await;
    let writers = jobs.chunks(10).map(|chunk| {
        let (user, chunk) = (user.clone(), chunk.to_vec());
        tokio::spawn(async move {
            for job in chunk {
                user.set_state(job, "RUNNING").await;
            }
        })
    });
    futures_util::future::join_all(writers).await;
    let mut seen: Vec<i64> = job_states(&mut stream, jobs.len()).await.into_iter().map(|(job, _)| job).collect();
    seen.sort_unstable();
    assert_eq!(seen, jobs);
}

#[tokio::test]
async fn other_users_see_nothing_of_it() {
    let world = World::new().await;
    let bob = world.service.user("bob").await;
    let mut stream = EventStream::open(&bob, "/events/stream", None).await;
    world.plain_jobs(3).await;
    let site = bob.site("bobs").await;
    let first = stream.next().await;
    assert_eq!((&first.data["kind"], id(&first.data["site"])), (&json!("site"), site), "{:?}", first.data);
}

#[tokio::test]
async fn a_bad_position_is_refused_or_starts_now() {
    let world = World::new().await;
    for position in ["nonsense", "-1", "99999999999999999999999", ""] {
        let request = world
            .user
            .request(reqwest::Method::GET, "/events/stream")
            .header("accept", "text/event-stream")
            .header("last-event-id", position);
        let answer = request.send().await.unwrap();
        assert!(matches!(answer.status().as_u16(), 200 | 400 | 422), "{position}: {}", answer.status());
    }
}

#[tokio::test]
async fn the_stream_ends_when_the_service_does() {
    let mut world = World::new().await;
    let mut stream = EventStream::open(&world.user, "/events/stream", None).await;
    let start = std::time::Instant::now();
    world.service.stop().await;
    assert!(
        start.elapsed() < std::time::Duration::from_secs(8),
        "an open stream held the stop up: {:?}",
        start.elapsed()
    );
    assert_eq!(stream.next_or_end().await.map(|change| change.data), None::<Value>);
}
