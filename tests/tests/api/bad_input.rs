//! Input that no client should send: a 4xx that says what is wrong, never a 5xx, and nothing half done.

use copal_tests::{Answer, World, api::Api, id, world::with};
use reqwest::Method;
use serde_json::{Value, json};

/// A refusal by the client's fault, in the service's own words.
#[track_caller]
fn client_error(answer: Answer, what: &str) -> Value {
    let status = answer.status;
    assert!((400..500).contains(&status), "{what}: {status} {}", answer.body);
    answer.refused(status)
}

async fn raw(world: &World, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let user = &world.user;
    user.send(user.request(method, path).header("content-type", "application/json").body(body)).await
}

#[tokio::test]
async fn numbers_beyond_their_range() {
    let world = World::new().await;
    let job = id(&world.plain_job(&json!({})).await);
    for number in ["99999999999999999999", "9223372036854775808", "-9223372036854775809", "1e400", "NaN", "2147483648"]
    {
        for field in ["num_nodes", "wall_time_min", "app_id", "priority", "max_restarts"] {
            let body = format!(r#"[{{"app_id": {}, "workdir": "x", "{field}": {number}}}]"#, world.plain);
            let answer = raw(&world, Method::POST, "/jobs/", body).await;
            client_error(answer, &format!("{field} = {number}"));
        }
        let body = format!(r#"[{{"id": {job}, "return_code": {number}}}]"#);
        client_error(raw(&world, Method::PATCH, "/jobs/", body).await, number);
        let body = format!(r#"[{{"id": {number}, "return_code": 1}}]"#);
        client_error(raw(&world, Method::PATCH, "/jobs/", body).await, number);
    }
    for path in ["/jobs/", "/apps/", "/sites/", "/events/", "/transfers/", "/batch-jobs/", "/sessions/"] {
        for id in ["99999999999999999999", "-99999999999999999999", "x", "1e3x"] {
            client_error(world.user.get(&format!("{path}?id={id}")).await, path);
            client_error(world.user.put(&format!("{path}{id}"), &json!({})).await, path);
        }
    }
    assert_eq!(world.user.count("/jobs/").await, 1);
}

#[tokio::test]
async fn shapes_that_no_node_has() {
    let world = World::new().await;
    for field in ["num_nodes", "ranks_per_node", "threads_per_rank", "threads_per_core", "node_packing_count"] {
        for value in [0, -1, i64::from(i32::MIN)] {
            let body = json!([with(json!({"app_id": world.plain, "workdir": "x"}), &json!({ field: value }))]);
            world.user.post("/jobs/", &body).await.invalid(field);
        }
    }
    let negative = json!([{"app_id": world.plain, "workdir": "x", "gpus_per_rank": -0.5}]);
    world.user.post("/jobs/", &negative).await.invalid("gpus_per_rank");
    assert_eq!(world.user.count("/jobs/").await, 0);
}

#[tokio::test]
async fn nul_and_broken_text() {
    let world = World::new().await;
    let job = id(&world.plain_job(&json!({})).await);
    let nul = "a\u{0}b";
    for body in [
        json!({"workdir": nul}),
        json!({"tags": {"k": nul}}),
        json!({"tags": {nul: "v"}}),
        json!({"data": {"deep": [{"x": nul}]}}),
        json!({"serialized_parameters": nul}),
        json!({"launch_params": {"k": nul}}),
        json!({"parameters": {"k": nul}}),
    ] {
        let made = json!([with(json!({"app_id": world.plain, "workdir": "x"}), &body)]);
        client_error(world.user.post("/jobs/", &made).await, &body.to_string());
        client_error(world.user.put(&format!("/jobs/{job}"), &body).await, &body.to_string());
    }
    client_error(world.user.post("/sites/", &json!({"name": nul, "path": "/x"})).await, "name");
    client_error(world.user.post("/sites/", &json!({"name": "x", "path": "/a\u{0}"})).await, "path");
    for query in ["tags=k:a%00b", "workdir__contains=%00", "workdir__contains=%FF%FE", "tags=k:%C3%28"] {
        let answer = world.user.get(&format!("/jobs/?{query}")).await;
        assert!(answer.status == 200 || answer.status == 422, "{query}: {answer:?}");
    }
    let broken = [&b"[{\"app_id\": 1, \"workdir\": \""[..], &[0xff, 0xfe, b'"', b'}', b']']].concat();
    client_error(raw(&world, Method::POST, "/jobs/", broken).await, "broken UTF-8");
    assert_eq!(world.user.count("/jobs/").await, 1);
}

#[tokio::test]
async fn half_of_a_surrogate_pair() {
    let world = World::new().await;
    let body = format!(r#"[{{"app_id": {}, "workdir": "x", "tags": {{"k": "\ud800"}}}}]"#, world.plain);
    client_error(raw(&world, Method::POST, "/jobs/", body).await, "a lone surrogate");
}

#[tokio::test]
async fn text_that_looks_like_something_else_is_kept() {
    let world = World::new().await;
    let texts =
        ["'; drop table jobs; --", "%s%n{0}{{x}}", "../../etc/passwd", "<script>", "ünïcödé 🚀", "a\tb\nc", "\u{202e}"];
    let tags: serde_json::Map<String, Value> =
        texts.iter().enumerate().map(|(index, text)| (format!("{text}{index}"), json!(text))).collect();
    let job = id(&world.plain_job(&json!({"tags": tags, "data": {"t": texts}, "workdir": "ünïcödé dir/'x'"})).await);
    let row = world.user.get_job(job).await;
    assert_eq!((&row["tags"], &row["data"]["t"]), (&json!(tags), &json!(texts)));
    assert_eq!(row["workdir"], "ünïcödé dir/'x'");
    assert_eq!(world.user.ids("/jobs/?workdir__contains=ünïcödé dir").await, [job]);
    assert_eq!(world.user.ids("/jobs/?tags=ünïcödé 🚀4:ünïcödé 🚀").await, [job]);
}

#[tokio::test]
async fn bodies_that_are_no_json_or_not_the_right_one() {
    let world = World::new().await;
    let bodies = ["", "{", "[", "null", "1", "\"x\"", "[null]", "[[]]", "[1]", "{\"a\":}", "[{}", "\u{feff}[]", "[{}]"];
    for body in bodies {
        client_error(raw(&world, Method::POST, "/jobs/", body).await, body);
        client_error(raw(&world, Method::POST, "/sites/", body).await, body);
        client_error(raw(&world, Method::POST, "/apps/", body).await, body);
        client_error(raw(&world, Method::POST, "/sessions/", body).await, body);
        client_error(raw(&world, Method::POST, "/batch-jobs/", body).await, body);
        client_error(raw(&world, Method::POST, "/auth/password/register", body).await, body);
    }
    for body in ["{}", "null", "1", "[1]", "[{\"id\": null}]", "[{\"id\": []}]"] {
        client_error(raw(&world, Method::PATCH, "/jobs/", body).await, body);
        client_error(raw(&world, Method::PATCH, "/transfers/", body).await, body);
        client_error(raw(&world, Method::PATCH, "/batch-jobs/", body).await, body);
    }
}

#[tokio::test]
async fn deep_json_is_refused_and_moderate_depth_is_kept() {
    let world = World::new().await;
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let body = |levels: usize| {
        format!(r#"[{{"app_id": {}, "workdir": "d/{levels}", "data": {{"x": {}}}}}]"#, world.plain, nested(levels))
    };
    for levels in [200, 100_000] {
        client_error(raw(&world, Method::POST, "/jobs/", body(levels)).await, &format!("{levels} levels"));
    }
    let made = raw(&world, Method::POST, "/jobs/", body(30)).await.created();
    let row = world.user.get_job(id(&made[0])).await;
    assert_eq!(row["data"]["x"].to_string(), nested(30));
    assert_eq!(world.user.count("/jobs/").await, 1);
}

#[tokio::test]
async fn huge_tags_and_bodies() {
    let world = World::new().await;
    let job = |fields: &Value| json!([with(json!({"app_id": world.plain, "workdir": "x"}), fields)]);
    let megabyte = "x".repeat(1 << 20);
    for fields in [json!({"tags": {"k": megabyte}}), json!({"tags": {&megabyte: "v"}})] {
        client_error(world.user.post("/jobs/", &job(&fields)).await, "a tag of 1 MB");
    }
    let many: serde_json::Map<String, Value> = (0..100_000).map(|index| (format!("k{index}"), json!("v"))).collect();
    client_error(world.user.post("/jobs/", &job(&json!({"tags": many}))).await, "100,000 tags");
    assert_eq!(world.user.count("/jobs/").await, 0);
    assert_eq!(world.user.get("/jobs/?tags=k:v").await.ok()["count"], 0);
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let world = World::new().await;
    let request = world.user.request(Method::POST, "/jobs/").header("content-type", "application/json");
    let body = vec![b' '; 600 << 20];
    // The service may close the connection before it has read it all: then there is no answer to look at.
    if let Ok(answer) = request.body(body).send().await {
        assert_eq!(answer.status().as_u16(), 413);
    }
    world.user.get("/jobs/").await.ok();
}

#[tokio::test]
async fn hostile_workdirs() {
    let world = World::new().await;
    for workdir in [
        "/",
        "/etc",
        "..",
        "../x",
        "a/../..",
        "a/b/../../../c",
        "./..",
        "",
        ".",
        "./",
        "a\u{0}",
        "a\nb",
        &"y".repeat(257),
    ] {
        let body = json!([{"app_id": world.plain, "workdir": workdir}]);
        world.user.post("/jobs/", &body).await.invalid("workdir");
        let job = id(&world.plain_job(&json!({"workdir": "fine"})).await);
        world.user.put(&format!("/jobs/{job}"), &json!({"workdir": workdir})).await.invalid("workdir");
        world.user.patch("/jobs/", &json!([{"id": job, "workdir": workdir}])).await.invalid("workdir");
        assert_eq!(world.user.get_job(job).await["workdir"], "fine");
    }
}

/// What a script sends whose variable is not set.
#[tokio::test]
async fn an_empty_filter_deletes_nothing() {
    let world = World::new().await;
    world.plain_jobs(3).await;
    for name in ["id", "app_id", "site_id", "parent_id", "state", "state__ne", "last_update_before", "batch_job_id"] {
        world.user.delete(&format!("/jobs/?{name}=")).await.invalid(name);
        world.user.put(&format!("/jobs/?{name}="), &json!({"state": "FAILED"})).await.invalid(name);
        world.user.post(&format!("/jobs/cancel?{name}="), &json!({})).await.invalid(name);
    }
    assert_eq!(world.user.get("/jobs/by-state").await.ok(), json!({"PREPROCESSED": 3}));
}

#[tokio::test]
async fn long_queries_and_headers() {
    let world = World::new().await;
    let tag = "x".repeat(4000);
    world.user.get(&format!("/jobs/?tags=k:{tag}")).await.ok();
    // A service may close the connection instead of reading such a header to its end, so these have
    // connections of their own: a pooled one would fail the next request.
    let alone = || Api::new(world.user.base()).with_token(world.user.token().expect("a user has a token"));
    let long = alone().request(Method::GET, "/jobs/").header("x-long", "y".repeat(1 << 20));
    let key = alone().request(Method::POST, "/jobs/").header("Idempotency-Key", "k".repeat(100_000));
    for request in [long, key.json(&json!([{"app_id": world.plain, "workdir": "x"}]))] {
        if let Ok(answer) = request.send().await {
            assert!((400..500).contains(&answer.status().as_u16()), "{answer:?}");
        }
        assert_eq!(world.user.count("/jobs/").await, 0);
    }
}

#[tokio::test]
async fn update_bodies_of_every_resource_with_every_wrong_type() {
    let world = World::new().await;
    let user = &world.user;
    let job = id(&world.plain_job(&json!({})).await);
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let wrong = [json!([]), json!({"a": {}}), json!(null), json!([[1]])];
    for (path, fields) in [
        (format!("/jobs/{job}"), "workdir num_nodes wall_time_min gpus_per_rank pending_file_cleanup priority"),
        (format!("/sites/{}", world.site), "name path allowed_projects_x transfer_locations_x"),
        (format!("/apps/{}", world.app), "name serialized_class source_code description"),
        (format!("/batch-jobs/{batch_job}"), "state status_info"),
    ] {
        for field in fields.split(' ').filter(|field| !field.ends_with("_x")) {
            for value in &wrong {
                if field == "status_info" && value.is_object() {
                    continue;
                }
                let answer = user.put(&path, &json!({ field: value })).await;
                assert_eq!(answer.status, 422, "{path} {field} = {value}: {}", answer.body);
                answer.invalid(field);
            }
        }
    }
}
