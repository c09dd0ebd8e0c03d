//! `globus:` locations, with a stand-in for the service.

use std::{fs, os::unix::fs::PermissionsExt};

use copal_tests::{globus::Globus, laptop::LIMIT, wait::wait_blocking};

use crate::depot::{Depot, tree};

const OWN: &str = "11111111-2222-4333-8444-555555555555";
const LAB: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
const TOKEN: &str = "AgTokenThatNobodyMaySee";

/// A Site with a collection of its own, and the collection of a lab, which is the depot's folder.
struct Lab {
    globus: Globus,
    depot: Depot,
}

impl Lab {
    fn new() -> Self {
        let location = format!("globus://{LAB}/shared");
        let lab = Self { globus: Globus::start(TOKEN), depot: Depot::new(&[], &[]) };
        lab.secret(&format!("token: {TOKEN}"));
        let (globus, depot) = (&lab.globus, &lab.depot);
        let mut settings = vec!["credentials_file: secrets.yml".to_owned()];
        settings.extend(globus.settings(OWN, depot.laptop.programs.home()));
        depot.configure(&[("lab", &location)], &settings.iter().map(String::as_str).collect::<Vec<_>>());
        depot.laptop.site(&["site", "sync"]);
        globus.collection(OWN, depot.laptop.programs.home());
        globus.collection(LAB, &depot.folder());
        lab
    }

