//! Slurm's own words, as its manual and recorded output have them, and what they mean.

use super::*;
use crate::scheduler::{command::Output, reply::SubmitReply};

const SQUEUE: &str = include_str!("../../fixtures/slurm/squeue-o.txt");
const SACCT: &str = include_str!("../../fixtures/slurm/sacct-X-P-n.txt");
const SBATCH: &str = include_str!("../../fixtures/slurm/sbatch-outcomes.txt");
const SBATCH_STRICT: &str = include_str!("../../fixtures/slurm/sbatch-outcomes-EnforcePartLimits-ALL.txt");

/// The recorded answers in a file of `$ command`, `stdout:`, `stderr:` and `rc:` lines.
fn answers(text: &str) -> Vec<(String, Output)> {
    let mut all: Vec<(String, Output)> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            all.push((command.into(), Output { stdout: String::new(), stderr: String::new(), code: None }));
        } else if let Some((_, answer)) = all.last_mut() {
            if let Some(text) = line.strip_prefix("stdout: ") {
                answer.stdout += &format!("{text}\n");
            } else if let Some(text) = line.strip_prefix("stderr: ") {
                answer.stderr += &format!("{text}\n");
            } else if let Some(code) = line.strip_prefix("rc: ") {
                answer.code = code.split_whitespace().next().and_then(|code| code.parse().ok());
            }
        }
    }
    all
}

fn submit_reply(answer: &Output) -> SubmitReply {
    SubmitReply::read("sbatch", answer, job_id)
}

fn squeue(text: &str) -> Vec<Row> {
    rows(text).rows
}

fn reply(stdout: &str, stderr: &str, code: i32) -> SubmitReply {
    submit_reply(&Output { stdout: stdout.into(), stderr: stderr.into(), code: Some(code) })
}

