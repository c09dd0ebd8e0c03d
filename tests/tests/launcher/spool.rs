//! What launchers leave in the Site's spool, and a real agent that delivers it while they live.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bed::Bed;

/// The line of a report that a run ended well.
fn done(job: i64) -> Value {
    let update = json!({"job_id": job, "state": "RUN_DONE", "return_code": 0});
    json!({"batch_key": Uuid::new_v4(), "updates": [update]})
}

/// A Site whose agent runs, and a Session with Jobs that run.
async fn running(jobs: usize) -> (Bed, i64, Vec<i64>) {
    let bed = Bed::new(&[("True", "command: 'true'")]).await;
    bed.laptop.site(&["site", "start"]);
    let jobs = bed.jobs("True", jobs, &json!({})).await;
    let session = bed.api.session(bed.site_id, None).await;
    bed.api.acquire(session, &json!({})).await;
    for job in &jobs {
        bed.api.report(session, *job, &["RUNNING"]).await;
    }
    (bed, session, jobs)
}

/// Writes the spool file of a Session, and has the agent look at it.
fn spool(bed: &Bed, session: i64, lines: &[Value]) {
    let header = json!({"site_id": bed.site_id, "session_id": session, "batch_job_id": null});
    let text: String = std::iter::once(&header).chain(lines).map(|line| format!("{line}\n")).collect();
    fs::write(bed.path(&format!("spool/session-{session}.jsonl")), text).unwrap();
    for agent in bed.laptop.pids("copal-agent --site") {
        kill(Pid::from_raw(agent), Signal::SIGHUP).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_its_launcher_took_away_and_wrote_anew_is_delivered_whole() {
    let (bed, session, jobs) = running(3).await;
    spool(&bed, session, &[done(jobs[0])]);
    bed.wait_state(jobs[0], "JOB_FINISHED").await;
    // The launcher has reached the service again and taken its file away; later the service is away once more.
    spool(&bed, session, &[done(jobs[1]), done(jobs[2])]);
    bed.wait_state(jobs[2], "JOB_FINISHED").await;
    bed.wait_state(jobs[1], "JOB_FINISHED").await;
}
