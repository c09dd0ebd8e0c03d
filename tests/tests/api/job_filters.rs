//! `GET /jobs/`: filters, ordering, paging, counts (contract, sections 1 and 5).

use copal_tests::{Api, LIMIT, World, id, wait::wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection as _;

async fn five(world: &World) -> Vec<i64> {
    let job = |workdir: &str, tags: Value| json!({"app_id": world.plain, "workdir": workdir, "tags": tags});
    let jobs = [
        job("e/1", json!({"system": "H2O", "step": "1"})),
        job("d/2", json!({"system": "H2O", "step": "2"})),
        job("c/3", json!({"system": "D2O", "step": "1"})),
        job("b/4_", json!({"a:b": "c"})),
        job("a/5%", json!({"time": "10:30:00"})),
    ];
    world.user.jobs(&jobs).await.iter().map(id).collect()
}

async fn check(user: &Api, jobs: &[i64], cases: &[(&str, &[usize])]) {
    for (query, expected) in cases {
        let expected: Vec<i64> = expected.iter().map(|index| jobs[*index]).collect();
        assert_eq!(user.ids(&format!("/jobs/?{query}")).await, expected, "{query}");
    }
}

#[tokio::test]
async fn tags_workdirs_and_ids_narrow_the_list() {
    let world = World::new().await;
    let jobs = five(&world).await;
    let ids = format!("id={}&id={}", jobs[4], jobs[1]);
    let range = format!("id__gte={}&id__lte={}", jobs[1], jobs[3]);
    let range_of_tag = format!("tags=step:1&{range}");
    check(
        &world.user,
        &jobs,
        &[
            ("", &[0, 1, 2, 3, 4]),
            ("tags=system:H2O", &[0, 1]),
            ("tags=system:H2O&tags=step:1", &[0]),
            ("tags=step:1", &[0, 2]),
            ("tags=step:3", &[]),
            ("tags=time:10:30:00", &[4]),
            ("tags=no colon", &[0, 1, 2, 3, 4]),
            ("tags=system:H", &[]),
            (&ids, &[1, 4]),
            (&range, &[1, 2, 3]),
            (&range_of_tag, &[2]),
            (&format!("id__gte={}", jobs[3]), &[3, 4]),
            ("workdir__contains=/4", &[3]),
            ("workdir__contains=_", &[3]),
            ("workdir__contains=%25", &[4]),
            ("workdir__contains=E", &[]),
            ("ids=1&no_such_filter=x", &[0, 1, 2, 3, 4]),
            ("state=PREPROCESSED", &[0, 1, 2, 3, 4]),
            ("state=PREPROCESSED&state=RUNNING&tags=step:2", &[1]),
            ("state=RUNNING", &[]),
            ("state__ne=PREPROCESSED", &[]),
        ],
    )
    .await;
}

#[tokio::test]
async fn owners_of_jobs_narrow_the_list() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = five(&world).await;
    let other_site = user.site("other").await;
    let other_app = user.app(other_site, "Plain", &json!({"command": "true"})).await;
    let child = id(&user.job(other_app, &json!({"parent_ids": [jobs[0], jobs[1]]})).await);
    let lone = id(&world.job(&json!({})).await);
    let batch_job = user.batch_job(other_site, &json!({})).await;
    user.put(&format!("/jobs/{lone}"), &json!({"batch_job_id": batch_job})).await.ok();
    for (query, expected) in [
        (format!("app_id={other_app}"), vec![child]),
        (format!("app_id={}", world.app), vec![lone]),
        (format!("site_id={other_site}"), vec![child]),
        (format!("site_id={other_site}&site_id={}&id={child}", world.site), vec![child]),
        (format!("parent_id={}", jobs[0]), vec![child]),
        (format!("parent_id={}&parent_id={}", jobs[4], jobs[1]), vec![child]),
        (format!("parent_id={}", jobs[4]), vec![]),
        (format!("batch_job_id={batch_job}"), vec![lone]),
    ] {
        assert_eq!(user.ids(&format!("/jobs/?{query}")).await, expected, "{query}");
    }
}

