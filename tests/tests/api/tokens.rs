//! Tokens after the login: renewal, revocation, credentials of Sites and launchers (DESIGN, section 5).

use copal_tests::{Answer, Api, LIMIT, Service, Settings, World, id, stream::EventStream, wait_for, world::PASSWORD};
use serde_json::{Value, json};

async fn log_in(service: &Service, name: &str) -> Value {
    let form = [("username", name), ("password", PASSWORD), ("scope", "offline_access")];
    service.api().post_form("/auth/password/login", &form).await.ok()
}

async fn renew(api: &Api, refresh_token: &str) -> Answer {
    api.post_form("/auth/token", &[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
}

fn text<'a>(tokens: &'a Value, key: &str) -> &'a str {
    tokens[key].as_str().unwrap_or_else(|| panic!("no {key} in {tokens}"))
}

fn user(service: &Service, tokens: &Value) -> Api {
    service.api().with_token(text(tokens, "access_token"))
}

/// Other processes learn of a revocation by the database, within moments.
async fn wait_until_refused(api: &Api) {
    wait_for("the token to be refused", LIMIT, || async {
        match api.get("/auth/password/me").await {
            answer if answer.status == 401 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_login_gets_a_refresh_token_only_where_it_asks() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let form = [("username", "ann"), ("password", PASSWORD)];
    let plain = service.api().post_form("/auth/password/login", &form).await.ok();
    assert_eq!(plain.as_object().unwrap().len(), 3, "Balsam's client takes these three keys: {plain}");
    let tokens = log_in(&service, "ann").await;
    user(&service, &tokens).get("/auth/password/me").await.ok();

    let next = renew(&service.api(), text(&tokens, "refresh_token")).await.ok();
    assert_ne!(next["refresh_token"], tokens["refresh_token"]);
    user(&service, &next).get("/auth/password/me").await.ok();
    renew(&service.api(), "copal_refresh_nonsense").await.refused(401);
    renew(&service.api(), text(&tokens, "access_token")).await.refused(401);
    service.api().post_form("/auth/token", &[("grant_type", "refresh_token")]).await.invalid("refresh_token");
}

#[tokio::test]
async fn a_refresh_token_used_twice_ends_the_login() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    let tokens = log_in(&service, "ann").await;
    let next = renew(&service.api(), text(&tokens, "refresh_token")).await.ok();
    let mut stolen = renew(&replica.api(), text(&tokens, "refresh_token")).await;
    if stolen.status == 200 {
        // A client that lost the answer may ask again at once: still the same login, and once more is too often.
        stolen = renew(&replica.api(), text(&tokens, "refresh_token")).await;
    }
    if stolen.status == 401 {
        stolen.refused(401);
        renew(&service.api(), text(&next, "refresh_token")).await.refused(401);
        wait_until_refused(&user(&service, &next)).await;
        wait_until_refused(&user(&replica, &next)).await;
    }
}

#[tokio::test]
async fn a_revoked_login_is_good_nowhere() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    for which in ["access_token", "refresh_token"] {
        let tokens = log_in(&service, "ann").await;
        let other = log_in(&service, "ann").await;
        user(&replica, &tokens).get("/auth/password/me").await.ok();
        service.api().post_form("/auth/revoke", &[("token", text(&tokens, which))]).await.deleted();
        wait_until_refused(&user(&service, &tokens)).await;
        wait_until_refused(&user(&replica, &tokens)).await;
        renew(&service.api(), text(&tokens, "refresh_token")).await.refused(401);
        user(&service, &other).get("/auth/password/me").await.ok();
    }
    service.api().post_form("/auth/revoke", &[("token", "unknown")]).await.deleted();
}

#[tokio::test]
async fn a_stream_ends_with_its_login() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    let tokens = log_in(&service, "ann").await;
    let mut stream = EventStream::open(&user(&service, &tokens), "/events/stream", None).await;
    replica.api().post_form("/auth/revoke", &[("token", text(&tokens, "access_token"))]).await.deleted();
    assert!(stream.next_or_end().await.is_none());
}

