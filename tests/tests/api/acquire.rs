//! `POST /sessions/{id}`: which Jobs a Session gets, and in which order (contract, section 8).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use copal_tests::{World, id, wait::wait_for, world::with};
use serde_json::{Value, json};

/// Jobs of the plain App with these fields each.
async fn make(world: &World, fields: &[Value]) -> Vec<i64> {
    let jobs: Vec<Value> = fields
        .iter()
        .enumerate()
        .map(|(index, fields)| with(json!({"app_id": world.plain, "workdir": format!("w/{index}")}), fields))
        .collect();
    world.user.jobs(&jobs).await.iter().map(id).collect()
}

/// The ids that a fresh Session acquires, which are freed again.
async fn acquired(world: &World, wanted: &Value) -> Vec<i64> {
    let session = world.session().await;
    let ids = world.user.acquire(session, wanted).await.iter().map(id).collect();
    world.user.delete(&format!("/sessions/{session}")).await.deleted();
    ids
}

fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn acquired_jobs_carry_session_and_batch_job() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(2).await;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let session = user.session(world.site, Some(batch_job)).await;
    let before = user.get_job(jobs[0]).await;
    let events = user.count("/events/").await;
    let rows = user.acquire(session, &json!({"max_num_jobs": 1})).await;
    assert_eq!(rows.len(), 1);
    let row = user.get_job(id(&rows[0])).await;
    assert_eq!(rows[0], row);
    assert_eq!((&row["session_id"], &row["batch_job_id"]), (&json!(session), &json!(batch_job)));
    assert_eq!(row["state"], before["state"]);
    assert!(row["last_update"].as_str() > before["last_update"].as_str());
    assert_eq!(user.count("/events/").await, events, "acquiring is no event");

    // A Session without a BatchJob leaves the Job's alone.
    user.delete(&format!("/sessions/{session}")).await.deleted();
    let lone = world.session().await;
    let rows = user.acquire(lone, &json!({})).await;
    let again = rows.iter().find(|other| other["id"] == row["id"]).unwrap();
    assert_eq!((&again["session_id"], &again["batch_job_id"]), (&json!(lone), &json!(batch_job)));
}

#[tokio::test]
async fn only_fitting_jobs_are_given() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let other_app = user.app(other_site, "Plain", &json!({"command": "true"})).await;
    user.job(other_app, &json!({})).await;
    let jobs = make(
        &world,
        &[
            json!({"tags": {"system": "H2O", "n": "1"}}),
            json!({"tags": {"system": "D2O"}, "wall_time_min": 60}),
            json!({"num_nodes": 3}),
            json!({"ranks_per_node": 2}),
            json!({}),
        ],
    )
    .await;
    user.set_state(jobs[4], "RESTART_READY").await;
    for (wanted, expected) in [
        (json!({}), vec![0, 1, 2, 3, 4]),
        (json!({"filter_tags": {"system": "H2O"}}), vec![0]),
        (json!({"filter_tags": {"system": "H2O", "n": 1}}), vec![0]),
        (json!({"filter_tags": {"system": "H2O", "n": "2"}}), vec![]),
        (json!({"max_wall_time_min": 59.97}), vec![0, 2, 3, 4]),
        (json!({"max_wall_time_min": 60}), vec![0, 1, 2, 3, 4]),
        (json!({"max_wall_time_min": 0}), vec![0, 1, 2, 3, 4]),
        (json!({"max_nodes_per_job": 2}), vec![0, 1, 3, 4]),
        (json!({"max_nodes_per_job": 0}), vec![0, 1, 2, 3, 4]),
        (json!({"serial_only": true}), vec![0, 1, 4]),
        (json!({"states": ["RESTART_READY"]}), vec![4]),
        (json!({"states": ["STAGED_IN"]}), vec![]),
        (json!({"app_ids": [world.app]}), vec![]),
        (json!({"app_ids": [world.app, world.plain]}), vec![0, 1, 2, 3, 4]),
        (json!({"max_wall_time_min": null, "max_nodes_per_job": null, "sort_by": null}), vec![0, 1, 2, 3, 4]),
    ] {
        let expected: Vec<i64> = expected.iter().map(|index: &usize| jobs[*index]).collect();
        assert_eq!(sorted(acquired(&world, &wanted).await), expected, "{wanted}");
    }
    assert_eq!(acquired(&world, &json!({"max_num_jobs": 2})).await.len(), 2);
}