#[tokio::test]
async fn times_and_file_cleanup_narrow_the_list() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = five(&world).await;
    user.put(&format!("/jobs/{}", jobs[3]), &json!({"pending_file_cleanup": false})).await.ok();
    let touched = user.get_job(jobs[3]).await["last_update"].as_str().unwrap().to_owned();
    let naive = touched.trim_end_matches("+00:00").to_owned();
    for time in [touched.replace('+', "%2B"), naive.clone(), naive.replace('T', " "), naive.replace('T', "+")] {
        assert_eq!(user.ids(&format!("/jobs/?last_update_after={time}")).await, [jobs[3]], "{time}");
        assert_eq!(user.count(&format!("/jobs/?last_update_before={time}")).await, 5, "{time}");
    }
    assert_eq!(user.ids("/jobs/?last_update_before=2020-01-01").await, [0; 0]);
    assert_eq!(user.ids("/jobs/?pending_file_cleanup=True").await.len(), 4);
    assert_eq!(user.ids("/jobs/?pending_file_cleanup=true&limit=9").await.len(), 4);
    assert_eq!(user.ids("/jobs/?pending_file_cleanup=False").await.len(), 5);
}

#[tokio::test]
async fn ordering_and_paging() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = five(&world).await;
    user.put(&format!("/jobs/{}", jobs[2]), &json!({"state": "RUNNING"})).await.ok();
    check(
        user,
        &jobs,
        &[
            ("ordering=id", &[0, 1, 2, 3, 4]),
            ("ordering=-id", &[4, 3, 2, 1, 0]),
            ("ordering=workdir", &[4, 3, 2, 1, 0]),
            ("ordering=-workdir", &[0, 1, 2, 3, 4]),
            ("ordering=last_update", &[0, 1, 3, 4, 2]),
            ("ordering=-last_update&limit=1", &[2]),
            ("ordering=-id&limit=2", &[4, 3]),
            ("ordering=-id&limit=2&offset=2", &[2, 1]),
            ("limit=2&offset=4", &[4]),
            ("limit=2&offset=5", &[]),
        ],
    )
    .await;
    let states = user.list("/jobs/?ordering=-state").await;
    let mut sorted: Vec<&str> = states.iter().map(|job| job["state"].as_str().unwrap()).collect();
    sorted.dedup();
    assert_eq!(sorted.len(), 2, "equal states stand together");

    let page = user.get("/jobs/?limit=0&offset=0").await.ok();
    assert_eq!(page, json!({"count": 5, "results": []}));
    assert_eq!(user.get("/jobs/?limit=1&tags=system:H2O").await.ok()["count"], 2);
    user.get("/jobs/?limit=100000").await.ok();
}

#[tokio::test]
async fn bad_queries_are_refused_with_the_parameter() {
    let world = World::new().await;
    for (query, parameter) in [
        ("limit=100001", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("offset=-1", "offset"),
        ("offset=99999999999999999999", "offset"),
        ("ordering=color", "ordering"),
        ("ordering=--id", "ordering"),
        ("ordering=num_nodes", "ordering"),
        ("state=Running", "state"),
        ("state=RUNNING&state=x", "state"),
        ("state__ne=x", "state__ne"),
        ("id=x", "id"),
        ("id=1&id=99999999999999999999", "id"),
        ("site_id=1.5x", "site_id"),
        ("last_update_after=yesterday", "last_update_after"),
        ("pending_file_cleanup=perhaps", "pending_file_cleanup"),
    ] {
        let answer = world.user.get(&format!("/jobs/?{query}")).await;
        assert_eq!(answer.status, 422, "{query}: {}", answer.body);
        let problem = answer.invalid(parameter);
        assert_eq!(problem["errors"][0]["loc"][0], "query", "{query}");
    }
}

#[tokio::test]
async fn five_hundred_ids_fit_in_a_query() {
    let world = World::new().await;
    let jobs = world.plain_jobs(20).await;
    let mut query: String = (0..520).map(|index| format!("id={}&", 900_000_000_000_i64 + index)).collect();
    query.extend(jobs.iter().map(|job| format!("id={job}&")));
    assert!(query.len() > 8_000);
    assert_eq!(world.user.ids(&format!("/jobs/?{query}")).await, jobs);
}

#[tokio::test]
async fn states_are_counted_under_the_same_filters() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = five(&world).await;
    user.set_state(jobs[0], "RUNNING").await;
    user.set_state(jobs[4], "FAILED").await;
    let counts = user.get("/jobs/by-state").await.ok();
    assert_eq!(counts, json!({"PREPROCESSED": 3, "RUNNING": 1, "FAILED": 1}));
    assert_eq!(user.get("/jobs/by-state?tags=system:H2O").await.ok(), json!({"PREPROCESSED": 1, "RUNNING": 1}));
    assert_eq!(user.get("/jobs/by-state?state=FAILED").await.ok(), json!({"FAILED": 1}));
}

