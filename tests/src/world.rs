//! Ready-made users, Sites, Apps, Jobs and Sessions, so that a test says only what it is about.

use serde_json::{Value, json};

use crate::{
    api::{Api, id},
    service::{Service, Settings},
    wait::{LIMIT, wait_for},
};

/// The password of every test user.
pub const PASSWORD: &str = "correct horse battery staple";

/// A service with one user, who has a Site with two Apps.
#[derive(Debug)]
pub struct World {
    /// The service.
    pub service: Service,
    /// The user.
    pub user: Api,
    /// The user's Site.
    pub site: i64,
    /// An App with a `serialized_class`, as Balsam's clients make it: its Jobs take every step.
    pub app: i64,
    /// A Copal App without hooks: its Jobs pass over every step with nothing to do.
    pub plain: i64,
}

impl World {
    /// A new service on a new database.
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    /// A new service with settings of its own.
    pub async fn with(settings: Settings) -> Self {
        let service = Service::start(settings).await;
        let user = service.user("ann").await;
        let site = user.site("laptop").await;
        let app = user.app(site, "Simulate", &json!({})).await;
        let plain = user.app(site, "Plain", &json!({"command": "true"})).await;
        Self { service, user, site, app, plain }
    }

    /// One Job of [`World::app`], with these fields beside the required ones.
    pub async fn job(&self, fields: &Value) -> Value {
        self.user.job(self.app, fields).await
    }

    /// One Job of [`World::plain`].
    pub async fn plain_job(&self, fields: &Value) -> Value {
        self.user.job(self.plain, fields).await
    }

    /// Jobs of [`World::plain`] with workdirs of their own.
    pub async fn plain_jobs(&self, count: usize) -> Vec<i64> {
        let jobs: Vec<Value> =
            (0..count).map(|index| json!({"app_id": self.plain, "workdir": format!("plain/{index}")})).collect();
        self.user.jobs(&jobs).await.iter().map(id).collect()
    }

    /// A Session at [`World::site`] without a BatchJob.
    pub async fn session(&self) -> i64 {
        self.user.session(self.site, None).await
    }

    /// A Job that a Session has taken and reported to run.
    pub async fn running_job(&self, session: i64) -> i64 {
        let job = id(&self.plain_job(&json!({})).await);
        self.user.acquire(session, &json!({})).await;
        self.user.report(session, job, &["RUNNING"]).await;
        job
    }

    /// Waits until a Session has lapsed.
    ///
    /// # Panics
    /// When it does not.
    pub async fn wait_until_gone(&self, session: i64) {
        wait_for("the Session to lapse", LIMIT, || async {
            let ids = self.user.ids("/sessions/").await;
            if ids.contains(&session) { Err(format!("sessions {ids:?}")) } else { Ok(()) }
        })
        .await;
    }
}

/// An object with the fields of another put over its own.
#[must_use]
pub fn with(mut object: Value, fields: &Value) -> Value {
    let changes = fields.as_object().cloned().unwrap_or_default();
    if let Some(object) = object.as_object_mut() {
        object.extend(changes);
    }
    object
}

/// The calls that many tests make only to get somewhere.
impl Api {
    /// A new Site with this name.
    pub async fn site(&self, name: &str) -> i64 {
        id(&self.post("/sites/", &json!({"name": name, "path": format!("/home/{name}")})).await.created())
    }

    /// A new App with these fields beside the required ones.
    pub async fn app(&self, site: i64, name: &str, fields: &Value) -> i64 {
        let app = json!({"site_id": site, "name": name, "serialized_class": "", "source_code": ""});
        id(&self.post("/apps/", &with(app, fields)).await.created())
    }

    /// New Jobs.
    pub async fn jobs(&self, jobs: &[Value]) -> Vec<Value> {
        self.post("/jobs/", &json!(jobs)).await.created().as_array().expect("a list of Jobs").clone()
    }

    /// One new Job with these fields beside the required ones.
    pub async fn job(&self, app: i64, fields: &Value) -> Value {
        let job = with(json!({"app_id": app, "workdir": "test/job"}), fields);
        self.jobs(&[job]).await.remove(0)
    }

    /// The Job as it is now.
    pub async fn get_job(&self, job: i64) -> Value {
        self.get(&format!("/jobs/{job}")).await.ok()
    }

    /// The state of a Job.
    pub async fn state(&self, job: i64) -> String {
        self.get_job(job).await["state"].as_str().expect("a Job has a state").into()
    }

    /// Sets a Job's state as its owner.
    pub async fn set_state(&self, job: i64, state: &str) {
        assert_eq!(self.put(&format!("/jobs/{job}"), &json!({"state": state})).await.ok(), json!(1));
    }

    /// The states that a Job passed, oldest first, the first one included.
    pub async fn history(&self, job: i64) -> Vec<String> {
        let events = self.list(&format!("/events/?job_id={job}&ordering=timestamp")).await;
        let state = |event: &Value, key: &str| event[key].as_str().expect("an event has states").to_owned();
        let mut states: Vec<String> = events.first().map(|event| state(event, "from_state")).into_iter().collect();
        states.extend(events.iter().map(|event| state(event, "to_state")));
        states
    }

    /// A new BatchJob with these fields beside the required ones.
    pub async fn batch_job(&self, site: i64, fields: &Value) -> i64 {
        let batch_job = json!({"site_id": site, "project": "physics", "queue": "debug", "num_nodes": 4,
            "wall_time_min": 30, "job_mode": "mpi"});
        id(&self.post("/batch-jobs/", &with(batch_job, fields)).await.created())
    }

    /// A new Session.
    pub async fn session(&self, site: i64, batch_job: Option<i64>) -> i64 {
        id(&self.post("/sessions/", &json!({"site_id": site, "batch_job_id": batch_job})).await.created())
    }

    /// Acquires Jobs: 100 with any tags, unless `fields` says otherwise.
    pub async fn acquire(&self, session: i64, fields: &Value) -> Vec<Value> {
        let wanted = with(json!({"max_num_jobs": 100, "filter_tags": {}}), fields);
        let answer = self.post(&format!("/sessions/{session}"), &wanted).await.ok();
        answer.as_array().expect("a list of Jobs").clone()
    }

    /// Reports state changes of held Jobs and gives the answer.
    pub async fn update(&self, session: i64, updates: &[Value]) -> Value {
        let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": updates});
        self.post(&format!("/sessions/{session}/updates"), &body).await.ok()
    }

    /// Reports state changes of one held Job, all of which must be taken.
    pub async fn report(&self, session: i64, job: i64, states: &[&str]) {
        let updates: Vec<Value> = states.iter().map(|state| json!({"job_id": job, "state": state})).collect();
        let answer = self.update(session, &updates).await;
        assert_eq!(answer, json!({"accepted": states.len(), "rejected": []}));
    }
}
