//! What a script finds around it: the variables that Slurm or PBS would set, its folder, its output.
//! All of it is written to one file of shell text at the Site when the script is submitted, so that
//! a Job only carries the script's name and its own index.

use std::{fmt::Write, path::Path};

use copal_client::app_file::quote;

use super::{Dialect, Script};

/// Where and as what a script was submitted.
pub(crate) struct Submission<'a> {
    /// The script's name.
    pub(crate) name: &'a str,
    /// A number for all Jobs of the array.
    pub(crate) number: i64,
    /// The folder from which it was submitted.
    pub(crate) folder: &'a Path,
    /// The host on which that was.
    pub(crate) host: &'a str,
    /// Those of [`ORIGIN`] that were set there, with their values.
    pub(crate) origin: Vec<(&'static str, String)>,
    /// Variables to set, with their values.
    pub(crate) variables: Vec<(String, String)>,
    /// Its arguments.
    pub(crate) arguments: &'a [String],
}

/// Variables of whoever submits, which PBS gives to the script with `PBS_O_` before their names.
pub(crate) const ORIGIN: &[&str] = &["HOME", "LANG", "LOGNAME", "MAIL", "PATH", "SHELL", "TZ"];

/// Leaves all ranks but the first.
const ONE_NODE: &str = "case ${PMI_RANK:-${PMIX_RANK:-${OMPI_COMM_WORLD_RANK:-${PALS_RANKID:-\
    ${FLUX_TASK_RANK:-${SLURM_PROCID:-0}}}}}} in 0) ;; *) exit 0 ;; esac\n";
/// Hides the launcher's own ranks, so that the script's mpiexec begins anew. What Open MPI wants to be told by those who
/// are root stays.
const OWN_RANKS: &str = "root=${OMPI_ALLOW_RUN_AS_ROOT-}\n\
    unset ${!PMI_@} ${!PMIX_@} ${!OMPI_@} ${!PRTE_@} ${!HYDRA_@} ${!HYDI_@}\n\
    [ -z \"$root\" ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n";

/// The shell text that is sourced before the script runs. `$task` is the index, `$script` the script's folder.
pub(crate) fn text(script: &Script, submission: &Submission) -> String {
    let mut text = String::from("# Written by `copal job submit`; sourced by the App Script before the script runs.\n");
    if script.num_nodes() > 1 {
        // A launcher of ranks starts a Job on each of its nodes; a script runs on the first and starts its own ranks.
        text.push_str(ONE_NODE);
    }
    text.push_str(OWN_RANKS);
    if wants_nodes(script) {
        text.push_str(&node_file(script));
    }
    for (name, value) in &submission.variables {
        line(&mut text, name, &quote(value));
    }
    let folder = quote(&submission.folder.display().to_string());
    line(&mut text, "COPAL_ARRAY_INDEX", "$task");
    if script.dialect != Dialect::Pbs {
        slurm_variables(&mut text, script, submission);
    }
    if script.dialect != Dialect::Slurm {
        pbs_variables(&mut text, script, submission);
    }
    if let Some(cpus) = script.cpus_per_task {
        line(&mut text, "OMP_NUM_THREADS", &format!("${{OMP_NUM_THREADS:-{cpus}}}"));
    }
    let _ = writeln!(text, "cd {} || exit 1", start(script, &folder));
    redirect(&mut text, script, submission);
    let arguments: Vec<String> = submission.arguments.iter().map(|argument| quote(argument)).collect();
    let _ = writeln!(text, "set -- {}", arguments.join(" "));
    text
}

/// Whether the script is told its nodes. A command line of many, which is a shell's, has better things to do.
fn wants_nodes(script: &Script) -> bool {
    script.dialect != Dialect::Shell || script.num_nodes() > 1
}

