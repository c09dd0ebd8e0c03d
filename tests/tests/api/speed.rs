//! What keeps the service fast on a large database, judged by the rows that statements read and never by time.

use chrono::TimeDelta;
use copal_schemas::{
    AppId, JobId, JobState, SessionId, SiteId, StringMap, UserId,
    session::Acquire,
    transfer::{TransferClaim, TransferPatch, TransferPatchItem, TransferState},
};
use copal_server::{
    db::{
        self,
        job_filter::{JobFilter, OrderBy},
        scope::Scope,
    },
    extract::Paging,
};
use copal_tests::{
    Service, Settings, World, id,
    wait::{LIMIT, wait_for},
    world::with,
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, PgPool};

/// What an acquire reads which gets so many Jobs.
struct Read {
    /// Rows of `jobs`.
    rows: i64,
    /// Pages of the index of kinds.
    pages: i64,
}

async fn rows_read(world: &World, wanted: &Acquire, expected: usize) -> i64 {
    read(world, wanted, expected).await.rows
}

async fn read(world: &World, wanted: &Acquire, expected: usize) -> Read {
    let session = SessionId(world.session().await);
    let owner = UserId(id(&world.user.get("/auth/password/me").await.ok()));
    let scope = Scope { owner, site: None, batch_job: None };
    let pool = db::connect(&world.service.database().url().into()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let found = db::acquire::acquire(&mut transaction, scope, session, wanted).await.unwrap();
    let taken = match found {
        db::acquire::Acquired::Jobs(jobs) => jobs.len(),
        db::acquire::Acquired::Nothing(_) => 0,
    };
    assert_eq!(taken, expected, "{wanted:?}");
    const READ: &str =
        "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables where relname = 'jobs'";
    let rows = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await.unwrap();
    const PAGES: &str = "select pg_stat_get_xact_blocks_fetched('jobs_runnable_kind_idx'::regclass)";
    let pages = sqlx::query_scalar(PAGES).fetch_one(&mut *transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    pool.close().await;
    Read { rows, pages }
}

fn tags(pairs: &[(&str, &str)]) -> StringMap {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn pitfall_112_an_acquire_reads_what_it_takes_and_not_the_backlog() {
    let world = World::new().await;
    // Those with the second tag come after all with the first.
    for kind in ["first", "second"] {
        let job = json!({"app_id": world.plain, "workdir": format!("{kind}/{{index}}"), "parameters": {},
            "tags": {"kind": kind, "campaign": "a"}});
        world.user.post("/job-arrays/", &json!({"last": 2_999, "job": job})).await.created();
    }
    let mut database = world.service.database().connect().await;
    sqlx::query("analyze").execute(&mut database).await.unwrap();
    let ten = Acquire { max_num_jobs: 10, ..Acquire::default() };
    for filter_tags in [
        tags(&[]),
        tags(&[("kind", "second")]),
        tags(&[("campaign", "a")]),
        tags(&[("kind", "second"), ("campaign", "a")]),
    ] {
        for sort_by in ["fifo", "small_first", "long_large_first", "shortest_first"] {
            let wanted = Acquire { filter_tags: filter_tags.clone(), sort_by: Some(sort_by.into()), ..ten.clone() };
            let rows = rows_read(&world, &wanted, 10).await;
            assert!(rows <= 100, "{rows} rows read for {wanted:?}");
        }
    }
    for filter_tags in [tags(&[("kind", "third")]), tags(&[("kind", "first"), ("campaign", "b")])] {
        let wanted = Acquire { filter_tags, ..ten.clone() };
        let rows = rows_read(&world, &wanted, 0).await;
        assert!(rows <= 10, "{rows} rows read for {wanted:?}");
    }
    // Nothing is free of what an agent wants.
    let hooks = Acquire { states: vec![JobState::StagedIn], ..ten };
    let rows = rows_read(&world, &hooks, 0).await;
    assert!(rows <= 10, "{rows} rows read for {hooks:?}");
}

/// What most of the backlog does not meet: wide and long Jobs, of another App, come before those that fit.
#[tokio::test]
async fn pitfall_112_an_acquire_reads_no_jobs_that_do_not_fit() {
    let world = World::new().await;
    let user = &world.user;
    let other = user.app(world.site, "Other", &json!({"command": "true"})).await;
    for (kind, app, fields) in [
        ("wide", world.plain, json!({"num_nodes": 64, "wall_time_min": 600, "priority": 1})),
        ("ranks", world.plain, json!({"ranks_per_node": 4, "wall_time_min": 600, "priority": 1})),
        ("fits", other, json!({"wall_time_min": 5})),
    ] {
        let job = with(
            json!({"app_id": app, "workdir": format!("{kind}/{{index}}"), "parameters": {},
                "tags": {"kind": kind, "campaign": "a"}}),
            &fields,
        );
        user.post("/job-arrays/", &json!({"last": 9_999, "job": job})).await.created();
    }
    let mut database = world.service.database().connect().await;
    sqlx::query("vacuum analyze").execute(&mut database).await.unwrap();
    let ten = Acquire { max_num_jobs: 10, ..Acquire::default() };
    for narrow in [
        Acquire { max_wall_time_min: Some(10), ..ten.clone() },
        Acquire { serial_only: true, max_nodes_per_job: Some(1), max_wall_time_min: Some(60), ..ten.clone() },
        Acquire { app_ids: vec![AppId(other)], ..ten.clone() },
        Acquire { max_wall_time_min: Some(10), max_aggregate_nodes: Some(4.0), ..ten.clone() },
    ] {
        for filter_tags in [tags(&[]), tags(&[("campaign", "a")])] {
            for sort_by in ["fifo", "small_first", "long_large_first", "shortest_first"] {
                let wanted =
                    Acquire { filter_tags: filter_tags.clone(), sort_by: Some(sort_by.into()), ..narrow.clone() };
                let expected = if wanted.max_aggregate_nodes.is_some() { 4 } else { 10 };
                let Read { rows, pages } = read(&world, &wanted, expected).await;
                assert!(rows <= 600 && pages <= 100, "{rows} rows, {pages} pages read for {wanted:?}");
            }
        }
    }
    let nothing = Acquire { max_wall_time_min: Some(1), serial_only: true, ..ten };
    let Read { rows, pages } = read(&world, &nothing, 0).await;
    assert!(rows <= 600 && pages <= 100, "{rows} rows, {pages} pages read for {nothing:?}");
}

/// Rows of `jobs` and `transfers` that are read for a batch of ten, for a report that these are done, which is taken back,
/// and for a look at the `begun` ones, which there are then.
async fn staging_reads(world: &World, pool: &PgPool, begun: usize) -> [i64; 3] {
    const READ: &str = "select sum(seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
         where relname in ('jobs', 'transfers')";
    let owner = UserId(id(&world.user.get("/auth/password/me").await.ok()));
    let scope = Scope { owner, site: None, batch_job: None };
    let site = SiteId(world.site);
    let claim = TransferClaim { site_id: site, task_id: "x".into(), limit: 10, wait_sec: 0.0 };
    // What a connection did in the last second counts as well.
    let read = async |tx: &mut PgConnection| sqlx::query_scalar::<_, i64>(READ).fetch_one(tx).await;
    let taking = db::transact(pool, async |tx| {
        let before = read(tx).await?;
        let taken = db::staging::claim(tx, scope, &claim).await?;
        Ok((taken, read(tx).await? - before))
    });
    let (taken, for_batch) = taking.await.unwrap();
    assert_eq!(taken.len(), 10);
    let done = TransferPatch { state: Some(TransferState::Done), ..TransferPatch::default() };
    let report: Vec<TransferPatchItem> =
        taken.iter().map(|due| TransferPatchItem { id: due.transfer.id, patch: done.clone() }).collect();
    let mut transaction = pool.begin().await.unwrap();
    let before = read(&mut transaction).await.unwrap();
    db::transfers::update(&mut transaction, scope, &report).await.unwrap();
    let for_report = read(&mut transaction).await.unwrap() - before;
    transaction.rollback().await.unwrap();
    let for_look = db::transact_by_index(pool, async |tx| {
        let before = read(tx).await?;
        let states = [TransferState::Active, TransferState::Inactive];
        assert_eq!(db::staging::due(tx, scope, site, &states, 100_000).await?.len(), begun);
        Ok(read(tx).await? - before)
    });
    [for_batch, for_report, for_look.await.unwrap()]
}

#[tokio::test]
async fn a_batch_of_transfers_and_its_report_read_what_they_name_and_not_all_that_are_due() {
    let world = World::new().await;
    let user = &world.user;
    let locations = json!({"transfer_locations": {"a": "rsync://host/", "b": "rsync://host/", "c": "rsync://host/"}});
    user.put(&format!("/sites/{}", world.site), &locations).await.ok();
    let slot = json!({"required": false, "direction": "in", "local_path": "in"});
    let fields = json!({"command": "true", "hooks": {}, "transfers": {"input": slot}});
    let app = user.app(world.site, "Staged", &fields).await;
    let pool = db::connect(&world.service.database().url().into()).await.unwrap();
    let parent = id(&world.plain_job(&json!({"workdir": "parent"})).await);
    let fill = async |kind: &str| {
        for (location, parents) in [("a", vec![parent]), ("b", vec![]), ("a", vec![]), ("c", vec![])] {
            let job = json!({"app_id": app, "workdir": format!("{kind}/{location}/{}/{{index}}", parents.len()),
                "parameters": {}, "parent_ids": parents,
                "transfers": {"input": {"location_alias": location, "path": "/x"}}});
            user.post("/job-arrays/", &json!({"last": 2_999, "job": job})).await.created();
        }
    };
    let hold = async |when: &str, begun: usize| {
        let rows = staging_reads(&world, &pool, begun).await;
        assert!(rows.iter().all(|rows| *rows <= 100), "{rows:?} rows read {when}");
    };
    // What the planner knows must not matter: nothing, everything, and that no transfer is ever due.
    fill("unknown").await;
    hold("before the planner knows of them", 10).await;
    sqlx::query("analyze").execute(&pool).await.unwrap();
    hold("when it does", 20).await;
    for sql in ["update transfers set state = 'done', due_at = null", "analyze"] {
        sqlx::query(sql).execute(&pool).await.unwrap();
    }
    fill("others").await;
    hold("when it knows of those that are done", 10).await;
    pool.close().await;
}

#[tokio::test]
async fn counts_by_tag_read_no_jobs() {
    let world = World::new().await;
    let job = json!({"app_id": world.plain, "workdir": "a/{index}", "tags": {"campaign": "a"}, "parameters": {}});
    world.user.post("/job-arrays/", &json!({"last": 2_999, "job": job})).await.created();
    let owner = UserId(id(&world.user.get("/auth/password/me").await.ok()));
    let filter = JobFilter { tags: tags(&[("campaign", "a")]), ..JobFilter::default() };
    let pool = db::connect(&world.service.database().url().into()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let scope = Scope { owner, site: None, batch_job: None };
    assert_eq!(filter.count(&mut transaction, scope).await.unwrap(), 3_000);
    const READ: &str = "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables where relname in ('jobs', 'job_tags')";
    let rows: Vec<i64> = sqlx::query_scalar(READ).fetch_all(&mut *transaction).await.unwrap();
    assert_eq!(rows.iter().sum::<i64>(), 0);
    transaction.rollback().await.unwrap();
    pool.close().await;
}

/// The planner knows the table as it was before the Jobs that are counted.
#[tokio::test]
async fn counts_and_lists_of_an_array_read_each_of_its_jobs_once() {
    let world = World::new().await;
    let array = json!({"last": 4_999, "job": {"app_id": world.plain, "workdir": "a/{index}", "parameters": {}}});
    let first = world.user.post("/job-arrays/", &array).await.created()["array_id"].as_i64().unwrap();
    world.user.post("/jobs/", &json!([{"app_id": world.plain, "workdir": "one", "parameters": {}}])).await.created();
    world.user.delete(&format!("/jobs/?array_id={first}")).await.deleted();
    let mut database = world.service.database().connect().await;
    sqlx::query("vacuum analyze jobs, job_details").execute(&mut database).await.unwrap();
    let second = world.user.post("/job-arrays/", &array).await.created()["array_id"].as_i64().unwrap();

    let owner = UserId(id(&world.user.get("/auth/password/me").await.ok()));
    let scope = Scope { owner, site: None, batch_job: None };
    let runnable = vec![JobState::Preprocessed];
    for filter in [
        JobFilter { array_id: Some(second), ..JobFilter::default() },
        JobFilter { array_id: Some(second), states: runnable.clone(), ..JobFilter::default() },
        JobFilter { workdir_contains: Some("a/".into()), states: runnable, ..JobFilter::default() },
    ] {
        // Its counters may go on from one transaction to the next.
        let pool = db::connect(&world.service.database().url().into()).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        assert_eq!(filter.count_by_state(&mut transaction, scope).await.unwrap()[&JobState::Preprocessed], 5_000);
        assert_eq!(filter.count(&mut transaction, scope).await.unwrap(), 5_000);
        assert_eq!(filter.ids_after(&mut transaction, scope, JobId(0), 10_000).await.unwrap().len(), 5_000);
        const READ: &str = "select sum(seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
             where relname in ('jobs', 'job_details')";
        let rows: i64 = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await.unwrap();
        assert!(rows <= 3 * 2 * 5_010, "{rows} rows read for {filter:?}");
        transaction.rollback().await.unwrap();
        pool.close().await;
    }
}

#[tokio::test]
async fn the_removal_of_old_events_reads_no_young_ones() {
    let world = World::new().await;
    let job = json!({"app_id": world.plain, "workdir": "a/{index}", "parameters": {}});
    world.user.post("/job-arrays/", &json!({"last": 2_999, "job": job})).await.created();
    let mut database = world.service.database().connect().await;
    sqlx::query("analyze").execute(&mut database).await.unwrap();
    let mut transaction = database.begin().await.unwrap();
    assert!(!db::purge::prune_events(&mut transaction, TimeDelta::days(1)).await.unwrap());
    const READ: &str =
        "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables where relname = 'events'";
    let rows: i64 = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn lists_by_tag_read_a_page_however_far_its_jobs_are() {
    let world = World::new().await;
    for kind in ["first", "second"] {
        let job = json!({"app_id": world.plain, "workdir": format!("{kind}/{{index}}"), "parameters": {},
            "tags": {"kind": kind, "campaign": "a"}});
        world.user.post("/job-arrays/", &json!({"last": 9_999, "job": job})).await.created();
    }
    let mut database = world.service.database().connect().await;
    sqlx::query("vacuum analyze jobs, job_tags").execute(&mut database).await.unwrap();
    let owner = UserId(id(&world.user.get("/auth/password/me").await.ok()));
    let pool = db::connect(&world.service.database().url().into()).await.unwrap();
    let scope = Scope { owner, site: None, batch_job: None };
    for (wanted, states) in [
        (tags(&[("kind", "second")]), vec![]),
        (tags(&[("kind", "second")]), vec![JobState::Preprocessed]),
        (tags(&[("kind", "second"), ("campaign", "a")]), vec![]),
    ] {
        let filter = JobFilter { tags: wanted, states, ..JobFilter::default() };
        let mut transaction = pool.begin().await.unwrap();
        let page = Paging { limit: 10, offset: 0 };
        let ids = filter.ids(&mut transaction, scope, (OrderBy::Id, false), page).await.unwrap();
        assert_eq!(ids.len(), 10);
        const READ: &str = "select sum(seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
             where relname = 'jobs'";
        let rows: i64 = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await.unwrap();
        assert!(rows <= 100, "{rows} rows read for {filter:?}");
        transaction.rollback().await.unwrap();
    }
    pool.close().await;
}

/// The value of a series without labels.
async fn metric(service: &Service, name: &str) -> f64 {
    let text = reqwest::get(format!("{}/metrics", service.base())).await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

#[tokio::test]
async fn pitfall_116_a_snapshot_that_is_held_for_long_is_seen_and_ended() {
    let world = World::new().await;
    // The service's own connections end such a transaction.
    let pool = db::connect(&world.service.database().url().into()).await.unwrap();
    let limit: String = sqlx::query_scalar("show idle_in_transaction_session_timeout").fetch_one(&pool).await.unwrap();
    assert_eq!(limit, "1min");
    let mut held = pool.begin().await.unwrap();
    sqlx::query("set transaction isolation level repeatable read").execute(&mut *held).await.unwrap();
    sqlx::query("select count(*) from jobs").execute(&mut *held).await.unwrap();
    world.plain_jobs(1).await;
    let service = &world.service;
    wait_for("the snapshot to be seen", LIMIT, || async {
        let transactions = metric(service, "copal_db_oldest_snapshot_transactions").await;
        let seconds = metric(service, "copal_db_oldest_snapshot_seconds").await;
        if transactions >= 1.0 && seconds > 0.0 { Ok(()) } else { Err(format!("{transactions}, {seconds} s")) }
    })
    .await;
    // What the setting does, with a limit that a test can wait for.
    sqlx::query("set local idle_in_transaction_session_timeout = '10ms'").execute(&mut *held).await.unwrap();
    let others = &pool;
    wait_for("Postgres to end the transaction", LIMIT, || async {
        const HELD: &str = "select count(*) from pg_stat_activity where state = 'idle in transaction' \
             and datname = current_database()";
        let left: i64 = sqlx::query_scalar(HELD).fetch_one(others).await.unwrap();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    drop(held);
    pool.close().await;
}

#[tokio::test]
async fn events_older_than_the_retention_are_removed_by_the_service() {
    let mut world = World::with(Settings { event_retention_days: 3, ..Settings::default() }).await;
    let jobs = world.plain_jobs(2).await;
    let all = world.user.count("/events/?limit=0").await;
    world.service.stop().await;
    let mut database = world.service.database().connect().await;
    const AGE: &str = "update events set \"timestamp\" = \"timestamp\" - interval '4 days' where job_id = $1";
    let aged = sqlx::query(AGE).bind(jobs[0]).execute(&mut database).await.unwrap().rows_affected();
    world.service.restart().await;
    let user = &world.user.at(world.service.base());
    let expected = all - i64::try_from(aged).unwrap();
    wait_for("old events to be removed", LIMIT, || async {
        let left = user.count("/events/?limit=0").await;
        if left == expected { Ok(()) } else { Err(format!("{left} are left, not {expected}")) }
    })
    .await;
    assert_eq!(user.count(&format!("/events/?job_id={}", jobs[0])).await, 0);
    assert!(user.count(&format!("/events/?job_id={}", jobs[1])).await > 0);
    assert_eq!(user.count("/jobs/").await, 2, "Jobs stay");
}