#[tokio::test]
async fn a_user_sees_and_ends_logins() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let bob = service.user("bob").await;
    let (first, second) = (log_in(&service, "ann").await, log_in(&service, "ann").await);
    let ann = user(&service, &second);
    let logins = ann.list("/auth/logins/").await;
    assert_eq!(logins.len(), 3, "{logins:?}");
    let text_of_all = json!(logins).to_string();
    for secret in [text(&first, "access_token"), text(&first, "refresh_token")] {
        assert!(!text_of_all.contains(secret), "{text_of_all}");
    }
    for login in &logins {
        bob.delete(&format!("/auth/logins/{}", id(login))).await.refused(404);
    }
    // The newest is the second; the one before it is the first.
    ann.delete(&format!("/auth/logins/{}", id(&logins[1]))).await.deleted();
    wait_until_refused(&user(&service, &first)).await;
    ann.get("/auth/password/me").await.ok();
    assert_eq!(ann.list("/auth/logins/").await.len(), 2);
}

#[tokio::test]
async fn a_sites_token_is_good_for_that_site_alone() {
    let world = World::new().await;
    let ann = &world.user;
    let other = ann.site("other").await;
    let other_app = ann.app(other, "Plain", &json!({"command": "true"})).await;
    let other_job = id(&ann.job(other_app, &json!({})).await);
    let job = id(&world.plain_job(&json!({})).await);
    let tokens = ann.post(&format!("/sites/{}/token", world.site), &json!({})).await.created();
    let agent = user(&world.service, &tokens);

    assert_eq!(agent.ids("/sites/").await, [world.site]);
    assert_eq!(agent.ids("/jobs/").await, [job]);
    assert_eq!(agent.ids("/apps/").await, [world.app, world.plain]);
    agent.get(&format!("/jobs/{other_job}")).await.refused(404);
    let refused = agent.get(&format!("/sites/{other}")).await;
    assert!(matches!(refused.status, 403 | 404), "{refused:?}");
    agent.post("/sessions/", &json!({"site_id": other})).await.refused(400);
    agent.put(&format!("/jobs/?id={other_job}"), &json!({"state": "FAILED"})).await.ok();
    agent.post("/jobs/cancel", &json!({})).await.ok();
    assert_eq!(ann.state(other_job).await, "PREPROCESSED");
    assert_eq!(agent.count(&format!("/events/?job_id={other_job}")).await, 0);
    let session = agent.session(world.site, None).await;
    agent.acquire(session, &json!({"states": ["STAGED_IN"]})).await;

    for (path, body) in [
        ("/sites/", json!({"name": "third", "path": "/x"})),
        (format!("/sites/{}/token", world.site).as_str(), json!({})),
        (format!("/sites/{other}/token").as_str(), json!({})),
    ] {
        let answer = agent.post(path, &body).await;
        assert!(matches!(answer.status, 403 | 404), "{path}: {answer:?}");
    }
    agent.delete(&format!("/sites/{}", world.site)).await.refused(403);
    let next = renew(&world.service.api(), text(&tokens, "refresh_token")).await.ok();
    assert_eq!(user(&world.service, &next).ids("/sites/").await, [world.site], "renewed tokens are bound as well");

    ann.delete(&format!("/sites/{}", world.site)).await.deleted();
    wait_until_refused(&user(&world.service, &next)).await;
}

/// A new key signs at once where it was made and soon elsewhere; what the old one signed stays good until it is retired.
#[tokio::test]
async fn signing_keys_rotate_under_running_replicas() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    let key_of = |tokens: &Value| {
        // The header of a JWT says which key signed it.
        text(tokens, "access_token").split('.').next().unwrap().to_owned()
    };
    let pool = copal_server::db::connect(&service.database().url().into()).await.unwrap();
    let before = log_in(&service, "ann").await;
    copal_server::auth::rotate_now(&pool, false).await.unwrap();
    let after = wait_for("the new key to sign", LIMIT, || async {
        let tokens = log_in(&service, "ann").await;
        if key_of(&tokens) == key_of(&before) { Err(key_of(&tokens)) } else { Ok(tokens) }
    })
    .await;
    for side in [&service, &replica] {
        // The replica may not have met the new key yet; it looks it up.
        user(side, &after).get("/auth/password/me").await.ok();
        user(side, &before).get("/auth/password/me").await.ok();
    }
    copal_server::auth::rotate_now(&pool, true).await.unwrap();
    for side in [&service, &replica] {
        wait_until_refused(&user(side, &before)).await;
        wait_until_refused(&user(side, &after)).await;
    }
    // The login itself goes on: its refresh token is no JWT.
    let renewed = renew(&replica.api(), text(&after, "refresh_token")).await.ok();
    user(&service, &renewed).get("/auth/password/me").await.ok();
    pool.close().await;
}

async fn secret_of(world: &World, batch_job: i64) -> String {
    let made = world.user.post(&format!("/batch-jobs/{batch_job}/launcher-secret"), &json!({})).await.created();
    text(&made, "secret").to_owned()
}

