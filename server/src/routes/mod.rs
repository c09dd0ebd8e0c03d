//! The one route table: reading it is reading the API. Collections answer with and without the
//! slash at the end, items too.

pub(crate) mod apps;
pub(crate) mod auth;
pub(crate) mod batch_jobs;
mod check;
mod client;
pub(crate) mod device;
pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod sessions;
pub(crate) mod sites;
pub(crate) mod staging;
pub(crate) mod stream;
pub(crate) mod subscribe;
pub(crate) mod tokens;
pub(crate) mod transfers;

use actix_web::{
    Handler, HttpRequest, HttpResponse, Resource, Responder, Route,
    dev::{AppService, HttpServiceFactory},
    web::{self, ServiceConfig},
};

use copal_schemas::problem::ErrorCode;

use crate::error::{ApiError, ApiResult};

/// Every route of the service.
pub fn table(routes: &mut ServiceConfig) {
    routes
        .service(Endpoint::at(&["/healthz"]).get(health::alive))
        .service(Endpoint::at(&["/readyz"]).get(health::ready))
        .service(Endpoint::at(&["/metrics"]).get(health::metrics))
        .service(Endpoint::at(&["/openapi.json"]).get(docs::openapi_json))
        .service(Endpoint::at(&["/docs"]).get(docs::page))
        .service(Endpoint::at(&["/auth/how"]).get(auth::login_methods))
        .service(Endpoint::at(&["/auth/password/register"]).post(auth::register))
        .service(Endpoint::at(&["/auth/password/login"]).post(auth::login))
        .service(Endpoint::at(&["/auth/password/me"]).get(auth::whoami))
        .service(Endpoint::at(&["/auth/device/login"]).post(device::device_login))
        .service(Endpoint::at(&["/auth/device/token"]).post(device::device_token))
        .service(
            Endpoint::at(&["/auth/oauth/ALCF/login/device", "/auth/device"])
                .get(device::device_page)
                .post(device::decide_device),
        )
        .service(Endpoint::at(&["/auth/token"]).post(tokens::renew_token))
        .service(Endpoint::at(&["/auth/revoke"]).post(tokens::revoke_token))
        .service(Endpoint::at(&["/auth/launcher"]).post(tokens::exchange_launcher_secret))
        .service(Endpoint::at(&["/auth/logins", "/auth/logins/"]).get(tokens::list_logins))
        .service(Endpoint::at(&["/auth/logins/{id}", "/auth/logins/{id}/"]).delete(tokens::revoke_login))
        .service(Endpoint::at(&["/sites/{id}/token"]).post(tokens::create_site_token))
        .service(Endpoint::at(&["/batch-jobs/{id}/launcher-secret"]).post(tokens::create_launcher_secret))
        .service(Endpoint::at(&["/sites", "/sites/"]).get(sites::list_sites).post(sites::create_site))
        .service(
            Endpoint::at(&["/sites/{id}", "/sites/{id}/"])
                .get(sites::get_site)
                .put(sites::update_site)
                .delete(sites::delete_site),
        )
        .service(Endpoint::at(&["/apps", "/apps/"]).get(apps::list_apps).post(apps::create_app))
        .service(
            Endpoint::at(&["/apps/{id}", "/apps/{id}/"])
                .get(apps::get_app)
                .put(apps::update_app)
                .delete(apps::delete_app),
        )
        .service(
            Endpoint::at(&["/batch-jobs", "/batch-jobs/"])
                .get(batch_jobs::list_batch_jobs)
                .post(batch_jobs::create_batch_job)
                .put(batch_jobs::update_matching_batch_jobs)
                .patch(batch_jobs::update_batch_jobs),
        )
        .service(
            Endpoint::at(&["/batch-jobs/{id}", "/batch-jobs/{id}/"])
                .get(batch_jobs::get_batch_job)
                .put(batch_jobs::update_batch_job)
                .delete(batch_jobs::delete_batch_job),
        )
        .service(
            Endpoint::at(&["/jobs", "/jobs/"])
                .get(jobs::list_jobs)
                .post(jobs::create_jobs)
                .patch(jobs::update_jobs)
                .put(jobs::update_matching_jobs)
                .delete(jobs::delete_matching_jobs),
        )
        // Before the ids: these words are none.
        .service(Endpoint::at(&["/jobs/by-state", "/jobs/by-state/"]).get(jobs::count_jobs_by_state))
        .service(Endpoint::at(&["/jobs/cancel", "/jobs/cancel/"]).post(jobs::cancel_jobs))
        .service(
            Endpoint::at(&["/jobs/{id}", "/jobs/{id}/"])
                .get(jobs::get_job)
                .put(jobs::update_job)
                .delete(jobs::delete_job),
        )
        .service(Endpoint::at(&["/jobs/{id}/attempts", "/jobs/{id}/attempts/"]).get(jobs::list_attempts))
        .service(Endpoint::at(&["/jobs/{id}/why", "/jobs/{id}/why/"]).get(jobs::explain_job))
        .service(Endpoint::at(&["/job-arrays", "/job-arrays/"]).post(jobs::create_job_array))
        .service(Endpoint::at(&["/sessions", "/sessions/"]).get(sessions::list_sessions).post(sessions::create_session))
        .service(
            Endpoint::at(&["/sessions/{id}", "/sessions/{id}/"])
                .post(sessions::acquire_jobs)
                .put(sessions::tick_session)
                .delete(sessions::delete_session),
        )
        .service(Endpoint::at(&["/sessions/{id}/updates", "/sessions/{id}/updates/"]).post(sessions::report_updates))
        .service(Endpoint::at(&["/sessions/{id}/signals", "/sessions/{id}/signals/"]).get(sessions::get_signals))
        .service(
            Endpoint::at(&["/transfers", "/transfers/"])
                .get(transfers::list_transfers)
                .put(transfers::update_matching_transfers)
                .patch(transfers::update_transfers),
        )
        // Before the ids: this word is none.
        .service(
            Endpoint::at(&["/transfers/due", "/transfers/due/"])
                .get(staging::list_due_transfers)
                .post(staging::claim_due_transfers),
        )
        .service(
            Endpoint::at(&["/transfers/{id}", "/transfers/{id}/"])
                .get(transfers::get_transfer)
                .put(transfers::update_transfer),
        )
        .service(Endpoint::at(&["/events", "/events/"]).get(events::list_events))
        .service(Endpoint::at(&["/events/stream", "/events/stream/"]).get(stream::stream_events))
        .service(Endpoint::at(&["/subscribe-user"]).get(subscribe::subscribe_user));
}

