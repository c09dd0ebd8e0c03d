//! What follows an error or a time-out: the retry policy, and hooks that decide otherwise.

use copal_tests::wait::wait_blocking;

use crate::laptop::{LIMIT, Laptop};

fn runs(history: &[String]) -> usize {
    history.iter().filter(|state| *state == "RUNNING").count()
}

#[test]
fn errors_are_retried_as_the_policy_says_unless_a_hook_decides() {
    let laptop = Laptop::with_site(1);
    laptop.script("goes_on.sh", "#!/bin/sh\nexit 0\n");
    laptop.script(
        "decides.sh",
        "#!/bin/bash\nset -e\n[ \"$COPAL_JOB_STATE\" = RUN_ERROR ]\n\
         if [ -e tried ]; then echo '{\"state\": \"POSTPROCESSED\", \"data\": {\"usable\": true}}'\n\
         else touch tried; echo '{\"state\": \"RESTART_READY\", \"state_data\": {\"message\": \"once more\"}}'; fi > \"$COPAL_RESULT\"\n",
    );
    laptop.script(
        "gives_up.sh",
        "#!/bin/bash\necho '{\"state\": \"FAILED\", \"state_data\": {\"reason\": \"no use\"}}' > \"$COPAL_RESULT\"\n",
    );
    laptop.app("Never", "command: exit 1");
    laptop.app("Twice", "command: exit 1\nmax_restarts: 2");
    laptop.app("Policy", "command: exit 1\nmax_restarts: 1\nhooks: {handle_error: ./goes_on.sh}");
    laptop.app("Usable", "command: exit 1\nhooks: {handle_error: ./decides.sh}");
    laptop.app("GivesUp", "command: exit 1\nmax_restarts: 5\nhooks: {handle_error: ./gives_up.sh}");
    let jobs: Vec<i64> = ["Never", "Twice", "Policy", "Usable", "GivesUp"]
        .map(|app| laptop.job(&["-a", app, "-w", &format!("retries/{app}")]))
        .into();
    let own = laptop.job(&["-a", "Twice", "-w", "retries/own", "--max-restarts", "0"]);
    laptop.allocation("serial", 10);
    for (job, state, count) in [
        (jobs[0], "FAILED", 1),
        (jobs[1], "FAILED", 3),
        (jobs[2], "FAILED", 2),
        (jobs[3], "JOB_FINISHED", 2),
        (jobs[4], "FAILED", 1),
        (own, "FAILED", 1),
    ] {
        laptop.wait_state(job, state);
        let history = laptop.history(job);
        assert_eq!(runs(&history), count, "{job}: {history:?}");
    }
    // An owner's restart starts the count anew, also where a hook is asked.
    let again = [(jobs[1], 6), (jobs[2], 4)];
    for (job, _) in again {
        laptop.site(&["job", "modify", "--id", &job.to_string(), "--set-state", "RESTART_READY", "-y"]);
    }
    laptop.allocation("serial", 10);
    for (job, count) in again {
        wait_blocking("the runs that the policy allows", LIMIT, || match laptop.history(job) {
            history if runs(&history) == count && history.last().is_some_and(|state| state == "FAILED") => Ok(()),
            history => Err(format!("{history:?}")),
        });
    }
    assert_eq!(laptop.show(jobs[3])["data"]["usable"], true);
    let told = laptop.site(&["job", "show", &jobs[4].to_string()]);
    assert!(told.contains("no use"), "{told}");
}

#[test]
fn time_outs_are_counted_apart_and_their_hook_decides() {
    let laptop = Laptop::with_site(1);
    laptop.script(
        "shorter.sh",
        "#!/bin/bash\n[ \"$COPAL_JOB_STATE\" = RUN_TIMEOUT ] && touch short\n\
         echo '{\"state_data\": {\"message\": \"shorter now\"}}' > \"$COPAL_RESULT\"\n",
    );
    // No restart is allowed after errors; a time-out is none. The hook lets the policy decide.
    laptop.app(
        "Long",
        "command: '[ -e short ] || { echo up > up; exec sleep 600; }'\nhooks: {handle_timeout: ./shorter.sh}",
    );
    let job = laptop.job(&["-a", "Long", "-w", "long"]);
    let batch_job = laptop.allocation("serial", 10);
    laptop.wait_file("long", "up");
    laptop.site(&["queue", "rm", &batch_job.to_string(), "-y"]);
    wait_blocking("the Job to be ready again", LIMIT, || match laptop.history(job) {
        history if history.iter().any(|state| state == "RESTART_READY") => Ok(()),
        history => Err(format!("{history:?}; {}", laptop.logs())),
    });
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(runs(&laptop.history(job)), 2);
}