#[tokio::test]
async fn a_place_in_a_list_narrows_no_change() {
    let world = World::new().await;
    let jobs = world.plain_jobs(3).await;
    assert_eq!(world.user.ids(&format!("/jobs/?after_id={}", jobs[0])).await, jobs[1..]);
    assert_eq!(world.user.count(&format!("/jobs/?after_id={}", jobs[0])).await, 3);
    let changed = world.user.put(&format!("/jobs/?after_id={}", jobs[1]), &json!({"priority": 5})).await.ok();
    assert_eq!(changed, json!(3));
}

/// An id of 0 is nobody's. A script that computed it from nothing must not meet all Jobs.
#[tokio::test]
async fn an_id_of_0_matches_nothing() {
    let world = World::new().await;
    let user = &world.user;
    five(&world).await;
    for filter in ["app_id=0", "site_id=0", "batch_job_id=0", "array_id=0", "parent_id=0", "id=0", "id__lte=0"] {
        let path = format!("/jobs/?{filter}");
        assert_eq!(user.count(&path).await, 0, "{filter}");
        assert_eq!(user.put(&path, &json!({"num_nodes": 2})).await.ok(), json!(0), "{filter}");
        user.delete(&path).await.deleted();
        assert_eq!(user.post(&format!("/jobs/cancel?{filter}"), &json!({})).await.ok()["cancelled"], 0, "{filter}");
    }
    assert_eq!(user.count("/jobs/?state=PREPROCESSED").await, 5);
}

/// An operation by filter may have to wait for others that change the same Jobs.
#[tokio::test]
async fn what_matches_no_more_when_its_turn_comes_is_left_alone() {
    let world = World::new().await;
    let user = &world.user;
    for (method, path, body, answer) in [
        (Method::POST, "/jobs/cancel", Value::Null, json!({"cancelled": 0, "stopping": 0})),
        (Method::PUT, "/jobs/", json!({"tags": {"mine": "yes"}}), json!(0)),
        (Method::DELETE, "/jobs/", Value::Null, Value::Null),
    ] {
        let what = format!("{method} {path}");
        let [changed, deleted] = [id(&world.plain_job(&json!({})).await), id(&world.plain_job(&json!({})).await)];
        let before = user.get_job(changed).await;
        let mut database = world.service.database().connect().await;
        let mut other = database.begin().await.unwrap();
        sqlx::query("update jobs set pending_file_cleanup = false where id = $1")
            .bind(changed)
            .execute(&mut *other)
            .await
            .unwrap();
        sqlx::query("delete from jobs where id = $1").bind(deleted).execute(&mut *other).await.unwrap();
        let request = user.request(method, &format!("{path}?pending_file_cleanup=true&id={changed}&id={deleted}"));
        let asked = {
            let user = user.clone();
            let request = if body.is_null() { request } else { request.json(&body) };
            tokio::spawn(async move { user.send(request).await })
        };
        wait_for(&format!("{what} to wait"), LIMIT, || async {
            const WAITING: &str = "select count(*) from pg_stat_activity \
                where datname = current_database() and wait_event_type = 'Lock'";
            let mut observer = world.service.database().connect().await;
            let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut observer).await.unwrap();
            if waiting > 0 { Ok(()) } else { Err("it does not wait".into()) }
        })
        .await;
        other.commit().await.unwrap();
        let answered = asked.await.unwrap();
        assert_eq!((answered.status / 100, &answered.body), (2, &answer), "{what}");
        let after = user.get_job(changed).await;
        assert_eq!((&after["state"], &after["tags"]), (&before["state"], &before["tags"]), "{what}");
    }
}
