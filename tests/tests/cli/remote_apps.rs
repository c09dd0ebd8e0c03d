//! Files that a Site's agent wrote for Apps of the API, as `copal app sync` meets them.

use std::fs;

use copal_tests::{LIMIT, id, wait::wait_for};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};

use crate::desk::Desk;

#[tokio::test]
async fn a_file_that_the_agent_removes_while_apps_are_synced_is_not_taken_for_the_sites_own() {
    let desk = Desk::without_site().await;
    let path = desk.site_path();
    desk.ok(&["site", "init", path.to_str().unwrap(), "--name", "theta", "--platform", "local", "-y"]);
    let settings = fs::read_to_string(path.join("settings.yml")).unwrap();
    fs::write(path.join("settings.yml"), format!("{settings}allow_remote_apps: true\n")).unwrap();
    let anybody = desk.service.api();
    let form = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let login = anybody.post_form("/auth/password/login", &form).await.ok();
    let ann = anybody.with_token(login["access_token"].as_str().unwrap());
    let site = id(&desk.json(&["site", "ls"])[0]);
    let app = ann
        .post(
            "/apps/",
            &json!({"site_id": site, "name": "Greet", "serialized_class": "", "source_code": "", "command": "true", "remote": {}}),
        )
        .await
        .created();
    desk.ok(&["site", "start"]);
    let app = format!("/apps/{}", id(&app));
    wait_for("the agent to take the App", LIMIT, || async {
        match ann.get(&app).await.ok()["refusal"].as_str() {
            None => Ok(()),
            Some(refusal) => Err(refusal.to_owned()),
        }
    })
    .await;
    desk.ok(&["site", "stop"]);

    // The command has read the files and asks for the index when the file goes.
    let mut database = desk.service.database().connect().await;
    let mut lock = database.begin().await.unwrap();
    lock.execute("lock table apps in access exclusive mode").await.unwrap();
    let sync = desk.copal(&["app", "sync"]).spawn().unwrap();
    wait_for("the command to ask for the index", LIMIT, || async {
        const WAITING: &str = "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock' and query like '%from apps%'";
        let mut observer = desk.service.database().connect().await;
        let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut observer).await.unwrap();
        if waiting > 0 { Ok(()) } else { Err("it does not wait".into()) }
    })
    .await;
    fs::remove_file(path.join("apps/Greet.yml")).unwrap();
    lock.rollback().await.unwrap();
    let synced = sync.wait_with_output().unwrap();
    assert!(synced.status.success(), "{}", desk.told(&synced));
    let now = ann.get(&app).await.ok();
    assert_ne!(now["remote"], Value::Null, "it is the API's as before: {now}");
}
