//! `/apps/` (contract, section 4).

use copal_tests::{LIMIT, World, id, stream::EventStream, wait_for, world::with};
use serde_json::{Value, json};

#[tokio::test]
async fn an_app_reads_back_as_it_was_made() {
    let world = World::new().await;
    let class: String = (0..200_000).map(|index| char::from(b'A' + (index % 26) as u8)).collect();
    let app = json!({
        "site_id": world.site, "name": "Hello", "serialized_class": class, "source_code": "class Hello:\n\tpass",
        "description": "Say hello.",
        "parameters": {"name": {"required": true}, "greeting": {"required": false, "default": "Hello", "help": "word"}},
        "transfers": {"input": {"required": true, "direction": "in", "local_path": "in/./put.dat"}}
    });
    let created = world.user.post("/apps/", &app).await.created();
    assert_eq!(created["serialized_class"], app["serialized_class"]);
    assert_eq!(created["source_code"], app["source_code"]);
    assert_eq!(
        created["parameters"],
        json!({"name": {"required": true, "default": null, "help": ""},
            "greeting": {"required": false, "default": "Hello", "help": "word"}})
    );
    assert_eq!(
        created["transfers"],
        json!({"input": {"required": true, "direction": "in", "local_path": "in/put.dat", "description": "",
            "recursive": false}})
    );
    assert_eq!(world.user.get(&format!("/apps/{}", id(&created))).await.ok(), created);
}

#[tokio::test]
async fn names_are_unique_at_a_site() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let again = json!({"site_id": world.site, "name": "Simulate", "serialized_class": "", "source_code": ""});
    user.post("/apps/", &again).await.refused(400);
    let moved = user.app(other_site, "Simulate", &json!({})).await;
    user.put(&format!("/apps/{}", world.plain), &json!({"name": "Simulate", "description": "x"})).await.refused(400);
    let kept = user.get(&format!("/apps/{}", world.plain)).await.ok();
    assert_eq!((kept["name"].as_str(), kept["description"].as_str()), (Some("Plain"), Some("")));
    user.put(&format!("/apps/{moved}"), &json!({"site_id": world.site})).await.refused(400);
}

#[tokio::test]
async fn an_update_is_partial_and_may_move_the_app() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let path = format!("/apps/{}", world.app);
    let updated = user.put(&path, &json!({"description": "new", "unknown": 1})).await.ok();
    assert_eq!((updated["description"].as_str(), updated["name"].as_str()), (Some("new"), Some("Simulate")));
    let moved = user.put(&path, &json!({"site_id": other_site})).await.ok();
    assert_eq!(moved["site_id"], other_site);
    user.put(&path, &json!({"site_id": 999_999})).await.refused(404);
    assert_eq!(user.get(&path).await.ok(), moved);
    user.put("/apps/999999", &json!({"description": "x"})).await.refused(404);
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let other = user.app(other_site, "Simulate", &json!({})).await;
    assert_eq!(user.ids("/apps/").await, [world.app, world.plain, other]);
    assert_eq!(user.ids("/apps?name=Simulate").await, [world.app, other]);
    assert_eq!(user.ids(&format!("/apps/?site_id={other_site}")).await, [other]);
    assert_eq!(user.ids(&format!("/apps/?site_id={other_site}&site_id={}", world.site)).await.len(), 3);
    assert_eq!(user.ids(&format!("/apps/?id={}&id={other}", world.plain)).await, [world.plain, other]);
    assert_eq!(user.ids("/apps/?site_name=other").await, [other]);
    assert_eq!(user.ids("/apps/?site_path=me/oth").await, [other]);
    assert_eq!(user.ids("/apps/?site_name=other&name=Plain").await, [0; 0]);
}

#[tokio::test]
async fn bad_apps_are_refused_with_the_field() {
    let world = World::new().await;
    let parameter = |fields: Value| json!({"parameters": {"seed": fields}});
    let slot = |fields: Value| json!({"transfers": {"input": fields}});
    for (fields, field) in [
        (json!({"name": "not an identifier"}), "name"),
        (json!({"name": "1st"}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"serialized_class": null}), "serialized_class"),
        (json!({"serialized_class": "x".repeat(262_145)}), "serialized_class"),
        (json!({"source_code": {}}), "source_code"),
        (parameter(json!({"required": true, "default": "1"})), "seed"),
        (parameter(json!({"required": false})), "seed"),
        (parameter(json!({"required": false, "default": ""})), "seed"),
        (parameter(json!({"required": false, "default": null})), "seed"),
        (parameter(json!({"default": "1"})), "seed"),
        (parameter(json!({"required": "perhaps"})), "seed"),
        (slot(json!({"required": true, "direction": "in", "local_path": "/abs"})), "input"),
        (slot(json!({"required": true, "direction": "in", "local_path": "../up"})), "input"),
        (slot(json!({"required": true, "direction": "sideways", "local_path": "x"})), "input"),
    ] {
        let app = json!({"site_id": world.site, "name": "Hello", "serialized_class": "", "source_code": ""});
        let answer = world.user.post("/apps/", &with(app, &fields)).await;
        assert_eq!(answer.status, 422, "{fields}: {}", answer.body);
        answer.invalid(field);
    }
    let app = json!({"site_id": 999_999, "name": "Hello", "serialized_class": "", "source_code": ""});
    world.user.post("/apps/", &app).await.refused(404);
    world.user.post("/apps/", &json!({"site_id": world.site, "name": "Hello"})).await.refused(422);
    assert_eq!(world.user.count("/apps/").await, 2);
}

