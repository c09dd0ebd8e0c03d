//! Sites (contract, section 3).

use actix_web::{HttpResponse, web};
use copal_schemas::{
    SiteId,
    batch_job::SchedulerId,
    lenient,
    page::Page,
    problem::{FieldError, Problem},
    site::{Site, SiteCreate, SiteDetails, SitePatch},
};

use super::check;
use crate::{
    app::Shared,
    db::{self, sites::SiteFilter},
    error::{ApiError, ApiResult},
    extract::{CurrentUser, PathId, QueryParams, ValidJson},
    feed,
};

/// Lists the user's Sites.
#[utoipa::path(get, path = "/sites/", tag = "sites", params(
    ("name" = Option<String>, Query, description = "The exact name"),
    ("path" = Option<String>, Query, description = "A part of the path"),
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("last_refresh_after" = Option<String>, Query, format = DateTime, description = "Refreshed then or later (ISO 8601)"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of Sites", body = Page<Site>),
))]
pub(crate) async fn list_sites(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = SiteFilter {
        name: query.text("name").map(Into::into),
        path: query.text("path").map(Into::into),
        ids: query.ids("id")?,
        last_refresh_after: query.datetime("last_refresh_after")?,
    };
    let page = query.paging()?;
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::sites::list(&mut connection, &user, &filter, page).await?))
}

/// Makes a Site.
#[utoipa::path(post, path = "/sites/", tag = "sites", request_body = SiteCreate, responses(
    (status = 201, description = "The Site", body = Site),
    (status = 400, description = "You have a Site of the name", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn create_site(
    shared: web::Data<Shared>,
    user: CurrentUser,
    // Read as a patch, whose fields are flat: an error then names its field.
    body: ValidJson<SitePatch>,
) -> ApiResult<HttpResponse> {
    let (name, path, details) = checked_create(body.0)?;
    let site = db::transact(&shared.pool, async |tx| {
        let site = db::sites::create(tx, user.id, &name, &path, &details).await?;
        feed::site_changed(tx, user.id, site.id).await?;
        Ok(site)
    })
    .await?;
    Ok(HttpResponse::Created().json(site))
}

/// Shows a Site.
#[utoipa::path(get, path = "/sites/{id}", tag = "sites", params(("id" = i64, Path)), responses(
    (status = 200, description = "The Site", body = Site),
    (status = 404, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn get_site(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SiteId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::sites::get(&mut connection, user.id, id.0).await?))
}

/// Changes the fields that the body has, and counts as a sign of life of the Site's agent.
#[utoipa::path(put, path = "/sites/{id}", tag = "sites", params(("id" = i64, Path)), request_body = SitePatch, responses(
    (status = 200, description = "The Site as it is now", body = Site),
    (status = 400, description = "You have a Site of the name", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn update_site(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SiteId>,
    body: ValidJson<SitePatch>,
) -> ApiResult<HttpResponse> {
    let patch = checked(body.0)?;
    let site = db::transact(&shared.pool, async |tx| {
        let site = db::sites::update(tx, user.id, id.0, &patch).await?;
        feed::site_changed(tx, user.id, site.id).await?;
        Ok(site)
    })
    .await?;
    Ok(HttpResponse::Ok().json(site))
}

/// Deletes a Site with everything that belongs to it.
#[utoipa::path(delete, path = "/sites/{id}", tag = "sites", params(("id" = i64, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn delete_site(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SiteId>,
) -> ApiResult<HttpResponse> {
    db::transact(&shared.pool, async |tx| {
        db::sites::delete(tx, user.id, id.0).await?;
        feed::site_deleted(tx, user.id, id.0).await
    })
    .await?;
    Ok(HttpResponse::NoContent().finish())
}

