//! Data for programs: the formats, their fields, and that nothing else is on stdout.

use std::{io::Read, process::Stdio};

use copal_tests::{LIMIT, wait::wait_blocking};
use serde_json::{Value, json};

use crate::desk::{Desk, ids};

#[tokio::test]
async fn every_format_has_the_same_rows() {
    let desk = Desk::new().await;
    desk.ok(&[
        "job",
        "create",
        "-a",
        "Hello",
        "--array",
        "0-2",
        "-w",
        "a/{index}",
        "-p",
        "name=x, \"y\"",
        "--tag",
        "k={index}",
        "-y",
    ]);
    let list = desk.json(&["job", "ls"]);
    assert_eq!(ids(&list), [1, 2, 3]);
    let lines: Vec<Value> =
        desk.ok(&["job", "ls", "-o", "jsonl"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json!(lines), list);
    assert_eq!(
        desk.ok(&["job", "ls", "-o", "csv", "--fields", "id,tags.k,parameters.name,state"]),
        "id,tags.k,parameters.name,state\n1,0,\"x, \"\"y\"\"\",PREPROCESSED\n2,1,\"x, \"\"y\"\"\",PREPROCESSED\n\
         3,2,\"x, \"\"y\"\"\",PREPROCESSED\n"
    );
    assert_eq!(desk.ok(&["job", "ls", "--limit", "2", "--fields", "id,workdir"]), "ID  WORKDIR\n1   a/0\n2   a/1\n");
    assert_eq!(desk.json(&["job", "ls", "--fields", "id", "--limit", "1"]), json!([{"id": 1}]));
    assert_eq!(desk.json(&["job", "ls", "--state", "FAILED"]), json!([]));
    assert_eq!(desk.ok(&["job", "ls", "--state", "FAILED", "-o", "jsonl"]), "");
    assert_eq!(desk.ok(&["job", "ls", "--state", "FAILED", "-o", "csv", "--fields", "id,state"]), "id,state\n");
    assert_eq!(desk.ok(&["job", "ls", "--by-state", "-o", "csv"]), "PREPROCESSED\n3\n");
    let wide = desk.ok(&["job", "ls", "-o", "wide"]);
    assert!(wide.lines().next().unwrap().contains("RESOURCES"), "{wide}");
    assert_eq!(
        desk.refused(&["job", "ls", "--fields", "id,stat"]),
        "2\nerror: there is no field \"stat\" (--fields)\nhint: did you mean state?\n"
    );
}

#[tokio::test]
async fn every_list_is_json_with_times_that_have_their_zone() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x", "-y"]);
    desk.ok(&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"]);
    for (list, time) in [
        (vec!["site", "ls"], Some("last_refresh")),
        (vec!["app", "ls"], None),
        (vec!["job", "ls"], Some("last_update")),
        (vec!["queue", "ls"], None),
        (vec!["events", "ls"], Some("timestamp")),
    ] {
        let rows = desk.json(&list);
        assert!(!rows.as_array().unwrap().is_empty(), "{list:?}");
        if let Some(time) = time {
            let text = rows[0][time].as_str().unwrap();
            assert!(text.ends_with("+00:00"), "{list:?}: {text}");
        }
    }
    for show in [["job", "show", "1"], ["queue", "show", "1"], ["app", "show", "Hello"]] {
        assert!(desk.json(&show).is_object(), "{show:?}");
    }
}

#[tokio::test]
async fn what_an_agent_does_and_what_is_found_wrong_is_whole_for_programs() {
    let desk = Desk::new().await;
    desk.ok(&["site", "start"]);
    let status = wait_blocking("a task to have succeeded", LIMIT, || {
        let status = desk.json(&["site", "status"]);
        let told = status["status"]["services"]["site"]["last_success"].is_string();
        if told { Ok(status) } else { Err(status.to_string()) }
    });
    desk.ok(&["site", "stop"]);
    let time = status["status"]["services"]["site"]["last_success"].as_str().unwrap();
    assert!(time.ends_with("+00:00"), "{time}");
    // The first rows of these have neither a note nor a remedy; the columns are there all the same.
    let table = desk.ok(&["app", "sync", "-o", "csv"]);
    assert_eq!(table, "app,change,note\nHello,unchanged,\n");
    let table = desk.ok(&["doctor", "-o", "csv"]);
    assert!(table.starts_with("check,verdict,found,remedy\n"), "{table}");
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_command_quietly() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "--array", "0-2999", "-w", "a/{index}", "-p", "name=x", "-y"]);
    for format in ["table", "json", "jsonl", "csv"] {
        let mut child =
            desk.copal(&["job", "ls", "--limit", "3000", "-o", format]).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        // The pipe is closed here, long before all was written.
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{format}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{format}");
    }
}

#[tokio::test]
async fn a_list_of_many_pages_has_every_job_once() {
    let desk = Desk::new().await;
    let made = desk.json(&[
        "job",
        "create",
        "-a",
        "Hello",
        "--array",
        "0-12000",
        "-w",
        "a/{index}",
        "-p",
        "name=x",
        "-y",
        "--fields",
        "id",
    ]);
    assert_eq!(ids(&made).len(), 12_001);
    let all: Vec<i64> = desk
        .ok(&["job", "ls", "-o", "jsonl", "--fields", "id"])
        .lines()
        .map(|line| copal_tests::id(&serde_json::from_str(line).unwrap()))
        .collect();
    assert_eq!(all, ids(&made));
    // Other orders, and limits, go page by page, too.
    let back = desk.json(&["job", "ls", "--ordering", "-id", "--limit", "6000", "--fields", "id"]);
    assert_eq!(ids(&back), all.iter().rev().take(6000).copied().collect::<Vec<_>>());
    let states = desk.json(&["job", "ls", "--by-state"]);
    assert_eq!(states, json!({"PREPROCESSED": 12_001}));
}

#[tokio::test]
async fn colours_and_progress_stay_out_of_pipes() {
    let desk = Desk::new().await;
    let output =
        desk.run(&["job", "create", "-a", "Hello", "--array", "0-6000", "-w", "a/{index}", "-p", "name=x", "-y"]);
    for stream in [&output.stdout, &output.stderr] {
        assert!(!stream.contains(&0x1b), "{}", String::from_utf8_lossy(stream));
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1-6001\n");
    let text = desk.ok(&["job", "ls", "--limit", "3"]);
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn events_of_one_moment_are_in_their_order() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x", "-y"]);
    let login = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let token = desk.service.api().post_form("/auth/password/login", &login).await.ok();
    let user = desk.service.api().with_token(token["access_token"].as_str().unwrap());
    for state in ["RUNNING", "RUN_DONE"] {
        let change = json!({"state": state, "state_timestamp": "2100-01-01T00:00:00"});
        user.put("/jobs/1", &change).await.ok();
    }
    let shown = desk.ok(&["job", "show", "1"]);
    let events = shown.split_once("Events\n").unwrap().1;
    assert!(events.find("RUNNING") < events.find("RUN_DONE"), "oldest first: {shown}");
    let listed = desk.json(&["events", "ls", "--job", "1", "--fields", "to_state"]);
    let states: Vec<&str> =
        listed.as_array().unwrap().iter().map(|event| event["to_state"].as_str().unwrap()).collect();
    let place = |state: &str| states.iter().position(|each| *each == state).unwrap();
    assert!(place("RUN_DONE") < place("RUNNING"), "newest first: {states:?}");
}
