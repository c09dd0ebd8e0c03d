//! A stand-in for Globus Transfer and for the service that gives its tokens, which follows their published API as far
//! as staging uses it: submission ids, transfer documents, tasks, their moved files, cancelling, refresh tokens, and
//! errors with a code. Its collections are folders, and a task moves its files when the test lets it.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use crate::exchange::{self, Request};

/// The stand-in. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct Globus {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    collections: HashMap<String, PathBuf>,
    /// The access tokens that are good.
    tokens: Vec<String>,
    /// Collections that want a consent first, with its scope.
    consents: HashMap<String, String>,
    /// Paths that can't be read, with the code of the fault.
    faults: HashMap<String, String>,
    /// Whether tasks wait.
    hold: bool,
    /// Whether a task goes on trying after a fault, as the real service does for a day.
    stubborn: bool,
    submissions: HashMap<String, String>,
    tasks: BTreeMap<String, Task>,
    numbers: u32,
    calls: Vec<String>,
}

#[derive(Debug)]
struct Task {
    document: Value,
    status: &'static str,
    fault: Option<(String, String)>,
    moved: Vec<(String, String)>,
    /// Looks at it, so that none is over at the first.
    looks: u32,
}

impl Globus {
    /// A service that takes this token.
    #[must_use]
    pub fn start(token: &str) -> Self {
        let state = Arc::new(Mutex::new(State { tokens: vec![token.into()], ..State::default() }));
        let own = Arc::clone(&state);
        let port = exchange::serve(move |request| {
            let mut state = own.lock().unwrap_or_else(PoisonError::into_inner);
            let (status, body) = state.answer(&request);
            exchange::json(status, &body)
        });
        Self { port, state }
    }

    /// The lines of `settings.yml` that lead here.
    #[must_use]
    pub fn settings(&self, own_collection: &str, root: &Path) -> Vec<String> {
        let (port, root) = (self.port, root.display());
        vec![
            format!("globus_endpoint_id: '{own_collection}'"),
            format!(
                "globus: {{transfer_url: 'http://127.0.0.1:{port}/v0.10', auth_url: 'http://127.0.0.1:{port}/v2/oauth2', \
                 collection_root: '{root}', poll_period_sec: 0.2}}"
            ),
        ]
    }

    /// Adds a collection.
    pub fn collection(&self, id: &str, folder: &Path) {
        self.state().collections.insert(id.into(), folder.into());
    }

    /// A collection that wants a consent with this scope, until it is `None`.
    pub fn consent(&self, id: &str, scope: Option<&str>) {
        match scope {
            Some(scope) => self.state().consents.insert(id.into(), scope.into()),
            None => self.state().consents.remove(id),
        };
    }

    /// A path that can't be moved, with the code that says why.
    pub fn fault(&self, path: &str, code: &str) {
        self.state().faults.insert(path.into(), code.into());
    }

    /// Whether tasks wait, and whether those with a fault go on trying.
    pub fn behave(&self, hold: bool, stubborn: bool) {
        let mut state = self.state();
        (state.hold, state.stubborn) = (hold, stubborn);
    }

    /// Ends all tokens; the next one is given by the token service.
    pub fn end_tokens(&self) {
        self.state().tokens.clear();
    }

    /// The status of each task, in the order of submission.
    #[must_use]
    pub fn tasks(&self) -> Vec<String> {
        self.state().tasks.values().map(|task| task.status.into()).collect()
    }

    /// The documents of all tasks.
    #[must_use]
    pub fn documents(&self) -> Vec<Value> {
        self.state().tasks.values().map(|task| task.document.clone()).collect()
    }

