//! Apps.

use copal_schemas::{
    AppId, SiteId,
    app::{App, AppCreate, AppPatch},
    page::Page,
};
use sqlx::{PgConnection, postgres::PgRow, prelude::FromRow, types::Json};

use crate::{
    error::{ApiError, ApiResult, OnConstraint as _},
    extract::{CurrentUser, Paging},
    feed,
};

/// Until the Site's agent says something else of an App that is made through the API.
const NOT_TAKEN: &str = "the Site's agent has not written its file yet, which takes a second where it runs; \
                         see `copal site status`, start it with `copal site start`";

macro_rules! columns {
    () => {
        "apps.id, apps.site_id, apps.name, apps.serialized_class, apps.source_code, apps.description, \
         apps.parameters, apps.transfers, apps.command, apps.hooks, apps.max_restarts, apps.gone, apps.remote, \
         apps.refusal"
    };
}

macro_rules! matching {
    () => {
        " from apps join sites on sites.id = apps.site_id where apps.owner_id = $1 \
         and ($2::bigint[] is null or apps.site_id = any($2)) and ($3::bigint[] is null or apps.id = any($3)) \
         and ($4::text is null or apps.name = $4) and ($5::text is null or strpos(sites.path, $5) > 0) \
         and ($6::text is null or sites.name = $6) and ($7::bigint is null or apps.site_id = $7)"
    };
}

struct Row(App);

impl<'r> FromRow<'r, PgRow> for Row {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        use sqlx::Row as _;
        Ok(Self(App {
            id: row.try_get("id")?,
            site_id: row.try_get("site_id")?,
            name: row.try_get("name")?,
            serialized_class: row.try_get("serialized_class")?,
            source_code: row.try_get("source_code")?,
            description: row.try_get("description")?,
            parameters: row.try_get::<Json<_>, _>("parameters")?.0,
            transfers: row.try_get::<Json<_>, _>("transfers")?.0,
            command: row.try_get("command")?,
            hooks: row.try_get::<Json<_>, _>("hooks")?.0,
            max_restarts: row.try_get("max_restarts")?,
            gone: row.try_get("gone")?,
            remote: row.try_get::<Option<Json<_>>, _>("remote")?.map(|json| json.0),
            refusal: row.try_get("refusal")?,
        }))
    }
}

/// Which Apps are wanted; what is `None` or empty does not filter.
#[derive(Debug, Default)]
pub struct AppFilter {
    /// At one of these Sites.
    pub site_ids: Vec<SiteId>,
    /// One of these.
    pub ids: Vec<AppId>,
    /// The exact name.
    pub name: Option<String>,
    /// A part of the Site's path.
    pub site_path: Option<String>,
    /// The Site's exact name.
    pub site_name: Option<String>,
}

/// The user's Apps that match, by id.
///
/// # Errors
/// When the database does not answer.
pub async fn list(tx: &mut PgConnection, user: &CurrentUser, filter: &AppFilter, page: Paging) -> ApiResult<Page<App>> {
    let (site_ids, ids) = (super::unless_empty(&filter.site_ids), super::unless_empty(&filter.ids));
    let count = sqlx::query_scalar(concat!("select count(*)", matching!()))
        .bind(user.id)
        .bind(site_ids)
        .bind(ids)
        .bind(&filter.name)
        .bind(&filter.site_path)
        .bind(&filter.site_name)
        .bind(user.site())
        .fetch_one(&mut *tx)
        .await?;
    if page.limit == 0 {
        return Ok(Page { count, results: Vec::new() });
    }
    let rows: Vec<Row> =
        sqlx::query_as(concat!("select ", columns!(), matching!(), " order by apps.id limit $8 offset $9"))
            .bind(user.id)
            .bind(site_ids)
            .bind(ids)
            .bind(&filter.name)
            .bind(&filter.site_path)
            .bind(&filter.site_name)
            .bind(user.site())
            .bind(page.limit)
            .bind(page.offset)
            .fetch_all(tx)
            .await?;
    Ok(Page { count, results: rows.into_iter().map(|row| row.0).collect() })
}

