//! Tokens that are renewed, against a service that gives and takes tokens as the real one does. That the
//! real one does is tested in the workspace's `tests/`.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use copal_client::{Client, Credentials, launcher_login::LauncherLogin};
use copal_schemas::{
    BatchJobId, Timestamp,
    user::{AccessToken, LauncherSecret},
};
use futures_util::future::join_all;
use secrecy::ExposeSecret;
use serde_json::json;

#[derive(Default)]
struct State {
    access: HashSet<String>,
    refresh: HashSet<String>,
    secrets: HashSet<String>,
    renewals: usize,
    exchanges: usize,
    is_away: bool,
    /// What came: path, token and body.
    seen: Vec<String>,
}

struct Service {
    state: Arc<Mutex<State>>,
    root: url::Url,
    folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(&stream, &shared));
            }
        });
        Self { state, root, folder: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("client.yml")
    }

    /// A login with the access token `a0` and the refresh token `r0`, kept in the file.
    fn log_in(&self, expiration: &str) -> Credentials {
        let mut state = self.state();
        state.access.insert("a0".into());
        state.refresh.insert("r0".into());
        let expiration: Timestamp = copal_schemas::time::parse(expiration).unwrap();
        let (access_token, refresh_token) = ("a0".into(), Some("r0".into()));
        let tokens = AccessToken { access_token, token_type: "bearer".into(), expiration, refresh_token };
        let credentials = Credentials::new(self.path(), self.root.clone(), "ann".into(), tokens);
        credentials.save().unwrap();
        credentials
    }

    fn client(&self) -> Client {
        Client::from_credentials(&Credentials::read(&self.path()).unwrap()).unwrap()
    }
}

const PAST: &str = "2026-01-01T00:00:00";
const FUTURE: &str = "2100-01-01T00:00:00";

