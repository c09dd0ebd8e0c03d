//! Sites.

use copal_schemas::{
    SiteId, Timestamp, UserId,
    page::Page,
    site::{Site, SiteDetails, SitePatch},
};
use sqlx::{PgConnection, postgres::PgRow, prelude::FromRow, types::Json};

use crate::{
    error::{ApiError, ApiResult, OnConstraint as _},
    extract::{CurrentUser, Paging},
};

macro_rules! columns {
    () => {
        "id, name, path, globus_endpoint_id, backfill_windows, node_states, nodes_aside, queued_jobs, \
         optional_batch_job_params, allowed_projects, allowed_queues, transfer_locations, node_shape, last_refresh, creation_date"
    };
}

macro_rules! matching {
    () => {
        " from sites where owner_id = $1 and ($2::text is null or name = $2) \
         and ($3::text is null or strpos(path, $3) > 0) and ($4::bigint[] is null or id = any($4)) \
         and ($5::timestamptz is null or last_refresh >= $5) and ($6::bigint is null or id = $6)"
    };
}

struct Row(Site);

impl<'r> FromRow<'r, PgRow> for Row {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        use sqlx::Row as _;
        Ok(Self(Site {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            path: row.try_get("path")?,
            details: SiteDetails {
                globus_endpoint_id: row.try_get("globus_endpoint_id")?,
                backfill_windows: row.try_get::<Json<_>, _>("backfill_windows")?.0,
                node_states: row.try_get::<Json<_>, _>("node_states")?.0,
                nodes_aside: row.try_get::<Json<_>, _>("nodes_aside")?.0,
                queued_jobs: row.try_get::<Json<_>, _>("queued_jobs")?.0,
                optional_batch_job_params: row.try_get::<Json<_>, _>("optional_batch_job_params")?.0,
                allowed_projects: row.try_get::<Json<_>, _>("allowed_projects")?.0,
                allowed_queues: row.try_get::<Json<_>, _>("allowed_queues")?.0,
                transfer_locations: row.try_get::<Json<_>, _>("transfer_locations")?.0,
                node_shape: row.try_get::<Option<Json<_>>, _>("node_shape")?.map(|json| json.0),
            },
            last_refresh: row.try_get("last_refresh")?,
            creation_date: row.try_get("creation_date")?,
        }))
    }
}

/// Which Sites are wanted; what is `None` or empty does not filter.
#[derive(Debug, Default)]
pub struct SiteFilter {
    /// The exact name.
    pub name: Option<String>,
    /// A part of the path.
    pub path: Option<String>,
    /// One of these.
    pub ids: Vec<SiteId>,
    /// Refreshed then or later.
    pub last_refresh_after: Option<Timestamp>,
}

/// The user's Sites that match, by id.
///
/// # Errors
/// When the database does not answer.
pub async fn list(
    tx: &mut PgConnection,
    user: &CurrentUser,
    filter: &SiteFilter,
    page: Paging,
) -> ApiResult<Page<Site>> {
    let ids = super::unless_empty(&filter.ids);
    let count = sqlx::query_scalar(concat!("select count(*)", matching!()))
        .bind(user.id)
        .bind(&filter.name)
        .bind(&filter.path)
        .bind(ids)
        .bind(filter.last_refresh_after)
        .bind(user.site())
        .fetch_one(&mut *tx)
        .await?;
    if page.limit == 0 {
        return Ok(Page { count, results: Vec::new() });
    }
    let rows: Vec<Row> = sqlx::query_as(concat!("select ", columns!(), matching!(), " order by id limit $7 offset $8"))
        .bind(user.id)
        .bind(&filter.name)
        .bind(&filter.path)
        .bind(ids)
        .bind(filter.last_refresh_after)
        .bind(user.site())
        .bind(page.limit)
        .bind(page.offset)
        .fetch_all(tx)
        .await?;
    Ok(Page { count, results: rows.into_iter().map(|row| row.0).collect() })
}

/// One Site of the user.
///
/// # Errors
/// 404.
pub async fn get(tx: &mut PgConnection, owner: UserId, id: SiteId) -> ApiResult<Site> {
    let row: Option<Row> =
        sqlx::query_as(concat!("select ", columns!(), " from sites where id = $1 and owner_id = $2"))
            .bind(id)
            .bind(owner)
            .fetch_optional(tx)
            .await?;
    row.map(|row| row.0).ok_or_else(|| no_site(id))
}