/// One App of the user.
///
/// # Errors
/// 404.
pub async fn get(tx: &mut PgConnection, user: &CurrentUser, id: AppId) -> ApiResult<App> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from apps where id = $1 and owner_id = $2 and ($3::bigint is null or site_id = $3)"
    ))
    .bind(id)
    .bind(user.id)
    .bind(user.site())
    .fetch_optional(tx)
    .await?;
    row.map(|row| row.0).ok_or_else(|| no_app(id))
}

/// Makes an App. One that is made through the API wakes the agent of its Site.
///
/// # Errors
/// 404 for a Site that is not the user's; 400 when the Site has an App of the name.
pub async fn create(tx: &mut PgConnection, user: &CurrentUser, app: &AppCreate) -> ApiResult<App> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "insert into apps (site_id, owner_id, name, serialized_class, source_code, description, parameters, \
         transfers, command, hooks, max_restarts, remote, refusal) \
         select id, owner_id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $14 from sites where id = $1 and owner_id = $2 \
         and ($12::bigint is null or id = $12) returning ",
        columns!()
    ))
    .bind(app.site_id)
    .bind(user.id)
    .bind(&app.name)
    .bind(&app.serialized_class)
    .bind(&app.source_code)
    .bind(&app.description)
    .bind(Json(&app.parameters))
    .bind(Json(&app.transfers))
    .bind(&app.command)
    .bind(Json(&app.hooks))
    .bind(app.max_restarts)
    .bind(user.site())
    .bind(app.remote.as_ref().map(Json))
    .bind(app.remote.as_ref().map(|_| NOT_TAKEN))
    .fetch_optional(&mut *tx)
    .await
    .map_err(|error| broken_rule(error, &app.name, app.site_id))?;
    let made = row.map(|row| row.0).ok_or_else(|| no_site(app.site_id))?;
    if made.remote.is_some() {
        feed::site_changed(tx, user.id, made.site_id).await?;
    }
    Ok(made)
}

/// Changes the fields that the patch has. One that is made through the API must be taken by the agent of its Site anew, which
/// is woken, unless the patch is what that agent says of it.
///
/// # Errors
/// 404 for an App or a new Site that is not the user's; 400 when the Site has another App of the name.
pub async fn update(tx: &mut PgConnection, user: &CurrentUser, id: AppId, patch: &AppPatch) -> ApiResult<App> {
    let left = match patch.site_id {
        Some(site) => check_move(tx, user, id, site).await?,
        None => None,
    };
    let row: Option<Row> = sqlx::query_as(concat!(
        "update apps set \
             site_id = coalesce($3, site_id), \
             name = coalesce($4, name), \
             serialized_class = coalesce($5, serialized_class), \
             source_code = coalesce($6, source_code), \
             description = coalesce($7, description), \
             parameters = coalesce($8, parameters), \
             transfers = coalesce($9, transfers), \
             command = case when $10 then $11 else command end, \
             hooks = case when remote is not null and not $17 then hooks else coalesce($12, hooks) end, \
             max_restarts = case when $13 then $14 else max_restarts end, \
             gone = coalesce($16, gone), \
             remote = case when $17 then $18 else remote end, \
             refusal = case when (case when $17 then $18 else remote end) is null then null \
                 when $19 then $20 else $21 end \
         where id = $1 and owner_id = $2 and ($15::bigint is null or site_id = $15) returning ",
        columns!()
    ))
    .bind(id)
    .bind(user.id)
    .bind(patch.site_id)
    .bind(&patch.name)
    .bind(&patch.serialized_class)
    .bind(&patch.source_code)
    .bind(&patch.description)
    .bind(patch.parameters.as_ref().map(Json))
    .bind(patch.transfers.as_ref().map(Json))
    .bind(patch.command.is_some())
    .bind(patch.command.as_ref().and_then(Option::as_ref))
    .bind(patch.hooks.map(Json))
    .bind(patch.max_restarts.is_some())
    .bind(patch.max_restarts.flatten())
    .bind(user.site())
    .bind(patch.gone)
    .bind(patch.remote.is_some())
    .bind(patch.remote.as_ref().and_then(Option::as_ref).map(Json))
    .bind(patch.refusal.is_some())
    .bind(patch.refusal.as_ref().and_then(Option::as_ref))
    .bind(NOT_TAKEN)
    .fetch_optional(&mut *tx)
    .await
    .on_constraint("apps_site_name_key", || name_taken(patch.name.as_deref().unwrap_or("of that name")))?;
    let app = row.map(|row| row.0).ok_or_else(|| no_app(id))?;
    let is_agents = patch.refusal.is_some();
    if !is_agents && (app.remote.is_some() || patch.remote.is_some()) {
        feed::site_changed(&mut *tx, user.id, app.site_id).await?;
        if let Some(left) = left {
            feed::site_changed(tx, user.id, left).await?;
        }
    }
    Ok(app)
}