fn answer(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    let (mut start, mut token, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut start).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => token = value.trim().trim_start_matches("Bearer ").to_owned(),
            "content-length" => length = value.trim().parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    let path = start.split(' ').nth(1).unwrap();
    let field = |name: &str| {
        url::form_urlencoded::parse(body.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let mut state = state.lock().unwrap();
    state.seen.push(format!("{path} {token} {body}"));
    let (status, text) = match path {
        _ if state.is_away => (503, json!({})),
        "/auth/token" if state.refresh.contains(&field("refresh_token").unwrap()) => {
            state.renewals += 1;
            let name = state.renewals.to_string();
            (200, tokens(&mut state, &name))
        }
        "/auth/launcher" if state.secrets.remove(&field("secret").unwrap()) => {
            state.exchanges += 1;
            (200, tokens(&mut state, "launcher"))
        }
        path if !path.starts_with("/auth/password") => (401, json!({})),
        _ if state.access.contains(&token) => (200, json!({"id": 1, "username": "ann"})),
        _ => (401, json!({})),
    };
    drop(state);
    let text = text.to_string();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let mut stream = stream;
    write!(stream, "{head}content-length: {}\r\n\r\n{text}", text.len()).unwrap();
}

fn tokens(state: &mut State, name: &str) -> serde_json::Value {
    let (access, refresh) = (format!("a{name}"), format!("r{name}"));
    state.access.insert(access.clone());
    state.refresh.insert(refresh.clone());
    json!({"access_token": access, "token_type": "bearer", "refresh_token": refresh, "expiration": FUTURE})
}

fn stored(path: &Path) -> (String, String) {
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    let read = Credentials::read(path).unwrap();
    (read.token.expose_secret().into(), read.refresh_token.unwrap().expose_secret().into())
}

#[tokio::test]
async fn a_token_is_renewed_before_it_lapses_once_for_all_clones() {
    let service = Service::start();
    service.log_in(PAST);
    let client = service.client();
    for answer in join_all((0..8).map(|_| client.whoami())).await {
        answer.unwrap();
    }
    assert_eq!(service.state().renewals, 1);
    assert_eq!(stored(&service.path()), ("a1".into(), "r1".into()));
    assert!(!service.state().seen.iter().any(|line| line.contains(" a0 ")), "the lapsed token was sent");
}

#[tokio::test]
async fn pitfall_125_a_refused_token_is_renewed_and_the_request_repeated() {
    let service = Service::start();
    service.log_in(FUTURE);
    let client = service.client();
    client.whoami().await.unwrap();
    service.state().access.clear();
    client.register("bob", "secret").await.unwrap();
    let seen = service.state().seen.clone();
    assert_eq!(seen.iter().filter(|line| line.contains("register") && line.contains("bob")).count(), 2, "{seen:?}");
    assert_eq!(service.state().renewals, 1);
    assert!(seen.iter().filter(|line| line.contains("/auth/token")).all(|line| !line.contains(" a0 ")), "{seen:?}");
}

#[tokio::test]
async fn processes_with_one_file_renew_once() {
    let service = Service::start();
    service.log_in(FUTURE);
    let clients: Vec<Client> = (0..5).map(|_| service.client()).collect();
    service.state().access.clear();
    for answer in join_all(clients.iter().map(Client::whoami)).await {
        answer.unwrap();
    }
    assert_eq!(service.state().renewals, 1);
    assert_eq!(stored(&service.path()).0, "a1");
}

#[tokio::test]
async fn a_login_that_was_given_up_or_replaced_is_not_renewed() {
    let service = Service::start();
    service.log_in(PAST);
    let client = service.client();
    fs::remove_file(service.path()).unwrap();
    client.whoami().await.unwrap();
    service.state().access.clear();
    client.whoami().await.unwrap_err();

    let mut other = service.log_in(PAST);
    let client = service.client();
    other.username = "bob".into();
    other.save().unwrap();
    client.whoami().await.unwrap();
    assert_eq!(service.state().renewals, 0);
    assert_eq!(stored(&service.path()), ("a0".into(), "r0".into()));
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_what_there_is() {
    let service = Service::start();
    service.log_in(PAST);
    service.state().refresh.clear();
    let client = service.client();
    client.whoami().await.unwrap();
    client.whoami().await.unwrap();
    let tries = service.state().seen.iter().filter(|line| line.contains("/auth/token")).count();
    assert_eq!(tries, 1, "it is not tried with each request");
    assert_eq!(stored(&service.path()), ("a0".into(), "r0".into()));
    service.state().is_away = true;
    assert!(client.whoami().await.unwrap_err().is_transient());
}

#[tokio::test]
async fn pitfall_126_a_launcher_and_its_partitions_exchange_their_secret_once() {
    let service = Service::start();
    let agent = service.log_in(FUTURE);
    let folder = service.folder.path();
    let login = LauncherLogin::new(folder, BatchJobId(7));
    assert!(login.client().await.unwrap().is_none());
    let leave = |secret: &str| {
        service.state().secrets.insert(secret.into());
        login.leave(&agent, LauncherSecret { secret: secret.into() }).unwrap();
    };
    leave("s1");
    let secret = folder.join("7.launcher-secret.yml");
    assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
    service.state().is_away = true;
    assert!(login.client().await.unwrap_err().is_transient());
    service.state().is_away = false;
    for client in join_all((0..4).map(|_| login.client())).await {
        client.unwrap().unwrap().whoami().await.unwrap();
    }
    assert_eq!(service.state().exchanges, 1);
    assert!(!secret.exists());
    assert_eq!(stored(&folder.join("7.launcher-login.yml")), ("alauncher".into(), "rlauncher".into()));

    // A submission that was made again leaves another secret, which is newer than those tokens.
    leave("s2");
    login.client().await.unwrap().unwrap();
    assert_eq!(service.state().exchanges, 2);
    // One that is spent, as after a lost answer: the tokens that there are do.
    leave("s3");
    service.state().secrets.clear();
    login.client().await.unwrap().unwrap().whoami().await.unwrap();

    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    login.client().await.unwrap_err();
    login.remove();
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("launcher")), "{left:?}");
}
