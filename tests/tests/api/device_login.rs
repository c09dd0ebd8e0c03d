//! Device-code login with the approval page (contract, section 2; RFC 8628).

use copal_tests::{Answer, Api, Service, Settings, world::PASSWORD};
use serde_json::{Value, json};

const CLIENT: &str = "8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

async fn begin(api: &Api) -> Value {
    api.post_form("/auth/device/login", &[("client_id", CLIENT), ("scope", "")]).await.ok()
}

async fn poll(api: &Api, login: &Value) -> Answer {
    let code = login["device_code"].as_str().unwrap();
    api.post_form("/auth/device/token", &[("grant_type", GRANT), ("device_code", code), ("client_id", CLIENT)]).await
}

/// What the page sends.
async fn decide(api: &Api, code: &str, password: &str, decision: &str) -> Answer {
    let form = [("user_code", code), ("username", "ann"), ("password", password), ("decision", decision)];
    api.post_form("/auth/oauth/ALCF/login/device", &form).await
}

fn code(login: &Value) -> &str {
    login["user_code"].as_str().unwrap()
}

#[tokio::test]
async fn a_login_is_approved_on_the_page_and_its_token_given_once() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let api = service.api();
    assert!(api.get("/auth/how").await.ok().as_array().unwrap().contains(&json!("LoginMethod.oauth_device")));
    let login = begin(&api).await;
    let mut keys: Vec<&String> = login.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        ["device_code", "expires_in", "interval", "user_code", "verification_uri", "verification_uri_complete"]
    );
    assert_eq!((&login["expires_in"], &login["interval"]), (&json!(300.0), &json!(3.0)));
    let letters: Vec<char> = code(&login).chars().collect();
    assert_eq!(letters.len(), 9, "{login}");
    assert!(letters.iter().enumerate().all(|(index, letter)| match index {
        4 => *letter == '-',
        _ => letter.is_ascii_uppercase() && !"AEIOUY".contains(*letter),
    }));
    assert_eq!(login["verification_uri"], format!("{}/auth/oauth/ALCF/login/device", api.base()));
    assert_eq!(
        login["verification_uri_complete"],
        format!("{}?user_code={}", login["verification_uri"].as_str().unwrap(), code(&login))
    );

    let pending = poll(&api, &login).await.refused(400);
    assert_eq!(pending["detail"], "authorization_pending");
    let page = api.get(&format!("/auth/oauth/ALCF/login/device?user_code={}", code(&login))).await.ok();
    assert!(page.as_str().unwrap().contains(code(&login)), "{page}");
    assert_eq!(decide(&api, code(&login), "wrong", "approve").await.status, 401);
    assert_eq!(poll(&api, &login).await.refused(400)["detail"], "authorization_pending");
    assert_eq!(decide(&api, &code(&login).to_lowercase(), PASSWORD, "approve").await.status, 200);

    let token = poll(&api, &login).await.ok();
    assert_eq!(token["token_type"], "bearer");
    let me = api.with_token(token["access_token"].as_str().unwrap());
    assert_eq!(me.get("/auth/password/me").await.ok()["username"], "ann");
    assert_eq!(poll(&api, &login).await.refused(400)["detail"], "invalid_client");
    assert_eq!(decide(&api, code(&login), PASSWORD, "approve").await.status, 400);
}

#[tokio::test]
async fn a_denied_login_gets_nothing() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let login = begin(&service.api()).await;
    assert_eq!(decide(&service.api(), code(&login), PASSWORD, "deny").await.status, 200);
    assert_eq!(poll(&service.api(), &login).await.refused(403)["detail"], "access_denied");
    assert_eq!(decide(&service.api(), code(&login), PASSWORD, "approve").await.status, 400);
    // Another login that begins does not make the service forget it.
    begin(&service.api()).await;
    assert_eq!(poll(&service.api(), &login).await.refused(403)["detail"], "access_denied");
}

#[tokio::test]
async fn errors_are_those_of_the_rfc() {
    let service = Service::start(Settings::default()).await;
    let api = service.api();
    let login = begin(&api).await;
    let device_code = login["device_code"].as_str().unwrap();
    let other = "11111111-1111-4111-8111-111111111111";
    for (grant, code, client, detail) in [
        ("password", device_code, CLIENT, "unsupported_grant_type"),
        (GRANT, "unknown", CLIENT, "invalid_client"),
        (GRANT, device_code, other, "invalid_client"),
    ] {
        let form = [("grant_type", grant), ("device_code", code), ("client_id", client)];
        let answer = api.post_form("/auth/device/token", &form).await.refused(400);
        assert_eq!(answer["detail"], detail);
    }
    api.post_form("/auth/device/login", &[("client_id", "no uuid")]).await.invalid("client_id");
    api.post_form("/auth/device/login", &[]).await.invalid("client_id");
    assert_eq!(api.get("/auth/oauth/ALCF/login/device?user_code=ZZZZ-ZZZZ").await.status, 400);
    assert_eq!(api.get("/auth/oauth/ALCF/login/device").await.status, 200);
}

#[tokio::test]
async fn a_lapsed_login_says_so() {
    let service = Service::start(Settings::default()).await;
    service.user("ann").await;
    let login = begin(&service.api()).await;
    let mut database = service.database().connect().await;
    sqlx::query("update device_logins set expires_at = now() - interval '1 second'")
        .execute(&mut database)
        .await
        .unwrap();
    assert_eq!(poll(&service.api(), &login).await.refused(400)["detail"], "expired_token");
    assert_eq!(decide(&service.api(), code(&login), PASSWORD, "approve").await.status, 400);
}

#[tokio::test]
async fn replicas_share_their_logins() {
    let service = Service::start(Settings::default()).await;
    let replica = service.replica().await;
    service.user("ann").await;
    let login = begin(&service.api()).await;
    assert_eq!(decide(&replica.api(), code(&login), PASSWORD, "approve").await.status, 200);
    poll(&replica.api(), &login).await.ok();
}

#[tokio::test]
async fn the_page_shows_what_others_send_as_text() {
    let service = Service::start(Settings::default()).await;
    let api = service.api();
    for hostile in ["<script>alert(1)</script>", "%3Cscript%3E", "\"><img src=x>"] {
        let answer = api.get(&format!("/auth/oauth/ALCF/login/device?user_code={hostile}")).await;
        let page = answer.body.as_str().unwrap_or_default().to_owned();
        assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
        assert!(answer.headers.contains_key("content-security-policy"), "{answer:?}");
    }
}
