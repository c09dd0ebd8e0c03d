//! The `local` scheduler with real scripts: supervisors, walltime, cancelling, crashes, restarts.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use copal_agent::{
    process::{self, ProcessId},
    records,
    scheduler::{
        EndReason, Ending, Scheduler, Status, SubmitError, SubmitSpec, Tracked,
        local::{JobFiles, LocalJob, LocalRun, LocalScheduler, MARK},
    },
};
use copal_client::SiteDir;
use copal_schemas::settings::Settings;
use nix::sys::signal::Signal;

struct Bed {
    _folder: tempfile::TempDir,
    site: SiteDir,
    settings: Settings,
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_copal-agent")).parent().unwrap().to_path_buf()
}

impl Bed {
    fn new(nodes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path().join("a site"));
        site.create_folders().unwrap();
        let settings =
            serde_json::from_value(serde_json::json!({"site_id": 1, "scheduler": {"local_nodes": nodes}})).unwrap();
        Self { _folder: folder, site, settings }
    }

    fn scheduler(&self) -> LocalScheduler {
        LocalScheduler::open(&self.site, &self.settings, &programs()).unwrap()
    }

    fn spec(&self, key: &str, nodes: u32, text: &str) -> SubmitSpec {
        let script = self.site.qsubmit().join(format!("{key}.sh"));
        fs::write(&script, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        SubmitSpec {
            key: key.into(),
            num_nodes: nodes,
            wall_time_min: 10,
            script,
            output: self.site.qsubmit().join(format!("{key}.out")),
            avoid: Vec::new(),
        }
    }

    fn output(&self, key: &str) -> String {
        fs::read_to_string(self.site.qsubmit().join(format!("{key}.out"))).unwrap_or_default()
    }

    fn processes(&self, key: &str) -> Vec<u32> {
        process::marked(MARK, &JobFiles::new(&self.site.qsubmit(), key).mark())
    }

    fn run(&self, key: &str) -> LocalRun {
        records::read(&JobFiles::new(&self.site.qsubmit(), key).run()).unwrap().unwrap()
    }
}

async fn submit(scheduler: &LocalScheduler, spec: &SubmitSpec) -> Tracked {
    Tracked { key: spec.key.clone(), id: scheduler.submit(spec).await.unwrap() }
}

async fn status(scheduler: &LocalScheduler, job: &Tracked) -> Status {
    scheduler.statuses(std::slice::from_ref(job)).await.unwrap().remove(0)
}

