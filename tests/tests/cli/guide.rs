//! The examples of Balsam's guide, with `copal` for `balsam`.

use std::fs;

use serde_json::{Value, json};

use crate::desk::{Desk, ids};

/// A Site with queues, projects and parameters as the guide's machine has them.
async fn theta() -> Desk {
    let desk = Desk::new().await;
    let settings = desk.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings)
        .unwrap()
        .replace("allowed_projects: []", "allowed_projects: [datascience, magstructsADSP]")
        .replace(
            "    local: {max_nodes",
            "    debug-cache-quad: {max_nodes: 8, max_walltime: 60, max_queued_jobs: 1}\n    local: {max_nodes",
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
