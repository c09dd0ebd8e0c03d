//! Links of the OpenAPI document: what can be done with a thing that was just made, so that programs that read the
//! document find the way from its creation to its end. They come from the paths: `POST /things/` makes what
//! `/things/{id}` and the paths below it are about.

use serde_json::{Value, json};
use utoipa::openapi::{OpenApi as Document, RefOr, link::LinkBuilder};

use super::operations;

/// An operation on something in something else, with a body that names the outer thing.
struct Inside {
    /// The collection of the outer things.
    outer: &'static str,
    operation: &'static str,
    /// The body, in which the expression stands for the outer thing's id.
    body: fn(&str) -> Value,
}

const INSIDE: &[Inside] = &[
    Inside { outer: "/sites/", operation: "create_app", body: |id| json!({"site_id": id}) },
    Inside { outer: "/sites/", operation: "create_batch_job", body: |id| json!({"site_id": id}) },
    Inside { outer: "/sites/", operation: "create_session", body: |id| json!({"site_id": id}) },
    Inside {
        outer: "/apps/",
        operation: "create_jobs",
        body: |id| json!([{"app_id": id, "workdir": "linked/job", "parameters": {}}]),
    },
    Inside { outer: "/jobs/", operation: "update_jobs", body: |id| json!([{"id": id, "tags": {"linked": "yes"}}]) },
    Inside { outer: "/batch-jobs/", operation: "update_batch_jobs", body: |id| json!([{"id": id, "state": "queued"}]) },
];

/// Where the new thing's id is in the answer; bulk calls answer with a list.
fn new_id(collection: &str) -> &'static str {
    if collection == "/jobs/" { "$response.body#/0/id" } else { "$response.body#/id" }
}

/// Adds them to each answer to a creation.
pub(super) fn add(document: &mut Document) {
    let makes = |path: &str| document.paths.paths.get(path).is_some_and(|item| item.post.is_some());
    let collections: Vec<String> = document
        .paths
        .paths
        .keys()
        .filter_map(|path| path.strip_suffix("{id}"))
        .filter(|path| makes(path))
        .map(str::to_owned)
        .collect();
    for collection in collections {
        let id = new_id(&collection);
        let item = format!("{collection}{{id}}");
        let below = |path: &str| path.strip_prefix(&item).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let mut links = Vec::new();
        for (path, operation) in document
            .paths
            .paths
            .iter_mut()
            .filter(|(path, _)| below(path))
            .flat_map(|(path, item)| operations(item).map(move |operation| (path, operation)))
        {
            let Some(name) = &operation.operation_id else { continue };
            let what = format!("`{path}` of what was made");
            links.push((name.clone(), LinkBuilder::new().operation_id(name).parameter("id", id).description(what)));
        }
        for Inside { operation, body, .. } in INSIDE.iter().filter(|inside| inside.outer == collection) {
            let link = LinkBuilder::new().operation_id(*operation).request_body(Some(body(id)));
            links.push(((*operation).to_owned(), link.description("with what was made")));
        }
        let created = document.paths.paths.get_mut(&collection).and_then(|item| item.post.as_mut());
        let answer = created.and_then(|operation| operation.responses.responses.get_mut("201"));
        if let Some(RefOr::T(answer)) = answer {
            answer.links.extend(links.into_iter().map(|(name, link)| (name, RefOr::T(link.build()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;

    #[test]
    fn what_is_made_links_to_its_reading_changing_and_end() {
        let json = serde_json::to_value(document()).unwrap();
        for (collection, thing) in
            [("/sites/", "site"), ("/apps/", "app"), ("/jobs/", "job"), ("/batch-jobs/", "batch_job")]
        {
            let links = json["paths"][collection]["post"]["responses"]["201"]["links"].as_object().unwrap();
            for verb in ["get", "update", "delete"] {
                assert_eq!(links[&format!("{verb}_{thing}")]["parameters"]["id"], new_id(collection));
            }
        }
        assert!(json["paths"]["/sessions/"]["post"]["responses"]["201"]["links"].get("acquire_jobs").is_some());
    }

    #[test]
    fn every_link_names_an_operation() {
        let json = serde_json::to_value(document()).unwrap();
        let operations: Vec<&Value> = json["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|item| item.as_object().unwrap().values().map(|operation| &operation["operationId"]))
            .collect();
        for Inside { outer, operation, .. } in INSIDE {
            assert!(operations.contains(&&json!(operation)), "{operation}");
            assert!(json["paths"][outer]["post"].is_object(), "{outer}");
        }
    }
}