fn checked_create(body: SitePatch) -> ApiResult<(String, String, SiteDetails)> {
    let patch = checked(body)?;
    let missing = |field| ApiError::invalid_field(field, "the field is required");
    let name = patch.name.ok_or_else(|| missing("name"))?;
    let path = patch.path.ok_or_else(|| missing("path"))?;
    let details = SiteDetails {
        globus_endpoint_id: patch.globus_endpoint_id.flatten(),
        backfill_windows: patch.backfill_windows.unwrap_or_default(),
        node_states: patch.node_states.unwrap_or_default(),
        nodes_aside: patch.nodes_aside.unwrap_or_default(),
        queued_jobs: patch.queued_jobs.unwrap_or_default(),
        optional_batch_job_params: patch.optional_batch_job_params.unwrap_or_default(),
        allowed_projects: patch.allowed_projects.unwrap_or_default(),
        allowed_queues: patch.allowed_queues.unwrap_or_default(),
        transfer_locations: patch.transfer_locations.unwrap_or_default(),
        node_shape: patch.node_shape.flatten(),
    };
    Ok((name, path, details))
}

/// The patch with its path in normal form, when every field is right.
fn checked(mut patch: SitePatch) -> ApiResult<SitePatch> {
    let mut errors = Vec::new();
    if let Some(name) = &patch.name {
        check::name(&["name"], name, &mut errors);
    }
    if let Some(path) = &mut patch.path {
        if path.starts_with('/') {
            *path = lenient::normal_path(path);
        } else {
            errors.push(check::error(&["path"], format!("an absolute path is wanted, not {path:?}")));
        }
    }
    for (alias, location) in patch.transfer_locations.iter().flatten() {
        if let Some(error) = location_error(alias, location) {
            errors.push(error);
        }
    }
    for (key, job) in patch.queued_jobs.iter().flatten() {
        if job.scheduler_id.is_too_long() {
            let msg = check::too_long(SchedulerId::MAX_LETTERS);
            errors.push(check::error(&["queued_jobs", key, "scheduler_id"], msg));
        }
    }
    check::finish(patch, errors)
}

fn location_error(alias: &str, location: &str) -> Option<FieldError> {
    let scheme_ok = location.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    });
    (!scheme_ok).then(|| {
        check::error(
            &["transfer_locations", alias],
            format!("a URL with a scheme is wanted, such as file:///data or globus://ID/path, not {location:?}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_urls() {
        for good in ["globus://1234/x", "file:///data", "scp://user@host/path", "s3+x:bucket"] {
            assert_eq!(location_error("a", good), None, "{good}");
        }
        for bad in ["/data", "host/path", "", "://x", "1a:x", "x:"] {
            assert!(location_error("a", bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn ids_of_queued_jobs_are_bounded() {
        let queued = |id: String| {
            let job = serde_json::json!({"scheduler_id": id, "state": "queued", "queue": "q", "num_nodes": 1,
                "wall_time_min": 1, "project": "p", "time_remaining_min": 0, "queued_time_min": 0});
            checked(serde_json::from_value(serde_json::json!({"queued_jobs": {"1": job}})).unwrap())
        };
        assert!(queued("1".repeat(SchedulerId::MAX_LETTERS)).is_ok());
        let error = queued("1".repeat(SchedulerId::MAX_LETTERS + 1)).unwrap_err();
        assert_eq!(error.problem().errors[0].loc, ["body", "queued_jobs", "1", "scheduler_id"]);
    }

    #[test]
    fn a_site_needs_name_and_absolute_path() {
        let site = |json| checked_create(serde_json::from_value(json).unwrap());
        assert!(site(serde_json::json!({"name": "x", "path": "/a//b/."})).is_ok_and(|(_, path, _)| path == "/a/b"));
        for bad in [
            serde_json::json!({"path": "/a"}),
            serde_json::json!({"name": "x"}),
            serde_json::json!({"name": "x", "path": "a"}),
            serde_json::json!({"name": "", "path": "/a"}),
        ] {
            assert!(site(bad.clone()).is_err(), "{bad}");
        }
    }
}
