//! `/sites/` (contract, section 3).

use copal_tests::{Service, Settings, World, id};
use serde_json::json;

#[tokio::test]
async fn a_new_site_has_the_defaults_and_reads_back_equal() {
    let service = Service::start(Settings::default()).await;
    let ann = service.user("ann").await;
    let site = ann.post("/sites/", &json!({"name": "theta", "path": "/projects/./ann//theta"})).await.created();
    for (key, value) in [
        ("name", json!("theta")),
        ("path", json!("/projects/ann/theta")),
        ("globus_endpoint_id", json!(null)),
        ("backfill_windows", json!({})),
        ("node_states", json!({})),
        ("nodes_aside", json!([])),
        ("queued_jobs", json!({})),
        ("optional_batch_job_params", json!({})),
        ("allowed_projects", json!([])),
        ("allowed_queues", json!({})),
        ("transfer_locations", json!({})),
    ] {
        assert_eq!(site[key], value, "{key} of {site}");
    }
    assert!(site.get("owner_id").is_none(), "{site}");
    for key in ["last_refresh", "creation_date"] {
        site[key].as_str().unwrap().parse::<chrono::NaiveDateTime>().expect("naive UTC");
    }
    assert_eq!(ann.get(&format!("/sites/{}", id(&site))).await.ok(), site);
    assert_eq!(ann.list("/sites/").await, [site]);
}

#[tokio::test]
async fn a_site_keeps_all_that_it_is_given() {
    let service = Service::start(Settings::default()).await;
    let ann = service.user("ann").await;
    let full = json!({
        "name": "theta", "path": "/projects/theta",
        "globus_endpoint_id": "8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0",
        "backfill_windows": {"default": [{"num_nodes": 12, "wall_time_min": 30}]},
        "node_states": {"default": {"idle": 12, "allocated": 100, "down": 16}},
        "nodes_aside": [{"node": "n7", "until": "2026-11-30T12:30:00", "reason": "3 Jobs in a row failed at once"}],
        "queued_jobs": {"41": {"scheduler_id": 41, "state": "queued", "queue": "default", "num_nodes": 2,
            "wall_time_min": 60, "project": "physics", "time_remaining_min": 60, "queued_time_min": 3}},
        "optional_batch_job_params": {"mig_count": "3"},
        "allowed_projects": ["physics"],
        "allowed_queues": {"default": {"max_nodes": 128, "max_walltime": 360, "max_queued_jobs": 10}},
        "transfer_locations": {"aps": "globus://8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0"}
    });
    let site = ann.post("/sites/", &full).await.created();
    for (key, value) in full.as_object().unwrap() {
        assert_eq!(&site[key], value, "{key}");
    }
    assert_eq!(ann.get(&format!("/sites/{}", id(&site))).await.ok(), site);
}

#[tokio::test]
async fn names_are_unique_for_each_user() {
    let service = Service::start(Settings::default()).await;
    let (ann, bob) = (service.user("ann").await, service.user("bob").await);
    ann.site("theta").await;
    let polaris = ann.site("polaris").await;
    ann.post("/sites/", &json!({"name": "theta", "path": "/x"})).await.refused(400);
    bob.site("theta").await;
    ann.put(&format!("/sites/{polaris}"), &json!({"name": "theta"})).await.refused(400);
    assert_eq!(ann.get(&format!("/sites/{polaris}")).await.ok()["name"], "polaris");
}