/// What Slurm sets in a batch script, as far as it is true here. Left out is what only Slurm knows (cluster, partition),
/// and `SLURM_GTIDS`, which makes programs believe that Slurm started their ranks.
fn slurm_variables(text: &mut String, script: &Script, submission: &Submission) {
    let (nodes, node_tasks) = (script.num_nodes(), script.node_tasks());
    let tasks = nodes.saturating_mul(node_tasks);
    // What the allocation was given is not what the script is, and its own srun would take it for the script's wish.
    text.push_str(
        "unset SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GPUS_ON_NODE SLURM_JOB_GPUS \\\n    \
         SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU ${!SLURM_ARRAY_@}\n",
    );
    let mut set = |name: &str, value: &str| line(text, name, value);
    set("SLURM_JOB_NAME", &quote(submission.name));
    set("SLURM_SUBMIT_DIR", &quote(&submission.folder.display().to_string()));
    set("SLURM_SUBMIT_HOST", &quote(submission.host));
    // In an allocation of Slurm's own, srun finds it by its real id.
    set("SLURM_JOB_ID", "${SLURM_JOB_ID:-$COPAL_JOB_ID}");
    set("SLURM_JOBID", "$SLURM_JOB_ID");
    set("SLURM_JOB_UID", "$UID");
    if let Some(account) = &script.account {
        set("SLURM_JOB_ACCOUNT", &quote(account));
    }
    if wants_nodes(script) {
        set("SLURM_JOB_NODELIST", "$nodes");
        set("SLURM_NODELIST", "$nodes");
        set("SLURMD_NODENAME", "${nodes%%,*}");
    }
    // The script itself is the first task of the first node.
    for name in ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"] {
        set(name, "0");
    }
    set("SLURM_TASK_PID", "$$");
    set("SLURM_NNODES", &nodes.to_string());
    set("SLURM_JOB_NUM_NODES", &nodes.to_string());
    set("SLURM_NTASKS", &tasks.to_string());
    set("SLURM_NPROCS", &tasks.to_string());
    set("SLURM_TASKS_PER_NODE", &quote(&tasks_per_node(node_tasks, nodes)));
    set("SLURM_CPUS_ON_NODE", &script.node_cpus().to_string());
    set("SLURM_JOB_CPUS_PER_NODE", &quote(&tasks_per_node(script.node_cpus(), nodes)));
    for (name, value) in [
        ("SLURM_NTASKS_PER_NODE", script.tasks_per_node.map(i64::from)),
        ("SLURM_CPUS_PER_TASK", script.cpus_per_task.map(i64::from)),
        ("SLURM_MEM_PER_NODE", script.mem_mb),
        ("SLURM_MEM_PER_CPU", script.mem_mb_per_cpu),
        ("SLURM_GPUS", script.gpus.map(i64::from)),
        ("SLURM_GPUS_PER_NODE", script.gpus_per_node.map(i64::from)),
        ("SLURM_GPUS_PER_TASK", script.gpus_per_task.map(i64::from)),
        ("SLURM_GPUS_ON_NODE", Some(i64::from(script.node_gpus())).filter(|gpus| *gpus > 0)),
    ] {
        value.into_iter().for_each(|value| set(name, &value.to_string()));
    }
    if let Some(array) = &script.array {
        let (min, max, step) = array.bounds();
        set("SLURM_ARRAY_TASK_ID", "$task");
        set("SLURM_ARRAY_JOB_ID", &submission.number.to_string());
        set("SLURM_ARRAY_TASK_MIN", &min.to_string());
        set("SLURM_ARRAY_TASK_MAX", &max.to_string());
        set("SLURM_ARRAY_TASK_STEP", &step.to_string());
        set("SLURM_ARRAY_TASK_COUNT", &array.len().to_string());
    }
}

