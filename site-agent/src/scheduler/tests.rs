//! What holds for the answers of every scheduler, however odd they are.

use chrono::DateTime;
use copal_schemas::Timestamp;
use proptest::prelude::*;

use super::{
    Status, Tracked,
    listing::{Listing, Record},
};

const SCHEDULERS: [&str; 5] = ["slurm", "pbs", "lsf", "cobalt", "flux"];

fn now() -> Timestamp {
    DateTime::from_timestamp(1_796_300_000, 0).unwrap()
}

fn job(key: &str, id: &str) -> Tracked {
    Tracked { key: key.into(), id: super::SchedulerId(id.into()) }
}

fn statuses<R: Record>(listing: Result<Listing<R>, String>, jobs: &[Tracked]) -> Result<Vec<Status>, String> {
    listing.map(|listing| listing.statuses(jobs))
}

/// What an answer of one of the schedulers says about jobs; an error when it is no answer.
fn read(scheduler: &str, text: &str, jobs: &[Tracked]) -> Result<Vec<Status>, String> {
    match scheduler {
        "slurm" => statuses(Ok(super::slurm::parse::rows(text)), jobs),
        "pbs" => statuses(super::pbs::parse::qstat(text, now()), jobs),
        "lsf" => statuses(super::lsf::parse::bjobs(text, now()), jobs),
        "cobalt" => statuses(super::cobalt::parse::qstat(text), jobs),
        "flux" => statuses(Ok(super::flux::parse::jobs(text)), jobs),
        other => panic!("{other}"),
    }
}

/// An answer with these jobs: id, the scheduler's word for the state, name.
fn answer(scheduler: &str, jobs: &[(&str, &str, &str)]) -> String {
    let each = |line: &dyn Fn(&(&str, &str, &str)) -> String| jobs.iter().map(line).collect::<Vec<_>>().concat();
    match scheduler {
        "slurm" => each(&|(id, state, name)| format!("{id}|{state}|1796033597|1796035397|None|{name}\n")),
        "pbs" => each(&|(id, state, name)| {
            format!(
                "Job Id: {id}.head\n    Job_Name = {name}\n    job_state = {state}\n    stime = Mon Nov 30 10:35:39 2026\n\n"
            )
        }),
        "lsf" => {
            let record = |(id, state, name): &(&str, &str, &str)| {
                format!(
                    "    {{\n      \"JOBID\":\"{id}\",\n      \"STAT\":\"{state}\",\n      \"JOB_NAME\":\"{name}\"\n    }}"
                )
            };
            let records: Vec<String> = jobs.iter().map(record).collect();
            format!("{{\n  \"COMMAND\":\"bjobs\",\n  \"RECORDS\":[\n{}\n  ]\n}}\n", records.join(",\n"))
        }
        "cobalt" => {
            let rows = each(&|(id, state, name)| format!("{id}  {state}  N/A  {name}\n"));
            format!("JobID  State  StartTime  JobName\n=====\n{rows}")
        }
        "flux" => each(&|(id, state, name)| format!("f{id}|{state}||1796033597.5|||  |{name}\n")),
        other => panic!("{other}"),
    }
}

/// A state that means that a job runs.
fn running(scheduler: &str) -> &'static str {
    match scheduler {
        "slurm" => "RUNNING",
        "pbs" => "R",
        "cobalt" => "running",
        _ => "RUN",
    }
}

/// All words for states that end or hold back a job, in all schedulers.
const KNOWN: &[&str] = &[
    // Slurm, long and short
    "PENDING",
    "PD",
    "REQUEUED",
    "RQ",
    "REQUEUE_FED",
    "RF",
    "REQUEUE_HOLD",
    "RH",
    "SPECIAL_EXIT",
    "SE",
    "RESV_DEL_HOLD",
    "RD",
    "COMPLETED",
    "CD",
    "FAILED",
    "F",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
    "CANCELLED",
    "CA",
    "REVOKED",
    "RV",
    "TIMEOUT",
    "TO",
    "DEADLINE",
    "DL",
    "NODE_FAIL",
    "NF",
    "BOOT_FAIL",
    "BF",
    "PREEMPTED",
    "PR",
    "OUT_OF_MEMORY",
    "OOM",
    // PBS
    "Q",
    "H",
    "W",
    "T",
    "X",
    // LSF
    "PEND",
    "PSUSP",
    "WAIT",
    "FWD_PEND",
    "DONE",
    "EXIT",
    // Cobalt
    "QUEUED",
    "DEP_FAIL",
    // Flux
    "NEW",
    "N",
    "PRIORITY",
    "P",
    "SCHED",
    "S",
    "DEPEND",
    "D",
    "INACTIVE",
    "I",
];

