//! One service with its database: how it is started, filled, and found again.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use copal_schemas::UserId;
use copal_server::db::{self, scope::Scope};
use copal_tests::{
    Api, id,
    process::{Programs, Running, free_port},
    world::PASSWORD,
};
use serde_json::json;
use sqlx::PgPool;

/// Jobs of one array.
const ARRAY: usize = 50_000;
/// Tags that divide the Jobs.
const SETS: usize = 10;

/// The service, a user, and a Site for each purpose.
pub(super) struct Bench {
    server: Running,
    programs: Programs,
    folder: PathBuf,
    pub(super) api: Api,
    pub(super) pool: PgPool,
    pub(super) scope: Scope,
    /// The Site with the backlog, and its App without hooks.
    pub(super) site: i64,
    pub(super) plain: i64,
    /// An App at another Site whose Jobs take every step.
    pub(super) stepwise: i64,
    /// An App without hooks at a third Site, where long polls wait.
    pub(super) idle_site: i64,
    pub(super) idle: i64,
    /// For workdirs.
    next: usize,
}

impl Bench {
    /// A service on the database in `keep`, which is made where it is not there; on a new one that goes away otherwise.
    pub(super) async fn open(keep: Option<&Path>) -> Self {
        let programs = Programs::new();
        // The embedded Postgres may run as another user, who must get to its folder.
        fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).expect("an own folder");
        let folder = match keep {
            Some(folder) => {
                fs::create_dir_all(folder).expect("a folder to keep the database in");
                fs::canonicalize(folder).expect("the folder is there")
            }
            None => programs.home().join(".copal"),
        };
        let home = folder.to_string_lossy().into_owned();
        let (server, url) = programs.start_server(free_port(), &["--home", &home]);
        let api = Api::new(&url);
        let user = json!({"username": "bench", "password": PASSWORD});
        // One that is kept has the user.
        let _ = api.post("/auth/password/register", &user).await;
        let token = api.post_form("/auth/password/login", &[("username", "bench"), ("password", PASSWORD)]).await.ok();
        let api = api.with_token(token["access_token"].as_str().expect("a token"));
        let owner = UserId(id(&api.get("/auth/password/me").await.ok()));
        let (site, plain) = place(&api, "backlog", true).await;
        let (_, stepwise) = place(&api, "stepwise", false).await;
        let (idle_site, idle) = place(&api, "idle", true).await;
        let database = programs.run_ok("copal-server", &["--home", &home, "database-url"]);
        let pool = db::connect(&database.trim().into()).await.expect("the service's Postgres answers");
        let scope = Scope { owner, site: None, batch_job: None };
        Self { server, programs, folder, api, pool, scope, site, plain, stepwise, idle_site, idle, next: 0 }
    }

    /// Ends the service.
    pub(super) async fn close(self) {
        self.pool.close().await;
        self.server.stop();
        drop(self.programs);
    }

    pub(super) fn database_url(&self) -> String {
        let home = self.folder.to_string_lossy();
        self.programs.run_ok("copal-server", &["--home", &home, "database-url"]).trim().to_owned()
    }

    /// A workdir that no Job has had in this run.
    pub(super) fn workdir(&mut self) -> String {
        self.next += 1;
        format!("run/{}", self.next)
    }

    /// Brings the backlog to so many Jobs, by arrays, and events to so many.
    pub(super) async fn fill(&mut self, jobs: usize, events: usize) {
        let start = Instant::now();
        let there = self.count(&format!("/jobs/?limit=0&site_id={}", self.site)).await;
        let mut made = there;
        while made < jobs {
            let count = (jobs / SETS).clamp(1, ARRAY).min(jobs - made);
            // Those with one tag follow each other, as campaigns do.
            let set = made * SETS / jobs;
            let job = json!({"app_id": self.plain, "workdir": format!("backlog/{made}/{{index:06}}"), "parameters": {},
                "tags": {"set": set.to_string(), "campaign": "bench"}, "node_packing_count": 4,
                // The short ones come last.
                "wall_time_min": (SETS - set) * 60});
            self.api.post("/job-arrays/", &json!({"last": count - 1, "job": job})).await.created();
            made += count;
        }
        let took = start.elapsed().as_secs_f64();
        println!("{} Jobs by arrays: {took:.1} s, {:.0}/s", made - there, (made - there) as f64 / took);
        let events_there = self.count("/events/?limit=0").await;
        if events > events_there {
            self.copy_events(events_there, events).await;
            println!("{} events: {:.1} s", self.count("/events/?limit=0").await, start.elapsed().as_secs_f64());
        }
        for table in ["jobs", "job_details", "job_tags", "events", "job_tallies"] {
            let statement = sqlx::AssertSqlSafe(format!("vacuum analyze {table}"));
            let mut connection = self.pool.acquire().await.expect("Postgres answers");
            sqlx::query("set statement_timeout = 0").execute(&mut *connection).await.expect("a setting");
            sqlx::query(statement).execute(&mut *connection).await.expect("a vacuum");
        }
        // What filling left to write must not be written while others are measured.
        sqlx::query("checkpoint").execute(&self.pool).await.expect("a checkpoint");
    }

    /// Only their number matters: copies of what is there, older than all of it.
    async fn copy_events(&self, there: usize, wanted: usize) {
        const COPY: &str = "with made as (insert into events (job_id, owner_id, site_id, app_id, \"timestamp\", from_state, \
             to_state, data) select e.job_id, e.owner_id, e.site_id, e.app_id, e.\"timestamp\" - interval '1 day' * $2, \
             e.from_state, e.to_state, e.data from events e where e.id <= $1 limit $3 \
             returning to_state, owner_id, site_id, app_id) \
             insert into job_tallies (owner_id, site_id, app_id, state, jobs, events) \
             select owner_id, site_id, app_id, to_state, 0, count(*) from made group by 1, 2, 3, 4";
        let last: i64 = sqlx::query_scalar("select max(id) from events").fetch_one(&self.pool).await.expect("events");
        let (mut missing, mut days) = (wanted - there, 0);
        while missing > 0 {
            let count = missing.min(there);
            days += 1;
            let mut transaction = self.pool.begin().await.expect("Postgres answers");
            sqlx::query("set local statement_timeout = 0").execute(&mut *transaction).await.expect("a setting");
            let copy = sqlx::query(COPY).bind(last).bind(days).bind(i64::try_from(count).expect("a count"));
            copy.execute(&mut *transaction).await.expect("events are copied");
            transaction.commit().await.expect("Postgres answers");
            missing -= count;
        }
    }

    /// A value of the service's `/metrics`; 0 before there is one.
    pub(super) async fn gauge(&self, name: &str) -> f64 {
        let answer = self.api.request(reqwest::Method::GET, "/metrics").send().await.expect("the service answers");
        let text = answer.text().await.expect("the service answers");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    async fn count(&self, path: &str) -> usize {
        usize::try_from(self.api.count(path).await).expect("a count")
    }
}

/// A Site and its App, made where they are not there.
async fn place(api: &Api, name: &str, plain: bool) -> (i64, i64) {
    if let Some(site) = api.list(&format!("/sites/?name={name}")).await.first().map(id) {
        return (site, id(&api.list(&format!("/apps/?site_id={site}")).await[0]));
    }
    let site = api.site(name).await;
    let app = api.app(site, "Work", &if plain { json!({"command": "true"}) } else { json!({}) }).await;
    (site, app)
}
