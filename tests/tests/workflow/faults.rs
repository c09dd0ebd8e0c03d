//! Parts that are killed in the middle of a run.

use std::{fs, time::Duration, time::Instant};

use copal_tests::wait::wait_blocking;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::laptop::{LIMIT, Laptop};

/// Writes its process id on the first run and waits; ends at once on the second.
const ONCE: &str = "command: if [ -e pid ]; then echo again; else echo $$ > pid; exec sleep 600; fi";

/// Writes a line when it starts and one when it ends, so that double runs are seen.
const TRACED: &str = "command: echo start $$ >> trace; sleep 0.2; echo end $$ >> trace";

fn kill_all(pids: &[i32]) {
    assert!(!pids.is_empty(), "there is nothing to kill");
    for pid in pids {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    }
}

fn is_alive(pid: &str) -> bool {
    // A zombie that nobody has reaped yet is dead.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_killed_launcher_loses_no_job_and_leaves_no_process() {
    let laptop = Laptop::with_site(1);
    laptop.app("Once", ONCE);
    let job = laptop.job(&["-a", "Once", "-w", "once"]);
    laptop.allocation("serial", 10);
    let pid = laptop.wait_file("once", "pid").trim().to_owned();
    // A start may be told a moment later, together with the end.
    laptop.wait_state(job, "RUNNING");
    let killed = Instant::now();
    kill_all(&laptop.pids("copal-launcher --site"));
    wait_blocking("the job to be RUN_TIMEOUT", Duration::from_secs(15), || match laptop.history(job) {
        history if history.iter().any(|state| state == "RUN_TIMEOUT") => Ok(()),
        history => Err(format!("{history:?}; {}", laptop.logs())),
    });
    eprintln!("RUN_TIMEOUT {:?} after the kill", killed.elapsed());
    wait_blocking("the process to be gone", Duration::from_secs(15), || {
        if is_alive(&pid) { Err(pid.clone()) } else { Ok(()) }
    });
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");
}

#[test]
fn a_killed_service_loses_no_job_and_none_runs_twice() {
    let mut laptop = Laptop::embedded().and_site(1);
    laptop.app("Traced", TRACED);
    let jobs: Vec<i64> = (0..20)
        .map(|index| laptop.job(&["-a", "Traced", "-w", &format!("traced/{index}"), "--node-packing-count", "2"]))
        .collect();
    laptop.allocation("serial", 10);
    laptop.wait_file("traced/0", "trace");
    let server = laptop.server.take().unwrap();
    server.signal(Signal::SIGKILL);
    drop(server);
    // The launcher goes on with what it holds; the service is away for a while.
    std::thread::sleep(Duration::from_secs(5));
    let (server, _) = laptop.programs.start_server(laptop.port, &[]);
    laptop.server = Some(server);
    for job in &jobs {
        laptop.wait_state(*job, "JOB_FINISHED");
    }
    for index in 0..jobs.len() {
        let trace = fs::read_to_string(laptop.site_path().join(format!("data/traced/{index}/trace"))).unwrap();
        assert_eq!(trace.lines().count(), 2, "job {index} did not run once: {trace}");
    }
}

#[test]
fn a_killed_agent_goes_on_after_a_new_start() {
    let laptop = Laptop::with_site(1);
    laptop.script("after.sh", "#!/bin/sh\nprintf '{\"data\": {\"seen\": true}}' > \"$COPAL_RESULT\"\n");
    laptop.app("Slow", "command: echo up > up; sleep 3\nhooks: {postprocess: ./after.sh}");
    let job = laptop.job(&["-a", "Slow", "-w", "slow"]);
    let batch_job = laptop.allocation("serial", 10);
    laptop.wait_file("slow", "up");
    kill_all(&laptop.pids("copal-agent --site"));
    laptop.site(&["site", "start"]);
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(laptop.show(job)["data"]["seen"], true);
    // The launcher ends when it is idle; the new agent must see that, and must not have started another.
    wait_blocking("the allocation to be finished", LIMIT, || {
        let all = laptop.json(&["queue", "ls", "--history"]);
        let one = all.as_array().unwrap().iter().find(|row| row["id"] == batch_job).cloned().unwrap_or_default();
        if one["state"] == "finished" { Ok(()) } else { Err(format!("{one}; {}", laptop.logs())) }
    });
    assert_eq!(laptop.history(job).iter().filter(|state| *state == "RUNNING").count(), 1);
}
