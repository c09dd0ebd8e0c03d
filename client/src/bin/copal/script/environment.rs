//! What a script finds around it: the variables that Slurm or PBS would set, its folder, its output.
//! All of it is written to one file of shell text at the Site when the script is submitted, so that
//! a Job only carries the script's name and its own index.

use std::{fmt::Write, path::Path};

use super::{Dialect, Script};

/// Where and as what a script was submitted.
pub(crate) struct Submission<'a> {
    /// The script's name.
    pub(crate) name: &'a str,
    /// A number for all Jobs of the array.
    pub(crate) number: i64,
    /// The folder from which it was submitted.
    pub(crate) folder: &'a Path,
    /// Variables to set, with their values.
    pub(crate) variables: Vec<(String, String)>,
    /// Its arguments.
    pub(crate) arguments: &'a [String],
}

/// Leaves all ranks but the first.
const ONE_NODE: &str = "case ${PMI_RANK:-${PMIX_RANK:-${OMPI_COMM_WORLD_RANK:-${PALS_RANKID:-\
    ${FLUX_TASK_RANK:-${SLURM_PROCID:-0}}}}}} in 0) ;; *) exit 0 ;; esac\n";
/// Hides the launcher's own ranks, so that the script's mpiexec begins anew. What Open MPI wants to be told by those who
/// are root stays.
const OWN_RANKS: &str = "root=${OMPI_ALLOW_RUN_AS_ROOT-}\n\
    unset ${!PMI_@} ${!PMIX_@} ${!OMPI_@} ${!PRTE_@} ${!HYDRA_@} ${!HYDI_@}\n\
    [ -z \"$root\" ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n";

/// Quotes a text for a POSIX shell. NUL, which no shell can carry, is left out.
pub(crate) fn quote(text: &str) -> String {
    let text = text.replace('\0', "");
    shlex::try_quote(&text).map_or_else(|_| String::from("''"), std::borrow::Cow::into_owned)
}

/// The shell text that is sourced before the script runs. `$task` is the index, `$script` the script's folder.
pub(crate) fn text(script: &Script, submission: &Submission) -> String {
    let mut text = String::from("# Written by `copal job submit`; sourced by the App Script before the script runs.\n");
    if script.num_nodes() > 1 {
        // A launcher of ranks starts a Job on each of its nodes; a script runs on the first and starts its own ranks.
        text.push_str(ONE_NODE);
    }
    text.push_str(OWN_RANKS);
    // A command line of many, which is a shell's, has better things to do.
    let wants_nodes = script.dialect != Dialect::Shell || script.num_nodes() > 1;
    if wants_nodes {
        text.push_str(&node_file(script));
    }
    for (name, value) in &submission.variables {
        line(&mut text, name, &quote(value));
    }
    let name = quote(submission.name);
    let folder = quote(&submission.folder.display().to_string());
    line(&mut text, "COPAL_ARRAY_INDEX", "$task");
    let (nodes, tasks) = (script.num_nodes(), script.num_nodes().saturating_mul(script.node_tasks()));
    if script.dialect != Dialect::Pbs {
        let mut set = |name: &str, value: &str| line(&mut text, name, value);
        set("SLURM_JOB_NAME", &name);
        set("SLURM_SUBMIT_DIR", &folder);
        // In an allocation of Slurm's own, srun finds it by its real id.
        set("SLURM_JOB_ID", "${SLURM_JOB_ID:-$COPAL_JOB_ID}");
        set("SLURM_JOBID", "$SLURM_JOB_ID");
        if wants_nodes {
            set("SLURM_JOB_NODELIST", "$nodes");
            set("SLURM_NODELIST", "$nodes");
        }
        set("SLURM_NNODES", &nodes.to_string());
        set("SLURM_JOB_NUM_NODES", &nodes.to_string());
        set("SLURM_NTASKS", &tasks.to_string());
        set("SLURM_NPROCS", &tasks.to_string());
        set("SLURM_TASKS_PER_NODE", &quote(&tasks_per_node(script.node_tasks(), nodes)));
        set("SLURM_CPUS_ON_NODE", &script.node_cpus().to_string());
        set("SLURM_JOB_CPUS_PER_NODE", &quote(&tasks_per_node(script.node_cpus(), nodes)));
        for (name, value) in [
            ("SLURM_NTASKS_PER_NODE", script.tasks_per_node.map(i64::from)),
            ("SLURM_CPUS_PER_TASK", script.cpus_per_task.map(i64::from)),
            ("SLURM_MEM_PER_NODE", script.mem_mb),
            ("SLURM_MEM_PER_CPU", script.mem_mb_per_cpu),
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
    if script.dialect != Dialect::Slurm {
        let mut set = |name: &str, value: &str| line(&mut text, name, value);
        set("PBS_JOBNAME", &name);
        set("PBS_O_WORKDIR", &folder);
        set("PBS_JOBID", "${PBS_JOBID:-$COPAL_JOB_ID}");
        set("PBS_ENVIRONMENT", "PBS_BATCH");
        if wants_nodes {
            set("PBS_NODEFILE", "$node_file");
        }
        set("PBS_NUM_NODES", &nodes.to_string());
        set("PBS_NUM_PPN", &script.node_tasks().to_string());
        set("PBS_NP", &tasks.to_string());
        set("NCPUS", &script.node_cpus().to_string());
        if script.array.is_some() {
            set("PBS_ARRAY_INDEX", "$task");
            set("PBS_ARRAYID", "$task");
            set("PBS_ARRAY_ID", &quote(&format!("{}[]", submission.number)));
        }
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
            variables: vec![("MODE".into(), "it's fast".into())],
            arguments: &[],
        }
    }

    #[test]
    fn a_slurm_script_finds_what_slurm_would_set() {
        let script = Script::parse(
            "#SBATCH -N 2 --ntasks-per-node 4 -c 2 -a 1-9:2 -o logs/%x-%A_%3a.out --mem=4G\nsrun ./a.out\n",
        )
        .unwrap();
        insta::assert_snapshot!(text(&script, &submission("train")));
    }

    #[test]
    fn a_pbs_script_finds_what_pbs_would_set() {
        let script =
            Script::parse("#PBS -l select=1:ncpus=4\n#PBS -J 0-3\n#PBS -o out/^array_index^.log\ndate\n").unwrap();
        insta::assert_snapshot!(text(&script, &submission("sweep")));
    }

    #[test]
    fn a_shell_script_stays_where_it_was_submitted() {
        let text = text(&Script::default(), &submission("run"));
        assert!(text.contains("cd '/home/ann/my runs' || exit 1\n"), "{text}");
        assert!(!text.contains("exec >"), "{text}");
    }
}
