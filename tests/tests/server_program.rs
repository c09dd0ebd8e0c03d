//! `copal-server` as an operator runs it: on its embedded Postgres, through signals and crashes.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use copal_tests::{
    Api, id,
    process::{Programs, Running, describe, free_port},
    stream::EventStream,
    tls::self_signed,
    wait::{LIMIT, wait_blocking, wait_for},
    world::PASSWORD,
};
use futures_util::StreamExt as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, User, geteuid},
};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tokio::{io::AsyncWriteExt as _, net::TcpSocket};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_speaks_tls_and_its_clients_check_the_certificate() {
    let programs = Programs::new();
    let [trusted, key] = self_signed(programs.home(), "service");
    let [other, other_key] = self_signed(programs.home(), "other");
    let text = |path: &Path| path.to_str().expect("a path of this test").to_owned();
    let port = free_port();
    // With TLS it may listen to the world.
    let listen = format!("0.0.0.0:{port}");
    let tls = ["--tls-cert", &text(&trusted), "--tls-key", &text(&key)];
    let server = programs.start("copal-server", &[["--listen", &listen].as_slice(), &tls].concat());

    let pem = fs::read(&trusted).expect("openssl wrote it");
    let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    let http = reqwest::Client::builder().add_root_certificate(root).no_proxy().build().expect("a client");
    let base = format!("https://localhost:{port}");
    wait_for("the service", LIMIT, || async {
        match http.get(format!("{base}/readyz")).send().await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            outcome => Err(format!("{outcome:?} {}", server.log())),
        }
    })
    .await;

    // The command, with the system's roots replaced by one file, as an administrator sets it.
    let copal = |roots: &Path, arguments: &[&str]| {
        let mut command = programs.command("copal");
        command.env("SSL_CERT_FILE", roots).env("COPAL_PASSWORD", PASSWORD).args(arguments);
        command.output().expect("copal starts")
    };
    let refused = copal(&other, &["register", "--url", &base, "--username", "ann"]);
    assert_eq!(refused.status.code(), Some(1), "{}", describe(&refused));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("certificate"), "{}", describe(&refused));
    for arguments in [["register", "--url", &base, "--username", "ann"].as_slice(), &["whoami"], &["site", "ls"]] {
        let output = copal(&trusted, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", describe(&output));
    }

    let form = [("username", "ann"), ("password", PASSWORD)];
    let login = http.post(format!("{base}/auth/password/login")).form(&form).send().await.expect("an answer");
    let token: Value = login.json().await.expect("a token");
    let stream =
        http.get(format!("{base}/events/stream")).bearer_auth(token["access_token"].as_str().expect("a token"));
    let mut pieces = stream.send().await.expect("a stream").bytes_stream();
    let hello = tokio::time::timeout(LIMIT, pieces.next()).await.expect("in time").expect("a piece").expect("whole");
    assert!(hello.starts_with(b": copal"), "{hello:?}");
    let device = [("client_id", "8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0")];
    let device = http.post(format!("{base}/auth/device/login")).form(&device).send().await.expect("an answer");
    let device: Value = device.json().await.expect("codes");
    assert!(device["verification_uri"].as_str().is_some_and(|uri| uri.starts_with(&base)), "{device}");
    // In the clear nothing is answered.
    assert!(http.get(format!("http://localhost:{port}/readyz")).send().await.is_err());
    drop(pieces);
    assert_eq!(server.stop(), 0);

    for (certificate, key, named) in [
        (&trusted, &other_key, "other.key"),
        (&key, &key, "service.key"),
        (&trusted, &programs.home().join("none"), "none"),
    ] {
        let output = programs.run(
            "copal-server",
            &["--listen", "127.0.0.1:0", "--tls-cert", &text(certificate), "--tls-key", &text(key)],
        );
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
        assert!(told.contains(named) && told.lines().count() == 1, "{told}");
    }
}

/// What a proxy says of the client is believed only where the operator says that there is one.
#[tokio::test]
async fn a_proxys_headers_count_only_behind_a_proxy() {
    let programs = Programs::new();
    let (direct, base) = programs.start_server(free_port(), &[]);
    let url = programs.run_ok("copal-server", &["database-url"]).trim().to_owned();
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let mut behind = programs.start("copal-server", &["--listen", &listen, "--database-url", &url, "--behind-proxy"]);
    behind.wait_ready(&format!("127.0.0.1:{port}"));
    let proxied = format!("http://127.0.0.1:{port}");
    for (api, expected) in [(Api::new(&base), base.as_str()), (Api::new(&proxied), "https://copal.example.org")] {
        let form = [("client_id", "8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0")];
        let request = api.request(reqwest::Method::POST, "/auth/device/login").form(&form);
        let request = request.header("x-forwarded-proto", "https").header("x-forwarded-host", "copal.example.org");
        let device = api.send(request).await.ok();
        assert_eq!(device["verification_uri"], format!("{expected}/auth/oauth/ALCF/login/device"));
    }
    assert_eq!(behind.stop(), 0);
    assert_eq!(direct.stop(), 0);
}

/// The megabytes of memory that a process holds.
fn memory_mb(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel tells");
    line.split_whitespace().next().and_then(|kb| kb.parse::<u64>().ok()).expect("a number") >> 10
}