#[tokio::test]
async fn a_launchers_token_dies_with_its_batch_job() {
    let world = World::new().await;
    let ann = &world.user;
    let batch_job = ann.batch_job(world.site, &json!({})).await;
    let other = ann.batch_job(world.site, &json!({})).await;
    let secret = secret_of(&world, batch_job).await;
    let tokens = world.service.api().post_form("/auth/launcher", &[("secret", &secret)]).await.ok();
    let launcher = user(&world.service, &tokens);

    let job = id(&world.plain_job(&json!({})).await);
    launcher.post("/sessions/", &json!({"site_id": world.site})).await.refused(403);
    let foreign = launcher.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": other})).await;
    assert!(matches!(foreign.status, 400 | 403 | 404), "{foreign:?}");
    let session = launcher.session(world.site, Some(batch_job)).await;
    launcher.acquire(session, &json!({})).await;
    launcher.report(session, job, &["RUNNING", "RUN_DONE"]).await;
    let forbidden = launcher.delete(&format!("/apps/{}", world.app)).await;
    assert!(matches!(forbidden.status, 403 | 404), "{forbidden:?}");

    ann.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "finished"})).await.ok();
    wait_until_refused(&launcher).await;
    renew(&world.service.api(), text(&tokens, "refresh_token")).await.refused(401);
    world.service.api().post_form("/auth/launcher", &[("secret", &secret)]).await.refused(401);
    ann.post(&format!("/batch-jobs/{batch_job}/launcher-secret"), &json!({})).await.refused(400);
}

#[tokio::test]
async fn a_launchers_secret_is_of_its_own_user_and_kept_as_a_hash() {
    let world = World::new().await;
    let bob = world.service.user("bob").await;
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    bob.post(&format!("/batch-jobs/{batch_job}/launcher-secret"), &json!({})).await.refused(404);
    let secret = secret_of(&world, batch_job).await;
    let mut database = world.service.database().connect().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select table_name::text from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert!(tables.iter().any(|table| table == "launcher_secrets"), "{tables:?}");
    for table in tables {
        let all = format!("select coalesce(string_agg(t::text, ' '), '') from {table} t");
        let rows: String = sqlx::query_scalar(sqlx::AssertSqlSafe(all)).fetch_one(&mut database).await.unwrap();
        assert!(!rows.contains(&secret), "{table} has the secret in the clear");
        assert!(!rows.contains(PASSWORD), "{table} has a password in the clear");
    }
    world.service.api().post_form("/auth/launcher", &[("secret", "copal_launcher_guess")]).await.refused(401);
}

/// A run of 30 hours outlives no token: the launcher's is good to the end of the walltime.
#[tokio::test]
async fn pitfall_125_a_launchers_token_lasts_as_long_as_its_allocation() {
    let world = World::new().await;
    let minutes = 7 * 24 * 60;
    let batch_job = world.user.batch_job(world.site, &json!({"wall_time_min": minutes})).await;
    let secret = secret_of(&world, batch_job).await;
    let tokens = world.service.api().post_form("/auth/launcher", &[("secret", &secret)]).await.ok();
    let expiration: chrono::NaiveDateTime = text(&tokens, "expiration").parse().unwrap();
    let left = (expiration - chrono::Utc::now().naive_utc()).num_minutes();
    assert!(left >= minutes, "the token lapses after {left} of {minutes} minutes");
}

/// The secret is no token: it waits in the queue as long as the BatchJob does, and is good once.
#[tokio::test]
async fn pitfall_126_a_launcher_gets_its_token_when_it_starts() {
    let world = World::new().await;
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    let secret = secret_of(&world, batch_job).await;
    let mut database = world.service.database().connect().await;
    for week in 0..6 {
        // As if it had been made a week earlier.
        let columns: Vec<String> = sqlx::query_scalar(
            "select column_name::text from information_schema.columns
             where table_name = 'launcher_secrets' and data_type = 'timestamp with time zone'",
        )
        .fetch_all(&mut database)
        .await
        .unwrap();
        for column in columns {
            let back = format!("update launcher_secrets set {column} = {column} - interval '{week} weeks'");
            sqlx::query(sqlx::AssertSqlSafe(back)).execute(&mut database).await.unwrap();
        }
    }
    let tokens = world.service.api().post_form("/auth/launcher", &[("secret", &secret)]).await.ok();
    let launcher = user(&world.service, &tokens);
    launcher.session(world.site, Some(batch_job)).await;
}