/// What PBS sets in a job script, as far as it is true here: PBS Pro's and Torque's variables. Left out is what only PBS
/// knows: queue, ports, a folder for temporary files.
fn pbs_variables(text: &mut String, script: &Script, submission: &Submission) {
    let (nodes, node_tasks) = (script.num_nodes(), script.node_tasks());
    let mut set = |name: &str, value: &str| line(text, name, value);
    set("PBS_JOBNAME", &quote(submission.name));
    set("PBS_O_WORKDIR", &quote(&submission.folder.display().to_string()));
    set("PBS_O_HOST", &quote(submission.host));
    set("PBS_O_SYSTEM", "Linux");
    for (name, value) in &submission.origin {
        set(&format!("PBS_O_{name}"), &quote(value));
    }
    set("PBS_JOBID", "${PBS_JOBID:-$COPAL_JOB_ID}");
    set("PBS_ENVIRONMENT", "PBS_BATCH");
    set("ENVIRONMENT", "BATCH");
    if let Some(account) = &script.account {
        set("PBS_ACCOUNT", &quote(account));
    }
    if wants_nodes(script) {
        set("PBS_NODEFILE", "$node_file");
    }
    // The script itself is the first task, which PBS counts from 1, on the first node, which it counts from 0.
    set("PBS_TASKNUM", "1");
    set("PBS_NODENUM", "0");
    set("PBS_VNODENUM", "0");
    set("PBS_NUM_NODES", &nodes.to_string());
    set("PBS_NUM_PPN", &node_tasks.to_string());
    set("PBS_NP", &nodes.saturating_mul(node_tasks).to_string());
    set("NCPUS", &script.node_cpus().to_string());
    if let Some(minutes) = script.minutes {
        set("PBS_WALLTIME", &i64::from(minutes).saturating_mul(60).to_string());
    }
    if script.array.is_some() {
        set("PBS_ARRAY_INDEX", "$task");
        set("PBS_ARRAYID", "$task");
        set("PBS_ARRAY_ID", &quote(&format!("{}[]", submission.number)));
    }
}

/// Writes the names of the Job's nodes into a file of its folder, each as often as it has tasks, and leaves them in
/// `$nodes`. What `srun` and `mpiexec` start by these follows the Job and not the whole allocation.
fn node_file(script: &Script) -> String {
    let mut text = format!(
        "nodes=${{COPAL_NODES:-$HOSTNAME}}\nnode_file=$PWD/nodes.$COPAL_JOB_ID\n\
         for node in ${{nodes//,/ }}; do for ((i = 0; i < {}; i++)); do echo \"$node\"; done; done > \"$node_file\" || exit 1\n",
        script.node_tasks()
    );
    if script.num_nodes() > 1 {
        text.push_str(
            "if [ -n \"${SLURM_JOB_ID-}\" ]; then export SLURM_HOSTFILE=$node_file SLURM_DISTRIBUTION=arbitrary SLURM_OVERLAP=1; fi\n",
        );
    }
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a String never fails.
    let _ = writeln!(text, "export {name}={value}");
}

/// `4(x2)`, as Slurm writes it.
fn tasks_per_node(tasks: i32, nodes: i32) -> String {
    if nodes == 1 { tasks.to_string() } else { format!("{tasks}(x{nodes})") }
}

/// Where the script starts: PBS starts in the home, the others where it was submitted.
fn start(script: &Script, folder: &str) -> String {
    match (&script.chdir, script.dialect) {
        (Some(chdir), _) if chdir.starts_with('/') => quote(chdir),
        (Some(chdir), _) => format!("{folder}/{}", quote(chdir)),
        (None, Dialect::Pbs) => "\"$HOME\"".into(),
        (None, _) => folder.into(),
    }
}

/// Sends output and errors where the script says; else they stay in job.out.
fn redirect(text: &mut String, script: &Script, submission: &Submission) {
    let open = |path: &String| {
        let path = if path.ends_with('/') { format!("{path}{}.o%j", submission.name) } else { path.clone() };
        let folder = (script.dialect == Dialect::Pbs && !path.starts_with('/'))
            .then(|| format!("{}/", quote(&submission.folder.display().to_string())));
        format!("{}{}", folder.unwrap_or_default(), pattern(&path, script, submission))
    };
    let mut sent = |which: &str, path: &String| {
        let _ = writeln!(
            text,
            "out={}\nmkdir -p -- \"$(dirname -- \"$out\")\" && exec {which}\"$out\" || exit 1",
            open(path)
        );
    };
    if let Some(path) = &script.output {
        sent(">", path);
    }
    match &script.error {
        Some(path) => sent("2>", path),
        None if script.output.is_some() => text.push_str("exec 2>&1\n"),
        None => {}
    }
}

