//! `/auth`: registration, login, tokens (contract, section 2).

use copal_tests::{Api, Service, Settings, World, world::PASSWORD};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn a_user_registers_logs_in_and_is_known() {
    let service = Service::start(Settings::default()).await;
    let anonymous = service.api();
    let methods = anonymous.get("/auth/how").await.ok();
    assert!(methods.as_array().unwrap().contains(&json!("LoginMethod.password")), "{methods}");

    let register = json!({"username": "ann", "password": PASSWORD});
    let user = anonymous.post("/auth/password/register", &register).await.created();
    assert_eq!(user["username"], "ann");
    assert!(user["id"].is_i64());
    assert_eq!(user.as_object().unwrap().len(), 2, "{user}");

    let form = [("username", "ann"), ("password", PASSWORD)];
    let token = anonymous.post_form("/auth/password/login", &form).await.ok();
    assert_eq!(token["token_type"], "bearer");
    let expiration = token["expiration"].as_str().unwrap().parse::<chrono::NaiveDateTime>().expect("naive UTC");
    let hours = (expiration - chrono::Utc::now().naive_utc()).num_minutes();
    assert!((47 * 60..=48 * 60).contains(&hours), "a token lives for 48 hours, not {hours} minutes");

    let me = anonymous.with_token(token["access_token"].as_str().unwrap());
    assert_eq!(me.get("/auth/password/me").await.ok(), user);
}

#[tokio::test]
async fn a_taken_name_is_refused_and_its_owner_stays() {
    let service = Service::start(Settings::default()).await;
    let ann = service.user("ann").await;
    let again = json!({"username": "ann", "password": "another password"});
    let problem = service.api().post("/auth/password/register", &again).await.refused(400);
    assert_eq!(problem["code"], "conflict");
    assert_eq!(ann.get("/auth/password/me").await.ok()["username"], "ann");
    let form = [("username", "ann"), ("password", "another password")];
    service.api().post_form("/auth/password/login", &form).await.refused(401);
}

#[tokio::test]
async fn registration_names_what_is_missing() {
    let service = Service::start(Settings::default()).await;
    let register = |body: Value| {
        let api = service.api();
        async move { api.post("/auth/password/register", &body).await }
    };
    register(json!({"username": "ann"})).await.invalid("password");
    register(json!({"password": PASSWORD})).await.invalid("username");
    register(json!({"username": "", "password": PASSWORD})).await.invalid("username");
    register(json!({"username": "a\u{0}b", "password": PASSWORD})).await.refused(422);
    register(json!({"username": null, "password": PASSWORD})).await.invalid("username");
    register(json!([])).await.refused(422);
}

#[tokio::test]
async fn login_takes_forms_of_both_kinds_and_ignores_the_oauth_fields() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let api = service.api();
    let form = [
        ("grant_type", "password"),
        ("username", "ann"),
        ("password", PASSWORD),
        ("scope", ""),
        ("client_id", "x"),
        ("client_secret", "y"),
    ];
    api.post_form("/auth/password/login", &form).await.ok();

    let part = |name: &str, value: &str| {
        format!("--frontier\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let body = format!("{}{}--frontier--\r\n", part("username", "ann"), part("password", PASSWORD));
    let request = api
        .request(Method::POST, "/auth/password/login")
        .header("content-type", "multipart/form-data; boundary=frontier")
        .body(body);
    let token = api.send(request).await.ok();
    assert!(token["access_token"].is_string());
}

#[tokio::test]
async fn a_wrong_login_is_refused_without_saying_why() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let login = |form: Vec<(&'static str, &'static str)>| {
        let api = service.api();
        async move { api.post_form("/auth/password/login", &form).await }
    };
    let wrong = login(vec![("username", "ann"), ("password", "wrong")]).await.refused(401);
    let nobody = login(vec![("username", "bob"), ("password", "wrong")]).await.refused(401);
    assert_eq!(wrong["detail"], nobody["detail"], "the answer must not tell which names exist");
    login(vec![("username", "ann")]).await.invalid("password");
    login(vec![("password", PASSWORD)]).await.invalid("username");
    login(vec![]).await.refused(422);
}

#[tokio::test]
async fn without_a_good_token_nothing_is_answered() {
    let world = World::new().await;
    let other = Service::start(Settings::default()).await;
    let foreign = other.user("ann").await;
    let good = world.user.token().unwrap();
    let mut parts: Vec<&str> = good.split('.').collect();
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    // {"alg":"none","typ":"JWT"}
    parts[0] = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let without_algorithm = format!("{}.{}.", parts[0], parts[1]);
    let tampered = format!("{}x", &good[..good.len() - 2]);

    let tokens = [foreign.token().unwrap(), "", "x", "a.b.c", &unsigned, &without_algorithm, &tampered];
    for path in ["/auth/password/me", "/sites/", "/jobs/", "/events/", "/apps/1", "/events/stream"] {
        for token in tokens {
            let answer = world.service.api().with_token(token).get(path).await;
            assert_eq!(answer.headers["www-authenticate"], "Bearer", "{path}");
            answer.refused(401);
        }
        let answer = world.service.api().get(path).await;
        assert_eq!(answer.headers["www-authenticate"], "Bearer", "{path}");
        answer.refused(401);
    }
    let api = world.service.api();
    let basic = api.request(Method::GET, "/sites/").basic_auth("ann", Some(PASSWORD));
    api.send(basic).await.refused(401);
}

