//! Apps (contract, section 4).

use std::collections::BTreeMap;

use actix_web::{HttpResponse, web};
use copal_schemas::{
    AppId,
    app::{App, AppCreate, AppParameter, AppPatch, MAX_SERIALIZED_CLASS, TransferSlot, check_parameter, is_identifier},
    lenient,
    page::Page,
    problem::{FieldError, Problem},
};

use super::check;
use crate::{
    app::Shared,
    db::{self, apps::AppFilter},
    error::ApiResult,
    extract::{CurrentUser, PathId, QueryParams, ValidJson},
};

/// Lists the user's Apps.
#[utoipa::path(get, path = "/apps/", tag = "apps", params(
    ("site_id" = Option<Vec<i64>>, Query, description = "At one of these Sites"),
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("name" = Option<String>, Query, description = "The exact name"),
    ("site_path" = Option<String>, Query, description = "A part of the Site's path"),
    ("site_name" = Option<String>, Query, description = "The Site's exact name"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of Apps", body = Page<App>),
))]
pub(crate) async fn list_apps(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = AppFilter {
        site_ids: query.ids("site_id")?,
        ids: query.ids("id")?,
        name: query.text("name").map(Into::into),
        site_path: query.text("site_path").map(Into::into),
        site_name: query.text("site_name").map(Into::into),
    };
    let page = query.paging()?;
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::apps::list(&mut connection, &user, &filter, page).await?))
}

/// Makes an App.
#[utoipa::path(post, path = "/apps/", tag = "apps", request_body = AppCreate, responses(
    (status = 201, description = "The App", body = App),
    (status = 400, description = "The Site has an App of the name", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn create_app(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: ValidJson<AppCreate>,
) -> ApiResult<HttpResponse> {
    let app = checked_create(body.0)?;
    let app = db::transact(&shared.pool, async |tx| db::apps::create(tx, &user, &app).await).await?;
    Ok(HttpResponse::Created().json(app))
}

/// Shows an App.
#[utoipa::path(get, path = "/apps/{id}", tag = "apps", params(("id" = i64, Path)), responses(
    (status = 200, description = "The App", body = App),
    (status = 404, description = "No such App", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn get_app(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<AppId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::apps::get(&mut connection, &user, id.0).await?))
}

/// Changes the fields that the body has.
#[utoipa::path(put, path = "/apps/{id}", tag = "apps", params(("id" = i64, Path)), request_body = AppPatch, responses(
    (status = 200, description = "The App as it is now", body = App),
    (status = 400, description = "The Site has an App of the name", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such App or Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn update_app(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<AppId>,
    body: ValidJson<AppPatch>,
) -> ApiResult<HttpResponse> {
    let patch = checked_patch(body.0)?;
    let app = db::transact(&shared.pool, async |tx| db::apps::update(tx, &user, id.0, &patch).await).await?;
    Ok(HttpResponse::Ok().json(app))
}

/// Deletes an App with its Jobs.
#[utoipa::path(delete, path = "/apps/{id}", tag = "apps", params(("id" = i64, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "No such App", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn delete_app(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<AppId>,
) -> ApiResult<HttpResponse> {
    db::transact(&shared.pool, async |tx| db::apps::delete(tx, &user, id.0).await).await?;
    Ok(HttpResponse::NoContent().finish())
}

fn checked_create(mut app: AppCreate) -> ApiResult<AppCreate> {
    let mut errors = Vec::new();
    check_name(&app.name, &mut errors);
    check_class(&app.serialized_class, &mut errors);
    check_parameters(&mut app.parameters, app.command.is_some(), &mut errors);
    check_transfers(&mut app.transfers, &mut errors);
    if let Some(remote) = &app.remote {
        app.hooks = remote.hooks.declared();
    }
    check::finish(app, errors)
}