#[tokio::test]
async fn an_update_changes_what_it_names_and_refreshes() {
    let service = Service::start(Settings::default()).await;
    let (ann, bob) = (service.user("ann").await, service.user("bob").await);
    let created =
        ann.post("/sites/", &json!({"name": "theta", "path": "/x", "allowed_projects": ["physics"]})).await.created();
    let site = id(&created);
    let me = bob.get("/auth/password/me").await.ok();
    let change = json!({"path": "/y", "owner_id": me["id"], "id": 999, "num_nodes": 3});
    let updated = ann.put(&format!("/sites/{site}"), &change).await.ok();
    assert_eq!(updated["id"], site);
    assert_eq!(updated["path"], "/y");
    assert_eq!(updated["name"], "theta");
    assert_eq!(updated["allowed_projects"], json!(["physics"]));
    assert!(updated["last_refresh"].as_str() > created["last_refresh"].as_str());
    assert_eq!(updated["creation_date"], created["creation_date"]);
    assert!(bob.list("/sites/").await.is_empty());

    // Windows and states of nodes are told together or each alone.
    let windows = json!({"debug": [{"num_nodes": 1, "wall_time_min": 30}]});
    let states = json!({"debug": {"idle": 1, "allocated": 3, "down": 0}});
    ann.put(&format!("/sites/{site}"), &json!({"node_states": states})).await.ok();
    let updated = ann.put(&format!("/sites/{site}"), &json!({"backfill_windows": windows})).await.ok();
    assert_eq!((&updated["backfill_windows"], &updated["node_states"]), (&windows, &states));
    let updated = ann.put(&format!("/sites/{site}"), &json!({"node_states": {}})).await.ok();
    assert_eq!((&updated["backfill_windows"], &updated["node_states"]), (&windows, &json!({})));

    let mut before = updated["last_refresh"].clone();
    for _ in 0..20 {
        let after = ann.put(&format!("/sites/{site}"), &json!({})).await.ok()["last_refresh"].clone();
        assert!(after.as_str() > before.as_str(), "{after} is not later than {before}");
        before = after;
    }
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let service = Service::start(Settings::default()).await;
    let ann = service.user("ann").await;
    let (theta, polaris, aurora) = (ann.site("theta").await, ann.site("polaris").await, ann.site("aurora").await);
    assert_eq!(ann.ids("/sites/").await, [theta, polaris, aurora]);
    assert_eq!(ann.ids("/sites/?name=theta").await, [theta]);
    assert!(ann.ids("/sites/?name=thet").await.is_empty());
    assert_eq!(ann.ids("/sites/?path=home/po").await, [polaris]);
    assert!(ann.ids("/sites/?path=%25").await.is_empty(), "a percent sign is no wildcard");
    assert_eq!(ann.ids(&format!("/sites/?id={theta}&id={aurora}")).await, [theta, aurora]);
    let refreshed = ann.put(&format!("/sites/{polaris}"), &json!({})).await.ok();
    let after = refreshed["last_refresh"].as_str().unwrap().replace('T', " ");
    assert_eq!(ann.ids(&format!("/sites/?last_refresh_after={after}")).await, [polaris]);
}

#[tokio::test]
async fn bad_sites_are_refused_with_the_field() {
    let service = Service::start(Settings::default()).await;
    let ann = service.user("ann").await;
    for (fields, field) in [
        (json!({"name": "a"}), "path"),
        (json!({"path": "/x"}), "name"),
        (json!({"name": "a", "path": "relative"}), "path"),
        (json!({"name": null, "path": "/x"}), "name"),
        (json!({"name": [], "path": "/x"}), "name"),
        (json!({"name": "a", "path": "/x", "transfer_locations": {"aps": "no scheme"}}), "transfer_locations"),
        (json!({"name": "a", "path": "/x", "globus_endpoint_id": "no uuid"}), "globus_endpoint_id"),
        (json!({"name": "a", "path": "/x", "queued_jobs": {"1": {"scheduler_id": 1}}}), "queued_jobs"),
        (json!({"name": "a", "path": "/x", "backfill_windows": {"q": [{"num_nodes": 1}]}}), "backfill_windows"),
        (json!({"name": "a", "path": "/x", "allowed_queues": {"q": {"max_nodes": "many"}}}), "allowed_queues"),
    ] {
        ann.post("/sites/", &fields).await.invalid(field);
    }
    assert!(ann.list("/sites/").await.is_empty());
    let site = ann.site("theta").await;
    ann.put(&format!("/sites/{site}"), &json!({"path": "relative"})).await.invalid("path");
    ann.put(&format!("/sites/{site}"), &json!({"name": null})).await.invalid("name");
}

#[tokio::test]
async fn a_deleted_site_takes_all_that_hangs_on_it_along() {
    let world = World::new().await;
    let user = &world.user;
    let job = id(&world.plain_job(&json!({})).await);
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let session = user.session(world.site, Some(batch_job)).await;
    user.acquire(session, &json!({})).await;
    let kept = user.site("other").await;

    user.delete(&format!("/sites/{}", world.site)).await.deleted();
    user.delete(&format!("/sites/{}", world.site)).await.refused(404);
    user.get(&format!("/sites/{}", world.site)).await.refused(404);
    user.get(&format!("/apps/{}", world.app)).await.refused(404);
    user.get(&format!("/jobs/{job}")).await.refused(404);
    user.get(&format!("/batch-jobs/{batch_job}")).await.refused(404);
    user.put(&format!("/sessions/{session}"), &json!({})).await.refused(404);
    for path in ["/apps/", "/jobs/", "/batch-jobs/", "/sessions/", "/events/", "/transfers/"] {
        assert_eq!(user.get(path).await.ok()["results"], json!([]), "{path}");
    }
    assert_eq!(user.ids("/sites/").await, [kept]);
    // The name is free again.
    user.site("laptop").await;
}