/// The first hundreds of Jobs in each order do not fit; those that do come in the order, as if the others were not there.
#[tokio::test]
async fn jobs_that_fit_come_in_the_order_from_behind_those_that_do_not() {
    let world = World::new().await;
    let user = &world.user;
    let other = user.app(world.site, "Other", &json!({"command": "true"})).await;
    let mut fields = Vec::new();
    for number in 0..300 {
        let size = if number % 2 == 0 { json!({"num_nodes": 9}) } else { json!({"ranks_per_node": 3}) };
        let tags = json!({"half": (number % 2).to_string()});
        fields.push(with(json!({"priority": 5, "wall_time_min": 90 + number % 3, "tags": tags}), &size));
    }
    for number in 0..120 {
        fields.push(json!({"app_id": other, "priority": number % 2, "num_nodes": 1 + number % 3 % 2,
            "node_packing_count": 1 + number % 5, "wall_time_min": number * 7 % 11,
            "tags": {"half": (number % 2).to_string()}}));
    }
    let jobs = make(&world, &fields).await;
    let number = |index: usize, key: &str| fields[index][key].as_i64().unwrap_or(1);
    let by_size = |index: usize| (number(index, "num_nodes"), -number(index, "node_packing_count"));
    for (wanted, fits) in [
        (json!({"max_wall_time_min": 8}), &(|index| number(index, "wall_time_min") <= 8) as &dyn Fn(usize) -> bool),
        (json!({"serial_only": true}), &|index| {
            number(index, "num_nodes") == 1 && number(index, "ranks_per_node") == 1
        }),
        (json!({"app_ids": [other], "max_nodes_per_job": 1}), &|index| index >= 300 && number(index, "num_nodes") == 1),
        (json!({"app_ids": [other], "filter_tags": {"half": "1"}}), &|index| index >= 300 && index % 2 == 1),
    ] {
        for sort_by in ["fifo", "small_first", "long_large_first", "shortest_first"] {
            let mut expected: Vec<usize> = (0..jobs.len()).filter(|index| fits(*index)).collect();
            expected.sort_by_key(|&index| {
                let minutes = number(index, "wall_time_min");
                let (nodes, packing) = by_size(index);
                let order = match sort_by {
                    "small_first" => [nodes, packing, -minutes],
                    "long_large_first" => [-minutes, -nodes, packing],
                    "shortest_first" => [minutes, 0, 0],
                    _ => [0; 3],
                };
                (-number(index, "priority"), order, index)
            });
            let expected: Vec<i64> = expected.into_iter().map(|index| jobs[index]).collect();
            let session = world.session().await;
            let mut taken = Vec::new();
            loop {
                let wanted = with(json!({"max_num_jobs": 25, "sort_by": sort_by}), &wanted);
                let rows = user.acquire(session, &wanted).await;
                if rows.is_empty() {
                    break;
                }
                taken.extend(rows.iter().map(id));
            }
            user.delete(&format!("/sessions/{session}")).await.deleted();
            assert_eq!(taken, expected, "{wanted} {sort_by}");
        }
    }
}

#[tokio::test]
async fn the_aggregate_is_a_prefix_of_the_order() {
    let world = World::new().await;
    let mut fields = vec![json!({"num_nodes": 2}); 4];
    fields.extend(vec![json!({"node_packing_count": 8}); 8]);
    make(&world, &fields).await;
    let session = world.session().await;
    let rows = world.user.acquire(session, &json!({"max_aggregate_nodes": 5})).await;
    let small = rows.iter().filter(|row| row["num_nodes"] == 1).count();
    assert_eq!((small, rows.len() - small), (8, 2));
}

