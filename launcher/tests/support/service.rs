//! A service for tests that can be broken on purpose: it speaks just what a launcher asks, keeps what it
//! is told, and can be away, lose answers or end Sessions when a test says so. What the real service
//! does is tested with the real one, in the workspace's `tests/`.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use copal_client::processes;
use serde_json::{Value, json};

/// The longest that anything in these tests may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What the service does with a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Closes every connection.
    Away,
    /// Answers 503.
    Busy,
    /// Is away behind a proxy that answers 404 with a page of its own.
    Hidden,
    /// Takes no token any more.
    Unauthenticated,
    /// Answers nothing until the mood is another one; then all that was asked.
    Slow,
    /// Answers updates by 503, and everything else well.
    RefusesUpdates,
    /// Does what is asked and closes the connection instead of answering, for updates.
    LosesUpdateAnswers,
    /// The same for acquires.
    LosesAcquireAnswers,
}

#[derive(Debug, Default)]
pub struct State {
    pub mood: Mood,
    jobs: HashMap<i64, Value>,
    session_of: HashMap<i64, i64>,
    /// Which Session gave which Job back.
    refused: HashSet<(i64, i64)>,
    /// Sessions that live, with the body that opened each.
    pub sessions: HashMap<i64, Value>,
    pub deleted: Vec<i64>,
    next_session: i64,
    /// All updates that were made, in order: Job, state, data and all.
    pub updates: Vec<Value>,
    keys: HashSet<String>,
    pub doubled_keys: usize,
    pub refused_updates: usize,
    /// Calls whose connection was closed.
    pub turned_away: usize,
    pub acquires: Vec<Value>,
    /// Whether a question that waits is held until there is something, however long it wants to wait.
    pub holds_questions: bool,
    /// Questions that wait now.
    pub held_questions: Vec<Value>,
    pub cancel: Vec<i64>,
    pub stop: bool,
    /// Jobs whose updates are refused.
    pub not_held: HashSet<i64>,
    /// Jobs that were given back, with the reason.
    pub released: Vec<Value>,
    /// A call with an update of this Job is not understood.
    pub poison: Option<i64>,
    /// A call with an update of this Job that has more than its state is not understood.
    pub fussy: Option<i64>,
    /// For how long the service says that it holds the Session.
    pub held_sec: Option<f64>,
}

pub struct Service {
    shared: Arc<(Mutex<State>, Condvar)>,
    port: u16,
    pub folder: tempfile::TempDir,
}

impl Service {
    /// The service, and a Site whose Apps are `Sh` (a command line in the parameter `cmd`) and `True`.
    pub fn start(settings: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new((Mutex::new(State { next_session: 1, ..State::default() }), Condvar::new()));
        let service_shared = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = service_shared.clone();
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        let service = Self { shared, port, folder: tempfile::tempdir().unwrap() };
        service.write("site/settings.yml", &format!("site_id: 1\n{settings}"), 0o644);
        service.write(
            "site/apps/Sh.yml",
            "name: Sh\ncommand: '{{{cmd}}}'\nparameters: {cmd: {required: true}}\n",
            0o644,
        );
        service.write("site/apps/True.yml", "name: 'True'\ncommand: 'true'\noutput: none\n", 0o644);
        let client = format!(
            "api_root: http://127.0.0.1:{port}/\nusername: ann\ntoken: t\ntoken_expiry: '2030-01-01T00:00:00+00:00'\n"
        );
        service.write("home/client.yml", &client, 0o600);
        service
    }