/// The answer for a path that is not in the table.
///
/// # Errors
/// Always: 404.
pub async fn no_route(request: HttpRequest) -> ApiResult<HttpResponse> {
    let detail = format!("there is no {}; see /docs for what there is", request.path());
    Err(ApiError::new(ErrorCode::NotFound, detail))
}

/// A path, in all its spellings, with a handler a method; other methods answer 405 with `Allow`.
struct Endpoint {
    resource: Resource,
    allow: Vec<&'static str>,
}

impl Endpoint {
    fn at(paths: &'static [&'static str]) -> Self {
        Self { resource: web::resource(paths.to_vec()), allow: Vec::new() }
    }

    fn get<H, Args>(self, handler: H) -> Self
    where
        H: Handler<Args>,
        Args: actix_web::FromRequest + 'static,
        H::Output: Responder + 'static,
    {
        self.method("GET", web::get().to(handler))
    }

    fn post<H, Args>(self, handler: H) -> Self
    where
        H: Handler<Args>,
        Args: actix_web::FromRequest + 'static,
        H::Output: Responder + 'static,
    {
        self.method("POST", web::post().to(handler))
    }

    fn put<H, Args>(self, handler: H) -> Self
    where
        H: Handler<Args>,
        Args: actix_web::FromRequest + 'static,
        H::Output: Responder + 'static,
    {
        self.method("PUT", web::put().to(handler))
    }

    fn patch<H, Args>(self, handler: H) -> Self
    where
        H: Handler<Args>,
        Args: actix_web::FromRequest + 'static,
        H::Output: Responder + 'static,
    {
        self.method("PATCH", web::patch().to(handler))
    }

    fn delete<H, Args>(self, handler: H) -> Self
    where
        H: Handler<Args>,
        Args: actix_web::FromRequest + 'static,
        H::Output: Responder + 'static,
    {
        self.method("DELETE", web::delete().to(handler))
    }

    fn method(mut self, name: &'static str, route: Route) -> Self {
        self.resource = self.resource.route(route);
        self.allow.push(name);
        self
    }
}

impl HttpServiceFactory for Endpoint {
    fn register(self, service: &mut AppService) {
        let allow = self.allow.join(", ");
        self.resource
            .default_service(web::to(move || {
                let error = ApiError::method_not_allowed(allow.clone());
                async move { ApiResult::<HttpResponse>::Err(error) }
            }))
            .register(service);
    }
}
