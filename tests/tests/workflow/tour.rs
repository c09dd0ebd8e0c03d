//! The README's tour.

use std::time::Duration;

use crate::laptop::{Laptop, refused};

const HELLO: &str = "command: echo Hello, {{name}}!\nparameters: {name: {required: true}}";

#[test]
fn hello_runs_and_its_output_is_in_its_workdir() {
    let laptop = Laptop::with_site(1);
    laptop.app("Hello", HELLO);
    let job = laptop.job(&["-a", "Hello", "-w", "demo/1", "-p", "name=world; exit 3"]);
    laptop.allocation("serial", 10);
    laptop.site(&["job", "wait", "--id", &job.to_string(), "--timeout", "60"]);
    assert_eq!(laptop.output("demo/1"), b"Hello, world; exit 3!\n");
    let history = laptop.history(job);
    assert_eq!(history, ["STAGED_IN", "PREPROCESSED", "RUNNING", "RUN_DONE", "POSTPROCESSED", "JOB_FINISHED"]);
}

#[test]
fn a_missing_parameter_is_refused_by_its_name() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    laptop.app("Hello", HELLO);
    let text = refused(&laptop.try_site(&["job", "create", "-a", "Hello", "-w", "demo/1", "-y"]), 1);
    assert!(text.contains("name"), "{text}");
    let output = laptop.try_site(&["job", "create", "-a", "Hello", "-w", "d", "-p", "name=x", "-p", "nmae=y", "-y"]);
    assert!(refused(&output, 1).contains("nmae"));
    assert_eq!(laptop.json(&["job", "ls"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn an_exit_code_and_the_last_lines_are_shown() {
    let laptop = Laptop::with_site(1);
    laptop.app("Fail", "command: echo first; echo something broke >&2; exit 3");
    let job = laptop.job(&["-a", "Fail", "-w", "fail"]);
    laptop.allocation("serial", 10);
    let output = laptop.try_site(&["job", "wait", "--id", &job.to_string(), "--timeout", "60"]);
    refused(&output, 1);
    assert_eq!(laptop.state(job), "FAILED");
    let text = laptop.site(&["job", "show", &job.to_string()]);
    assert!(text.contains("something broke") && text.contains('3'), "{text}");
}

#[test]
fn odd_bytes_and_odd_folders_are_fine() {
    let laptop = Laptop::with_site(1);
    laptop.app("Bytes", r"command: printf '\351\377\000\n'");
    let bytes = laptop.job(&["-a", "Bytes", "-w", "bytes"]);
    let spaces = laptop.job(&["-a", "Bytes", "-w", "my runs/größe 1"]);
    laptop.allocation("serial", 10);
    laptop.wait_state(bytes, "JOB_FINISHED");
    laptop.wait_state(spaces, "JOB_FINISHED");
    assert_eq!(laptop.output("my runs/größe 1"), b"\xe9\xff\0\n");
}

#[test]
fn ranks_run_under_a_real_mpiexec() {
    let laptop = Laptop::with_site(1);
    laptop.app(
        "Ranks",
        r#"command: sh -c 'echo rank ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} of ${PMI_SIZE:-$OMPI_COMM_WORLD_SIZE}'"#,
    );
    let job = laptop.job(&["-a", "Ranks", "-w", "ranks", "--ranks-per-node", "2"]);
    laptop.allocation("mpi", 10);
    laptop.wait_state(job, "JOB_FINISHED");
    let text = String::from_utf8_lossy(&laptop.output("ranks")).into_owned();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2", "rank 1 of 2"]);
}

#[test]
fn hooks_run_around_a_job_and_keep_its_result() {
    let laptop = Laptop::with_site(1);
    laptop.script("before.sh", "#!/bin/sh\necho 41 > input\n");
    laptop
        .script("after.sh", "#!/bin/sh\nprintf '{\"data\": {\"answer\": %s}}' \"$(cat output)\" > \"$COPAL_RESULT\"\n");
    laptop.app(
        "Add",
        "command: echo $(($(cat input) + 1)) > output\nhooks: {preprocess: ./before.sh, postprocess: ./after.sh}",
    );
    let job = laptop.job(&["-a", "Add", "-w", "add"]);
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(laptop.show(job)["data"]["answer"], 42);
}

#[test]
fn children_run_after_their_parents() {
    let laptop = Laptop::with_site(1);
    laptop.app("Write", "command: echo done > ../{{file}}\nparameters: {file: {required: true}}");
    laptop.app("Read", "command: cat ../a ../b");
    let first = laptop.job(&["-a", "Write", "-w", "graph/1", "-p", "file=a"]);
    let second = laptop.job(&["-a", "Write", "-w", "graph/2", "-p", "file=b"]);
    let parents = [first.to_string(), second.to_string()];
    let child = laptop.job(&["-a", "Read", "-w", "graph/3", "--parent", &parents[0], "--parent", &parents[1]]);
    assert_eq!(laptop.state(child), "AWAITING_PARENTS");
    laptop.allocation("serial", 10);
    laptop.wait_state(child, "JOB_FINISHED");
    assert_eq!(laptop.output("graph/3"), b"done\ndone\n");
}

#[test]
fn a_job_longer_than_the_walltime_runs_again_in_the_next_allocation() {
    let laptop = Laptop::with_site(1);
    // The first run waits for ever, the second finds the file of the first.
    laptop.app(
        "Long",
        "command: if [ -e started ]; then echo again; else touch started; echo up > up; exec sleep 600; fi",
    );
    let job = laptop.job(&["-a", "Long", "-w", "long"]);
    laptop.allocation("serial", 1);
    laptop.wait_file("long", "up");
    // One minute of walltime is the least that can be asked for; the test waits for its end.
    copal_tests::wait::wait_blocking("the walltime to end the job", Duration::from_secs(120), || {
        match laptop.history(job) {
            history if history.iter().any(|state| state == "RUN_TIMEOUT") => Ok(()),
            history => Err(format!("{history:?}")),
        }
    });
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");
    let history = laptop.history(job);
    let runs = history.iter().filter(|state| *state == "RUNNING").count();
    assert_eq!(runs, 2, "{history:?}");
}
