//! `copal job show`

use copal_client::{ClientError, api::EventQuery};
use copal_schemas::{
    JobId,
    event::Event,
    job::{Attempt, Job},
    problem::ErrorCode,
    resources::ResourceShape,
    transfer::{Direction, TransferItem},
};
use serde_json::Value;

use crate::{
    context::Context,
    failure::{Failure, Result},
    human::{self, Clock, count},
    ids::Shortest,
    table::{Table, cell, job_state, maybe, pairs},
};

/// Events that are shown; the rest is `copal events ls`.
const EVENTS: i64 = 30;

pub(super) async fn show(context: Context, id: i64) -> Result<()> {
    let client = context.client()?;
    let id = JobId(id);
    let job = client.get_job(id).await.map_err(|error| unknown_job(id, error))?;
    if context.out.is_data() {
        return context.out.value(&job);
    }
    let attempts = client.list_attempts(id).await?;
    let query = EventQuery { job_ids: vec![id], limit: Some(EVENTS), ..EventQuery::default() };
    let mut events = client.list_events(&query).await?.results;
    // Newest first, but those of one moment are not.
    events.sort_by_key(|event| (event.timestamp, event.id));
    let apps = client.list_apps(&[]).await?;
    let app = apps.iter().find(|app| app.id == job.app_id);
    let transfers = match app {
        Some(app) if app.transfers.is_empty() => Vec::new(),
        _ => client.list_transfers_of(id).await?,
    };
    let sites = context.sites(&client, Some("all")).await?;
    let place = Place {
        app: app.map_or_else(|| job.app_id.to_string(), |app| format!("{} ({})", app.name, app.id)),
        site: app.map_or_else(|| "-".into(), |app| format!("{} ({})", sites.name(app.site_id), app.site_id)),
    };
    let told = Told { attempts, transfers, events };
    context.out.text(&text(&job, &place, &told, context.clock, context.out.width()))
}

/// The failure of a command that is about one Job.
pub(super) fn unknown_job(id: JobId, error: ClientError) -> Failure {
    match error.code() {
        Some(ErrorCode::NotFound) => {
            Failure::new(format!("you have no Job {id}")).hint("`copal job ls --site all` lists yours")
        }
        _ => error.into(),
    }
}

/// Names of what the Job has only ids of.
struct Place {
    app: String,
    site: String,
}

/// What the service tells of a Job beside its fields.
struct Told {
    attempts: Vec<Attempt>,
    transfers: Vec<TransferItem>,
    events: Vec<Event>,
}