#[tokio::test]
async fn a_wide_job_at_the_front_is_not_stepped_over() {
    let world = World::new().await;
    let jobs = make(&world, &[json!({"num_nodes": 1}), json!({"num_nodes": 4}), json!({"num_nodes": 8})]).await;
    let large_first = |nodes: f64| json!({"max_aggregate_nodes": nodes, "sort_by": "long_large_first"});
    assert_eq!(acquired(&world, &large_first(8.0)).await, [jobs[2]]);
    assert_eq!(acquired(&world, &large_first(7.0)).await, [0; 0]);
    assert_eq!(acquired(&world, &json!({"max_aggregate_nodes": 4.9})).await, [jobs[0]]);
}

#[tokio::test]
async fn sevenths_of_a_node_fill_it() {
    let world = World::new().await;
    let jobs = make(&world, &vec![json!({"node_packing_count": 7}); 8]).await;
    assert_eq!(acquired(&world, &json!({"max_aggregate_nodes": 1.0})).await, jobs[..7]);
}

#[tokio::test]
async fn both_orders_of_the_contract() {
    let world = World::new().await;
    let jobs = make(
        &world,
        &[
            json!({"num_nodes": 2, "wall_time_min": 10}),
            json!({"num_nodes": 1, "node_packing_count": 1, "wall_time_min": 10}),
            json!({"num_nodes": 1, "node_packing_count": 4, "wall_time_min": 10}),
            json!({"num_nodes": 1, "node_packing_count": 4, "wall_time_min": 30}),
            json!({"num_nodes": 1, "node_packing_count": 4, "wall_time_min": 30}),
        ],
    )
    .await;
    let order = |indices: [usize; 5]| indices.map(|index| jobs[index]).to_vec();
    let aggregate = json!({"max_aggregate_nodes": 100});
    assert_eq!(acquired(&world, &aggregate).await, order([3, 4, 2, 1, 0]));
    let named = |name: &str| json!({"max_aggregate_nodes": 100, "sort_by": name});
    assert_eq!(acquired(&world, &named("small_first")).await, order([3, 4, 2, 1, 0]));
    assert_eq!(acquired(&world, &named("no such order")).await, order([3, 4, 2, 1, 0]));
    assert_eq!(acquired(&world, &named("long_large_first")).await, order([3, 4, 0, 2, 1]));
    assert_eq!(acquired(&world, &named("fifo")).await, order([0, 1, 2, 3, 4]));
    assert_eq!(acquired(&world, &named("shortest_first")).await[..3], [jobs[0], jobs[1], jobs[2]]);
    // The order decides who is left out, too.
    assert_eq!(acquired(&world, &with(named("fifo"), &json!({"max_num_jobs": 2}))).await, jobs[..2]);
    assert_eq!(acquired(&world, &with(aggregate, &json!({"max_num_jobs": 2}))).await, [jobs[3], jobs[4]]);
}

#[tokio::test]
async fn priority_comes_before_any_order() {
    let world = World::new().await;
    let jobs =
        make(&world, &[json!({}), json!({"priority": 5, "num_nodes": 4}), json!({"priority": -1}), json!({})]).await;
    let expected = [jobs[1], jobs[0], jobs[3], jobs[2]];
    for order in ["small_first", "long_large_first", "fifo", "priority", "shortest_first"] {
        let wanted = json!({"max_aggregate_nodes": 100, "sort_by": order});
        assert_eq!(acquired(&world, &wanted).await, expected, "{order}");
    }
    assert_eq!(acquired(&world, &json!({"max_num_jobs": 1})).await, [jobs[1]], "also without an aggregate");
}