#[test]
fn recorded_submissions_are_understood() {
    let lines: Vec<String> = [SBATCH, SBATCH_STRICT]
        .into_iter()
        .flat_map(answers)
        .filter(|(command, _)| command.starts_with("sbatch"))
        .map(|(command, answer)| format!("{command}\n    {:?}", submit_reply(&answer)))
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn pitfall_033_a_reply_that_got_lost_is_not_a_refusal() {
    let text = include_str!("../../fixtures/slurm/controller-hung-and-misc.txt");
    let (_, answer) = answers(text).into_iter().find(|(command, _)| command.contains("sbatch")).unwrap();
    assert!(matches!(submit_reply(&answer), SubmitReply::Unknown(text) if text.contains("Socket timed out")));
    assert!(matches!(reply("", "", 1), SubmitReply::Unknown(_)));
    assert!(matches!(reply("what?", "", 0), SubmitReply::Unknown(_)));
}

#[test]
fn pitfall_041_042_the_id_is_found_among_what_wrappers_say() {
    for text in [
        "41",
        "41\n",
        "Note: use -A\n41;gpuc\n",
        "Submitted batch job 41",
        "Submitted batch job 41 on cluster gpuc",
        "Cluster Stampede3: Submitted batch job 41",
        "--> 7 checks passed\nSubmitted batch job 41\nHave a nice day\n",
    ] {
        assert_eq!(reply(text, "", 0), SubmitReply::Accepted("41".into()), "{text}");
    }
    assert_eq!(reply("41", "warning: something", 1), SubmitReply::Accepted("41".into()));
}

#[test]
fn pitfall_017_025_every_state_has_a_meaning() {
    use EndReason::*;
    let over = |reason| Phase::Over(reason);
    for (words, expected) in [
        (
            vec![
                "PENDING",
                "PD",
                "pending",
                "REQUEUED",
                "REQUEUE_FED",
                "REQUEUE_HOLD",
                "SPECIAL_EXIT",
                "RESV_DEL_HOLD",
            ],
            Phase::Waiting,
        ),
        (
            vec![
                "RUNNING",
                "R",
                "COMPLETING",
                "CG",
                "CONFIGURING",
                "SUSPENDED",
                "STOPPED",
                "SIGNALING",
                "STAGE_OUT",
                "RESIZING",
                "POWER_UP_NODE",
                "EXPEDITING",
                "UPDATE_DB",
                "",
                "A_WORD_FROM_THE_FUTURE",
            ],
            Phase::Running,
        ),
        (vec!["COMPLETED", "CD"], over(Completed)),
        (vec!["FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL"], over(Failed)),
        (vec!["CANCELLED", "CANCELLED by 123", "CANCELLED+", "CA", "REVOKED"], over(Cancelled)),
        (vec!["TIMEOUT", "DEADLINE"], over(TimeLimit)),
        (vec!["NODE_FAIL", "BOOT_FAIL"], over(NodeFailure)),
        (vec!["PREEMPTED"], over(Preempted)),
        (vec!["OUT_OF_MEMORY"], over(OutOfMemory)),
    ] {
        for word in words {
            assert_eq!(phase(word), expected, "{word:?}");
        }
    }
}

fn status(line: &str) -> Status {
    squeue(line)[0].status()
}

#[test]
fn times_are_epoch_seconds() {
    let Status::Running { start } = status("55|RUNNING|1796033597|1796035397|None|cp1x00000") else { panic!() };
    assert_eq!(start.unwrap().timestamp(), 1_796_033_597);
    assert_eq!(status("61|PENDING|N/A|N/A|PartitionDown|cp1"), Status::Queued { reason: Some("PartitionDown".into()) });
    let Status::Ended(ending) = squeue("49|TIMEOUT|1796033552|1796033636|0:0|cp1")[0].status() else { panic!() };
    assert_eq!((ending.reason, ending.exit_code), (EndReason::TimeLimit, Some(0)));
    assert_eq!(ending.end.unwrap().timestamp(), 1_796_033_636);
    let Status::Ended(ending) = squeue("3|CANCELLED by 0|None|1796033125|0:15|cp1")[0].status() else { panic!() };
    assert_eq!((ending.start, ending.signal.as_deref()), (None, Some("SIGTERM")));
}

#[test]
fn pitfall_055_a_limit_that_can_never_be_met_is_told_from_waiting() {
    for reason in ["PartitionTimeLimit", "PartitionNodeLimit", "AssocMaxWallDurationPerJobLimit"] {
        assert_eq!(status(&format!("70|PENDING|N/A|N/A|{reason}|x")), Status::Impossible { reason: reason.into() });
    }
    for reason in ["Resources", "Priority", "PartitionDown", "JobHeldUser", "QOSMaxJobsPerUserLimit"] {
        assert!(matches!(status(&format!("70|PENDING|N/A|N/A|{reason}|x")), Status::Queued { .. }));
    }
}

#[test]
fn pitfall_019_020_029_ids_of_any_shape_and_names_with_the_separator() {
    for id in ["41", "41_7", "59_[0-3%1]", "93+0", "41_[1,3,9-12]"] {
        let rows = squeue(&format!("{id}|PENDING|N/A|N/A|Resources|na|me"));
        assert_eq!((rows[0].id.as_str(), rows[0].name.as_str()), (id, "na|me"));
    }
}

#[test]
fn pitfall_012_024_a_line_that_can_not_be_read_hides_no_other() {
    let listing = rows("garbage\n41|RUNNING|1|2|None|cp1\nJOBID|STATE\n\n42|PENDING|N/A|N/A|Priority|cp2\n");
    assert_eq!(listing.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["41", "42"]);
    assert_eq!(listing.skipped, 2);
    assert!(squeue("").is_empty());
}

#[test]
fn recorded_states_are_all_known() {
    for line in SQUEUE.lines().skip(1) {
        let state = line.split('|').nth(1).unwrap();
        assert!(matches!(phase(state), Phase::Waiting | Phase::Running), "{state}");
    }
    for line in SACCT.lines() {
        assert!(matches!(phase(line.split('|').nth(1).unwrap()), Phase::Over(_) | Phase::Running | Phase::Waiting));
    }
}

#[test]
fn a_cluster_of_like_nodes_has_a_shape() {
    let text = "4|4000|gpu:a100:4\n4|4000|gpu:a100:4\n";
    assert_eq!(node_shape(text), Some(NodeShape { cpus: 4, gpus: 4, mem_mb: 4000 }));
    assert_eq!(node_shape("4|4000|(null)\n8|4000|(null)\n"), None);
    assert_eq!(node_shape(""), None);
    assert_eq!(gpus("gpu:a100:4(S:0-1),gpu:1g.10gb:2(S:0),nic:1,gpu"), 7);
    assert_eq!(gpus("(null)"), 0);
}

#[test]
fn pitfall_023_columns_have_no_width_to_overflow() {
    let asked = |format: &str| format.chars().any(|letter| letter.is_ascii_digit());
    assert!(!asked(SQUEUE_FORMAT) && SQUEUE_FORMAT.split('|').count() == 6, "{SQUEUE_FORMAT}");
    // What a fixed width would have made of it is no state, and no end.
    assert_eq!(phase("COMPLETININVALID"), Phase::Running);
    assert!(matches!(status("41|COMPLETING|1|2|None|cp1"), Status::Running { .. }));
}

#[test]
fn pitfall_030_a_name_with_spaces_shifts_no_column() {
    let row = squeue("41|RUNNING|1|2|None|my COMPLETED job").remove(0);
    assert_eq!((row.name.as_str(), row.state.as_str()), ("my COMPLETED job", "RUNNING"));
}

#[test]
fn pitfall_045_047_056_every_kind_of_end_is_its_own() {
    for (line, reason) in [
        ("PREEMPTED|1|2|0:15", EndReason::Preempted),
        ("NODE_FAIL|1|2|0:0", EndReason::NodeFailure),
        ("OUT_OF_MEMORY|1|2|0:125", EndReason::OutOfMemory),
        ("TIMEOUT|1|2|0:0", EndReason::TimeLimit),
        ("CANCELLED by 0|1|2|0:15", EndReason::Cancelled),
        ("FAILED|1|2|3:0", EndReason::Failed),
        ("COMPLETED|1|2|0:0", EndReason::Completed),
    ] {
        let Status::Ended(ending) = status(&format!("41|{line}|cp1")) else { panic!("{line}") };
        assert_eq!((ending.reason, ending.start.is_some(), ending.end.is_some()), (reason, true, true), "{line}");
    }
}