#[tokio::test]
async fn tokens_outlive_a_restart_of_the_service() {
    let mut world = World::new().await;
    world.service.restart().await;
    let user = world.user.at(world.service.base());
    assert_eq!(user.ids("/sites/").await, [world.site]);
}

#[tokio::test]
async fn guessing_passwords_is_slowed_down_for_all_replicas_together() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    let bob = service.user("bob").await;
    let form = [("username", "ann"), ("password", "guess")];
    let apis = [service.api(), Api::new(replica.base())];
    let mut limited = false;
    for turn in 0..60 {
        // Nobody is believed who says that others ask, since no proxy is in front.
        let api = &apis[turn % 2];
        let request = api.request(Method::POST, "/auth/password/login").form(&form);
        let answer = api.send(request.header("x-forwarded-for", format!("203.0.113.{turn}"))).await;
        limited = answer.status == 429;
        if limited {
            answer.refused(429);
            break;
        }
        answer.refused(401);
    }
    assert!(limited, "60 wrong passwords in a row were all looked at");
    for api in &apis {
        api.post_form("/auth/password/login", &form).await.refused(429);
    }
    bob.get("/auth/password/me").await.ok();
}

#[tokio::test]
async fn accounts_and_logins_with_codes_are_limited_by_address_for_all_replicas_together() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    let apis = [service.api(), Api::new(replica.base())];
    let ann = service.user("ann").await;
    // As if so many had been made already: each costs a second of a processor.
    let mut database = service.database().connect().await;
    const MADE: &str = "insert into login_failures (subject) select 'account 127.0.0.1' from generate_series(1, $1)";
    sqlx::query(MADE).bind(98).execute(&mut database).await.unwrap();
    let register = async |api: &Api, name: &str| {
        api.post("/auth/password/register", &json!({"username": name, "password": PASSWORD})).await
    };
    register(&apis[0], "bob").await.created();
    for api in &apis {
        let refused = register(api, "carol").await.refused(429);
        assert!(refused.to_string().contains("too many new accounts"), "{refused}");
    }

    let client = [("client_id", "5f0a1a30-6f2c-4f5d-8a6e-0d4a4a3f3f0e"), ("scope", "")];
    let mut begun = 0;
    for turn in 0..400 {
        let answer = apis[turn % 2].post_form("/auth/device/login", &client).await;
        if answer.status == 429 {
            answer.refused(429);
            break;
        }
        answer.ok();
        begun += 1;
    }
    assert_eq!(begun, 300);
    for api in &apis {
        api.post_form("/auth/device/login", &client).await.refused(429);
    }
    // What has a login is not counted.
    ann.get("/auth/password/me").await.ok();
}

#[tokio::test]
async fn passwords_are_kept_as_argon2id_hashes_only() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let mut database = service.database().connect().await;
    let rows: Vec<String> =
        sqlx::query_scalar("select to_json(users)::text from users").fetch_all(&mut database).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert!(rows[0].contains("$argon2id$"), "{rows:?}");
    assert!(!rows[0].contains(PASSWORD), "{rows:?}");
}

#[tokio::test]
async fn closed_registration_takes_nobody_new() {
    let service = Service::start(Settings { registration_open: false, ..Settings::default() }).await;
    let register = json!({"username": "ann", "password": PASSWORD});
    service.api().post("/auth/password/register", &register).await.refused(403);
}

/// Anybody may send these, so that none may cost memory.
#[tokio::test]
async fn what_strangers_send_is_small() {
    let service = Service::start(Settings::default()).await;
    let api = service.api();
    let long = "x".repeat(1 << 20);
    api.post("/auth/password/register", &json!({"username": "ann", "password": long})).await.refused(413);
    let part = "--cut\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n\r\n";
    let endless_header = format!("--cut\r\nX: {long}");
    for body in [part.repeat(2_000), endless_header, format!("a={long}")] {
        let kind = if body.starts_with("--") {
            "multipart/form-data; boundary=cut"
        } else {
            "application/x-www-form-urlencoded"
        };
        let request = api.request(Method::POST, "/auth/password/login").header("content-type", kind).body(body);
        api.send(request).await.refused(413);
    }
}