#[tokio::test]
async fn bad_requests_are_refused_with_the_field() {
    let world = World::new().await;
    let path = format!("/sessions/{}", world.session().await);
    for (change, field) in [
        (json!({"max_num_jobs": 0}), "max_num_jobs"),
        (json!({"max_num_jobs": 2049}), "max_num_jobs"),
        (json!({"max_num_jobs": null}), "max_num_jobs"),
        (json!({"max_num_jobs": 1e30}), "max_num_jobs"),
        (json!({"filter_tags": null}), "filter_tags"),
        (json!({"filter_tags": {"a": {}}}), "filter_tags"),
        (json!({"states": ["DONE"]}), "states"),
        (json!({"app_ids": ["x"]}), "app_ids"),
        (json!({"max_aggregate_nodes": "many"}), "max_aggregate_nodes"),
        (json!({"serial_only": "perhaps"}), "serial_only"),
        (json!({"wait_sec": 30.5}), "wait_sec"),
        (json!({"wait_sec": -1}), "wait_sec"),
    ] {
        let wanted = with(json!({"max_num_jobs": 1, "filter_tags": {}}), &change);
        let answer = world.user.post(&path, &wanted).await;
        assert_eq!(answer.status, 422, "{change}: {}", answer.body);
        answer.invalid(field);
    }
    for wait_sec in ["31", "-1", "NaN", "soon"] {
        world.user.get(&format!("{path}/signals?wait_sec={wait_sec}")).await.invalid("wait_sec");
    }
    world.user.post(&path, &json!({"max_num_jobs": 1})).await.invalid("filter_tags");
    world.user.post(&path, &json!({"filter_tags": {}})).await.invalid("max_num_jobs");
}

#[tokio::test]
async fn sessions_that_acquire_at_once_never_share_a_job() {
    let world = World::new().await;
    let jobs = world.plain_jobs(1200).await;
    let workers = (0..12).map(|worker| {
        let (user, site) = (world.user.clone(), world.site);
        tokio::spawn(async move {
            let session = user.session(site, None).await;
            let aggregate = if worker % 2 == 0 { json!(1000) } else { json!(null) };
            let wanted = json!({"max_num_jobs": 25, "max_aggregate_nodes": aggregate});
            let mut mine = Vec::new();
            loop {
                let rows = user.acquire(session, &wanted).await;
                if rows.is_empty() {
                    return mine;
                }
                mine.extend(rows.iter().map(id));
            }
        })
    });
    let mut all = Vec::new();
    for worker in futures_util::future::join_all(workers).await {
        all.extend(worker.unwrap());
    }
    let distinct: HashSet<i64> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "a Job was given twice");
    // An acquire may come back empty while others hold the rows it looked at; what is left can be had now.
    let rest = acquired(&world, &json!({"max_num_jobs": 2048})).await;
    assert_eq!(all.len() + rest.len(), jobs.len());
}

#[tokio::test]
async fn a_waiting_session_is_woken_by_a_new_job() {
    let world = World::new().await;
    let session = world.session().await;
    let waiter = |tags: Value| {
        let user = world.user.clone();
        tokio::spawn(async move {
            let rows = user.acquire(session, &json!({"wait_sec": 30, "filter_tags": tags})).await;
            (rows, Instant::now())
        })
    };
    let mut slowest = Duration::ZERO;
    for turn in 0..5 {
        let waiting = waiter(json!({"turn": turn}));
        // Jobs that do not fit wake nobody for good.
        world.plain_job(&json!({"workdir": format!("other/{turn}")})).await;
        let made = Instant::now();
        let job = world.plain_job(&json!({"workdir": format!("w/{turn}"), "tags": {"turn": turn}})).await;
        let (rows, woken) = waiting.await.unwrap();
        assert_eq!(rows.iter().map(id).collect::<Vec<_>>(), [id(&job)]);
        slowest = slowest.max(woken.duration_since(made));
    }
    assert!(slowest < Duration::from_secs(10), "woken only after {slowest:?}");
}

