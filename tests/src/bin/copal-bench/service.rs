//! The service's figures: the program itself on its own Postgres, asked over HTTP, beside the same
//! statements sent straight to that Postgres, and a large database beside a small one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use copal_schemas::{
    UserId,
    job::{JobCreate, JobPatchItem},
};
use copal_server::db::{self, scope::Scope};
use copal_tests::{
    Api, id,
    process::{Programs, Running, free_port},
    world::{PASSWORD, with},
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::table::Table;

/// Jobs in one bulk call.
const CALL: usize = 1_000;
/// Tags that divide the Jobs.
const SETS: usize = 10;

/// What is measured, and how much of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Jobs in the small database.
    #[arg(long, default_value_t = 10_000)]
    small: usize,
    /// Jobs in the large database.
    #[arg(long, default_value_t = 1_000_000)]
    large: usize,
    /// Events in the large database.
    #[arg(long, default_value_t = 10_000_000)]
    events: usize,
    /// Calls of 1,000 Jobs by which rates are measured.
    #[arg(long, default_value_t = 20)]
    calls: usize,
    /// Calls by which latencies are measured.
    #[arg(long, default_value_t = 60)]
    samples: usize,
    /// Event streams, and as many long polls, that are open while other requests are timed; 0 leaves that out.
    #[arg(long, default_value_t = 1_000)]
    waiting: usize,
    /// Leave the database's cluster behind, to look at plans; its URL is printed.
    #[arg(long)]
    pause: bool,
}

/// The service, a user, and a Site for each purpose.
struct Bench {
    server: Running,
    programs: Programs,
    api: Api,
    pool: PgPool,
    scope: Scope,
    /// The Site with the backlog, and its App without hooks.
    site: i64,
    plain: i64,
    /// An App at another Site whose Jobs take every step.
    stepwise: i64,
    /// An App without hooks at a third Site, where long polls wait.
    idle_site: i64,
    idle: i64,
    made: usize,
    table: Table,
}

