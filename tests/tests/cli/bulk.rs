//! Many Jobs at once: arrays, tables and files of commands.

use std::fs;

use serde_json::json;

use crate::desk::{Desk, ids};

#[tokio::test]
async fn an_array_is_shown_before_it_is_made() {
    let desk = Desk::new().await;
    let line = [
        "job",
        "create",
        "-a",
        "Hello",
        "--array",
        "0-49999",
        "-w",
        "s/{index:06}",
        "-p",
        "name={index}",
        "--tag",
        "seed={index}",
        "--dry-run",
    ];
    assert_eq!(
        desk.ok(&line),
        "App                Hello\nSite               theta\nJobs               50000\n\
         First: folder      s/000000\nFirst: parameters  name=0\nFirst: tags        seed=0\n\
         First: resources   1 node, 1 rank a node\nLast: folder       s/049999\nLast: parameters   name=49999\n\
         Last: tags         seed=49999\nLast: resources    1 node, 1 rank a node\n"
    );
    let shown = desk.json(&line);
    assert_eq!((&shown["count"], &shown["last"]["workdir"]), (&json!(50_000), &json!("s/049999")));
    assert_eq!(desk.json(&["job", "ls"]), json!([]));
    assert_eq!(
        desk.ok(&["job", "create", "-a", "Hello", "--array", "1,5,7-9:2", "-w", "a/{index}", "-p", "name=x", "-y"]),
        "1-4\n"
    );
    let folders = desk.ok(&["job", "ls", "--fields", "workdir", "-o", "csv"]);
    assert_eq!(folders, "workdir\na/1\na/5\na/7\na/9\n");
    // It is one array, by whose id its Jobs are found.
    let array = desk.json(&["job", "show", "1"])["array_id"].to_string();
    let rest = desk.json(&["job", "ls", "--array", &array, "3-99", "--fields", "array_index"]);
    assert_eq!(rest, json!([{"array_index": 7}, {"array_index": 9}]));
}

#[tokio::test]
async fn an_array_may_hold_itself_to_so_many_at_once() {
    let desk = Desk::new().await;
    let line = "job create -a Hello --array 0-6:2,10-12%3 -w a/{index} -p name=x";
    let words: Vec<&str> = line.split(' ').collect();
    let shown = desk.ok(&[&words[..], &["--dry-run"]].concat());
    assert!(shown.contains("Jobs               7\nAt once            3\n"), "{shown}");
    assert_eq!(desk.ok(&words), "1-7\n");
    assert_eq!(desk.json(&["job", "ls", "--by-state"]), json!({"AWAITING_PARENTS": 4, "PREPROCESSED": 3}));
    let why = desk.ok(&["job", "why", "4"]);
    assert_eq!(
        why,
        "Job                 4\nState               AWAITING_PARENTS\n\
         Limit of its array  it waits for its turn: its array runs 3 Jobs at once\n"
    );
    desk.ok(&["job", "cancel", "1-2", "-y"]);
    assert_eq!(ids(&desk.json(&["job", "ls", "--state", "PREPROCESSED"])), [3, 4, 5]);
    let made = desk.json(&[&words[..], &["--fields", "id,array_index,state"]].concat());
    assert_eq!(made[6], json!({"id": 14, "array_index": 12, "state": "AWAITING_PARENTS"}));
}

#[tokio::test]
async fn every_bad_row_of_a_table_is_told_and_nothing_is_made() {
    let desk = Desk::new().await;
    let table = "workdir,name,tags.k,num_nodes\nt/1,ann,x,1\nt/2,bob,y,two\n\nt/3,,z,1\nt/1,eve,,\nt/4,x\n";
    fs::write(desk.site_path().join("t.csv"), table).unwrap();
    assert_eq!(
        desk.refused(&["job", "create", "-a", "Hello", "--from", "t.csv", "-y"]),
        "1\nerror: t.csv, line 3: num_nodes: an integer is wanted, not \"two\"\n\
         error: t.csv, line 5: missing parameter \"name\"; give it as -p name=VALUE\n\
         error: t.csv, line 6: the folder \"t/1\" is also that of line 2\n\
         error: t.csv, line 7: it has 2 cells, the heading has 4\n\
         hint: correct that; nothing was created. --skip-bad leaves those rows out\n"
    );
    assert_eq!(desk.json(&["job", "ls"]), json!([]));
    assert_eq!(desk.ok(&["job", "create", "-a", "Hello", "--from", "t.csv", "--skip-bad", "-y"]), "1\n");
    let job = desk.json(&["job", "show", "1"]);
    assert_eq!(
        (&job["workdir"], &job["parameters"]["name"], &job["tags"]["k"]),
        (&json!("t/1"), &json!("ann"), &json!("x"))
    );
}

#[tokio::test]
async fn tables_come_as_json_and_by_stdin_too() {
    let desk = Desk::new().await;
    let rows =
        "{\"name\": \"a\", \"ranks_per_node\": 4}\n{\"name\": \"b\", \"workdir\": \"own\", \"parent_ids\": [1]}\n";
    let line = ["job", "create", "-a", "Hello", "--from", "-", "-w", "r/{index}", "--tag", "all=yes", "-y"];
    let output = desk.run_with(&line, "[{\"name\": \"x\"}]");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "{}", desk.told(&output));
    let output = desk.run_with(&line, rows);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2,3\n", "{}", desk.told(&output));
    let jobs = desk.json(&["job", "ls", "--tag", "all=yes"]);
    assert_eq!(ids(&jobs), [1, 2, 3]);
    assert_eq!(
        (&jobs[1]["ranks_per_node"], &jobs[2]["workdir"], &jobs[2]["parent_ids"]),
        (&json!(4), &json!("own"), &json!([1]))
    );
    // What only the service knows is told with the row's line.
    let output = desk.run_with(&line, "{\"name\": \"a\"}\n{\"name\": \"b\", \"parent_ids\": [99]}\n");
    assert_eq!(output.status.code(), Some(1), "{}", desk.told(&output));
    assert_eq!(ids(&desk.json(&["job", "ls"])).len(), 3);
}

#[tokio::test]
async fn each_line_of_a_file_of_commands_is_a_job() {
    let desk = Desk::new().await;
    fs::write(desk.site_path().join("all.txt"), "echo one\n\n# a note\necho two | tr a-z A-Z\n").unwrap();
    assert_eq!(desk.ok(&["job", "create", "--commands", "all.txt", "-npc", "4", "--tag", "c=1", "-y"]), "1,2\n");
    let jobs = desk.json(&["job", "ls", "--tag", "c=1"]);
    assert_eq!(jobs[1]["parameters"]["task"], "2");
    assert_eq!(jobs[0]["node_packing_count"], 4);
    let key = jobs[0]["parameters"]["script"].as_str().unwrap();
    let list = fs::read_to_string(desk.site_path().join(format!("scripts/{key}/commands"))).unwrap();
    assert_eq!(list, "echo one\necho two | tr a-z A-Z\n");
    assert_eq!(jobs[0]["workdir"], format!("scripts/{key}/1"));
}