async fn open_streams(api: &Api) -> u64 {
    let metrics = api.get("/metrics").await.ok();
    let value =
        metrics.as_str().and_then(|text| text.lines().find_map(|line| line.strip_prefix("copal_event_streams ")));
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// Clients of the event stream that live and never read hold little memory, for a short time, and disturb nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_cut_off_and_cost_bounded_memory() {
    /// Unread, the events below are 12 MB for each of them.
    const STUCK: u64 = 30;
    let programs = Programs::new();
    let (server, base) = programs.start_server(free_port(), &["--client-timeout", "3"]);
    let user = register(&Api::new(&base), "ann").await;
    let site = user.site("laptop").await;
    let app = user.app(site, "Plain", &json!({"command": "true"})).await;
    let create = async |folder: &str| {
        let job = |index: usize| json!({"app_id": app, "workdir": format!("{folder}/{index}")});
        user.jobs(&(0..5_000).map(job).collect::<Vec<_>>()).await.iter().map(id).collect::<Vec<i64>>()
    };
    // What the requests themselves need is no part of what is measured.
    create("first").await;
    let mut reader = EventStream::open(&user, "/events/stream?kind=job", None).await;
    let mut stuck = Vec::new();
    for _ in 0..STUCK {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let address = base.trim_start_matches("http://").parse().expect("an address");
        let mut client = socket.connect(address).await.expect("it listens");
        let token = user.token().expect("logged in");
        let request = format!("GET /events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("it reads");
        stuck.push(client);
    }
    wait_for("the streams to open", LIMIT, || async {
        let open = open_streams(&user).await;
        if open == STUCK + 1 { Ok(()) } else { Err(open.to_string()) }
    })
    .await;

    let before = memory_mb(server.pid());
    let mut jobs = create("second").await;
    jobs.extend(create("third").await);
    let mut seen = Vec::new();
    for _ in 0..2 * jobs.len() {
        seen.push(reader.next().await.data["event"]["job_id"].as_i64().expect("a Job's change"));
    }
    let grown = memory_mb(server.pid()).saturating_sub(before);
    seen.dedup();
    assert_eq!(seen, jobs, "who reads misses nothing");
    assert!(grown < 100, "{STUCK} clients that read nothing hold {grown} MB");
    wait_for("the stuck clients to be cut off", LIMIT, || async {
        let open = open_streams(&user).await;
        if open == 1 { Ok(()) } else { Err(format!("{open} streams are open")) }
    })
    .await;
    let last = id(&user.job(app, &json!({"workdir": "last"})).await);
    assert_eq!(reader.next().await.data["event"]["job_id"], last, "who reads goes on");
    drop((stuck, reader));
    assert_eq!(server.stop(), 0);
}

/// pgbouncer before the Postgres of a service, in one of its modes; gives it and the database's URL through it.
fn pooler(programs: &Programs, database_url: &str, mode: &str) -> (Running, String) {
    let database: PgConnectOptions = database_url.parse().expect("the service's own URL");
    let socket = database.get_socket().expect("the embedded Postgres listens on a socket");
    let (name, user, port) = (database.get_database().expect("a name"), database.get_username(), free_port());
    // It does not run as root, and only Postgres' own user gets to its socket.
    let owner = fs::metadata(socket).expect("the folder of the socket is there").uid();
    let owner = User::from_uid(Uid::from_raw(owner)).expect("the user database is there").expect("the user exists");
    let as_user = if geteuid().is_root() { format!("user = {}\n", owner.name) } else { String::new() };
    let settings = format!(
        "[databases]\npooled = host={} dbname={name} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 40\n{as_user}",
        socket.display()
    );
    let file = programs.home().join(format!("{mode}.ini"));
    fs::write(&file, settings).expect("the home is this test's own");
    let running = programs.start("/usr/sbin/pgbouncer", &[file.to_str().expect("a plain path")]);
    wait_blocking("the pooler to listen", LIMIT, || {
        TcpStream::connect(("127.0.0.1", port)).map(|_| ()).map_err(|error| format!("{error}: {}", running.log()))
    });
    (running, format!("postgresql://{user}@127.0.0.1:{port}/pooled"))
}

/// Notifications and prepared statements get lost behind a pooler that works by transaction, so the service does not start.
/// Behind one that works by session it is woken like any other.
#[tokio::test]
async fn pitfall_118_a_pooler_by_transaction_is_refused_and_one_by_session_serves() {
    let programs = Programs::new();
    let (server, api) = start(&programs);
    let ann = register(&api, "ann").await;
    let url = programs.run_ok("copal-server", &["database-url"]).trim().to_owned();

    for mode in ["transaction", "statement"] {
        let (pooler, pooled) = pooler(&programs, &url, mode);
        let output = programs.run("copal-server", &["--listen", "127.0.0.1:0", "--database-url", &pooled]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("pool_mode = session"), "{message}");
        drop(pooler);
    }

    let (pooler, pooled) = pooler(&programs, &url, "session");
    let listen = format!("127.0.0.1:{}", free_port());
    let mut second = programs.start("copal-server", &["--listen", &listen, "--database-url", &pooled]);
    second.wait_ready(&listen);
    let site = ann.site("laptop").await;
    let app = ann.app(site, "Plain", &json!({"command": "true"})).await;
    let behind = ann.at(&format!("http://{listen}"));
    let session = behind.session(site, None).await;
    // What it tells itself by a notification arrives.
    wait_for("a notification through the pooler", LIMIT, || async {
        let metrics = reqwest::get(format!("{}/metrics", behind.base())).await.expect("an answer");
        let text = metrics.text().await.expect("a text");
        if text.contains("copal_db_notifications_heard 1") { Ok(()) } else { Err(text) }
    })
    .await;
    let job = id(&ann.job(app, &json!({})).await);
    let acquired = behind.acquire(session, &json!({"wait_sec": 30})).await;
    assert_eq!(acquired.iter().map(id).collect::<Vec<_>>(), [job]);
    assert_eq!(second.stop(), 0);
    drop(pooler);
    assert_eq!(server.stop(), 0);
}