/// Latencies that should not grow with the database, in milliseconds.
struct Latencies(Vec<(&'static str, f64)>);

/// Measures all of it.
pub(crate) async fn measure(options: &Options) -> Table {
    let mut bench = Bench::new().await;
    bench.fill(options.small, 0).await;
    let small = bench.latencies(options).await;
    bench.creates(options, "small").await;
    bench.updates(options, "small").await;
    bench.wake_up(options).await;
    bench.fill(options.large, options.events).await;
    let large = bench.latencies(options).await;
    bench.creates(options, "large").await;
    bench.updates(options, "large").await;
    bench.compare(&small, &large);
    bench.singles(options).await;
    if options.waiting > 0 {
        bench.crowd(options).await;
    }
    bench.deletion().await;
    if options.pause {
        println!("the database is at {}; Enter ends it", bench.url());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a terminal");
    }
    bench.pool.close().await;
    bench.server.stop();
    bench.table
}

impl Bench {
    async fn new() -> Self {
        let programs = Programs::new();
        // The embedded Postgres may run as another user, who must get to its folder.
        fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).expect("an own folder");
        let (server, url) = programs.start_server(free_port(), &[]);
        let api = Api::new(&url);
        let user = json!({"username": "bench", "password": PASSWORD});
        api.post("/auth/password/register", &user).await.created();
        let token = api.post_form("/auth/password/login", &[("username", "bench"), ("password", PASSWORD)]).await.ok();
        let api = api.with_token(token["access_token"].as_str().expect("a token"));
        let owner = UserId(id(&api.get("/auth/password/me").await.ok()));
        let site = api.site("backlog").await;
        let plain = api.app(site, "Plain", &json!({"command": "true"})).await;
        let other = api.site("stepwise").await;
        let stepwise = api.app(other, "Stepwise", &json!({})).await;
        let idle_site = api.site("idle").await;
        let idle = api.app(idle_site, "Idle", &json!({"command": "true"})).await;
        let database = programs.run_ok("copal-server", &["database-url"]);
        let pool = db::connect(&database.trim().into()).await.expect("the service's Postgres answers");
        let scope = Scope { owner, site: None, batch_job: None };
        let table = Table::default();
        Self { server, programs, api, pool, scope, site, plain, stepwise, idle_site, idle, made: 0, table }
    }

    fn url(&self) -> String {
        self.programs.run_ok("copal-server", &["database-url"]).trim().to_owned()
    }

    /// Brings the backlog to so many Jobs, by arrays, and events to so many.
    async fn fill(&mut self, jobs: usize, events: usize) {
        let start = Instant::now();
        let missing = jobs.saturating_sub(self.made);
        for set in 0..SETS {
            let last = (missing / SETS).max(1) - 1;
            let job = json!({"app_id": self.plain, "workdir": format!("backlog/{}/{set}/{{index:06}}", self.made),
                "tags": {"set": set.to_string(), "campaign": "bench"}, "parameters": {}, "node_packing_count": 4});
            self.api.post("/job-arrays/", &json!({"last": last, "job": job})).await.created();
        }
        let took = start.elapsed().as_secs_f64();
        self.made += missing;
        println!("{missing} Jobs by {SETS} arrays: {took:.1} s, {:.0}/s", missing as f64 / took);
        let there = self.api.count("/events/?limit=0").await as usize;
        if events > there {
            // Only their number matters: copies of what is there, older than all of it.
            const COPY: &str = "with made as (insert into events (job_id, owner_id, site_id, app_id, \"timestamp\", from_state, \
                 to_state, data) select e.job_id, e.owner_id, e.site_id, e.app_id, e.\"timestamp\" - interval '1 day' * n, \
                 e.from_state, e.to_state, e.data from (select * from events order by id limit $1) e, \
                 generate_series(1, $2) n returning to_state, owner_id, site_id, app_id) \
                 insert into job_tallies (owner_id, site_id, app_id, state, jobs, events) \
                 select owner_id, site_id, app_id, to_state, 0, count(*) from made group by 1, 2, 3, 4";
            let mut transaction = self.pool.begin().await.expect("Postgres answers");
            sqlx::query("set local statement_timeout = 0").execute(&mut *transaction).await.expect("a setting");
            let times = (events / there).saturating_sub(1).max(1) as i32;
            sqlx::query(COPY)
                .bind(there as i64)
                .bind(times)
                .execute(&mut *transaction)
                .await
                .expect("events are copied");
            transaction.commit().await.expect("Postgres answers");
            println!("{} events: {:.1} s", self.api.count("/events/?limit=0").await, start.elapsed().as_secs_f64());
        }
        for table in ["jobs", "job_details", "job_tags", "events", "job_tallies"] {
            let statement = sqlx::AssertSqlSafe(format!("vacuum analyze {table}"));
            let mut connection = self.pool.acquire().await.expect("Postgres answers");
            sqlx::query("set statement_timeout = 0").execute(&mut *connection).await.expect("a setting");
            sqlx::query(statement).execute(&mut *connection).await.expect("a vacuum");
        }
    }

    /// The median time of a request in milliseconds.
    async fn median(&self, samples: usize, method: Method, path: &str, body: &Value) -> f64 {
        let mut times = Vec::new();
        for _ in 0..samples {
            let request = self.api.request(method.clone(), path).json(body);
            times.push(timed(request).await);
        }
        percentile(&mut times, 0.5)
    }

    /// Acquires so many Jobs again and again, and gives them back.
    async fn acquires(&self, samples: usize, fields: &Value) -> f64 {
        let session = self.api.session(self.site, None).await;
        let wanted = with(json!({"filter_tags": {}}), fields);
        let time = self.median(samples, Method::POST, &format!("/sessions/{session}"), &wanted).await;
        self.api.delete(&format!("/sessions/{session}")).await.deleted();
        time
    }

    async fn latencies(&self, options: &Options) -> Latencies {
        let acquires = (self.made / 200).clamp(1, options.samples);
        let mut all = vec![
            ("acquire 1", self.acquires(acquires, &json!({"max_num_jobs": 1})).await),
            ("acquire 100", self.acquires(acquires, &json!({"max_num_jobs": 100})).await),
            (
                "acquire 100 with max_aggregate_nodes",
                self.acquires(acquires, &json!({"max_num_jobs": 100, "max_aggregate_nodes": 1_000})).await,
            ),
            (
                "acquire 100 by tag",
                self.acquires(acquires.min(10), &json!({"max_num_jobs": 100, "filter_tags": {"set": "7"}})).await,
            ),
        ];
        for (what, path) in [
            ("list 100 Jobs by tag and state", "/jobs/?tags=set:3&state=PREPROCESSED&limit=100"),
            ("list 100 Jobs by tag", "/jobs/?tags=set:3&limit=100"),
            ("list 100 Jobs", "/jobs/?limit=100"),
            ("list 100 Jobs by -last_update", "/jobs/?ordering=-last_update&limit=100"),
            ("count by state", "/jobs/by-state"),
            ("list 100 events", "/events/?limit=100"),
            ("list 100 events by state", "/events/?to_state=PREPROCESSED&limit=100"),
        ] {
            all.push((what, self.median(options.samples, Method::GET, path, &Value::Null).await));
        }
        Latencies(all)
    }

    fn compare(&mut self, small: &Latencies, large: &Latencies) {
        for ((what, before), (_, after)) in small.0.iter().zip(&large.0) {
            let goal = if what.starts_with("acquire") { 1.3 } else { 2.0 };
            let raw = format!("{before:.2} ms, then {after:.2} ms");
            self.table.at_most(format!("{what}: large against small"), after / before, goal, "", raw);
        }
        for (what, after) in large.0.iter().filter(|(what, _)| !what.starts_with("acquire")) {
            self.table.at_most(format!("{what}, large"), *after, 10.0, " ms", "");
        }
    }

    fn new_jobs(&mut self, app: i64) -> Value {
        let first = self.made;
        self.made += CALL;
        let job = |index: usize| {
            json!({"app_id": app, "workdir": format!("call/{}", first + index), "tags": {"set": "x", "campaign": "bench"},
                "parameters": {}})
        };
        Value::Array((0..CALL).map(job).collect())
    }

    /// Bulk creates over HTTP and straight, by turns.
    async fn creates(&mut self, options: &Options, size: &str) {
        let (mut http, mut straight) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..options.calls {
            let body = self.new_jobs(self.stepwise);
            http += sent(self.api.request(Method::POST, "/jobs/").json(&body)).await;
            let jobs: Vec<JobCreate> = serde_json::from_value(self.new_jobs(self.stepwise)).expect("Jobs");
            let start = Instant::now();
            let made = db::transact(&self.pool, async |tx| db::job_create::create(tx, self.scope, jobs.clone()).await);
            made.await.expect("the Jobs are made");
            straight += start.elapsed();
        }
        self.rates(options, &format!("create 1,000 a call, {size}"), http, straight);
    }

    /// Bulk PATCHes over HTTP and straight, by turns.
    async fn updates(&mut self, options: &Options, size: &str) {
        let mut batches = Vec::new();
        for _ in 0..options.calls {
            let body = self.new_jobs(self.stepwise);
            let made = self.api.post("/jobs/", &body).await.created();
            batches.push(made.as_array().expect("a list").iter().map(id).collect::<Vec<i64>>());
        }
        for (from, to) in [("STAGED_IN", "RUNNING"), ("RUNNING", "RUN_DONE")] {
            let (mut http, mut straight, mut turns) = (Duration::ZERO, Duration::ZERO, [0, 0]);
            for (turn, batch) in batches.iter().enumerate() {
                let patches: Vec<Value> = batch.iter().map(|job| json!({"id": job, "state": to})).collect();
                turns[turn % 2] += 1;
                if turn % 2 == 0 {
                    http += sent(self.api.request(Method::PATCH, "/jobs/").json(&patches)).await;
                } else {
                    let items: Vec<JobPatchItem> = serde_json::from_value(json!(patches)).expect("patches");
                    let start = Instant::now();
                    let done = db::transact(&self.pool, async |tx| {
                        db::job_patch::update_many(tx, self.scope, items.clone()).await
                    });
                    done.await.expect("the Jobs are updated");
                    straight += start.elapsed();
                }
            }
            let scale = |time: Duration, turns: u32| time * u32::try_from(options.calls).unwrap_or(1) / turns.max(1);
            let what = format!("PATCH 1,000 from {from} to {to}, {size}");
            self.rates(options, &what, scale(http, turns[0]), scale(straight, turns[1]));
        }
    }

    fn rates(&mut self, options: &Options, what: &str, http: Duration, straight: Duration) {
        let rate = |time: Duration| (options.calls * CALL) as f64 / time.as_secs_f64();
        let raw = format!("{:.0}/s by HTTP, {:.0}/s straight to Postgres", rate(http), rate(straight));
        self.table.at_least(what, rate(http) / rate(straight), 0.7, raw);
    }

    /// From a Job's creation to its arrival at a Session that waits.
    async fn wake_up(&mut self, options: &Options) {
        let session = self.api.session(self.idle_site, None).await;
        let mut times = Vec::new();
        for index in 0..options.samples {
            let api = self.api.clone();
            let waiting = tokio::spawn(async move {
                let taken = api.acquire(session, &json!({"max_num_jobs": 1, "wait_sec": 30})).await;
                (Instant::now(), taken.len())
            });
            tokio::time::sleep(Duration::from_millis(30)).await;
            let start = Instant::now();
            self.api.job(self.idle, &json!({"workdir": format!("idle/{index}")})).await;
            let (arrived, count) = waiting.await.expect("the Session waits");
            assert_eq!(count, 1, "the Session got no Job");
            times.push((arrived - start).as_secs_f64() * 1e3);
        }
        self.api.delete(&format!("/sessions/{session}")).await.deleted();
        let (median, late) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
        self.table.at_most("creation to acquired, median", median, 10.0, " ms", format!("{} samples", times.len()));
        self.table.at_most("creation to acquired, p99", late, 50.0, " ms", "");
    }

    async fn singles(&mut self, options: &Options) {
        let mut times = Vec::new();
        for index in 0..options.samples * 3 {
            let body = json!([{"app_id": self.plain, "workdir": format!("single/{index}"), "tags": {"set": "y"}}]);
            times.push(timed(self.api.request(Method::POST, "/jobs/").json(&body)).await);
        }
        let raw = format!("p99 {:.2} ms", percentile(&mut times, 0.99));
        self.table.at_most("create 1, median", percentile(&mut times, 0.5), 2.0, " ms", raw);
    }

    /// Other requests beside many streams and long polls.
    async fn crowd(&mut self, options: &Options) {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..options.waiting {
            let request = self.api.request(Method::GET, &format!("/events/stream?site_id={}", self.idle_site));
            tasks.spawn(async move {
                let mut answer = request.send().await.expect("a stream opens");
                while let Ok(Some(_)) = answer.chunk().await {}
            });
        }
        for _ in 0..options.waiting {
            let (api, session) = (self.api.clone(), self.api.session(self.idle_site, None).await);
            tasks.spawn(async move {
                loop {
                    let path = format!("/sessions/{session}");
                    let wanted = json!({"max_num_jobs": 1, "filter_tags": {"never": "there"}, "wait_sec": 30});
                    api.post(&path, &wanted).await.ok();
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let mut times = Vec::new();
        for index in 0..options.samples * 10 {
            let job = |app: i64| json!([{"app_id": app, "workdir": format!("crowd/{index}")}]);
            let request = match index % 4 {
                0 => self.api.request(Method::GET, "/jobs/?limit=100"),
                1 => self.api.request(Method::POST, "/jobs/").json(&job(self.plain)),
                2 => self.api.request(Method::GET, "/jobs/by-state"),
                // Every twentieth is a change that all streams tell, and that Sessions there could wait for.
                _ if index % 20 == 3 => self.api.request(Method::POST, "/jobs/").json(&job(self.idle)),
                _ => self.api.request(Method::GET, "/sites/"),
            };
            times.push(timed(request).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tasks.shutdown().await;
        let what = format!("other requests beside {0} streams and {0} long polls, p99", options.waiting);
        let raw = format!("median {:.2} ms", percentile(&mut times, 0.5));
        self.table.at_most(what, percentile(&mut times, 0.99), 50.0, " ms", raw);
    }

    async fn deletion(&mut self) {
        let time = timed(self.api.request(Method::DELETE, &format!("/sites/{}", self.site))).await;
        self.table.at_most("delete the Site with the backlog", time, 100.0, " ms", "the Jobs follow behind");
    }
}

/// Sends, reads the answer to its end without decoding it, and gives how long that took.
async fn sent(request: reqwest::RequestBuilder) -> Duration {
    let request = request.build_split();
    let (client, request) = (request.0, request.1.expect("a request"));
    let name = format!("{} {}", request.method(), request.url());
    let start = Instant::now();
    let answer = client.execute(request).await.expect("the service answers");
    let status = answer.status();
    let body = answer.bytes().await.expect("the service answers");
    let took = start.elapsed();
    assert!(status.is_success(), "{name}: {status} {}", String::from_utf8_lossy(&body));
    took
}

async fn timed(request: reqwest::RequestBuilder) -> f64 {
    sent(request).await.as_secs_f64() * 1e3
}

/// The value below which this part of the times is.
fn percentile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let place = ((times.len() as f64 - 1.0) * part).round() as usize;
    times.get(place).copied().unwrap_or(f64::NAN)
}