    pub fn write(&self, path: &str, text: &str, mode: u32) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    /// Changes something and wakes whoever waits for it.
    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.1.notify_all();
    }

    pub fn mood(&self, mood: Mood) {
        self.set(|state| state.mood = mood);
    }

    /// A Job of `Sh`.
    pub fn job(&self, id: i64, command: &str) {
        self.job_with(id, 1, json!({"parameters": {"cmd": command}}));
    }

    /// A Job of an App (1 is `Sh`, 2 is `True`), with other fields than usual.
    pub fn job_with(&self, id: i64, app: i64, fields: Value) {
        let mut job = json!({
            "id": id, "workdir": format!("job/{id}"), "tags": {}, "app_id": app, "session_id": null,
            "serialized_parameters": "", "serialized_return_value": "", "serialized_exception": "",
            "batch_job_id": null, "state": "PREPROCESSED", "last_update": "2026-11-30T10:00:00", "data": {},
            "return_code": null, "pending_file_cleanup": true, "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1,
            "threads_per_rank": 1, "threads_per_core": 1, "gpus_per_rank": 0.0, "node_packing_count": 4,
            "wall_time_min": 0, "launch_params": {}
        });
        job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.set(|state| drop(state.jobs.insert(id, job)));
    }

    pub fn launch(&self, arguments: &[&str]) -> Launcher {
        self.launch_with(arguments, &[])
    }

    pub fn launch_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> Launcher {
        self.launch_by(Command::new("env"), arguments, env)
    }

    /// Has the launcher run by another command, which is given its words.
    pub fn launch_by(&self, mut command: Command, arguments: &[&str], env: &[(&str, &str)]) -> Launcher {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let child = command
            .arg(env!("CARGO_BIN_EXE_copal-launcher"))
            .arg("--site")
            .arg(self.path("site"))
            .args(arguments)
            .env("COPAL_HOME", self.path("home"))
            .env("COPAL_TEST_SERVICE", self.port.to_string())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        Launcher { child, log: self.path("log") }
    }

    /// The states that were reported for a Job, in order.
    pub fn states(&self, job: i64) -> Vec<String> {
        let state = self.state();
        let updates = state.updates.iter().filter(|update| update["job_id"] == job);
        updates.map(|update| update["state"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a Job was reported in a state; the update.
    pub fn wait_for(&self, job: i64, wanted: &str) -> Value {
        self.wait_until(&format!("Job {job} {wanted}"), |state| {
            state.updates.iter().find(|update| update["job_id"] == job && update["state"] == wanted).cloned()
        })
    }

    pub fn wait_until<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        let mut state = self.state();
        loop {
            if let Some(found) = look(&state) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let log = fs::read_to_string(self.path("log")).unwrap_or_default();
                panic!("waited in vain for {what}; {:#?}\n{log}", *state);
            }
            state = self.shared.1.wait_timeout(state, left).unwrap().0;
        }
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }
}

/// A launcher that is killed with its test.
pub struct Launcher {
    pub child: Child,
    log: PathBuf,
}

impl Launcher {
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for the end; its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the launcher does not end: {}", read(&self.log));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// How often its first thread, which has the loop, has gone to sleep.
    pub fn naps(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse().unwrap()
    }

    /// Its workers, without their guards, which have another name.
    pub fn workers(&self) -> Vec<i32> {
        let read = |pid: &i32, name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let is_worker =
            |pid: &i32| read(pid, "comm") == "copal-launcher\n" && read(pid, "cmdline").contains("\0worker");
        self.children().into_iter().filter(is_worker).collect()
    }

