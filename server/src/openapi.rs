//! The OpenAPI document, made from the handlers' own descriptions. What holds for many operations
//! alike (the token, the answers to a bad token or body) is added here once.

mod links;

use std::sync::LazyLock;

use copal_schemas::problem::{CONTENT_TYPE, Problem};
use utoipa::{
    Modify, OpenApi, ToSchema as _,
    openapi::{
        OpenApi as Document, Ref, RefOr,
        content::ContentBuilder,
        path::{Operation, Parameter, PathItem},
        response::ResponseBuilder,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::routes::{
    apps, auth, batch_jobs, device, docs, events, health, jobs, sessions, sites, staging, stream, subscribe, tokens,
    transfers,
};

#[derive(OpenApi)]
#[openapi(
    info(title = "Copal", description = "Campaigns of jobs on many HPC machines through pilot jobs."),
    paths(
        health::alive,
        health::ready,
        health::metrics,
        docs::openapi_json,
        docs::page,
        auth::login_methods,
        auth::register,
        auth::login,
        auth::whoami,
        device::device_login,
        device::device_token,
        device::device_page,
        device::decide_device,
        tokens::renew_token,
        tokens::revoke_token,
        tokens::list_logins,
        tokens::revoke_login,
        tokens::create_site_token,
        tokens::create_launcher_secret,
        tokens::exchange_launcher_secret,
        sites::list_sites,
        sites::create_site,
        sites::get_site,
        sites::update_site,
        sites::delete_site,
        apps::list_apps,
        apps::create_app,
        apps::get_app,
        apps::update_app,
        apps::delete_app,
        batch_jobs::list_batch_jobs,
        batch_jobs::create_batch_job,
        batch_jobs::update_batch_jobs,
        batch_jobs::update_matching_batch_jobs,
        batch_jobs::get_batch_job,
        batch_jobs::update_batch_job,
        batch_jobs::delete_batch_job,
        jobs::list_jobs,
        jobs::create_jobs,
        jobs::create_job_array,
        jobs::update_jobs,
        jobs::update_matching_jobs,
        jobs::delete_matching_jobs,
        jobs::count_jobs_by_state,
        jobs::cancel_jobs,
        jobs::get_job,
        jobs::update_job,
        jobs::delete_job,
        jobs::list_attempts,
        jobs::explain_job,
        sessions::list_sessions,
        sessions::create_session,
        sessions::acquire_jobs,
        sessions::tick_session,
        sessions::delete_session,
        sessions::report_updates,
        sessions::get_signals,
        staging::list_due_transfers,
        staging::claim_due_transfers,
        transfers::list_transfers,
        transfers::update_transfers,
        transfers::update_matching_transfers,
        transfers::get_transfer,
        transfers::update_transfer,
        events::list_events,
        stream::stream_events,
        subscribe::subscribe_user,
    ),
    components(schemas(Problem)),
    security(("token" = [])),
    modifiers(&Common)
)]
struct Api;

/// Operations on all rows that the filters of a list match: the list, and where they are themselves.
const BY_FILTER: &[(&str, &str, &str)] = &[
    ("/jobs/", "get", "/jobs/by-state"),
    ("/jobs/", "post", "/jobs/cancel"),
    ("/jobs/", "put", "/jobs/"),
    ("/jobs/", "delete", "/jobs/"),
    ("/batch-jobs/", "put", "/batch-jobs/"),
    ("/transfers/", "put", "/transfers/"),
];

/// Parameters of lists that say which page is wanted, and not which rows.
const PAGING: &[&str] = &["limit", "offset", "ordering", "after_id"];

/// The document.
pub fn document() -> &'static Document {
    static DOCUMENT: LazyLock<Document> = LazyLock::new(Api::openapi);
    &DOCUMENT
}

/// Adds what operations have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(
            "token",
            SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build()),
        );
        copy_filters(document);
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            let public = operation.security.is_some();
            if !public {
                add(operation, "401", "The token is missing, bad, or has lapsed");
            }
            if operation.request_body.is_some() {
                add(operation, "413", "The body is too large");
            }
            if operation.request_body.is_some() || operation.parameters.is_some() {
                add(operation, "422", "A value is missing or wrong; `errors` names its place");
            }
            add(operation, "503", "The database can't be reached now; try again");
        }
        links::add(document);
    }
}

fn copy_filters(document: &mut Document) {
    for (list, method, path) in BY_FILTER {
        let list = document.paths.paths.get(*list).and_then(|item| item.get.as_ref());
        let filters = list.and_then(|list| list.parameters.as_ref()).into_iter().flatten();
        let says_which = |filter: &&RefOr<Parameter>| match filter {
            RefOr::T(filter) => !PAGING.contains(&filter.name.as_str()),
            RefOr::Ref(_) => true,
        };
        let filters: Vec<_> = filters.filter(says_which).cloned().collect();
        if let Some(operation) = document.paths.paths.get_mut(*path).and_then(|item| operation(item, method)) {
            operation.parameters.get_or_insert_default().extend(filters);
        }
    }
}

fn operation<'a>(path: &'a mut PathItem, method: &str) -> Option<&'a mut Operation> {
    match method {
        "get" => path.get.as_mut(),
        "put" => path.put.as_mut(),
        "post" => path.post.as_mut(),
        "delete" => path.delete.as_mut(),
        _ => None,
    }
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete].into_iter().flatten()
}

fn add(operation: &mut Operation, status: &str, description: &str) {
    let problem = RefOr::Ref(Ref::from_schema_name(Problem::name()));
    let response = ResponseBuilder::new()
        .description(description)
        .content(CONTENT_TYPE, ContentBuilder::new().schema(Some(problem)).build())
        .build();
    operation.responses.responses.entry(status.into()).or_insert(RefOr::T(response));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_that_wants_a_token_documents_401() {
        let json = serde_json::to_value(document()).unwrap();
        for (path, item) in json["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                if operation.get("security").is_some() {
                    continue;
                }
                assert!(operation["responses"].get("401").is_some(), "{method} {path}");
            }
        }
    }

    #[test]
    fn what_is_done_by_filter_names_the_filters() {
        let json = serde_json::to_value(document()).unwrap();
        for (_, method, path) in BY_FILTER {
            let parameters = json["paths"][path][method]["parameters"].as_array().unwrap();
            let names: Vec<_> = parameters.iter().map(|parameter| parameter["name"].as_str().unwrap()).collect();
            assert!(names.contains(&"id") && names.contains(&"site_id"), "{method} {path}: {names:?}");
            assert!(!names.contains(&"limit"), "{method} {path}: {names:?}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = serde_json::to_string(document()).unwrap();
        let json = serde_json::to_value(document()).unwrap();
        for reference in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(json.pointer(reference).is_some(), "{reference}");
        }
    }
}