/// Sites of any user: for the event stream, which binds them to their owners itself.
///
/// # Errors
/// When the database does not answer.
pub async fn get_any(tx: &mut PgConnection, ids: &[SiteId]) -> ApiResult<Vec<Site>> {
    let rows: Vec<Row> = sqlx::query_as(concat!("select ", columns!(), " from sites where id = any($1)"))
        .bind(ids)
        .fetch_all(tx)
        .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Makes a Site.
///
/// # Errors
/// 400 when the user has one of the name.
pub async fn create(
    tx: &mut PgConnection,
    owner: UserId,
    name: &str,
    path: &str,
    details: &SiteDetails,
) -> ApiResult<Site> {
    let row: Row = sqlx::query_as(concat!(
        "insert into sites (owner_id, name, path, globus_endpoint_id, backfill_windows, queued_jobs, \
         optional_batch_job_params, allowed_projects, allowed_queues, transfer_locations, node_shape, node_states, \
         nodes_aside) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
         returning ",
        columns!()
    ))
    .bind(owner)
    .bind(name)
    .bind(path)
    .bind(details.globus_endpoint_id)
    .bind(Json(&details.backfill_windows))
    .bind(Json(&details.queued_jobs))
    .bind(Json(&details.optional_batch_job_params))
    .bind(Json(&details.allowed_projects))
    .bind(Json(&details.allowed_queues))
    .bind(Json(&details.transfer_locations))
    .bind(details.node_shape.map(Json))
    .bind(Json(&details.node_states))
    .bind(Json(&details.nodes_aside))
    .fetch_one(tx)
    .await
    .on_constraint("sites_owner_name_key", || name_taken(name))?;
    Ok(row.0)
}

/// Changes the fields that the patch has. `last_refresh` moves on in any case.
///
/// # Errors
/// 404; 400 when the user has another Site of the new name.
pub async fn update(tx: &mut PgConnection, owner: UserId, id: SiteId, patch: &SitePatch) -> ApiResult<Site> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "update sites set \
             name = coalesce($3, name), \
             path = coalesce($4, path), \
             globus_endpoint_id = case when $5 then $6 else globus_endpoint_id end, \
             backfill_windows = coalesce($7, backfill_windows), \
             node_states = coalesce($15, node_states), \
             nodes_aside = coalesce($16, nodes_aside), \
             queued_jobs = coalesce($8, queued_jobs), \
             optional_batch_job_params = coalesce($9, optional_batch_job_params), \
             allowed_projects = coalesce($10, allowed_projects), \
             allowed_queues = coalesce($11, allowed_queues), \
             transfer_locations = coalesce($12, transfer_locations), \
             node_shape = case when $13 then $14 else node_shape end, \
             last_refresh = greatest(clock_timestamp(), last_refresh + interval '1 microsecond') \
         where id = $1 and owner_id = $2 returning ",
        columns!()
    ))
    .bind(id)
    .bind(owner)
    .bind(&patch.name)
    .bind(&patch.path)
    .bind(patch.globus_endpoint_id.is_some())
    .bind(patch.globus_endpoint_id.flatten())
    .bind(patch.backfill_windows.as_ref().map(Json))
    .bind(patch.queued_jobs.as_ref().map(Json))
    .bind(patch.optional_batch_job_params.as_ref().map(Json))
    .bind(patch.allowed_projects.as_ref().map(Json))
    .bind(patch.allowed_queues.as_ref().map(Json))
    .bind(patch.transfer_locations.as_ref().map(Json))
    .bind(patch.node_shape.is_some())
    .bind(patch.node_shape.flatten().map(Json))
    .bind(patch.node_states.as_ref().map(Json))
    .bind(patch.nodes_aside.as_ref().map(Json))
    .fetch_optional(tx)
    .await
    .on_constraint("sites_owner_name_key", || name_taken(patch.name.as_deref().unwrap_or_default()))?;
    row.map(|row| row.0).ok_or_else(|| no_site(id))
}

/// Deletes a Site with its Apps, BatchJobs and Sessions. Its Jobs are invisible from then on, since
/// their Apps are gone, and are removed behind.
///
/// # Errors
/// 404.
pub async fn delete(tx: &mut PgConnection, owner: UserId, id: SiteId) -> ApiResult<()> {
    // Nobody adds an App or a credential between the statements.
    lock(tx, owner, id).await?;
    super::logins::revoke_of_site(tx, id).await?;
    sqlx::query(
        "insert into deleted_apps (app_id, site_id, owner_id) \
         select id, site_id, owner_id from apps where site_id = $1 order by id for update",
    )
    .bind(id)
    .execute(&mut *tx)
    .await?;
    sqlx::query("delete from sites where id = $1").bind(id).execute(tx).await?;
    Ok(())
}

/// Keeps a Site from being changed or deleted until the transaction ends.
///
/// # Errors
/// 404.
pub(crate) async fn lock(tx: &mut PgConnection, owner: UserId, id: SiteId) -> ApiResult<()> {
    let found: Option<SiteId> = sqlx::query_scalar("select id from sites where id = $1 and owner_id = $2 for update")
        .bind(id)
        .bind(owner)
        .fetch_optional(tx)
        .await?;
    found.map(drop).ok_or_else(|| no_site(id))
}

fn no_site(id: SiteId) -> ApiError {
    ApiError::not_found(format_args!("Site {id}"))
}

fn name_taken(name: &str) -> ApiError {
    ApiError::conflict(format!("you have a Site named {name:?} already; choose another name"))
}
