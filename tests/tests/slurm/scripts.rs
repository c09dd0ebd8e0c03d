//! A script of several nodes in a real allocation that is wider than the script: its own `srun` reaches the nodes
//! that the script was given, and no others.

use std::{collections::BTreeSet, fs};

use copal_tests::{LIMIT, at_site::AtSite, wait::wait_blocking};

use crate::{
    cluster::Cluster,
    launcher::{may_simulate_nodes, processes},
};

#[test]
fn a_script_on_two_nodes_starts_ranks_on_them_by_srun() {
    if !may_simulate_nodes() {
        return;
    }
    let cluster = Cluster::with_cpus(2);
    cluster.launcher_settings("idle_ttl_sec: 1");
    // Keeps a node of the allocation busy, so that the script's nodes are not simply the first two.
    cluster
        .app("Gated", "command: touch $COPAL_SITE_PATH/held; while [ ! -e $COPAL_SITE_PATH/gate ]; do sleep 0.1; done");
    let gated = cluster.job(&["-a", "Gated", "-w", "gated"]);
    let allocation = cluster.submit(&["-n", "3"]);
    cluster.wait_job(gated, "RUNNING");
    fs::write(
        cluster.site_path().join("wide.sbatch"),
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2 -t 5 -o wide.out\n\
         echo \"given ${SLURM_JOB_NODELIST//,/ }\"\n\
         srun sh -c 'echo \"all $(hostname) $SLURM_PROCID of $SLURM_NTASKS\"'\n\
         srun -N 1 -n 1 sh -c 'echo \"one $(hostname) 0 of $SLURM_NTASKS\"'\n",
    )
    .unwrap();
    cluster.copal(&["job", "submit", "wide.sbatch"]);
    let script = gated + 1;
    cluster.wait_job(script, "JOB_FINISHED");
    let text = fs::read_to_string(cluster.site_path().join("wide.out")).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let given: BTreeSet<&str> = lines[0][1..].iter().copied().collect();
    assert_eq!((lines[0][0], given.len()), ("given", 2), "{text}");
    let of = |word: &str| lines.iter().filter(|line| line[0] == word).collect::<Vec<_>>();
    for (word, ranks) in [("all", 4), ("one", 1)] {
        let said = of(word);
        let numbers: BTreeSet<String> = said.iter().map(|line| line[2..].join(" ")).collect();
        let wanted: BTreeSet<String> = (0..ranks).map(|rank| format!("{rank} of {ranks}")).collect();
        assert_eq!((said.len(), numbers), (ranks, wanted), "{text}");
        assert!(said.iter().all(|line| given.contains(line[1])), "{text}");
    }
    let hosts: BTreeSet<&str> = of("all").iter().map(|line| line[1]).collect();
    assert_eq!(hosts, given, "{text}");
    fs::write(cluster.site_path().join("gate"), "").unwrap();
    cluster.wait_job(gated, "JOB_FINISHED");
    cluster.wait_batch_job(allocation, "finished");

    ranks_that_a_script_leaves_in_the_background_end_with_it(&cluster, script + 1);
}

/// A script that ends before its `srun` does, beside a Job that keeps the allocation going. The next Jobs to be made have
/// the number `next` and that after it.
fn ranks_that_a_script_leaves_in_the_background_end_with_it(cluster: &Cluster, next: i64) {
    // Recognised among all processes of the machine by its odd number.
    let odd = format!("{}.25", 6_000_000 + std::process::id());
    let site = cluster.site_path();
    fs::remove_file(site.join("gate")).unwrap();
    let gated = cluster.job(&["-a", "Gated", "-w", "again"]);
    let allocation = cluster.submit(&["-n", "2", "-j", "serial"]);
    cluster.wait_job(gated, "RUNNING");
    let text = format!(
        "#!/bin/bash\n#SBATCH -N 1 -n 1 -t 5 -o left.out\n\
         srun sh -c 'touch {0}/up; exec sleep {odd}' &\n\
         while [ ! -e {0}/up ]; do kill -0 $! || exit 1; sleep 0.1; done\n",
        site.display()
    );
    fs::write(site.join("left.sbatch"), text).unwrap();
    cluster.copal(&["job", "submit", "left.sbatch"]);
    cluster.wait_job(next + 1, "JOB_FINISHED");
    // Though the allocation goes on. Slurm's daemon may take a moment behind the `srun` that was told to end them.
    wait_blocking("the ranks to end", LIMIT, || match processes(&odd) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    assert_eq!(cluster.batch_job(allocation)["state"], "running");
    fs::write(site.join("gate"), "").unwrap();
    cluster.wait_job(gated, "JOB_FINISHED");
    cluster.wait_batch_job(allocation, "finished");
}
