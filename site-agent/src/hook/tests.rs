//! Hooks that are really run: what they get, how they fail, and what they leave.

use std::os::unix::fs::PermissionsExt;

use copal_schemas::JobId;

use super::*;

struct World {
    _folder: tempfile::TempDir,
    site: SiteDir,
    job: Job,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let site = SiteDir::new(folder.path().join("my sité"));
    site.create_folders().unwrap();
    let job: Job = serde_json::from_value(serde_json::json!({
        "id": 5, "workdir": "demo/a b", "tags": {"x": "y"}, "app_id": 1, "session_id": 2, "serialized_parameters": "",
        "serialized_return_value": "", "serialized_exception": "", "batch_job_id": null, "state": "RUN_DONE",
        "last_update": "2026-01-01T00:00:00+00:00", "data": {"old": 1}, "return_code": 0, "pending_file_cleanup": true,
        "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "threads_per_core": 1,
        "gpus_per_rank": 0.0, "node_packing_count": 1, "wall_time_min": 0, "launch_params": {}
    }))
    .unwrap();
    assert_eq!(job.id, JobId(5));
    World { _folder: folder, site, job }
}

impl World {
    async fn run(&self, script: &str, limit: Duration) -> Result<HookResult, HookFailure> {
        self.install(script, 0o755);
        self.run_program("./hook.sh", limit).await
    }

    fn install(&self, script: &str, mode: u32) {
        let path = self.site.apps().join("hook.sh");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    async fn run_program(&self, program: &str, limit: Duration) -> Result<HookResult, HookFailure> {
        let programs = PathBuf::from("/opt/copal/bin");
        let run = HookRun {
            site: &self.site,
            programs: &programs,
            guard: &Arc::default(),
            name: "postprocess",
            program,
            job: &self.job,
            limit,
            tail_lines: 2,
        };
        // Another test's fork may hold the script open for writing for a moment.
        loop {
            match run.run().await {
                Err(failure) if failure.reason.contains("Text file busy") => tokio::task::yield_now().await,
                outcome => return outcome,
            }
        }
    }
}

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_hook_sees_the_job_and_its_result_comes_back() {
    let world = world();
    let script = r#"#!/bin/bash
job=$(cat)
echo "id $COPAL_JOB_ID $COPAL_JOB_STATE in $PWD"
case $job in *'"workdir":"demo/a b"'*) ;; *) exit 4;; esac
echo '{"state": "FAILED", "data": {"x": 1.5}, "state_data": {"why": "ü"}}' > "$COPAL_RESULT"
"#;
    let result = world.run(script, LIMIT).await.unwrap();
    assert_eq!(result.state, Some(JobState::Failed));
    assert_eq!(result.data["x"], 1.5);
    assert_eq!(result.state_data["why"], "ü");
    let log = fs::read_to_string(world.site.job_folder("demo/a b").unwrap().join("copal.log")).unwrap();
    assert!(log.contains("id 5 RUN_DONE in") && log.contains("demo/a b"), "{log}");
}

#[tokio::test]
async fn exit_code_0_without_a_result_means_go_on() {
    assert_eq!(world().run("#!/bin/sh\nexit 0\n", LIMIT).await.unwrap(), HookResult::default());
}

#[tokio::test]
async fn a_failure_has_the_exit_code_and_the_tail() {
    let failure =
        world().run("#!/bin/bash\necho one; printf 't\\xfcwo\\n'; echo three >&2; exit 3\n", LIMIT).await.unwrap_err();
    assert_eq!(failure.reason, "the postprocess hook ended with exit code 3");
    assert_eq!(failure.return_code, Some(3));
    assert_eq!(failure.tail, "t\u{fffd}wo\nthree");
    let failure = world().run("#!/bin/bash\nkill -9 $$\n", LIMIT).await.unwrap_err();
    assert_eq!(failure.reason, "the postprocess hook ended with SIGKILL");
}

#[tokio::test]
async fn the_end_of_a_hook_is_its_exit_also_when_nobody_reads_the_job() {
    let mut world = world();
    // More than a pipe holds, and somebody who keeps the pipe open.
    world.job.data.insert("large".into(), "x".repeat(1 << 20).into());
    let script = "#!/bin/bash\nsleep 1000 <&0 &\necho $! > pid\nexit 0\n";
    assert_eq!(world.run(script, LIMIT).await.unwrap(), HookResult::default());
}

#[tokio::test]
async fn copal_in_a_hook_has_a_home_and_a_site_and_no_password() {
    let world = world();
    let script = "#!/bin/bash\ncd /\n[ \"${COPAL_HOME:0:1}\" = / ] && [ -d \"$COPAL_SITE_PATH/apps\" ] && [ -z \"$COPAL_PASSWORD\" ]\n\
                  [[ $PATH == /opt/copal/bin:* ]]\n";
    world.run(script, LIMIT).await.unwrap();
}

#[tokio::test]
async fn results_that_are_none_are_explained() {
    for (text, part) in [
        ("{", "JSON object"),
        ("[1]", "JSON object"),
        ("garbage", "JSON object"),
        ("{\"stat\": 1}", "stat"),
        ("{\"state\": \"Done\"}", "Done"),
        ("{\"data\": 3}", "data"),
        (r#"{"data": {"a": ["x\u0000"]}}"#, "NUL"),
        (r#"{"a\u0000b": 1}"#, "JSON object"),
    ] {
        let failure =
            world().run(&format!("#!/bin/sh\nprintf '%s' '{text}' > $COPAL_RESULT\n"), LIMIT).await.unwrap_err();
        assert!(failure.reason.contains("$COPAL_RESULT") && failure.reason.contains(part), "{}", failure.reason);
    }
}

#[tokio::test]
async fn a_hook_that_takes_too_long_is_killed_with_all_it_started() {
    let world = world();
    let script = "#!/bin/bash\ntrap '' TERM\nsleep 1000 & echo $! > pid\necho started\nwait\nsleep 1000\n";
    let failure = world.run(script, Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(failure.reason, "the postprocess hook took longer than 1 s");
    assert_eq!(failure.tail, "started");
    let pid: u32 =
        fs::read_to_string(world.site.job_folder("demo/a b").unwrap().join("pid")).unwrap().trim().parse().unwrap();
    while copal_client::processes::start_ticks(pid).is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_hook_that_can_not_run_is_explained() {
    let world = world();
    let reason = |failure: HookFailure| failure.reason;
    assert!(reason(world.run_program("./none.sh", LIMIT).await.unwrap_err()).contains("none.sh does not exist"));
    assert!(reason(world.run_program("no-such-hook", LIMIT).await.unwrap_err()).contains("write ./no-such-hook"));
    world.install("#!/bin/sh\n", 0o644);
    assert!(reason(world.run_program("./hook.sh", LIMIT).await.unwrap_err()).contains("chmod +x"));
    let failure = world.run("#!/no/such/interpreter\n", LIMIT).await.unwrap_err();
    assert!(failure.reason.contains("its first line"), "{}", failure.reason);
    assert_eq!(world.run_program("true", LIMIT).await.unwrap(), HookResult::default());
}

#[tokio::test]
async fn the_workdir_that_can_not_be_made_is_named() {
    let world = world();
    fs::write(world.site.data().join("demo"), "a file").unwrap();
    let failure = world.run("#!/bin/sh\n", LIMIT).await.unwrap_err();
    assert!(failure.reason.starts_with("can't make the workdir"), "{}", failure.reason);
}