    /// How many calls began with this method and path.
    #[must_use]
    pub fn calls(&self, beginning: &str) -> usize {
        self.state().calls.iter().filter(|call| call.starts_with(beginning)).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> (u16, Value) {
        self.calls.push(format!("{} {}", request.method, request.target));
        let path = request.target.split('?').next().unwrap_or_default();
        if (request.method.as_str(), path) == ("POST", "/v2/oauth2/token") {
            return self.token(&String::from_utf8_lossy(&request.body));
        }
        let token = request.headers.get("authorization").and_then(|header| header.strip_prefix("Bearer "));
        if !token.is_some_and(|token| self.tokens.iter().any(|good| good == token)) {
            return problem(401, "AuthenticationFailed", "Token is not active");
        }
        let Some(path) = path.strip_prefix("/v0.10/") else {
            return problem(404, "ClientError.NotFound", "no such resource");
        };
        let parts: Vec<&str> = path.split('/').collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["submission_id"]) => {
                self.numbers += 1;
                (200, json!({"DATA_TYPE": "submission_id", "value": format!("submission-{}", self.numbers)}))
            }
            ("POST", ["transfer"]) => match serde_json::from_slice(&request.body) {
                Ok(document) => self.submit(document),
                Err(error) => problem(400, "ClientError.BadRequest", &error.to_string()),
            },
            ("GET", ["task", id]) => self.look(id),
            ("POST", ["task", id, "cancel"]) => match self.tasks.get_mut(*id) {
                Some(task) if task.status == "ACTIVE" => {
                    task.status = "FAILED";
                    task.fault = Some(("CANCELED".into(), "canceled by its owner".into()));
                    (200, json!({"DATA_TYPE": "result", "code": "Canceled", "message": "The task has been cancelled"}))
                }
                Some(_) => {
                    (200, json!({"DATA_TYPE": "result", "code": "TaskComplete", "message": "The task is complete"}))
                }
                None => problem(404, "ClientError.NotFound", "no such task"),
            },
            ("GET", ["task", id, "successful_transfers"]) => match self.tasks.get(*id) {
                Some(task) => {
                    let pairs = task.moved.iter();
                    let data: Vec<Value> =
                        pairs.map(|(from, to)| json!({"DATA_TYPE": "successful_transfer", "source_path": from, "destination_path": to})).collect();
                    (200, json!({"DATA_TYPE": "successful_transfers", "next_marker": null, "DATA": data}))
                }
                None => problem(404, "ClientError.NotFound", "no such task"),
            },
            _ => problem(404, "ClientError.NotFound", "no such resource"),
        }
    }

    fn token(&mut self, form: &str) -> (u16, Value) {
        if !form.contains("grant_type=refresh_token&refresh_token=good-refresh") || !form.contains("client_id=copal") {
            return (401, json!({"error": "invalid_grant"}));
        }
        self.numbers += 1;
        let token = format!("token-{}", self.numbers);
        self.tokens.push(token.clone());
        (200, json!({"access_token": token, "expires_in": 172_800, "token_type": "Bearer"}))
    }

    fn submit(&mut self, document: Value) -> (u16, Value) {
        let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        let submission = text("submission_id");
        if let Some(task) = self.submissions.get(&submission) {
            return (200, json!({"DATA_TYPE": "transfer_result", "code": "Duplicate", "task_id": task}));
        }
        if submission.is_empty() || document["DATA"].as_array().is_none_or(Vec::is_empty) {
            return problem(400, "ClientError.BadRequest", "a submission_id and transfer items are wanted");
        }
        for end in ["source_endpoint", "destination_endpoint"] {
            let id = text(end);
            if !self.collections.contains_key(&id) {
                return problem(404, "EndpointNotFound", &format!("no collection {id}"));
            }
            if let Some(scope) = self.consents.get(&id) {
                let mut body = problem(403, "ConsentRequired", "Missing required data_access consent").1;
                body["required_scopes"] = json!([scope]);
                return (403, body);
            }
        }
        self.numbers += 1;
        let id = format!("task-{:04}", self.numbers);
        self.submissions.insert(submission, id.clone());
        self.tasks.insert(id.clone(), Task { document, status: "ACTIVE", fault: None, moved: Vec::new(), looks: 0 });
        (202, json!({"DATA_TYPE": "transfer_result", "code": "Accepted", "task_id": id}))
    }

    /// Moves what there is to move, then tells of the task; what has nothing to say is left out.
    fn look(&mut self, id: &str) -> (u16, Value) {
        let (hold, stubborn) = (self.hold, self.stubborn);
        let Some(task) = self.tasks.get_mut(id) else { return problem(404, "ClientError.NotFound", "no such task") };
        task.looks += 1;
        if task.status == "ACTIVE" && !hold && task.looks > 1 && task.fault.is_none() {
            task.run(&self.collections, &self.faults);
            match &task.fault {
                None => task.status = "SUCCEEDED",
                Some(_) if stubborn => {}
                Some(_) => task.status = "FAILED",
            }
        }
        let mut body = json!({"DATA_TYPE": "task", "task_id": id, "status": task.status});
        if let Some((code, text)) = &task.fault {
            match task.status {
                "ACTIVE" => {
                    body["nice_status"] = json!(code);
                    body["nice_status_details"] = json!(text);
                }
                _ => body["fatal_error"] = json!({"code": code, "description": text}),
            }
        }
        (200, body)
    }
}

impl Task {
    fn run(&mut self, collections: &HashMap<String, PathBuf>, faults: &HashMap<String, String>) {
        let folder =
            |end: &str| collections.get(self.document[end].as_str().unwrap_or_default()).cloned().unwrap_or_default();
        let (source, destination) = (folder("source_endpoint"), folder("destination_endpoint"));
        for item in self.document["DATA"].as_array().into_iter().flatten() {
            let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
            let (from, to) = (text("source_path"), text("destination_path"));
            if let Some(code) = faults.get(&from) {
                self.fault = Some((code.clone(), format!("{from}: {code}")));
                continue;
            }
            let below = |folder: &Path, path: &str| folder.join(path.trim_start_matches('/'));
            match copy(&below(&source, &from), &below(&destination, &to)) {
                Ok(()) => self.moved.push((from, to)),
                Err(error) => self.fault = Some(("FILE_NOT_FOUND".into(), format!("{from}: {error}"))),
            }
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    fs::read_dir(from)?.try_for_each(|entry| {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))
    })
}

fn problem(status: u16, code: &str, message: &str) -> (u16, Value) {
    (status, json!({"code": code, "message": message, "request_id": "x"}))
}
