//! What holds for all paths: spellings, methods, error bodies, public paths (contract, section 1).

use copal_tests::{World, id};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn collections_answer_with_and_without_the_slash() {
    let world = World::new().await;
    for path in ["/sites", "/apps", "/jobs", "/batch-jobs", "/sessions", "/transfers", "/events"] {
        let bare = world.user.get(path).await.ok();
        assert_eq!(world.user.get(&format!("{path}/")).await.ok(), bare, "{path}");
        let counted = bare["count"].as_i64().unwrap();
        assert!(counted >= bare["results"].as_array().unwrap().len() as i64);
    }
    let site = world.user.get(&format!("/sites/{}/", world.site)).await.ok();
    assert_eq!(id(&site), world.site);
    let made = world.user.post("/jobs", &json!([{"app_id": world.plain, "workdir": "x"}])).await.created();
    assert_eq!(made.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_paths_and_methods_have_problem_bodies() {
    let world = World::new().await;
    for path in ["/nothing", "/jobs/1/nothing", "/sites/1/2/3", "//jobs"] {
        let problem = world.user.get(path).await.refused(404);
        assert_eq!(problem["code"], "not_found", "{path}");
    }
    for (method, path) in [
        (Method::DELETE, "/sites/"),
        (Method::PUT, "/sites/"),
        (Method::PATCH, "/jobs/1"),
        (Method::POST, "/jobs/1"),
        (Method::GET, "/sessions/1"),
        (Method::POST, "/events/"),
    ] {
        let answer = world.user.send(world.user.request(method.clone(), path).json(&json!({}))).await;
        assert!(answer.headers.contains_key("allow"), "{method} {path}: {answer:?}");
        assert_eq!(answer.refused(405)["code"], "method_not_allowed", "{method} {path}");
    }
}

#[tokio::test]
async fn item_paths_want_a_number() {
    let world = World::new().await;
    for path in ["/sites/x", "/jobs/1.5", "/apps/99999999999999999999", "/transfers/%20", "/batch-jobs/0x1"] {
        let answer = world.user.get(path).await;
        assert!(matches!(answer.status, 404 | 422), "{path}: {answer:?}");
        let status = answer.status;
        answer.refused(status);
    }
    for path in ["/sites/-1", "/jobs/0", "/jobs/9223372036854775807"] {
        world.user.get(path).await.refused(404);
    }
}

#[tokio::test]
async fn the_paths_for_operators_need_no_token() {
    let world = World::new().await;
    let anonymous = world.service.api();
    for path in ["/healthz", "/readyz", "/docs", "/metrics", "/openapi.json"] {
        let answer = anonymous.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    let metrics = anonymous.get("/metrics").await.ok();
    assert!(metrics.as_str().unwrap().contains("copal_"), "{metrics}");
}

#[tokio::test]
async fn the_openapi_document_lists_the_contracts_operations() {
    let world = World::new().await;
    let document = world.service.api().get("/openapi.json").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{}", document["openapi"]);
    let paths = document["paths"].as_object().unwrap();
    let has = |path: &str, method: &str| {
        let bare = path.trim_end_matches('/');
        [bare.to_owned(), format!("{bare}/")]
            .iter()
            .any(|spelling| paths.get(spelling).is_some_and(|item| item.get(method).is_some()))
    };
    for (path, methods) in [
        ("/auth/how", "get"),
        ("/auth/password/register", "post"),
        ("/auth/password/login", "post"),
        ("/auth/password/me", "get"),
        ("/sites/", "get post"),
        ("/sites/{id}", "get put delete"),
        ("/apps/", "get post"),
        ("/apps/{id}", "get put delete"),
        ("/jobs/", "get post put patch delete"),
        ("/jobs/{id}", "get put delete"),
        ("/jobs/by-state", "get"),
        ("/jobs/cancel", "post"),
        ("/jobs/{id}/attempts", "get"),
        ("/jobs/{id}/why", "get"),
        ("/job-arrays/", "post"),
        ("/batch-jobs/", "get post put patch"),
        ("/batch-jobs/{id}", "get put delete"),
        ("/sessions/", "get post"),
        ("/sessions/{id}", "post put delete"),
        ("/sessions/{id}/updates", "post"),
        ("/sessions/{id}/signals", "get"),
        ("/transfers/", "get put patch"),
        ("/transfers/{id}", "get put"),
        ("/events/", "get"),
        ("/events/stream", "get"),
    ] {
        for method in methods.split(' ') {
            assert!(has(path, method), "{method} {path} is not in the document");
        }
    }
    let mut names: Vec<&str> =
        operations(&document).into_iter().map(|(_, _, operation)| operation["operationId"].as_str().unwrap()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "operation ids are unique");
}

/// Path, method and operation of all that the document lists.
pub(crate) fn operations(document: &Value) -> Vec<(String, Method, &Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if let Ok(method) = method.to_uppercase().parse::<Method>()
                && ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str())
            {
                all.push((path.clone(), method, operation));
            }
        }
    }
    all
}

#[tokio::test]
async fn every_operation_but_the_public_ones_wants_a_token() {
    let world = World::new().await;
    let anonymous = world.service.api();
    let document = anonymous.get("/openapi.json").await.ok();
    let public = |path: &str| {
        // The token of /subscribe-user is its first message.
        let open = ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/subscribe-user"];
        open.contains(&path) || (path.starts_with("/auth/") && !path.ends_with("/me"))
    };
    for (path, method, _) in operations(&document) {
        if public(&path) {
            continue;
        }
        let filled = fill(&path, "1");
        let answer = anonymous.send(anonymous.request(method.clone(), &filled).json(&json!({}))).await;
        assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        answer.refused(401);
    }
}

/// The path with every `{parameter}` replaced.
pub(crate) fn fill(path: &str, value: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { value.to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}
