//! `GET /events/` (contract, section 9).

use copal_tests::{World, id};
use serde_json::json;

#[tokio::test]
async fn the_newest_event_comes_first() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    for state in ["PREPROCESSED", "RUNNING", "RUN_DONE"] {
        world.user.set_state(job, state).await;
    }
    let events = world.user.list("/events").await;
    let states: Vec<&str> = events.iter().map(|event| event["to_state"].as_str().unwrap()).collect();
    assert_eq!(states, ["RUN_DONE", "RUNNING", "PREPROCESSED", "STAGED_IN"]);
    let last = &events[3];
    assert_eq!((&last["from_state"], &last["job_id"], &last["data"]), (&json!("CREATED"), &json!(job), &json!({})));
    last["timestamp"].as_str().unwrap().parse::<chrono::NaiveDateTime>().expect("naive UTC");
    let oldest_first = world.user.ids("/events/?ordering=timestamp").await;
    let mut newest_first = world.user.ids("/events/?ordering=-timestamp").await;
    newest_first.reverse();
    assert_eq!(oldest_first, newest_first);
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let world = World::new().await;
    let user = &world.user;
    let first = id(&world.job(&json!({"tags": {"k": "v", "system": "H2O"}})).await);
    let second = id(&world.job(&json!({"workdir": "second"})).await);
    let batch_job = user.batch_job(world.site, &json!({})).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"scheduler_id": 4711})).await.ok();
    let data = json!({"message": "OK: done!", "n": 3});
    let change = json!({"state": "PREPROCESSED", "state_data": data, "batch_job_id": batch_job,
        "state_timestamp": "2026-01-02T03:04:05.000006"});
    user.put(&format!("/jobs/{first}"), &change).await.ok();
    user.set_state(second, "FAILED").await;
    let all = user.ids("/events/?ordering=timestamp").await;
    assert_eq!(all.len(), 4);
    let ids = |query: String| async move { user.ids(&format!("/events/?{query}")).await };
    let marked = ids("to_state=PREPROCESSED".into()).await;
    assert_eq!(marked.len(), 1);
    for query in [
        "data=message:OK: done!".to_owned(),
        "from_state=STAGED_IN&to_state=PREPROCESSED".into(),
        "timestamp_before=2026-01-02 03:04:05.000006".into(),
        "timestamp_before=2026-01-02T03:04:05.000006Z&timestamp_after=2026-01-02T03:04:05.000006".into(),
        format!("id={}", marked[0]),
        format!("job_id={first}&from_state=STAGED_IN"),
    ] {
        assert_eq!(ids(query.clone()).await, marked, "{query}");
    }
    for (query, count) in [
        (format!("job_id={first}"), 2),
        (format!("job_id={first}&job_id={second}"), 4),
        (format!("batch_job_id={batch_job}"), 2),
        ("scheduler_id=4711".into(), 2),
        ("scheduler_id=4712".into(), 0),
        ("tags=k:v".into(), 2),
        ("tags=k:v&tags=system:H2O".into(), 2),
        ("tags=k:w".into(), 0),
        ("data=message:OK".into(), 0),
        ("timestamp_after=2026-01-02 03:04:05.000007".into(), 3),
        ("to_state=FAILED".into(), 1),
        ("from_state=CREATED".into(), 2),
    ] {
        assert_eq!(user.count(&format!("/events/?{query}")).await, count, "{query}");
        assert_eq!(ids(query.clone()).await.len() as i64, count, "{query}");
    }
}

#[tokio::test]
async fn pages_and_ties() {
    let world = World::new().await;
    let user = &world.user;
    world.plain_jobs(10).await;
    let page = user.get("/events/?limit=3&offset=2&ordering=timestamp").await.ok();
    assert_eq!((page["count"].as_i64(), page["results"].as_array().unwrap().len()), (Some(20), 3));
    let all = user.ids("/events/?ordering=timestamp").await;
    let mut paged = Vec::new();
    for offset in (0..20).step_by(7) {
        paged.extend(user.ids(&format!("/events/?ordering=timestamp&limit=7&offset={offset}")).await);
    }
    assert_eq!(paged, all);
    assert_eq!(user.get("/events/?limit=0").await.ok(), json!({"count": 20, "results": []}));
}

#[tokio::test]
async fn bad_queries_and_writes_are_refused() {
    let world = World::new().await;
    let user = &world.user;
    for (query, parameter) in [
        ("ordering=id", "ordering"),
        ("from_state=x", "from_state"),
        ("to_state=x", "to_state"),
        ("timestamp_after=x", "timestamp_after"),
        ("job_id=x", "job_id"),
        ("limit=100001", "limit"),
    ] {
        user.get(&format!("/events/?{query}")).await.invalid(parameter);
    }
    user.post("/events/", &json!({})).await.refused(405);
    user.delete("/events/").await.refused(405);
}

#[tokio::test]
async fn old_events_are_removed_after_the_retention_and_counted_no_more() {
    let world = World::new().await;
    let jobs = world.plain_jobs(3).await;
    let mut connection = world.service.database().connect().await;
    let old = "update events set \"timestamp\" = \"timestamp\" - interval '8 days' where job_id = $1";
    sqlx::query(old).bind(jobs[0]).execute(&mut connection).await.unwrap();
    let keep = chrono::TimeDelta::days(7);
    let more = copal_server::db::purge::prune_events(&mut connection, keep).await.unwrap();
    assert!(!more);
    assert_eq!(world.user.count("/events/").await, 4);
    assert_eq!(world.user.list("/events/").await.len(), 4);
    assert_eq!(world.user.count(&format!("/events/?job_id={}", jobs[0])).await, 0);
    assert_eq!(world.user.state(jobs[0]).await, "PREPROCESSED");
}