/// Whether an App can be at `site` from now on. Its Jobs carry their Site and can't follow. Gives the Site that it leaves.
async fn check_move(tx: &mut PgConnection, user: &CurrentUser, id: AppId, site: SiteId) -> ApiResult<Option<SiteId>> {
    let found: Option<SiteId> = sqlx::query_scalar(
        "select id from sites where id = $1 and owner_id = $2 and ($3::bigint is null or id = $3) for key share",
    )
    .bind(site)
    .bind(user.id)
    .bind(user.site())
    .fetch_optional(&mut *tx)
    .await?;
    found.ok_or_else(|| no_site(site))?;
    // Against the creation of Jobs, which locks their Apps.
    let present: Option<SiteId> =
        sqlx::query_scalar("select site_id from apps where id = $1 and owner_id = $2 for update")
            .bind(id)
            .bind(user.id)
            .fetch_optional(&mut *tx)
            .await?;
    if present == Some(site) {
        return Ok(None);
    }
    let has_jobs: bool =
        sqlx::query_scalar("select exists (select from job_details where app_id = $1)").bind(id).fetch_one(tx).await?;
    match has_jobs {
        true => Err(ApiError::conflict(format!(
            "App {id} has Jobs, which belong to its present Site; delete them first, or make another App"
        ))),
        false => Ok(present),
    }
}

/// Deletes an App. Its Jobs are invisible from then on, and are removed behind.
///
/// # Errors
/// 404.
pub async fn delete(tx: &mut PgConnection, user: &CurrentUser, id: AppId) -> ApiResult<()> {
    let gone: Option<(SiteId, bool)> = sqlx::query_as(
        "with gone as (delete from apps where id = $1 and owner_id = $2 \
         and ($3::bigint is null or site_id = $3) returning id, site_id, owner_id, remote), \
         noted as (insert into deleted_apps (app_id, site_id, owner_id) select id, site_id, owner_id from gone) \
         select site_id, remote is not null from gone",
    )
    .bind(id)
    .bind(user.id)
    .bind(user.site())
    .fetch_optional(&mut *tx)
    .await?;
    match gone {
        None => Err(no_app(id)),
        Some((_, false)) => Ok(()),
        Some((site, true)) => feed::site_changed(tx, user.id, site).await,
    }
}

fn broken_rule(error: sqlx::Error, name: &str, site: SiteId) -> ApiError {
    match error.as_database_error().and_then(|error| error.constraint()) {
        Some("apps_site_name_key") => name_taken(name),
        // The Site was deleted a moment ago.
        Some("apps_site_fkey") => no_site(site),
        _ => error.into(),
    }
}

fn no_app(id: AppId) -> ApiError {
    ApiError::not_found(format_args!("App {id}"))
}

fn no_site(id: SiteId) -> ApiError {
    ApiError::not_found(format_args!("Site {id}"))
}

fn name_taken(name: &str) -> ApiError {
    ApiError::conflict(format!("the Site has an App named {name:?} already; change that one, or choose another name"))
}
