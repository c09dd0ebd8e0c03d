//! The examples of Balsam's guide, with `copal` for `balsam`.

use std::fs;

use serde_json::{Value, json};

use crate::{
    desk::{Desk, ids},
    pty::OnTerminal,
};

/// A Site with queues, projects and parameters as the guide's machine has them.
async fn theta() -> Desk {
    let desk = Desk::new().await;
    let settings = desk.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings)
        .unwrap()
        .replace("allowed_projects: []", "allowed_projects: [datascience, magstructsADSP]")
        .replace(
            "    local: {max_nodes",
            "    debug-cache-quad: {max_nodes: 128, max_walltime: 60, max_queued_jobs: 9}\n    local: {max_nodes",
        )
        .replace("{shout: \"\"}", "{shout: \"\", singularity_prime_cache: \"no\"}");
    fs::write(&settings, text).unwrap();
    desk.ok(&["site", "sync"]);
    desk.app("Nwchem", "command: nwchem {{input}}\nparameters: {input: {default: h2o.nw}}");
    desk
}

#[tokio::test]
async fn batch_jobs_are_submitted_from_anywhere() {
    let desk = theta().await;
    let here = desk.json(&[
        "queue",
        "submit",
        "-n",
        "4",
        "-t",
        "10",
        "-q",
        "debug-cache-quad",
        "-A",
        "datascience",
        "-j",
        "mpi",
    ]);
    assert_eq!((&here["state"], &here["job_mode"]), (&json!("pending_submission"), &json!("mpi")));
    // The same from a folder outside of all Sites.
    let remote = |line: &str| -> Value {
        let mut command = desk.copal(&line.split(' ').collect::<Vec<_>>());
        let output = command.args(["-o", "json"]).current_dir(desk.programs.home()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", desk.told(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let tagged = remote(
        "queue submit --site=theta -n 4 -t 10 -q debug-cache-quad -A datascience -j mpi --tag system=H2O --tag method=ccsd",
    );
    assert_eq!(tagged["filter_tags"], json!({"system": "H2O", "method": "ccsd"}));
    let prime = remote(
        "queue submit --site=theta -n 1 -t 10 -q debug-cache-quad -A datascience -j serial -x singularity_prime_cache=yes",
    );
    assert_eq!(prime["optional_params"], json!({"singularity_prime_cache": "yes"}));
    let parts = remote(
        "queue submit --site=theta -n 128 -t 60 -q debug-cache-quad -A datascience -p mpi:2:role=leader -p serial:126:role=worker",
    );
    assert_eq!(
        parts["partitions"],
        json!([
            {"job_mode": "mpi", "num_nodes": 2, "filter_tags": {"role": "leader"}},
            {"job_mode": "serial", "num_nodes": 126, "filter_tags": {"role": "worker"}},
        ])
    );
    assert_eq!(ids(&remote("queue ls --site=all")), [1, 2, 3, 4]);
    assert_eq!(ids(&remote("queue ls --history --site=theta,1")).len(), 4);
}

#[tokio::test]
async fn jobs_are_created_listed_and_changed() {
    let desk = theta().await;
    let ok = |line: &str| desk.ok(&line.split(' ').collect::<Vec<_>>());
    ok(
        "job create -a Nwchem -w test/1 --tag system=H2O --tag method=ccsd -n 2 -rpn 4 -tpr 2 -tpc 1 -npc 1 -lp cpu_affinity=depth -y",
    );
    ok("job create --app Nwchem --workdir test/2 -pid 1 -tag system=H2O -y");
    let job = desk.json(&["job", "show", "1"]);
    assert_eq!((&job["ranks_per_node"], &job["threads_per_rank"]), (&json!(4), &json!(2)));
    assert_eq!(job["launch_params"], json!({"cpu_affinity": "depth"}));
    assert_eq!(ids(&desk.json(&["job", "ls", "--tag", "system=H2O", "-ns", "AWAITING_PARENTS"])), [1]);
    assert_eq!(ids(&desk.json(&["job", "ls", "--state", "AWAITING_PARENTS", "--site=theta"])), [2]);
    ok("job modify --id 1 --set-tag method=hf -y");
    assert_eq!(desk.json(&["job", "show", "1"])["tags"]["method"], "hf");
    ok("job rm --tag system=H2O -y");
    assert_eq!(desk.json(&["job", "ls"]), json!([]));
}

#[tokio::test]
async fn a_site_moves_and_is_renamed() {
    let desk = theta().await;
    desk.ok(&["site", "rename", "theta-knl"]);
    let home = desk.programs.home();
    let moved = home.join("moved");
    let output = desk
        .copal(&["site", "mv", desk.site_path().to_str().unwrap(), moved.to_str().unwrap()])
        .current_dir(home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", desk.told(&output));
    let site = desk.json(&["site", "ls"])[0].clone();
    assert_eq!((&site["name"], &site["path"]), (&json!("theta-knl"), &json!(moved.to_str().unwrap())));
    assert!(moved.join("settings.yml").is_file() && !desk.site_path().exists());
    desk.ok(&["app", "rm", "Nwchem", "--site", "all", "-y"]);
    assert_eq!(desk.json(&["app", "ls", "--site", "all"]).as_array().map(Vec::len), Some(1));
}

/// Lines of the guide, with what it leaves to the reader's imagination after `#`, and the ids of the Sites here.
const LINES: &[&str] = &[
    "balsam site ls",
    "balsam app ls --site=all",
    "balsam job create --site=laptop --app Hello --workdir demo/hello2 --param say_hello_to=\"world2\"",
    "balsam job create -w test/1 -a Hello -p say_hello_to=\"world!\" -tag experiment=XPCS -tag system=H2O",
    "balsam job create -w test/2 -a Hello -p say_hello_to=\"world!\" -tag workflow=temp-test -pid 1",
    "balsam job ls",
    "balsam job ls --site=all",
    "balsam job ls --site=this",
    "balsam job ls --site=active",
    "balsam job ls --site=1,2",
    "balsam job ls --site=myFolder/siteX,siteY,1",
    "balsam job ls --site=1,siteX",
    "balsam job ls --tag experiment=XPCS --tag system=H2O",
    "balsam job ls --state JOB_FINISHED --tag system=H2O",
    "balsam job ls --by-state",
    "balsam job ls --by-state --tag system=H20 -v",
    "balsam job ls --id 1 --verbose",
    "balsam job ls -s PREPROCESSED -ns FAILED -w test -t system=H2O",
    "balsam queue submit -q QUEUE -A PROJECT -n 128 -t 70 -j mpi",
    "balsam queue submit --site=laptop -q QUEUE -A PROJECT -n 128 -t 70 -j mpi",
    "balsam queue submit -x singularity_prime_cache=yes -q QUEUE -A PROJECT -n 1 -t 10 -j serial",
    "balsam queue submit -x mig_count=3 -q QUEUE -A PROJECT -n 1 -t 10 -j mpi",
    "balsam queue submit -n 4 --tag system=H2O --tag scale=4 -q QUEUE -A PROJECT -t 10 -j mpi",
    "balsam queue submit -n 128 -p mpi:2 -p serial:126 -q QUEUE -A PROJECT -t 10",
    "balsam queue submit -n 128 -p mpi:2:role=leader -p serial:126:role=worker -q QUEUE -A PROJECT -t 10",
    "balsam queue submit -n 2 -t 60  -q QUEUE -A PROJECT -j mpi -tag experiment=foo",
    "balsam queue ls",
    "balsam queue ls --site=all",
    "balsam queue ls --history --site all",
    "balsam queue ls -h",
    "balsam queue term 4711",
    "balsam job rm --id 1",
    "balsam job rm --tag workflow=temp-test",
    "balsam job rm --id 41 --id 42 --id 3 -y",
    "balsam job rm --all",
];

#[tokio::test]
async fn the_lines_of_the_guide_work_as_they_stand() {
    let desk = Desk::without_site().await;
    let home = desk.programs.home();
    for (path, name) in [("site", "laptop"), ("myFolder/siteX", "x"), ("siteY", "y")] {
        std::fs::create_dir_all(home.join(path).parent().unwrap()).unwrap();
        let path = home.join(path);
        desk.ok(&["site", "init", path.to_str().unwrap(), "--name", name, "--platform", "local", "-y"]);
    }
    let settings = desk.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings)
        .unwrap()
        .replace("allowed_projects: []", "allowed_projects: [PROJECT]")
        .replace(
            "    local: {max_nodes",
            "    QUEUE: {max_nodes: 128, max_walltime: 90, max_queued_jobs: 100}\n    local: {max_nodes",
        )
        .replace("{shout: \"\"}", "{shout: \"\", mig_count: \"1\", singularity_prime_cache: \"no\"}");
    fs::write(&settings, text).unwrap();
    desk.ok(&["site", "sync"]);
    desk.app("Hello", "command: echo Hello, {{say_hello_to}}!\nparameters: {say_hello_to: {required: true}}");
    let login = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let token = desk.service.api().post_form("/auth/password/login", &login).await.ok();
    let user = desk.service.api().with_token(token["access_token"].as_str().unwrap());
    for line in LINES {
        if line.contains("term") {
            user.put("/batch-jobs/1", &json!({"state": "queued", "scheduler_id": 4711})).await.ok();
        }
        // Some of them ask before they make or delete something.
        let (code, shown) = OnTerminal::start(desk.shell(&line.replace("balsam ", "copal "))).answering("? ", "y");
        let nothing_matches = shown.contains("no Job matches");
        assert!(code == 0 || nothing_matches, "{line}: {code}\n{shown}");
    }
    assert_eq!(desk.json(&["job", "ls", "--site", "all"]), json!([]));
    assert_eq!(ids(&desk.json(&["queue", "ls", "--history"])).len(), 8);
}