    fn secret(&self, text: &str) {
        let path = self.depot.laptop.site_path().join("secrets.yml");
        fs::write(&path, format!("lab: {{{text}}}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[track_caller]
    fn wait_calls(&self, beginning: &str, count: usize) {
        wait_blocking(&format!("{count} calls of {beginning}"), LIMIT, || match self.globus.calls(beginning) {
            calls if calls >= count => Ok(()),
            calls => Err(format!("{calls}; {}", self.depot.laptop.logs())),
        });
    }
}

#[test]
fn a_batch_is_one_task_both_ways() {
    let lab = Lab::new();
    let depot = &lab.depot;
    depot.put("shared/in put.dat", "input\n");
    depot.put("shared/tree/a", "a\n");
    depot.put("shared/tree/deep/b", "b\n");
    let job = depot.job("both", &["input=lab:/in put.dat", "tree=lab:/tree", "result=lab:/out/result.txt"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!(depot.read_work("both/input.dat"), "input\n");
    assert_eq!(tree(&depot.workdir("both/tree")), [("a".into(), "a\n".into()), ("deep/b".into(), "b\n".into())]);
    let document = lab.globus.documents().remove(0);
    assert_eq!((&document["source_endpoint"], &document["destination_endpoint"]), (&LAB.into(), &OWN.into()));
    assert_eq!((&document["verify_checksum"], document["DATA"].as_array().unwrap().len()), (&true.into(), 2));

    fs::write(depot.workdir("both/result.txt"), "result\n").unwrap();
    depot.set_state(job, "RUN_DONE");
    depot.laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(depot.read("shared/out/result.txt"), "result\n");
    assert_eq!(lab.globus.tasks(), ["SUCCEEDED", "SUCCEEDED"]);
    assert!(!depot.laptop.logs().contains(TOKEN));
}

#[test]
fn a_task_is_found_again_by_the_next_agent_and_cancelled_when_nobody_waits() {
    let lab = Lab::new();
    let depot = &lab.depot;
    depot.put("shared/x", "x\n");
    lab.globus.behave(true, false);
    let job = depot.job("found", &["input=lab:/x"]);
    lab.wait_calls("GET /v0.10/task/", 1);
    depot.laptop.site(&["site", "stop"]);
    assert_eq!(lab.globus.tasks(), ["ACTIVE"], "it goes on without the agent");
    lab.globus.behave(false, false);
    depot.laptop.site(&["site", "start"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    assert_eq!((lab.globus.calls("POST /v0.10/transfer"), lab.globus.tasks()), (1, vec!["SUCCEEDED".into()]));

    lab.globus.behave(true, false);
    let unwanted = depot.job("unwanted", &["input=lab:/x"]);
    lab.wait_calls("POST /v0.10/transfer", 2);
    depot.laptop.site(&["job", "cancel", &unwanted.to_string(), "-y"]);
    wait_blocking("the task to be cancelled", LIMIT, || match lab.globus.tasks() {
        tasks if tasks[1] == "FAILED" => Ok(()),
        tasks => Err(format!("{tasks:?}; {}", depot.laptop.logs())),
    });
    assert_eq!(lab.globus.calls("POST /v0.10/task/"), 1);
}

#[test]
fn pitfall_129_a_task_that_moved_a_part_fails_only_the_rest() {
    let lab = Lab::new();
    let depot = &lab.depot;
    for name in ["1", "2", "3"] {
        depot.put(&format!("shared/{name}"), name);
    }
    lab.globus.fault("/shared/2", "PERMISSION_DENIED");
    let path = depot.laptop.site_path().join("jobs.jsonl");
    let row = |name: u32| {
        format!(
            "{{\"workdir\": \"part/{name}\", \"transfers\": {{\"input\": {{\"location_alias\": \"lab\", \"path\": \"/{name}\"}}}}}}\n"
        )
    };
    fs::write(&path, (1..=3).map(row).collect::<String>()).unwrap();
    depot.laptop.site(&["job", "create", "-a", "Stage", "--from", "jobs.jsonl", "-y"]);
    let jobs = depot.laptop.json(&["job", "ls"]);
    let ids: Vec<i64> = jobs.as_array().unwrap().iter().map(|job| job["id"].as_i64().unwrap()).collect();
    let reason = depot.failure(ids[1]);
    assert!(reason.contains("permission: ") && reason.contains("PERMISSION_DENIED"), "{reason}");
    for (id, name) in [(ids[0], "1"), (ids[2], "3")] {
        depot.laptop.wait_state(id, "PREPROCESSED");
        assert_eq!(depot.read_work(&format!("part/{name}/input.dat")), name);
    }
    assert!(!depot.workdir("part/2/input.dat").exists());

    // The real service goes on trying such a thing for a day.
    lab.globus.behave(false, true);
    let stubborn = depot.job("stubborn", &["input=lab:/2"]);
    assert!(depot.failure(stubborn).contains("PERMISSION_DENIED"));
    assert_eq!(lab.globus.tasks().iter().filter(|task| *task == "ACTIVE").count(), 0, "it is cancelled");
}

#[test]
fn pitfall_131_a_consent_that_is_wanted_is_told_with_the_step() {
    let lab = Lab::new();
    let depot = &lab.depot;
    depot.put("shared/x", "x\n");
    let scope =
        format!("urn:globus:auth:scope:transfer.api.globus.org:all[*https://auth.globus.org/scopes/{LAB}/data_access]");
    lab.globus.consent(LAB, Some(&scope));
    let job = depot.job("consent", &["input=lab:/x"]);
    let reason = depot.failure(job);
    assert!(
        reason.contains("wants your consent") && reason.contains(&format!("globus session consent '{scope}'")),
        "{reason}"
    );
    lab.globus.consent(LAB, None);
    let job = depot.job("consented", &["input=lab:/x"]);
    depot.laptop.wait_state(job, "PREPROCESSED");

    // A token that has ended, one that is renewed, and a file that others can read.
    lab.globus.end_tokens();
    let job = depot.job("ended", &["input=lab:/x"]);
    let reason = depot.failure(job);
    assert!(reason.contains("does not accept the token") && !reason.contains(TOKEN), "{reason}");
    lab.secret("refresh_token: good-refresh, client_id: copal");
    let job = depot.job("renewed", &["input=lab:/x"]);
    depot.laptop.wait_state(job, "PREPROCESSED");
    let path = depot.laptop.site_path().join("secrets.yml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let job = depot.job("open", &["input=lab:/x"]);
    assert!(depot.failure(job).contains("chmod 600"));
}