/// Waits until `wanted` says something about a job's status.
async fn until<T>(scheduler: &LocalScheduler, job: &Tracked, wanted: impl Fn(&Status) -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let now = status(scheduler, job).await;
        if let Some(found) = wanted(&now) {
            return found;
        }
        assert!(Instant::now() < limit, "{}: still {now:?}", job.key);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ended(scheduler: &LocalScheduler, job: &Tracked) -> Ending {
    until(scheduler, job, |status| match status {
        Status::Ended(ending) => Some(ending.clone()),
        _ => None,
    })
    .await
}

async fn running(scheduler: &LocalScheduler, job: &Tracked) {
    until(scheduler, job, |status| matches!(status, Status::Running { start: Some(_) }).then_some(())).await;
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_runs_and_its_end_is_told_at_once() {
    let bed = Bed::new(4);
    let scheduler = bed.scheduler();
    let job = submit(&scheduler, &bed.spec("cp1", 3, "echo $COPAL_LOCAL_JOBID $COPAL_LOCAL_NODELIST; exit 7")).await;
    assert_eq!(scheduler.find("cp1").await.unwrap(), Some(job.id.clone()));
    assert_eq!(scheduler.find("cp2").await.unwrap(), None);
    loop {
        // Woken, not polled: once when it runs, once when it has ended.
        scheduler.changed().await;
        if let Status::Ended(ending) = status(&scheduler, &job).await {
            assert_eq!((ending.reason, ending.exit_code, ending.signal), (EndReason::Failed, Some(7), None));
            assert!(ending.start.unwrap() <= ending.end.unwrap());
            break;
        }
    }
    assert_eq!(bed.output("cp1"), "1 local[0-2]\n");
    let good = submit(&scheduler, &bed.spec("cp2", 1, "true")).await;
    assert_eq!(ended(&scheduler, &good).await.reason, EndReason::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_is_repeated_is_the_same_job() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let spec = bed.spec("cp1", 1, "sleep 1000");
    let first = submit(&scheduler, &spec).await;
    assert_eq!(submit(&scheduler, &spec).await, first);
    scheduler.cancel(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(ended(&scheduler, &first).await.reason, EndReason::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wait_for_free_nodes_in_their_order() {
    let bed = Bed::new(2);
    let scheduler = bed.scheduler();
    let gate = bed.site.root().join("gate");
    let wait = format!("while [ ! -e {:?} ]; do sleep 0.02; done", gate);
    let one = submit(&scheduler, &bed.spec("cp1", 1, &wait)).await;
    let two = submit(&scheduler, &bed.spec("cp2", 2, &wait)).await;
    let three = submit(&scheduler, &bed.spec("cp3", 1, "true")).await;
    running(&scheduler, &one).await;
    // The third would fit, but it came last.
    for job in [&two, &three] {
        assert!(matches!(status(&scheduler, job).await, Status::Queued { .. }));
    }
    fs::write(&gate, "").unwrap();
    for job in [&one, &two, &three] {
        assert_eq!(ended(&scheduler, job).await.reason, EndReason::Completed);
    }
    assert!(bed.run("cp2").start >= bed.run("cp1").start && bed.run("cp3").start >= bed.run("cp2").start);
    let refusal = scheduler.submit(&bed.spec("cp4", 3, "true")).await.unwrap_err();
    assert!(matches!(&refusal, SubmitError::Refused(text) if text.contains("this Site has 2")), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_is_cancelled_before_it_ever_runs() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let first = submit(&scheduler, &bed.spec("cp1", 1, "sleep 1000")).await;
    let second = submit(&scheduler, &bed.spec("cp2", 1, "echo never")).await;
    scheduler.cancel(std::slice::from_ref(&second)).await.unwrap();
    let ending = ended(&scheduler, &second).await;
    assert_eq!((ending.reason, ending.start), (EndReason::Cancelled, None));
    scheduler.cancel(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(ended(&scheduler, &first).await.reason, EndReason::Cancelled);
    assert_eq!(bed.output("cp2"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_script_can_end_its_work_well() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let text = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let job = submit(&scheduler, &bed.spec("cp1", 1, text)).await;
    wait_for("the script is ready", || bed.output("cp1").contains("ready")).await;
    scheduler.cancel(std::slice::from_ref(&job)).await.unwrap();
    let ending = ended(&scheduler, &job).await;
    assert_eq!((ending.reason, ending.exit_code), (EndReason::Cancelled, Some(0)));
    assert!(bed.output("cp1").ends_with("saved\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_script_leaves_is_gone_within_seconds() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    // A child, one in a session of its own that ignores TERM, and one whose parent has ended.
    let text = "sleep 1001 &\nsetsid bash -c 'trap \"\" TERM; sleep 1002 & wait; sleep 1003' &\n(setsid sleep 1004 &)\n\
                echo $$; while :; do sleep 0.05; done";
    let job = submit(&scheduler, &bed.spec("cp1", 1, text)).await;
    wait_for("the script is ready", || bed.output("cp1").ends_with('\n')).await;
    wait_for("its children run", || bed.processes("cp1").len() >= 5).await;
    let script: u32 = bed.output("cp1").trim().parse().unwrap();
    let killed = Instant::now();
    process::send(script, Signal::SIGKILL);
    let ending = ended(&scheduler, &job).await;
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    assert_eq!((ending.reason, ending.signal.as_deref()), (EndReason::Failed, Some("SIGKILL")));
    assert_eq!(bed.processes("cp1"), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_vanishes_leaves_nothing_behind() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let job = submit(&scheduler, &bed.spec("cp1", 1, "sleep 1001 & sleep 1002")).await;
    running(&scheduler, &job).await;
    wait_for("its children run", || bed.processes("cp1").len() >= 2).await;
    bed.run("cp1").supervisor.signal(Signal::SIGKILL);
    let ending = ended(&scheduler, &job).await;
    assert_eq!(ending.reason, EndReason::Lost);
    assert_eq!(bed.processes("cp1"), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_survives_the_agent_and_is_found_again() {
    let bed = Bed::new(1);
    let gate = bed.site.root().join("gate");
    let wait = format!("while [ ! -e {:?} ]; do sleep 0.02; done; exit 3", gate);
    let first = bed.scheduler();
    let job = submit(&first, &bed.spec("cp1", 1, &wait)).await;
    let second = submit(&first, &bed.spec("cp2", 1, "echo second")).await;
    running(&first, &job).await;
    drop(first);
    let again = bed.scheduler();
    assert!(matches!(status(&again, &job).await, Status::Running { .. }));
    assert!(matches!(status(&again, &second).await, Status::Queued { .. }));
    fs::write(&gate, "").unwrap();
    let ending = ended(&again, &job).await;
    assert_eq!(ending.exit_code, Some(3), "{ending:?} {}", bed.output("cp1"));
    assert_eq!(ended(&again, &second).await.reason, EndReason::Completed);
    // An end that nobody saw is found too, and ids go on.
    drop(again);
    let third = bed.scheduler();
    assert_eq!(ended(&third, &job).await.exit_code, Some(3));
    assert_eq!(submit(&third, &bed.spec("cp3", 1, "true")).await.id.0, "3");
}

#[test]
fn only_one_supervisor_runs_a_job() {
    let bed = Bed::new(1);
    let spec = bed.spec("cp1", 1, "echo once >> runs; sleep 0.2");
    let folder = bed.site.qsubmit();
    let job = LocalJob {
        id: 1,
        key: "cp1".into(),
        num_nodes: 1,
        wall_time_min: 1,
        script: spec.script,
        output: spec.output,
        submitted: chrono::Utc::now(),
    };
    records::write(&JobFiles::new(&folder, "cp1").job(), &job, true).unwrap();
    let start = || {
        std::process::Command::new(env!("CARGO_BIN_EXE_copal-agent"))
            .args(["local-run", "--key", "cp1", "--nodes", "0", "--folder"])
            .arg(&folder)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut codes: Vec<_> =
        [start(), start(), start()].into_iter().map(|mut child| child.wait().unwrap().code()).collect();
    codes.sort();
    assert_eq!(codes, [Some(0), Some(1), Some(1)]);
    assert_eq!(fs::read_to_string(folder.join("runs")).unwrap(), "once\n");
    let run: LocalRun = records::read(&JobFiles::new(&folder, "cp1").run()).unwrap().unwrap();
    assert_eq!(run.nodes, BTreeSet::from([0]));
    assert!(!run.supervisor.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walltime_is_enforced() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let spec = SubmitSpec {
        wall_time_min: 0,
        ..bed.spec("cp1", 1, "trap 'echo told; exit 0' TERM; while :; do sleep 0.02; done")
    };
    let job = submit(&scheduler, &spec).await;
    assert_eq!(ended(&scheduler, &job).await.reason, EndReason::TimeLimit);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_can_not_be_started_is_explained_in_its_output() {
    let bed = Bed::new(1);
    let scheduler = bed.scheduler();
    let spec = bed.spec("cp1", 1, "true");
    fs::write(&spec.script, "#!/no/such/shell\n").unwrap();
    let job = submit(&scheduler, &spec).await;
    assert_eq!(ended(&scheduler, &job).await.reason, EndReason::Failed);
    assert!(bed.output("cp1").contains("can't run"), "{}", bed.output("cp1"));
    let me = ProcessId::of(std::process::id()).unwrap();
    assert!(me.is_alive());
}