fn text(job: &Job, place: &Place, told: &Told, clock: Clock, width: Option<u16>) -> String {
    let Told { attempts, transfers, events } = told;
    let mut text = fields(job, place, clock).render(width);
    if !transfers.is_empty() {
        text.push_str("\nTransfers\n");
        text.push_str(&staging(transfers).render(width));
    }
    if !attempts.is_empty() {
        text.push_str("\nRuns\n");
        text.push_str(&runs(attempts, clock).render(width));
    }
    if let Some(tail) = last_output(events) {
        text.push_str("\nLast lines of its output\n");
        tail.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    if !events.is_empty() {
        text.push_str("\nEvents\n");
        text.push_str(&history(events, clock).render(width));
    }
    text
}

fn fields(job: &Job, place: &Place, clock: Clock) -> Table {
    let mut table = Table::bare();
    table.field("Job", cell(job.id));
    table.field("State", job_state(job.state));
    table.field("Changed", cell(clock.both(job.last_update)));
    table.field("App", cell(&place.app));
    table.field("Site", cell(&place.site));
    table.field("Folder", cell(&job.workdir));
    for (name, map) in [("Parameters", &job.parameters), ("Tags", &job.tags), ("Launch params", &job.launch_params)] {
        if !map.is_empty() {
            table.field(name, cell(pairs(map)));
        }
    }
    table.field("Resources", cell(shape(&job.shape())));
    if job.wall_time_min > 0 {
        table.field("Expected", cell(format!("{} min", job.wall_time_min)));
    }
    if let Some(limit) = job.walltime_limit_min {
        table.field("Limit", cell(format!("{limit} min")));
    }
    if job.priority != 0 {
        table.field("Priority", cell(job.priority));
    }
    if !job.parent_ids.is_empty() {
        table.field("Parents", cell(Shortest::of(job.parent_ids.iter().map(|id| id.0))));
    }
    table.field("BatchJob", maybe(job.batch_job_id));
    table.field("Exit code", maybe(job.return_code));
    for (key, value) in &job.data {
        table.field(&format!("data.{key}"), cell(value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    }
    table
}

/// A resource shape in one line.
pub(super) fn shape(shape: &ResourceShape) -> String {
    let mut parts = vec![count(shape.num_nodes, "node"), format!("{} a node", count(shape.ranks_per_node, "rank"))];
    if shape.threads_per_rank != 1 {
        parts.push(format!("{} a rank", count(shape.threads_per_rank, "thread")));
    }
    if shape.threads_per_core != 1 {
        parts.push(format!("{} a core", count(shape.threads_per_core, "thread")));
    }
    if shape.gpus_per_rank > 0.0 {
        parts.push(format!("{} GPUs a rank", shape.gpus_per_rank));
    }
    if shape.node_packing_count != 1 {
        parts.push(format!("up to {} such Jobs a node", shape.node_packing_count));
    }
    if let Some(mem_mb) = shape.mem_mb {
        parts.push(format!("{mem_mb} MiB a node"));
    }
    parts.join(", ")
}

fn staging(transfers: &[TransferItem]) -> Table {
    let mut table = Table::new(["WAY", "STATE", "FILE", "LOCATION", "SIZE", "ERROR"]);
    for transfer in transfers {
        let info = &transfer.transfer_info;
        let state = serde_json::json!(transfer.state);
        table.row([
            cell(if transfer.direction == Direction::In { "in" } else { "out" }),
            cell(state.as_str().unwrap_or_default()),
            cell(&transfer.local_path),
            cell(format!("{}:{}", transfer.location_alias, transfer.remote_path)),
            maybe(info.get("bytes").and_then(Value::as_i64).map(human::size)),
            maybe(info.get("error").and_then(Value::as_str)),
        ]);
    }
    table
}

fn runs(attempts: &[Attempt], clock: Clock) -> Table {
    let mut table = Table::new(["RUN", "STATE", "EXIT", "STARTED", "TOOK", "CPU", "MEMORY", "NODES", "BATCHJOB"]);
    for attempt in attempts {
        let usage = &attempt.usage;
        let took = usage.start.zip(usage.end).map(|(start, end)| (end - start).num_milliseconds() as f64 / 1000.0);
        let exit = usage.signal.clone().or_else(|| attempt.return_code.map(|code| code.to_string()));
        let mut nodes = usage.nodes.clone();
        nodes.extend(usage.gpus.iter().map(|gpu| format!("gpu:{gpu}")));
        table.row([
            cell(attempt.number),
            job_state(attempt.state),
            maybe(exit),
            maybe(usage.start.map(|start| clock.local(start))),
            maybe(took.map(human::span)),
            maybe(usage.cpu_sec.map(human::span)),
            maybe(usage.peak_memory_bytes.map(human::size)),
            cell(nodes.join(" ")),
            maybe(attempt.batch_job_id),
        ]);
    }
    table
}

/// What the last failed run printed at its end.
fn last_output(events: &[Event]) -> Option<&str> {
    events.iter().rev().find_map(|event| event.data.get("error_tail").and_then(Value::as_str))
}

fn history(events: &[Event], clock: Clock) -> Table {
    let mut table = Table::new(["TIME", "TO", "DATA"]);
    for event in events {
        table.row([
            cell(clock.local(event.timestamp)),
            job_state(event.to_state),
            cell(super::events::data(&event.data)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn a_failed_job_shows_code_and_output() {
        let job: Job = serde_json::from_value(json!({
            "id": 7, "workdir": "demo/1", "tags": {"system": "H2O"}, "app_id": 3, "session_id": null,
            "serialized_parameters": "", "serialized_return_value": "", "serialized_exception": "",
            "batch_job_id": 2, "state": "FAILED", "last_update": "2026-11-30T11:58:00+00:00", "data": {"energy": -1.5},
            "return_code": 3, "pending_file_cleanup": true, "parent_ids": [4, 5, 6], "num_nodes": 2, "ranks_per_node": 4,
            "threads_per_rank": 1, "threads_per_core": 1, "gpus_per_rank": 0.5, "node_packing_count": 1,
            "wall_time_min": 10, "launch_params": {}, "parameters": {"name": "world"}, "priority": 5,
        }))
        .unwrap();
        let attempts: Vec<Attempt> = serde_json::from_value(json!([{
            "number": 1, "batch_job_id": 2, "state": "RUN_ERROR", "return_code": 3,
            "start": "2026-11-30T11:57:00", "end": "2026-11-30T11:57:42", "peak_memory_bytes": 1_572_864,
            "cpu_sec": 1.25, "nodes": ["local0"],
        }]))
        .unwrap();
        let events: Vec<Event> = serde_json::from_value(json!([
            {"id": 1, "job_id": 7, "timestamp": "2026-11-30T11:57:00", "from_state": "PREPROCESSED", "to_state": "RUNNING", "data": {}},
            {"id": 2, "job_id": 7, "timestamp": "2026-11-30T11:57:42", "from_state": "RUNNING", "to_state": "RUN_ERROR",
             "data": {"return_code": 3, "error_tail": "reading input\nno such file"}},
            {"id": 3, "job_id": 7, "timestamp": "2026-11-30T11:57:42", "from_state": "RUN_ERROR", "to_state": "FAILED",
             "data": {"message": "No restart after an error is left"}},
        ]))
        .unwrap();
        let place = Place { app: "Hello (3)".into(), site: "theta (1)".into() };
        let clock = Clock::fixed("2026-11-30T12:00:00");
        insta::assert_snapshot!(at_both_widths(|| fields(&job, &place, clock)));
        insta::assert_snapshot!(at_both_widths(|| runs(&attempts, clock)));
        insta::assert_snapshot!(at_both_widths(|| history(&events, clock)));
        let transfers: Vec<TransferItem> = serde_json::from_value(json!([
            {"id": 1, "job_id": 7, "state": "done", "direction": "in", "local_path": "input.dat", "remote_path": "/in/1.dat",
             "location_alias": "home", "recursive": false, "task_id": "", "transfer_info": {"bytes": 2_048}},
            {"id": 2, "job_id": 7, "state": "inactive", "direction": "in", "local_path": "tables", "remote_path": "/tables",
             "location_alias": "web", "recursive": true, "task_id": "", "transfer_info": {"error": "network: refused"}},
        ]))
        .unwrap();
        insta::assert_snapshot!(at_both_widths(|| staging(&transfers)));
        let told = Told { attempts, transfers, events };
        let text = text(&job, &place, &told, clock, None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        Job          7
        State        FAILED
        Changed      2026-11-30 11:58:00 (2m ago)
        App          Hello (3)
        Site         theta (1)
        Folder       demo/1
        Parameters   name=world
        Tags         system=H2O
        Resources    2 nodes, 4 ranks a node, 0.5 GPUs a rank
        Expected     10 min
        Priority     5
        Parents      4-6
        BatchJob     2
        Exit code    3
        data.energy  -1.5

        Transfers
        WAY  STATE     FILE       LOCATION        SIZE     ERROR
        in   done      input.dat  home:/in/1.dat  2.0 KiB  -
        in   inactive  tables     web:/tables     -        network: refused

        Runs
        RUN  STATE      EXIT  STARTED              TOOK  CPU    MEMORY   NODES   BATCHJOB
        1    RUN_ERROR  3     2026-11-30 11:57:00  42s   1.25s  1.5 MiB  local0  2

        Last lines of its output
          reading input
          no such file

        Events
        TIME                 TO         DATA
        2026-11-30 11:57:00  RUNNING
        2026-11-30 11:57:42  RUN_ERROR  return_code=3
        2026-11-30 11:57:42  FAILED     No restart after an error is left
        ");
    }
}
