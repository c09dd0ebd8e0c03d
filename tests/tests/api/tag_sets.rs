//! Tags and what is found by them: acquires and counts are exact, whether Jobs are in tag sets or odd.

use copal_tests::{World, id};
use serde_json::{Value, json};

/// Plain Jobs with these tags each, by one call.
async fn make(world: &World, folder: &str, tags: &[Value]) -> Vec<i64> {
    let job = |(index, tags)| json!({"app_id": world.plain, "workdir": format!("{folder}/{index}"), "tags": tags});
    let jobs: Vec<Value> = tags.iter().enumerate().map(job).collect();
    world.user.jobs(&jobs).await.iter().map(id).collect()
}

async fn count(world: &World, tags: &str) -> i64 {
    let count = world.user.count(&format!("/jobs/?limit=0&{tags}")).await;
    let by_state = world.user.get(&format!("/jobs/by-state?{tags}")).await.ok();
    let sum: i64 = by_state.as_object().unwrap().values().map(|count| count.as_i64().unwrap()).sum();
    assert_eq!(count, sum, "by state: {by_state}");
    let listed = world.user.list(&format!("/jobs/?limit=1000&{tags}")).await.len();
    assert_eq!(count, i64::try_from(listed).unwrap(), "as listed");
    count
}

async fn acquire(world: &World, wanted: &Value) -> Vec<i64> {
    let session = world.session().await;
    let jobs = world.user.acquire(session, wanted).await.iter().map(id).collect();
    world.user.delete(&format!("/sessions/{session}")).await.deleted();
    jobs
}

/// Tags with a number of their own, of which there are too many in one call to make sets of.
fn single(count: usize) -> Vec<Value> {
    (0..count).map(|index| json!({"campaign": "a", "sample": index.to_string()})).collect()
}

#[tokio::test]
async fn acquires_by_tag_take_the_best_of_all_sets_in_order() {
    let world = World::new().await;
    let tags = [
        json!({"campaign": "a", "kind": "x"}),
        json!({"campaign": "b", "kind": "x"}),
        json!({"campaign": "a", "kind": "y"}),
        json!({"campaign": "a", "kind": "x"}),
        json!({}),
        json!({"campaign": "a"}),
    ];
    let jobs = make(&world, "mixed", &tags).await;
    let of = |places: &[usize]| places.iter().map(|place| jobs[*place]).collect::<Vec<_>>();
    for (wanted, expected) in [
        (json!({"campaign": "a"}), of(&[0, 2, 3, 5])),
        (json!({"kind": "x"}), of(&[0, 1, 3])),
        (json!({"campaign": "a", "kind": "x"}), of(&[0, 3])),
        (json!({"campaign": "b", "kind": "y"}), vec![]),
        (json!({"campaign": "none"}), vec![]),
        (json!({}), jobs.clone()),
    ] {
        for sort_by in ["fifo", "small_first", "long_large_first", "shortest_first"] {
            let fields = json!({"filter_tags": wanted, "sort_by": sort_by});
            assert_eq!(acquire(&world, &fields).await, expected, "{fields}");
        }
        let few = json!({"filter_tags": wanted, "max_num_jobs": 2, "max_aggregate_nodes": 100});
        assert_eq!(acquire(&world, &few).await, expected[..expected.len().min(2)], "{few}");
    }
    // Priority counts across the sets.
    world.user.put(&format!("/jobs/{}", jobs[5]), &json!({"priority": 1})).await.ok();
    let first = json!({"filter_tags": {"campaign": "a"}, "max_num_jobs": 2});
    assert_eq!(acquire(&world, &first).await, of(&[5, 0]));
}

#[tokio::test]
async fn jobs_whose_tags_have_no_set_are_acquired_all_the_same() {
    let world = World::new().await;
    let odd = make(&world, "odd", &single(30)).await;
    let even = make(&world, "even", &[json!({"campaign": "a", "kind": "x"}), json!({"campaign": "b"})]).await;
    let all: Vec<i64> = odd.iter().copied().chain([even[0]]).collect();
    assert_eq!(acquire(&world, &json!({"filter_tags": {"campaign": "a"}})).await, all);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"campaign": "a"}, "max_num_jobs": 3})).await, all[..3]);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"campaign": "a", "sample": "7"}})).await, [odd[7]]);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"sample": "7"}})).await, [odd[7]]);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"kind": "x"}})).await, [even[0]]);
    assert!(acquire(&world, &json!({"filter_tags": {"sample": "none"}})).await.is_empty());
}