#[tokio::test]
async fn a_waiting_session_is_woken_by_a_parents_end_and_by_a_freed_job() {
    let world = World::new().await;
    let user = &world.user;
    let parent = world.plain_jobs(1).await[0];
    let child = id(&world.plain_job(&json!({"workdir": "child", "parent_ids": [parent]})).await);
    let holder = world.session().await;
    user.acquire(holder, &json!({})).await;
    let session = world.session().await;
    let wait = || {
        let user = user.clone();
        tokio::spawn(async move { user.acquire(session, &json!({"wait_sec": 30})).await })
    };
    let start = Instant::now();
    let waiting = wait();
    user.report(holder, parent, &["RUNNING", "RUN_DONE"]).await;
    assert_eq!(id(&waiting.await.unwrap()[0]), child);

    let freed = world.plain_jobs(1).await[0];
    user.acquire(holder, &json!({})).await;
    let waiting = wait();
    user.delete(&format!("/sessions/{holder}")).await.deleted();
    assert_eq!(id(&waiting.await.unwrap()[0]), freed);
    assert!(start.elapsed() < Duration::from_secs(20), "woken only after {:?}", start.elapsed());
}

#[tokio::test]
async fn waiting_ends_in_time_and_when_the_session_does() {
    let world = World::new().await;
    let user = &world.user;
    let session = world.session().await;
    let start = Instant::now();
    assert!(user.acquire(session, &json!({"wait_sec": 1})).await.is_empty());
    assert!(start.elapsed() >= Duration::from_millis(900), "it did not wait: {:?}", start.elapsed());

    let waiting = {
        let user = user.clone();
        let wanted = json!({"max_num_jobs": 1, "filter_tags": {}, "wait_sec": 30});
        tokio::spawn(async move { user.post(&format!("/sessions/{session}"), &wanted).await })
    };
    let start = Instant::now();
    user.delete(&format!("/sessions/{session}")).await.deleted();
    let answer = waiting.await.unwrap();
    assert!(answer.status == 404 || answer.body == json!([]), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(32));
}

#[tokio::test]
async fn many_waiting_sessions_hold_no_connections_up() {
    let world = World::new().await;
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let (user, session) = (world.user.clone(), world.session().await);
        let wanted = json!({"max_num_jobs": 1, "wait_sec": 30});
        waiting.push(tokio::spawn(async move { user.acquire(session, &wanted).await.len() }));
    }
    // With more waiters than database connections, others are still answered.
    let start = Instant::now();
    for _ in 0..20 {
        world.user.get("/jobs/?limit=1").await.ok();
    }
    assert!(start.elapsed() < Duration::from_secs(10), "20 small requests took {:?}", start.elapsed());
    world.plain_jobs(100).await;
    let found: usize = futures_util::future::join_all(waiting).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(found, 100);
}

/// A look passes over Jobs that another transaction has locked, and when that leaves them as they are nobody tells.
#[tokio::test]
async fn jobs_that_were_locked_at_the_look_are_found_soon_after() {
    let world = World::new().await;
    let jobs = world.plain_jobs(2).await;
    let session = world.session().await;
    let beat = async || world.user.list(&format!("/sessions/?id={session}")).await[0]["heartbeat"].clone();
    let before = beat().await;
    let mut database = world.service.database().connect().await;
    let mut other = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("select id from jobs for update").execute(&mut *other).await.unwrap();
    let user = world.user.clone();
    let waiting = tokio::spawn(async move { user.acquire(session, &json!({"wait_sec": 30})).await });
    wait_for("the look in vain", Duration::from_secs(60), async || match beat().await {
        now if now != before => Ok(()),
        now => Err(now.to_string()),
    })
    .await;
    other.rollback().await.unwrap();
    // Long before the wait is over.
    let found = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert_eq!(found.iter().map(id).collect::<Vec<_>>(), jobs);
}
