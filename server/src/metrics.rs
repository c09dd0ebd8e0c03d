//! Counters and histograms for Prometheus. Anywhere in the crate `metrics::counter!` and its
//! siblings count; here they are named, collected and written out.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use actix_web::{body::MessageBody, dev::ServiceResponse, http::Method};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

/// Samples are moved into the buckets this often, so that they do not pile up unread.
const UPKEEP: Duration = Duration::from_secs(5);
/// A scraper waits so long for what the database is asked.
const MEASURE_LIMIT: Duration = Duration::from_secs(2);

/// Upper bounds of request times in seconds.
const SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The process's recorder; services that tests start side by side share it.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Starts to collect.
pub(crate) fn install() {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new().set_buckets(SECONDS);
        match builder.and_then(PrometheusBuilder::install_recorder) {
            Ok(handle) => {
                describe();
                Some(handle)
            }
            Err(error) => {
                tracing::warn!(%error, "no metrics: another recorder is in this process");
                None
            }
        }
    });
}

fn describe() {
    describe_counter!("copal_http_requests_total", "Requests by method, route and status");
    describe_histogram!("copal_http_request_seconds", Unit::Seconds, "Time to the start of the answer");
    describe_counter!("copal_logins_total", "Password logins by outcome");
    describe_gauge!("copal_db_connections", "Connections of the pool by use");
    describe_gauge!(
        "copal_db_oldest_snapshot_transactions",
        "Transactions since the oldest snapshot that is still held, which keeps old rows from being cleaned up"
    );
    describe_gauge!(
        "copal_db_oldest_snapshot_seconds",
        Unit::Seconds,
        "Age of the oldest transaction that holds a snapshot; alarm above a few minutes"
    );
    describe_gauge!("copal_db_notifications_heard", "1 while notifications of the database arrive; alarm at 0");
    describe_gauge!("copal_event_streams", "Open event streams");
    describe_gauge!("copal_long_polls", "Requests that wait for Jobs to become free");
}

/// Notes whether notifications of the database arrive.
pub(crate) fn note_notifications(heard: bool) {
    gauge!("copal_db_notifications_heard").set(f64::from(u8::from(heard)));
}

/// Counts in a gauge until it is dropped.
pub(crate) struct Gauged(&'static str);

impl Gauged {
    fn new(name: &'static str) -> Self {
        gauge!(name).increment(1.0);
        Self(name)
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1.0);
    }
}

/// Counts an event stream as open until the result is dropped.
pub(crate) fn count_stream() -> Gauged {
    Gauged::new("copal_event_streams")
}

/// Counts a long poll as waiting until the result is dropped.
pub(crate) fn count_waiter() -> Gauged {
    Gauged::new("copal_long_polls")
}

/// Keeps the samples' memory bounded until `stop`.
pub(crate) async fn upkeep(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => if let Some(Some(recorder)) = RECORDER.get() { recorder.run_upkeep() },
        }
    }
}

/// Counts an answer. The route is the pattern and not the path, so that ids make no new series.
pub(crate) fn count_request<B: MessageBody>(method: &Method, start: Instant, answer: &ServiceResponse<B>) {
    let route = answer.request().match_pattern().unwrap_or_else(|| "none".into());
    // Methods are any word; only those of the API may make a series.
    let method = match *method {
        Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => method.to_string(),
        _ => "other".into(),
    };
    let status = answer.status().as_u16().to_string();
    counter!("copal_http_requests_total", "method" => method.clone(), "route" => route.clone(), "status" => status)
        .increment(1);
    histogram!("copal_http_request_seconds", "method" => method, "route" => route).record(start.elapsed());
}

/// What holds up the database's clean-up of old rows: the oldest snapshot that a transaction still has.
async fn measure_snapshots(pool: &PgPool) -> Result<(), sqlx::Error> {
    const SQL: &str = "select coalesce(max(age(backend_xmin)), 0)::float8, \
         coalesce(extract(epoch from max(clock_timestamp() - xact_start) filter (where backend_xmin is not null)), 0)::float8 \
         from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    let (transactions, seconds): (f64, f64) = sqlx::query_as(SQL).fetch_one(pool).await?;
    gauge!("copal_db_oldest_snapshot_transactions").set(transactions);
    gauge!("copal_db_oldest_snapshot_seconds").set(seconds);
    Ok(())
}

/// All series in Prometheus' text form.
pub(crate) async fn render(pool: &PgPool) -> String {
    let idle = pool.num_idle();
    gauge!("copal_db_connections", "use" => "idle").set(idle as f64);
    gauge!("copal_db_connections", "use" => "busy").set(f64::from(pool.size()) - idle as f64);
    // The other series are worth having when the database does not answer, too.
    match tokio::time::timeout(MEASURE_LIMIT, measure_snapshots(pool)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("can't measure the database's snapshots: {error}"),
        Err(_) => tracing::warn!("can't measure the database's snapshots: it does not answer"),
    }
    RECORDER.get().and_then(Option::as_ref).map(PrometheusHandle::render).unwrap_or_default()
}
