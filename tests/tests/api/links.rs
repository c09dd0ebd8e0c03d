//! The links of the OpenAPI document: whoever follows them finds what was just made.

use std::collections::BTreeMap;

use copal_tests::World;
use serde_json::{Value, json};

/// Method and path of each operation, by its name.
fn operations(document: &Value) -> BTreeMap<&str, (&str, &str)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, item)| {
        item.as_object().unwrap().iter().filter_map(move |(method, operation)| {
            Some((operation["operationId"].as_str()?, (method.as_str(), path.as_str())))
        })
    });
    all.collect()
}

/// The value that an expression stands for, such as `$response.body#/0/id`.
fn resolve<'a>(expression: &Value, answer: &'a Value) -> &'a Value {
    let pointer = expression.as_str().unwrap().strip_prefix("$response.body#").unwrap();
    answer.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {answer}"))
}

#[tokio::test]
async fn links_lead_to_what_was_made_until_its_end() {
    let world = World::new().await;
    let user = &world.user;
    let document = user.get("/openapi.json").await.ok();
    let operations = operations(&document);
    let app = json!({"site_id": world.site, "name": "Linked", "serialized_class": "", "source_code": ""});
    let batch_job = json!({"site_id": world.site, "project": "physics", "queue": "debug", "num_nodes": 1,
        "wall_time_min": 30, "job_mode": "mpi"});
    for (collection, body, methods) in [
        ("/sites/", json!({"name": "linked", "path": "/linked"}), ["get", "put", "delete"].as_slice()),
        ("/apps/", app, &["get", "put", "delete"]),
        ("/jobs/", json!([{"app_id": world.plain, "workdir": "linked"}]), &["get", "put", "delete"]),
        ("/batch-jobs/", batch_job, &["get", "put", "delete"]),
        ("/sessions/", json!({"site_id": world.site}), &["put", "delete"]),
    ] {
        let made = user.post(collection, &body).await.created();
        let links = document["paths"][collection]["post"]["responses"]["201"]["links"].as_object().unwrap();
        let item = format!("{collection}{{id}}");
        for method in methods {
            let link = links.iter().find(|(name, _)| operations[name.as_str()] == (*method, item.as_str()));
            let (_, link) = link.unwrap_or_else(|| panic!("no link to {method} {item}"));
            let path = item.replace("{id}", &resolve(&link["parameters"]["id"], &made).to_string());
            match *method {
                "get" => drop(user.get(&path).await.ok()),
                "put" => drop(user.put(&path, &json!({})).await.ok()),
                _ => user.delete(&path).await.deleted(),
            }
        }
    }
}