#[tokio::test]
async fn a_deleted_app_takes_its_jobs_along() {
    let world = World::new().await;
    let gone = id(&world.job(&json!({})).await);
    let kept = id(&world.plain_job(&json!({})).await);
    world.user.delete(&format!("/apps/{}", world.app)).await.deleted();
    world.user.get(&format!("/apps/{}", world.app)).await.refused(404);
    world.user.get(&format!("/jobs/{gone}")).await.refused(404);
    assert_eq!(world.user.ids("/jobs/").await, [kept]);
    // What no longer can be reached by an App is removed behind the scenes.
    wait_for("its events to go", LIMIT, || async {
        let count = world.user.count(&format!("/events/?job_id={gone}")).await;
        if count == 0 { Ok(()) } else { Err(format!("{count} events")) }
    })
    .await;
    world.user.delete(&format!("/apps/{}", world.app)).await.refused(404);
}

#[tokio::test]
async fn an_app_of_the_api_waits_for_its_site_and_wakes_the_agent() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let mut stream = EventStream::open(user, "/events/stream?kind=site", None).await;
    let mut woken = async || stream.next().await.data["site"]["id"].as_i64().unwrap();
    let remote = json!({"environment": {"N": 4}, "hooks": {"postprocess": "./collect.sh"}, "output": "none"});
    let app = json!({"site_id": world.site, "name": "Remote", "serialized_class": "", "source_code": "", "command": "true",
        "remote": remote});
    let made = user.post("/apps/", &app).await.created();
    assert_eq!(woken().await, world.site);
    let path = format!("/apps/{}", id(&made));
    assert_eq!((&made["remote"]["environment"]["N"], &made["hooks"]["postprocess"]), (&json!("4"), &json!(true)));
    assert!(made["refusal"].as_str().unwrap().contains("has not written its file yet"), "{made}");
    let jobs = json!([{"app_id": id(&made), "workdir": "x"}]);
    user.post("/jobs/", &jobs).await.invalid("app_id");

    // What the agent says holds until something of the App changes.
    let refusal = async |body: Value| user.put(&path, &body).await.ok()["refusal"].clone();
    assert_eq!(refusal(json!({"refusal": "no such hook"})).await, "no such hook");
    assert!(user.post("/jobs/", &jobs).await.invalid("app_id").to_string().contains("no such hook"));
    assert_eq!(refusal(json!({"refusal": null})).await, Value::Null);
    let job = user.post("/jobs/", &jobs).await.created();
    assert_ne!(refusal(json!({"command": "false"})).await, Value::Null);
    let why = user.get(&format!("/jobs/{}/why", id(&job[0]))).await.ok();
    assert_eq!(why["reasons"][0]["code"], "remote_app", "{why}");
    // Which hooks there are is said with the file, and not beside it.
    let hooks = user.put(&path, &json!({"hooks": {"preprocess": true}})).await.ok()["hooks"].clone();
    assert_eq!((&hooks["preprocess"], &hooks["postprocess"]), (&json!(false), &json!(true)));
    // What the agent says is nothing new to it.
    for _ in 0..2 {
        assert_eq!(woken().await, world.site);
    }
    user.put(&path, &json!({"remote": {"no_such_field": 1}})).await.invalid("remote");

    // The Site that it leaves is told, too; and those of a file have nothing to be told.
    let moving = user.post("/apps/", &with(app, &json!({"name": "Moving"}))).await.created();
    let moving = format!("/apps/{}", id(&moving));
    user.put(&moving, &json!({"site_id": other_site})).await.ok();
    let mut sites = [woken().await, woken().await, woken().await];
    sites.sort_unstable();
    assert_eq!(sites, [world.site, world.site, other_site]);
    assert_eq!(user.put(&moving, &json!({"remote": null})).await.ok()["refusal"], Value::Null);
    assert_eq!(woken().await, other_site);
    user.delete(&moving).await.deleted();
    user.delete(&path).await.deleted();
    assert_eq!(woken().await, world.site);
}
