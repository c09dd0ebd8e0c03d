//! Existing scripts of Slurm, PBS and the shell run as they are.

use std::fs;

use copal_tests::laptop::Laptop;

#[test]
fn scripts_find_the_variables_that_they_expect() {
    let laptop = Laptop::with_site(2);
    let folder = laptop.site_path().join("my work");
    fs::create_dir(&folder).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write(
        "sweep.sbatch",
        "#!/bin/bash\n#SBATCH -J sweep\n#SBATCH -a 1-5:2 -n 1\n#SBATCH -o 'logs/%x %2a.out'\n#SBATCH -t 5\n#SBATCH -p gpu\n\
         #SBATCH --export=MODE=fast\n\
         echo \"$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_NTASKS $SLURM_JOB_NAME $MODE $1\"\npwd\n\
         echo \"rank $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID ${SLURM_GPUS-no gpus}\"; [ \"$SLURM_TASK_PID\" = $$ ] && echo own\n",
    );
    write(
        "job.pbs",
        "#PBS -N pbsjob\n#PBS -l select=1:ncpus=1,walltime=00:05:00\n#PBS -J 0-1\ncd \"$PBS_O_WORKDIR\"\n\
         echo \"$PBS_ARRAY_INDEX $PBS_JOBNAME $PBS_NP $PBS_TASKNUM $PBS_NODENUM $PBS_WALLTIME ${PBS_O_PATH:+path}\" > \"pbs.$PBS_ARRAY_INDEX\"\n",
    );
    write("plain.sh", "echo \"plain $# $COPAL_JOB_ID\"; cat < input\n");
    write("input", "data beside the script\n");
    write("commands.txt", "echo one\necho 'two'; exit 3\n");
    let submit = |arguments: &[&str]| {
        let output = laptop.programs.command("copal").current_dir(&folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", copal_tests::process::describe(&output));
        (
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (sweep, told) = submit(&["job", "submit", "sweep.sbatch", "--", "an argument"]);
    assert_eq!(sweep, "1-3");
    assert!(told.contains("warning: sweep.sbatch: line 6: --partition has no meaning here"), "{told}");
    assert_eq!(submit(&["job", "submit", "job.pbs"]).0, "4,5");
    let (plain, _) = submit(&["job", "submit", "plain.sh", "-w", "plain", "--parent", "1-5"]);
    assert_eq!(plain, "6");
    let (commands, _) = submit(&["job", "create", "--commands", "commands.txt", "-w", "c/{index}", "-y"]);
    assert_eq!(commands, "7,8");
    laptop.allocation("serial", 10);
    laptop.site(&["job", "wait", "1-7", "--timeout", "60"]);
    for task in [1, 3, 5] {
        let text = fs::read_to_string(folder.join(format!("logs/sweep {task:02}.out"))).unwrap();
        assert_eq!(
            text,
            format!("{task} of 3, 1 sweep fast an argument\n{}\nrank 0 0 0 no gpus\nown\n", folder.display())
        );
    }
    assert_eq!(fs::read_to_string(folder.join("pbs.1")).unwrap(), "1 pbsjob 1 1 0 300 path\n");
    assert_eq!(laptop.output("plain"), b"plain 0 6\ndata beside the script\n");
    assert_eq!(laptop.output("c/1"), b"one\n");
    laptop.wait_state(8, "FAILED");
    assert_eq!((laptop.output("c/2"), laptop.show(8)["return_code"].as_i64()), (b"two\n".to_vec(), Some(3)));
}

#[test]
fn a_script_on_several_nodes_starts_its_own_ranks_on_them() {
    let laptop = Laptop::with_site(3);
    let site = laptop.site_path();
    // The same question in the words of both schedulers: which nodes, how many tasks, and one line of each rank.
    // These nodes are only pretended, so mpiexec must not go there by their names.
    fs::write(
        site.join("wide.sbatch"),
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2 -t 5 -o wide.out\n\
         echo \"$SLURM_NNODES nodes, $SLURM_NTASKS tasks, $SLURM_TASKS_PER_NODE, ${SLURM_JOB_NODELIST//,/ }\"\n\
         unset SLURM_NODELIST SLURM_JOB_NODELIST\nmpiexec.hydra -launcher fork -n \"$SLURM_NTASKS\" sh -c 'echo rank'\n",
    )
    .unwrap();
    fs::write(
        site.join("wide.pbs"),
        "#PBS -l select=2:ncpus=2:mpiprocs=2,walltime=5:00\n#PBS -o wide.pbs.out\ncd \"$PBS_O_WORKDIR\"\n\
         echo \"$PBS_NUM_NODES nodes, $PBS_NP tasks\"; wc -l < \"$PBS_NODEFILE\"; sort -u \"$PBS_NODEFILE\" | wc -l\n\
         unset PBS_NODEFILE\nmpiexec.hydra -launcher fork -n \"$PBS_NP\" sh -c 'echo rank'\n",
    )
    .unwrap();
    laptop.site(&["job", "submit", "wide.sbatch"]);
    laptop.site(&["job", "submit", "wide.pbs"]);
    laptop.site(&["queue", "submit", "-n", "3", "-t", "10", "-j", "mpi"]);
    // One runs after the other, each with the time that anything may take on a busy machine.
    for job in ["1", "2"] {
        laptop.site(&["job", "wait", job, "--timeout", "100"]);
    }
    let text = fs::read_to_string(site.join("wide.out")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("2 nodes, 4 tasks, 2(x2), "), "{text}");
    assert_eq!(lines[0].split(", ").last().unwrap().split(' ').count(), 2, "{text}");
    assert_eq!(lines[1..], ["rank"; 4], "{text}");
    let text = fs::read_to_string(site.join("wide.pbs.out")).unwrap();
    assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), "2 nodes, 4 tasks 4 2 rank rank rank rank");
}

#[test]
fn a_script_that_can_not_be_understood_is_refused_with_its_lines() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let site = laptop.site_path();
    fs::write(site.join("bad.sh"), "#SBATCH -n many\n#SBATCH -t 5\n#SBATCH -d afterok:x\necho\n").unwrap();
    let told = copal_tests::laptop::refused(&laptop.try_site(&["job", "submit", "bad.sh"]), 1);
    assert!(told.contains("error: bad.sh, line 1: -n many: a number from 1 is wanted\n"), "{told}");
    assert!(told.contains("error: bad.sh, line 3: -d afterok:x: "), "{told}");
    fs::write(site.join("apps/Script.yml"), "name: Script\ncommand: echo mine\n").unwrap();
    fs::write(site.join("good.sh"), "echo\n").unwrap();
    let told = copal_tests::laptop::refused(&laptop.try_site(&["job", "submit", "good.sh"]), 1);
    assert!(told.contains("apps/Script.yml is an App of your own"), "{told}");
    assert!(!site.join("scripts").exists(), "nothing is left of what was refused");
}