#[test]
fn pitfall_022_025_every_state_of_the_vectors_is_queued_running_or_ended() {
    type Words = &'static [&'static str];
    // Scheduler, words for waiting, running, over.
    let vectors: [(&str, Words, Words, Words); 5] = [
        (
            "slurm",
            &["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "RD", "pd"],
            &[
                "RUNNING",
                "SUSPENDED",
                "COMPLETING",
                "CONFIGURING",
                "EXPEDITING",
                "POWER_UP_NODE",
                "RESIZING",
                "SIGNALING",
                "STAGE_OUT",
                "STOPPED",
                "UPDATE_DB",
                "R",
                "CG",
                "",
                "A_WORD_FROM_THE_FUTURE",
            ],
            &[
                "BOOT_FAIL",
                "CANCELLED",
                "COMPLETED",
                "DEADLINE",
                "FAILED",
                "NODE_FAIL",
                "OUT_OF_MEMORY",
                "PREEMPTED",
                "TIMEOUT",
                "LAUNCH_FAILED",
                "RECONFIG_FAIL",
                "REVOKED",
                "CANCELLED by 123",
                "CANCELLED+",
            ],
        ),
        ("pbs", &["H", "Q", "T", "W"], &["B", "E", "M", "R", "S", "U", "Z", ""], &["F", "X"]),
        (
            "lsf",
            &["PEND", "PSUSP", "WAIT"],
            &["RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI", "A_NEW_ONE", ""],
            &["DONE", "EXIT"],
        ),
        (
            "cobalt",
            &["queued", "user_hold", "admin_hold", "dep_hold", "maxrun_hold", "dep_fail", "preempted"],
            &["starting", "running", "exiting", "killing", "collecting", "a_new_one"],
            &[],
        ),
        ("flux", &["DEPEND", "PRIORITY", "SCHED"], &["RUN", "CLEANUP", "A_NEW_ONE", ""], &["INACTIVE"]),
    ];
    for (scheduler, waiting, running, ended) in vectors {
        let status = |state: &str| {
            let text = answer(scheduler, &[("41", state, "cp1")]);
            read(scheduler, &text, &[job("cp1", "41")]).unwrap().remove(0)
        };
        for state in waiting {
            assert!(matches!(status(state), Status::Queued { .. }), "{scheduler} {state:?}: {:?}", status(state));
        }
        for state in running {
            assert!(matches!(status(state), Status::Running { .. }), "{scheduler} {state:?}: {:?}", status(state));
        }
        for state in ended {
            assert!(matches!(status(state), Status::Ended(_)), "{scheduler} {state:?}: {:?}", status(state));
        }
    }
}

#[test]
fn whole_answers_of_the_vectors_end_nothing() {
    let name = "n".repeat(15_000);
    for scheduler in SCHEDULERS {
        let state = running(scheduler);
        let own = answer(scheduler, &[("41", state, "cp1")]);
        let mine = [job("cp1", "41")];
        let texts = [
            String::new(),
            "\n".into(),
            own.lines().next().unwrap_or_default().into(),
            "slurm_load_jobs error: Socket timed out on send/recv operation\n".into(),
            format!("Warning: maintenance on Monday\n{own}"),
            answer(scheduler, &[("41", state, "caf\u{fffd}"), ("42", state, "cp1")]),
            answer(scheduler, &[("40", state, &name), ("41", state, "cp1")]),
            answer(scheduler, &[("40", state, "a|b^c;d\\'e\\,f \"g\""), ("41", state, "cp1")]),
            answer(scheduler, &[("005", state, "005"), ("41", state, "cp1")]),
            "{\"Jobs\":{\"9.srv\":{\"foo\":005}}}".into(),
            "{\"RECORDS\":[{\"JOBID\":\"41\",\"JOBID\":\"42\"}]}".into(),
        ];
        for text in texts {
            match read(scheduler, &text, &mine).as_deref() {
                Ok([Status::Running { .. } | Status::Absent | Status::Unknown]) | Err(_) => {}
                other => panic!("{scheduler}: {text:.300}: {other:?}"),
            }
        }
        // And what is odd about one job hides no other.
        for odd in [name.as_str(), "a|b^c;d\\'e\\,f \"g\"", "my job", "caf\u{fffd}", "-", "Job Id: 7.head"] {
            let text = answer(scheduler, &[("40", state, odd), ("41", state, "cp1")]);
            let seen = read(scheduler, &text, &mine).unwrap();
            assert!(matches!(seen[..], [Status::Running { .. }]), "{scheduler}: {odd:.40}: {seen:?}");
        }
    }
}

proptest! {
    #[test]
    fn an_unknown_word_is_running(word in "[A-Za-z][A-Za-z_]{0,14}") {
        prop_assume!(!KNOWN.contains(&word.to_ascii_uppercase().as_str()) && !word.to_ascii_lowercase().ends_with("hold"));
        for scheduler in SCHEDULERS {
            let text = answer(scheduler, &[("41", &word, "cp1")]);
            let seen = read(scheduler, &text, &[job("cp1", "41")]).unwrap();
            prop_assert!(matches!(seen[..], [Status::Running { .. }]), "{}: {:?}", scheduler, seen);
        }
    }

    #[test]
    fn pitfall_031_an_answer_that_was_cut_short_ends_nothing(length in 0.0_f64..1.0) {
        for scheduler in SCHEDULERS {
            let state = running(scheduler);
            let text = answer(scheduler, &[("41", state, "cp1"), ("42", state, "cp2"), ("43", state, "cp3")]);
            let cut = &text[..(text.len() as f64 * length) as usize];
            if let Ok(seen) = read(scheduler, cut, &[job("cp1", "41"), job("cp2", "42"), job("cp3", "43")]) {
                let alive = |status: &Status| matches!(status, Status::Running { .. } | Status::Absent | Status::Unknown);
                prop_assert!(seen.iter().all(alive), "{}: {:?}", scheduler, seen);
            }
        }
    }

    #[test]
    fn no_bytes_make_a_reader_panic_or_a_job_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        for scheduler in SCHEDULERS {
            let seen = read(scheduler, &text, &[job("cp1", "41")]);
            prop_assert!(!matches!(seen.as_deref(), Ok([Status::Ended(_)])), "{}: {:?}", scheduler, seen);
        }
    }
}
