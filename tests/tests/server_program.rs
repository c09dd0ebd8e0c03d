//! `copal-server` as an operator runs it: on its embedded Postgres, through signals and crashes.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::TcpStream,
    time::{Duration, Instant},
};

use copal_tests::{
    Api,
    process::{Programs, Running, describe, free_port},
    wait::LIMIT,
    world::PASSWORD,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

/// A started service, and requests to it.
fn start(programs: &Programs) -> (Running, Api) {
    let (server, url) = programs.start_server(free_port(), &[]);
    (server, Api::new(&url))
}

fn postmasters(programs: &Programs) -> Vec<i32> {
    let left = programs.left();
    let lines = left.iter().filter(|line| line.contains("bin/postgres -D"));
    lines.filter_map(|line| line.split(':').next()?.parse().ok()).collect()
}

async fn register(api: &Api, name: &str) -> Api {
    api.post("/auth/password/register", &json!({"username": name, "password": PASSWORD})).await.created();
    log_in(api, name).await
}

async fn log_in(api: &Api, name: &str) -> Api {
    let token = api.post_form("/auth/password/login", &[("username", name), ("password", PASSWORD)]).await.ok();
    api.with_token(token["access_token"].as_str().expect("a token"))
}

#[tokio::test]
async fn signals_stop_the_service_and_its_postgres_and_data_stay() {
    let programs = Programs::new();
    for (round, signal) in [Signal::SIGTERM, Signal::SIGINT].into_iter().enumerate() {
        let (mut server, api) = start(&programs);
        let user = if round == 0 { register(&api, "ann").await } else { log_in(&api, "ann").await };
        assert_eq!(user.list("/sites/").await.len(), round);
        user.site(&format!("site{round}")).await;
        assert_eq!(postmasters(&programs).len(), 1);
        server.signal(signal);
        assert_eq!(server.wait(LIMIT), 0, "{signal}: {}", server.log());
        assert_eq!(postmasters(&programs), [0; 0], "{signal}");
    }
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_stop_up() {
    let programs = Programs::new();
    let (mut server, api) = start(&programs);
    let user = register(&api, "ann").await;
    user.get("/sites/").await.ok();
    // A connection that has sent nothing, and one kept open by the client above.
    let silent = TcpStream::connect(api.base().trim_start_matches("http://")).expect("it listens");
    let begin = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(LIMIT), 0);
    assert!(begin.elapsed() < Duration::from_secs(8), "the stop took {:?}", begin.elapsed());
    drop(silent);
}

#[tokio::test]
async fn a_killed_service_leaves_its_postgres_to_the_next() {
    let programs = Programs::new();
    let (mut server, api) = start(&programs);
    register(&api, "ann").await.site("laptop").await;
    let before = postmasters(&programs);
    server.signal(Signal::SIGKILL);
    assert_eq!(server.wait(LIMIT), -9);
    assert_eq!(postmasters(&programs), before, "Postgres goes on");
    let (server, api) = start(&programs);
    assert_eq!(postmasters(&programs), before, "and is taken over");
    assert_eq!(log_in(&api, "ann").await.list("/sites/").await.len(), 1);
    assert_eq!(server.stop(), 0);
    assert_eq!(postmasters(&programs), [0; 0]);
}

#[tokio::test]
async fn both_killed_start_again() {
    let programs = Programs::new();
    let (mut server, api) = start(&programs);
    register(&api, "ann").await.site("laptop").await;
    let postmaster = postmasters(&programs)[0];
    server.signal(Signal::SIGKILL);
    kill(Pid::from_raw(postmaster), Signal::SIGKILL).expect("it runs");
    assert_eq!(server.wait(LIMIT), -9);
    // The pid file stays, and its pid now belongs to nobody.
    let (server, api) = start(&programs);
    assert_eq!(log_in(&api, "ann").await.list("/sites/").await.len(), 1);
    assert_eq!(server.stop(), 0);
}

#[tokio::test]
async fn a_postgres_that_dies_is_started_again() {
    let programs = Programs::new();
    let (server, api) = start(&programs);
    let user = register(&api, "ann").await;
    let first = postmasters(&programs)[0];
    kill(Pid::from_raw(first), Signal::SIGKILL).expect("it runs");
    let begin = Instant::now();
    loop {
        let answer = user.get("/sites/").await;
        if answer.status == 200 && postmasters(&programs).iter().all(|pid| *pid != first) {
            break;
        }
        assert!(answer.status == 200 || answer.status == 503, "{answer:?}");
        assert!(begin.elapsed() < LIMIT, "Postgres did not come back: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.stop(), 0);
}

#[tokio::test]
async fn one_service_for_one_folder() {
    let programs = Programs::new();
    let (server, api) = start(&programs);
    let second = programs.run("copal-server", &["--listen", &format!("127.0.0.1:{}", free_port())]);
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{}", describe(&second));
    assert!(text.contains("another copal-server") && text.lines().count() == 1, "{text}");
    assert_eq!(api.get("/readyz").await.status, 200, "the first goes on");
    assert_eq!(server.stop(), 0);
}

#[tokio::test]
async fn the_databases_url_is_good_for_psql_and_for_a_second_service() {
    let programs = Programs::new();
    let refused = programs.run("copal-server", &["database-url"]);
    assert_eq!(refused.status.code(), Some(1), "{}", describe(&refused));
    let (server, api) = start(&programs);
    let user = register(&api, "ann").await;
    let url = programs.run_ok("copal-server", &["database-url"]);
    let url = url.trim();
    let port = free_port().to_string();
    let listen = format!("127.0.0.1:{port}");
    let mut second = programs.start("copal-server", &["--listen", &listen, "--database-url", url]);
    second.wait_ready(&listen);
    user.at(&format!("http://{listen}")).get("/auth/password/me").await.ok();
    assert_eq!(second.stop(), 0);
    assert_eq!(programs.run_ok("copal-server", &["migrate", "--database-url", url]).lines().count(), 0);
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_would_send_tokens_in_the_clear_is_refused() {
    let programs = Programs::new();
    let output = programs.run("copal-server", &["--listen", "0.0.0.0:0"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    assert!(text.contains("--tls-cert") && text.contains("--behind-proxy"), "{text}");
    assert_eq!(programs.run("copal-server", &["--tls-cert", "x.pem"]).status.code(), Some(2));
    assert_eq!(programs.run("copal-server", &["--no-such-flag"]).status.code(), Some(2));
    let nowhere = ["--database-url", "postgres://nobody@127.0.0.1:1/nothing", "--listen", "127.0.0.1:0"];
    let output = programs.run("copal-server", &nowhere);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    assert!(text.contains("127.0.0.1") && text.lines().count() == 1, "{text}");
}

#[tokio::test]
async fn no_secret_reaches_the_log() {
    let programs = Programs::new();
    let port = free_port();
    let (mut command_log, api) = {
        let (server, url) = programs.start_server(port, &[]);
        (server, Api::new(&url))
    };
    let user = register(&api, "ann").await;
    user.site("laptop").await;
    api.post_form("/auth/password/login", &[("username", "ann"), ("password", "wrong-secret")]).await.refused(401);
    let token = user.token().expect("logged in").to_owned();
    command_log.signal(Signal::SIGTERM);
    assert_eq!(command_log.wait(LIMIT), 0);
    let log = command_log.log();
    for secret in [PASSWORD, "wrong-secret", token.as_str()] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    let home = programs.home().join(".copal");
    assert!(fs::metadata(&home).is_ok_and(|meta| meta.is_dir()));
}