/// A path with sbatch's patterns as shell text: `%j` the Job, `%A` the array, `%a` the index, `%x` the name,
/// `%u` the user. A number between `%` and the letter is the width.
fn pattern(path: &str, script: &Script, submission: &Submission) -> String {
    let (mut out, mut plain, mut rest) = (String::new(), String::new(), path);
    while let Some(letter) = rest.chars().next() {
        // PBS has one pattern of its own.
        if let Some(after) = rest.strip_prefix("^array_index^") {
            flush(&mut out, &mut plain);
            out.push_str("\"$task\"");
            rest = after;
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        if letter != '%' {
            plain.push(letter);
            continue;
        }
        let width = &rest[..rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len()];
        let kind = rest[width.len()..].chars().next();
        let value = match kind {
            Some('j' | 'J') => String::from("$COPAL_JOB_ID"),
            Some('A') if script.array.is_some() => submission.number.to_string(),
            Some('A') => String::from("$COPAL_JOB_ID"),
            Some('a') => String::from("$task"),
            Some('u') => String::from("$(id -un)"),
            Some('N' | 'n') => String::from("$(hostname -s)"),
            Some('x') => {
                plain.push_str(submission.name);
                rest = &rest[width.len() + 1..];
                continue;
            }
            Some('%') => {
                plain.push('%');
                rest = &rest[width.len() + 1..];
                continue;
            }
            // No pattern: it stands for itself.
            _ => {
                plain.push('%');
                continue;
            }
        };
        rest = &rest[width.len() + 1..];
        flush(&mut out, &mut plain);
        match width {
            "" => out.push_str(&format!("\"{value}\"")),
            width => out.push_str(&format!("\"$(printf %0{width}d \"{value}\")\"")),
        }
    }
    flush(&mut out, &mut plain);
    out
}

fn flush(out: &mut String, plain: &mut String) {
    if !plain.is_empty() {
        out.push_str(&quote(plain));
        plain.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(name: &str) -> Submission<'_> {
        Submission {
            name,
            number: 1_780_000_000,
            folder: Path::new("/home/ann/my runs"),
            host: "login-1",
            origin: vec![("HOME", "/home/ann".into()), ("PATH", "/opt/my bin:/bin".into())],
            variables: vec![("MODE".into(), "it's fast".into())],
            arguments: &[],
        }
    }

    #[test]
    fn a_slurm_script_finds_what_slurm_would_set() {
        let script = Script::parse(
            "#SBATCH -N 2 --ntasks-per-node 4 -c 2 --gpus-per-node=2 -A h2o -a 1-9:2 -o logs/%x-%A_%3a.out --mem=4G\nsrun ./a.out\n",
        )
        .unwrap();
        insta::assert_snapshot!(text(&script, &submission("train")));
    }

    #[test]
    fn a_pbs_script_finds_what_pbs_would_set() {
        let script = Script::parse(
            "#PBS -l select=1:ncpus=4,walltime=1:30:00\n#PBS -J 0-3\n#PBS -o out/^array_index^.log\ndate\n",
        )
        .unwrap();
        insta::assert_snapshot!(text(&script, &submission("sweep")));
    }

    #[test]
    fn a_shell_script_stays_where_it_was_submitted() {
        let text = text(&Script::default(), &submission("run"));
        assert!(text.contains("cd '/home/ann/my runs' || exit 1\n"), "{text}");
        assert!(!text.contains("exec >"), "{text}");
    }
}