fn checked_patch(mut patch: AppPatch) -> ApiResult<AppPatch> {
    let mut errors = Vec::new();
    if let Some(name) = &patch.name {
        check_name(name, &mut errors);
    }
    if let Some(class) = &patch.serialized_class {
        check_class(class, &mut errors);
    }
    if let Some(parameters) = &mut patch.parameters {
        check_parameters(parameters, matches!(patch.command, Some(Some(_))), &mut errors);
    }
    if let Some(transfers) = &mut patch.transfers {
        check_transfers(transfers, &mut errors);
    }
    if let Some(Some(remote)) = &patch.remote {
        patch.hooks = Some(remote.hooks.declared());
    }
    check::finish(patch, errors)
}

fn check_name(name: &str, errors: &mut Vec<FieldError>) {
    check::name(&["name"], name, errors);
    if !is_identifier(name) {
        let msg = format!("{name:?} is no identifier; use letters, digits and `_`, and no digit first");
        errors.push(check::error(&["name"], msg));
    }
}

fn check_class(class: &str, errors: &mut Vec<FieldError>) {
    // A text of ASCII, as pickles in base64 are, has as many letters as bytes.
    if class.len() > MAX_SERIALIZED_CLASS && class.chars().count() > MAX_SERIALIZED_CLASS {
        errors.push(check::error(&["serialized_class"], format!("at most {MAX_SERIALIZED_CLASS} letters")));
    }
}

/// Also gives required parameters the null default that they are shown with. An App from a Site's file
/// (it has a command) may have an optional parameter whose default is the empty text.
fn check_parameters(parameters: &mut BTreeMap<String, AppParameter>, from_file: bool, errors: &mut Vec<FieldError>) {
    for (name, parameter) in parameters {
        match check_parameter(name, parameter) {
            Err(_) if from_file && !parameter.required && parameter.default.is_some() => {}
            Ok(()) if parameter.required => parameter.default = None,
            Ok(()) => {}
            Err(msg) => errors.push(check::error(&["parameters", name], msg)),
        }
    }
}

fn check_transfers(transfers: &mut BTreeMap<String, TransferSlot>, errors: &mut Vec<FieldError>) {
    for (name, slot) in transfers {
        let place = ["transfers", name, "local_path"];
        if slot.local_path.starts_with('/') {
            errors.push(check::error(&place, format!("a path below the workdir is wanted, not {:?}", slot.local_path)));
        } else if slot.local_path.split('/').any(|part| part == "..") {
            errors.push(check::error(&place, format!("must not lead out of the workdir: {:?}", slot.local_path)));
        } else {
            slot.local_path = lenient::normal_path(&slot.local_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_app(mut extra: serde_json::Value) -> ApiResult<AppCreate> {
        let mut app = json!({"site_id": 1, "name": "A", "serialized_class": "", "source_code": ""});
        app.as_object_mut().unwrap().append(extra.as_object_mut().unwrap());
        checked_create(serde_json::from_value(app).unwrap())
    }

    #[test]
    fn names_are_identifiers() {
        assert!(check_app(json!({"name": "Hello_2"})).is_ok());
        for bad in ["", "2x", "a b", "a-b", "a.b"] {
            assert!(check_app(json!({"name": bad})).is_err(), "{bad}");
        }
    }

    #[test]
    fn required_and_default_exclude_each_other() {
        let parameter = |json: serde_json::Value| check_app(json!({"parameters": {"p": json}}));
        let app = parameter(json!({"required": true, "default": ""})).unwrap();
        assert_eq!(app.parameters["p"].default, None);
        assert!(parameter(json!({"required": false, "default": "x"})).is_ok());
        for bad in [
            json!({"required": true, "default": "x"}),
            json!({"required": false, "default": ""}),
            json!({"required": false}),
        ] {
            assert!(parameter(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn slots_stay_below_the_workdir() {
        let slot = |path: &str| {
            check_app(json!({"transfers": {"s": {"required": true, "direction": "in", "local_path": path}}}))
        };
        assert_eq!(slot("./a//b").unwrap().transfers["s"].local_path, "a/b");
        assert!(slot("/etc/passwd").is_err());
        assert!(slot("a/../../b").is_err());
    }
}