#[tokio::test]
async fn counts_by_tag_stay_exact_through_all_changes() {
    let world = World::new().await;
    let odd = make(&world, "odd", &single(30)).await;
    let jobs =
        make(&world, "even", &[json!({"campaign": "a"}), json!({"campaign": "a", "kind": "x"}), json!({})]).await;
    let array = json!({"last": 9, "job": {"app_id": world.plain, "workdir": "array/{index}", "tags": {"campaign": "a"},
        "parameters": {}}});
    world.user.post("/job-arrays/", &array).await.created();
    assert_eq!(count(&world, "tags=campaign:a").await, 42);
    assert_eq!(count(&world, "tags=campaign:a&tags=kind:x").await, 1);
    assert_eq!(count(&world, "tags=campaign:a&tags=sample:3").await, 1);
    assert_eq!(count(&world, "").await, 43);

    // States change, also by a Session.
    world.user.set_state(jobs[0], "FAILED").await;
    world.user.set_state(odd[0], "FAILED").await;
    assert_eq!(count(&world, "tags=campaign:a&state=FAILED").await, 2);
    assert_eq!(count(&world, "tags=campaign:a&state__ne=FAILED").await, 40);
    let session = world.session().await;
    let held = world.user.acquire(session, &json!({"max_num_jobs": 1, "filter_tags": {"kind": "x"}})).await;
    world.user.report(session, id(&held[0]), &["RUNNING", "RUN_DONE"]).await;
    assert_eq!(count(&world, "tags=kind:x&state=JOB_FINISHED").await, 1);

    // Tags change, together with the state and alone.
    world.user.put(&format!("/jobs/{}", jobs[2]), &json!({"tags": {"campaign": "a"}})).await.ok();
    world.user.put(&format!("/jobs/{}", odd[1]), &json!({"tags": {"kind": "x"}, "state": "FAILED"})).await.ok();
    assert_eq!(count(&world, "tags=campaign:a").await, 42);
    assert_eq!(count(&world, "tags=kind:x").await, 2);
    assert_eq!(count(&world, "tags=kind:x&state=FAILED").await, 1);

    // Jobs are deleted.
    world.user.delete(&format!("/jobs/?id={}&id={}", odd[2], jobs[2])).await.deleted();
    assert_eq!(count(&world, "tags=campaign:a").await, 40);
    assert_eq!(count(&world, "").await, 41);
}

#[tokio::test]
async fn a_site_with_many_sets_makes_room_and_loses_count_of_nothing() {
    let world = World::new().await;
    make(&world, "few", &[json!({"campaign": "a"}), json!({"campaign": "a"})]).await;
    let mut database = world.service.database().connect().await;
    let crowd = "insert into tag_sets (site_id, tag_set, owner_id, tags) select site_id, 1000 + n, owner_id, \
         jsonb_build_object('n', n::text) from tag_sets, generate_series(1, 600) n";
    sqlx::query(crowd).execute(&mut database).await.unwrap();
    sqlx::query("update tag_sets set created_at = now() - interval '2 hours'").execute(&mut database).await.unwrap();
    copal_server::db::tag_sets::tidy(&mut database).await.unwrap();
    let closed: i64 = sqlx::query_scalar("select count(*) from tag_sets where closed_at is not null")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(closed, 601, "all are small");

    // A Job that is made now has no set; those before keep theirs until no transaction can add to it.
    make(&world, "later", &[json!({"campaign": "a"})]).await;
    assert_eq!(count(&world, "tags=campaign:a").await, 3);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"campaign": "a"}})).await.len(), 3);
    sqlx::query("update tag_sets set closed_at = now() - interval '2 hours'").execute(&mut database).await.unwrap();
    let mut left = closed;
    while left > 0 {
        copal_server::db::tag_sets::tidy(&mut database).await.unwrap();
        let now = sqlx::query_scalar("select count(*) from tag_sets").fetch_one(&mut database).await.unwrap();
        assert!(now < left, "a round dissolves some");
        left = now;
    }
    assert_eq!(count(&world, "tags=campaign:a").await, 3);
    assert_eq!(acquire(&world, &json!({"filter_tags": {"campaign": "a"}})).await.len(), 3);
    make(&world, "again", &[json!({"campaign": "a"})]).await;
    assert_eq!(count(&world, "tags=campaign:a").await, 4);
}
