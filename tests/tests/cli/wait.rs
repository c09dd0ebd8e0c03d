//! How `copal job wait` ends, as scripts see it.

use crate::desk::Desk;

#[tokio::test]
async fn the_exit_code_of_wait_says_how_the_jobs_ended() {
    let desk = Desk::new().await;
    let create = "job create -a Hello --array 1-25 -w a/{index} -p name=x --tag k=v -y";
    desk.ok(&create.split(' ').collect::<Vec<_>>());
    desk.ok(&["job", "modify", "1-2", "--set-state", "JOB_FINISHED", "-y"]);
    desk.ok(&["job", "cancel", "3", "-y"]);
    let told = |line: &str| desk.told(&desk.run(&line.split(' ').collect::<Vec<_>>()));
    assert_eq!(told("job wait 1"), "0\nThe Job is finished.\n");
    assert_eq!(told("job wait 1-2"), "0\nAll 2 Jobs are finished.\n");
    assert_eq!(told("job wait 1-3"), "1\nerror: 1 of 3 Jobs failed: 3\nhint: `copal job show 3` says why\n");
    assert_eq!(
        told("job wait 1-5 --timeout 0.2"),
        "3\nerror: 2 of 5 Jobs not finished in time: 4,5 (2 PREPROCESSED)\n\
         hint: `copal job why 4` says what it waits for; run the command again to go on\n"
    );
    assert_eq!(
        told("job wait --tag k=v --timeout 0"),
        "3\nerror: 22 of 25 Jobs not finished in time: 4-23, … (22 PREPROCESSED)\n\
         hint: `copal job why 4` says what it waits for; run the command again to go on\n"
    );
    assert_eq!(
        told("job wait --tag k=w"),
        "1\nerror: no Job matches\nhint: `copal job ls` takes the same options and shows which do\n"
    );
    assert_eq!(told("job wait 1 --timeout -1").chars().next(), Some('2'));
    // Data is for whoever reads stdout, whatever the end.
    assert_eq!(desk.json(&["job", "wait", "1-2"]), serde_json::json!({"JOB_FINISHED": 2}));
    let failed = desk.run(&["job", "wait", "2-3", "-o", "json"]);
    let counts: serde_json::Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!((failed.status.code(), counts), (Some(1), serde_json::json!({"JOB_FINISHED": 1, "FAILED": 1})));
}

/// A shell's script that branches on it, as people write them.
#[tokio::test]
async fn a_script_can_tell_the_ends_apart() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x", "-y"]);
    let script = "copal job wait 1 --timeout 0.1; echo late: $?\n\
        copal job modify 1 --set-state JOB_FINISHED && copal job wait 1 && echo finished\n\
        copal job modify 1 --set-state FAILED && copal job wait 1 || echo failed: $?";
    let output = desk.shell(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "late: 3\nfinished\nfailed: 1\n", "{}", desk.told(&output));
}
