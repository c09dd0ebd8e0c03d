//! `copal events ls`, and how one event is written in a line.

use copal_client::api::EventQuery;
use copal_schemas::{BatchJobId, JobId, JsonObject, event::Event};
use serde_json::Value;

use crate::{
    args::events::List,
    context::Context,
    failure::{Failure, Result},
    human::Clock,
    table::{Table, cell, job_state, state_text},
};

/// Ids in one request: more make its address longer than proxies take.
const IDS_A_REQUEST: usize = 500;
/// What a Job printed last is for `job show`; in a line of a table it would only be in the way.
const LONG_FIELDS: &[&str] = &["error_tail"];

pub(super) async fn ls(context: Context, list: &List) -> Result<()> {
    let client = context.client()?;
    let time = |text: &Option<String>| {
        text.as_deref().map(|text| context.clock.read(text)).transpose().map_err(Failure::usage)
    };
    let query = EventQuery {
        batch_job_id: list.batch_job.map(BatchJobId),
        scheduler_id: list.scheduler_id.clone(),
        tags: list.tags.iter().cloned().collect(),
        data: list.data.iter().cloned().collect(),
        from_state: list.from_state,
        to_state: list.to_state,
        after: time(&list.after)?,
        before: time(&list.before)?,
        ordering: Some(list.ordering.clone()),
        limit: Some(list.limit),
        ..EventQuery::default()
    };
    let ids: Vec<JobId> = list.jobs.iter().flat_map(|list| list.ids()).map(JobId).collect();
    let (mut events, mut count) = (Vec::new(), 0);
    if ids.is_empty() {
        let page = client.list_events(&query).await?;
        (events, count) = (page.results, page.count);
    }
    for ids in ids.chunks(IDS_A_REQUEST) {
        let page = client.list_events(&EventQuery { job_ids: ids.to_vec(), ..query.clone() }).await?;
        events.extend(page.results);
        count += page.count;
    }
    // The service gives those of one moment oldest first, whatever the order, and several answers are to be one list.
    events.sort_by_key(|event| (event.timestamp, event.id));
    if list.ordering.starts_with('-') {
        events.reverse();
    }
    events.truncate(usize::try_from(list.limit).unwrap_or(usize::MAX));
    context.out.data(&events, "No events.", || table(&events, context.clock))?;
    if (events.len() as i64) < count {
        context.out.talk(&format!("{} of {count} events are shown; --limit shows more.", events.len()));
    }
    Ok(())
}

fn table(events: &[Event], clock: Clock) -> Table {
    let mut table = Table::new(["TIME", "JOB", "FROM", "TO", "DATA"]);
    for event in events {
        table.row([
            cell(clock.local(event.timestamp)),
            cell(event.job_id),
            cell(event.from_state),
            job_state(event.to_state),
            cell(data(&event.data)),
        ]);
    }
    table
}

/// An event as a line of its own: `13:05:12.345  7  RUNNING -> RUN_ERROR  exit code 3`
pub(super) fn line(event: &Event, clock: Clock) -> String {
    let line = format!(
        "{}  {}  {} -> {}  {}",
        clock.local_time(event.timestamp),
        event.job_id,
        event.from_state,
        state_text(event.to_state),
        data(&event.data)
    );
    format!("{}\n", line.trim_end())
}

/// An event's data in one line: the message first.
pub(super) fn data(data: &JsonObject) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut parts: Vec<String> = data.get("message").map(text).into_iter().collect();
    for (key, value) in data.iter().filter(|(key, _)| *key != "message" && !LONG_FIELDS.contains(&key.as_str())) {
        parts.push(format!("{key}={}", text(value)));
    }
    parts.join("; ").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use copal_schemas::{EventId, JobState, time};
    use serde_json::json;

    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn events_are_one_line_each() {
        let event = |id, from_state, to_state, data: Value| Event {
            id: EventId(id),
            job_id: JobId(7),
            timestamp: time::parse("2026-11-30T11:59:30").unwrap(),
            from_state,
            to_state,
            data: data.as_object().cloned().unwrap(),
        };
        let events = [
            event(
                2,
                JobState::Running,
                JobState::RunError,
                json!({"return_code": 3, "message": "exit code 3", "error_tail": "a\nb"}),
            ),
            event(1, JobState::Preprocessed, JobState::Running, json!({})),
        ];
        let text = table(&events, Clock::fixed("2026-11-30T12:00:00")).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        TIME                 JOB  FROM          TO         DATA
        2026-11-30 11:59:30  7    RUNNING       RUN_ERROR  exit code 3; return_code=3
        2026-11-30 11:59:30  7    PREPROCESSED  RUNNING
        ");
        insta::assert_snapshot!(at_both_widths(|| table(&events, Clock::fixed("2026-11-30T12:00:00"))));
    }
}