    /// The processes below it.
    pub fn children(&self) -> Vec<i32> {
        let all = processes::snapshot();
        let own = i32::try_from(self.child.id()).unwrap();
        processes::below(&all, own).iter().map(|process| process.pid).collect()
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

type Shared = (Mutex<State>, Condvar);

/// One call on a connection, which is closed after it.
fn serve(stream: &TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (status, answer) = answer(shared, &method, path, query, &body)?;
    let text = answer.to_string();
    let mut stream = stream;
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all((head + &text).as_bytes()).ok()
}

fn problem(status: u16, code: &str) -> Option<(u16, Value)> {
    Some((status, json!({"status": status, "code": code, "title": "t", "detail": code})))
}

/// What a proxy answers that finds no service.
fn page(state: &mut State, changed: &Condvar) -> (u16, Value) {
    state.turned_away += 1;
    changed.notify_all();
    (404, json!("default backend - 404"))
}

/// The answer; none to close the connection.
fn answer(shared: &Shared, method: &str, path: &str, query: &str, body: &Value) -> Option<(u16, Value)> {
    let (state, changed) = shared;
    let mut state = state.lock().unwrap();
    while state.mood == Mood::Slow {
        state = changed.wait(state).unwrap();
    }
    match state.mood {
        Mood::RefusesUpdates if path.ends_with("/updates") => {
            state.refused_updates += 1;
            changed.notify_all();
            return problem(503, "unavailable");
        }
        Mood::Away => {
            state.turned_away += 1;
            changed.notify_all();
            return None;
        }
        Mood::Busy => return problem(503, "unavailable"),
        Mood::Hidden => return Some(page(&mut state, changed)),
        Mood::Unauthenticated => return problem(401, "unauthenticated"),
        _ => {}
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if parts.len() > 1 && parts[0] == "sessions" && !state.sessions.contains_key(&parts[1].parse().ok()?) {
        return problem(404, "session_ended");
    }
    let wait = |body_wait: f64| Instant::now() + Duration::from_secs_f64(body_wait.min(5.0));
    match (method, parts.as_slice()) {
        ("POST", ["sessions"]) => {
            let id = state.next_session;
            state.next_session += 1;
            state.sessions.insert(id, body.clone());
            changed.notify_all();
            let batch_job = body["batch_job_id"].clone();
            Some((201, json!({"id": id, "site_id": 1, "batch_job_id": batch_job, "heartbeat": "2026-11-30T10:00:00"})))
        }
        ("POST", ["sessions", id]) => {
            let id: i64 = id.parse().ok()?;
            state.acquires.push(body.clone());
            changed.notify_all();
            let asked = body["wait_sec"].as_f64().unwrap_or_default();
            let is_held = state.holds_questions && asked > 0.0;
            let deadline = if is_held { Instant::now() + 2 * LIMIT } else { wait(asked) };
            let mut is_waiting = false;
            let answer = loop {
                let jobs = acquire(&mut state, id, body);
                let left = deadline.saturating_duration_since(Instant::now());
                if !jobs.is_empty() || left.is_zero() {
                    let is_lost = state.mood == Mood::LosesAcquireAnswers && !jobs.is_empty();
                    break if is_lost { None } else { Some((200, json!(jobs))) };
                }
                if !std::mem::replace(&mut is_waiting, true) {
                    state.held_questions.push(body.clone());
                    changed.notify_all();
                }
                state = changed.wait_timeout(state, left).unwrap().0;
                match state.mood {
                    Mood::Away => break None,
                    Mood::Hidden => break Some(page(&mut state, changed)),
                    _ => {}
                }
                if !state.sessions.contains_key(&id) {
                    break problem(404, "session_ended");
                }
            };
            if is_waiting {
                let place = state.held_questions.iter().position(|held| held == body);
                place.map(|place| state.held_questions.remove(place));
            }
            answer
        }
        ("POST", ["sessions", id, "updates"]) => update(&mut state, changed, id.parse().ok()?, body),
        ("GET", ["sessions", id, "signals"]) => {
            let id: i64 = id.parse().ok()?;
            let deadline = wait(query.strip_prefix("wait_sec=").and_then(|text| text.parse().ok()).unwrap_or(0.0));
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let held = |job: &&i64| state.session_of.get(job) == Some(&id);
                let cancel: Vec<i64> = state.cancel.iter().filter(held).copied().collect();
                if !cancel.is_empty() || state.stop || left.is_zero() {
                    return Some((200, json!({"cancel": cancel, "stop": state.stop, "held_sec": state.held_sec})));
                }
                state = changed.wait_timeout(state, left).unwrap().0;
                match state.mood {
                    Mood::Away => return None,
                    Mood::Hidden => return Some(page(&mut state, changed)),
                    _ => {}
                }
                if !state.sessions.contains_key(&id) {
                    return problem(404, "session_ended");
                }
            }
        }
        ("DELETE", ["sessions", id]) => {
            let id: i64 = id.parse().ok()?;
            state.sessions.remove(&id);
            state.session_of.retain(|_, session| *session != id);
            state.deleted.push(id);
            changed.notify_all();
            Some((200, Value::Null))
        }
        ("GET", ["apps"]) => {
            let app = |id: i64, name: &str| {
                json!({
                    "id": id, "site_id": 1, "name": name, "serialized_class": "", "source_code": "",
                    "description": "", "parameters": {}, "transfers": {}, "command": "x", "hooks": {}
                })
            };
            Some((200, json!({"count": 3, "results": [app(1, "Sh"), app(2, "True"), app(3, "Gone")]})))
        }
        ("GET", ["jobs"]) => {
            let held = state.jobs.values().filter(|job| state.session_of.contains_key(&job["id"].as_i64().unwrap()));
            let held: Vec<Value> = held.filter(|job| job["state"] == "PREPROCESSED").cloned().collect();
            Some((200, json!({"count": held.len(), "results": held})))
        }
        other => panic!("the launcher asks for what it should not: {other:?}"),
    }
}

fn acquire(state: &mut State, session: i64, wanted: &Value) -> Vec<Value> {
    let tags = wanted["filter_tags"].as_object().unwrap().clone();
    let is_free = |id: &i64| !state.session_of.contains_key(id) && !state.refused.contains(&(session, *id));
    let mut ids: Vec<i64> = state.jobs.keys().copied().filter(is_free).collect();
    ids.sort_unstable();
    let (mut taken, mut sum) = (Vec::new(), 0.0);
    for id in ids {
        let job = state.jobs.get_mut(&id).unwrap();
        let is_runnable = job["state"] == "PREPROCESSED" || job["state"] == "RESTART_READY";
        let has_tags = tags.iter().all(|(key, value)| job["tags"].get(key) == Some(value));
        let is_serial = job["num_nodes"] == 1 && job["ranks_per_node"] == 1;
        if !is_runnable || !has_tags || (wanted["serial_only"] == true && !is_serial) {
            continue;
        }
        sum += job["num_nodes"].as_f64().unwrap() / job["node_packing_count"].as_f64().unwrap();
        let most = wanted["max_aggregate_nodes"].as_f64().unwrap_or(f64::INFINITY);
        if sum > most || taken.len() as i64 >= wanted["max_num_jobs"].as_i64().unwrap() {
            break;
        }
        job["session_id"] = json!(session);
        state.session_of.insert(id, session);
        taken.push(job.clone());
    }
    taken
}

fn update(state: &mut State, changed: &Condvar, session: i64, body: &Value) -> Option<(u16, Value)> {
    let updates = body["updates"].as_array().unwrap();
    if state.poison.is_some_and(|job| updates.iter().any(|update| update["job_id"] == job)) {
        return problem(422, "invalid");
    }
    let has_details = |update: &&Value| state.fussy == update["job_id"].as_i64() && update.get("usage").is_some();
    if updates.iter().any(|update| has_details(&update)) {
        return problem(422, "invalid");
    }
    let mut rejected = Vec::new();
    let released = body["release"].as_array().cloned().unwrap_or_default();
    if state.keys.insert(body["batch_key"].as_str().unwrap().to_owned()) {
        for (index, update) in updates.iter().enumerate() {
            let job = update["job_id"].as_i64().unwrap();
            if state.not_held.contains(&job) || state.session_of.get(&job) != Some(&session) {
                rejected.push(json!({"index": index, "job_id": job, "reason": "not_held", "detail": "d"}));
                continue;
            }
            state.updates.push(update.clone());
            let known = state.jobs.get_mut(&job).unwrap();
            known["state"] = update["state"].clone();
            if update["state"] == "RUN_TIMEOUT" {
                known["state"] = json!("RESTART_READY");
                known["num_attempts"] = json!(known["num_attempts"].as_i64().unwrap_or_default() + 1);
            }
            if update["state"] != "RUNNING" {
                state.session_of.remove(&job);
                state.cancel.retain(|cancelled| *cancelled != job);
            }
        }
        for release in released {
            let job = release["job_id"].as_i64().unwrap();
            state.session_of.remove(&job);
            if release["message"].is_string() {
                state.refused.insert((session, job));
            }
            state.released.push(release);
        }
    } else {
        state.doubled_keys += 1;
    }
    changed.notify_all();
    match state.mood {
        Mood::LosesUpdateAnswers => None,
        _ => Some((200, json!({"accepted": updates.len() - rejected.len(), "rejected": rejected}))),
    }
}
