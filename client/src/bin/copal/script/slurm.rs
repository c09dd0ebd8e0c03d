//! `#SBATCH` lines, as sbatch(1) defines them.

use super::{Known, Script, dependencies, mebibytes, minutes, number, variables};

pub(super) const OPTIONS: &[Known] = &[
    ("-J", "--job-name", true),
    ("-N", "--nodes", true),
    ("-n", "--ntasks", true),
    ("--tasks-per-node", "--ntasks-per-node", true),
    ("-c", "--cpus-per-task", true),
    ("-G", "--gpus", true),
    ("", "--gpus-per-node", true),
    ("", "--gpus-per-task", true),
    ("", "--gres", true),
    ("", "--mem", true),
    ("", "--mem-per-cpu", true),
    ("-t", "--time", true),
    ("-a", "--array", true),
    ("-d", "--dependency", true),
    ("-o", "--output", true),
    ("-e", "--error", true),
    ("-D", "--chdir", true),
    ("", "--export", true),
    ("-A", "--account", true),
    ("", "--requeue", false),
    ("", "--no-requeue", false),
    ("", "--exclusive", false),
    ("-p", "--partition", true),
    ("-q", "--qos", true),
    ("-C", "--constraint", true),
    ("-w", "--nodelist", true),
    ("-x", "--exclude", true),
    ("-M", "--clusters", true),
    ("", "--reservation", true),
    ("", "--mail-type", true),
    ("", "--mail-user", true),
    ("", "--comment", true),
    ("", "--open-mode", true),
    ("", "--signal", true),
    ("-b", "--begin", true),
    ("", "--nice", false),
    ("-H", "--hold", false),
    ("-k", "--no-kill", false),
    ("-O", "--overcommit", false),
    ("-s", "--oversubscribe", false),
    ("-Q", "--quiet", false),
    ("-v", "--verbose", false),
    ("", "--parsable", false),
    ("", "--get-user-env", false),
];

pub(super) fn apply(script: &mut Script, line: usize, option: &str, value: &str) -> Result<(), String> {
    match option {
        "--job-name" => script.name = Some(value.into()),
        // A range of nodes is met by its least.
        "--nodes" => script.nodes = Some(number(value.split('-').next().unwrap_or(value))?),
        "--ntasks" => script.tasks = Some(number(value)?),
        "--ntasks-per-node" => script.tasks_per_node = Some(number(value)?),
        "--cpus-per-task" => script.cpus_per_task = Some(number(value)?),
        "--gpus" => script.gpus = Some(count_of(value)?),
        "--gpus-per-node" => script.gpus_per_node = Some(count_of(value)?),
        "--gpus-per-task" => script.gpus_per_task = Some(count_of(value)?),
        "--gres" => {
            for part in value.split(',') {
                match part.strip_prefix("gpu") {
                    Some("") => script.gpus_per_node = Some(1),
                    Some(rest) if rest.starts_with(':') => {
                        // `gpu:a100` names a type alone, which is one GPU.
                        script.gpus_per_node = Some(count_of(rest).unwrap_or(1));
                    }
                    _ => script.no_meaning(line, &format!("--gres={part}"), ""),
                }
            }
        }
        // All memory of a node, in Slurm's words.
        "--mem" if value == "0" => script.exclusive = true,
        "--mem" => script.mem_mb = Some(mebibytes(value, 1024.0)?),
        "--mem-per-cpu" => script.mem_mb_per_cpu = Some(mebibytes(value, 1024.0)?),
        "--time" => script.minutes = minutes(value)?,
        "--array" => script.array = Some(value.parse()?),
        "--dependency" => script.dependencies.extend(dependencies(value)?),
        "--output" => script.output = Some(value.into()),
        "--error" => script.error = Some(value.into()),
        "--chdir" => script.chdir = Some(value.into()),
        "--export" => {
            for (name, value) in variables(value) {
                match (name.as_str(), value) {
                    ("ALL", None) => script.all_variables = true,
                    ("NONE" | "NIL", None) => {}
                    (_, value) => script.variables.push((name, value)),
                }
            }
        }
        "--account" => script.account = Some(value.into()),
        "--requeue" => script.requeue = Some(true),
        "--no-requeue" => script.requeue = Some(false),
        "--exclusive" => script.exclusive = true,
        "--partition" | "--qos" | "--reservation" => {
            script.no_meaning(line, option, ": the allocation in which it runs (`copal queue submit`) has one");
        }
        "--quiet" | "--verbose" | "--parsable" | "--comment" => {}
        _ => script.no_meaning(line, option, ""),
    }
    Ok(())
}

/// `4`, `a100:4`, `:a100:4`
fn count_of(text: &str) -> Result<i32, String> {
    number(text.rsplit(':').next().unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use crate::script::Script;

    #[test]
    fn a_usual_script_is_understood() {
        let text = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH -N2 --ntasks-per-node=4\n#SBATCH --cpus-per-task 8\n\
                    #SBATCH --gres=gpu:a100:4,license:2\n#SBATCH --mem=64G\n#SBATCH -t 1-12:00:00\n#SBATCH -a 0-9:3\n\
                    #SBATCH -o logs/%x-%A_%a.out\n#SBATCH --export=ALL,MODE=fast\n#SBATCH -p gpu\n\
                    #SBATCH -d afterok:12:14,afterany:20\n#SBATCH --mail-type=END\n#SBATCH --requeue\nsrun ./train\n";
        let script = Script::parse(text).unwrap();
        assert_eq!(script.name.as_deref(), Some("train"));
        assert_eq!((script.num_nodes(), script.node_tasks(), script.node_cpus(), script.node_gpus()), (2, 4, 32, 4));
        assert_eq!((script.node_mem_mb(), script.minutes, script.requeue), (Some(65_536), Some(2160), Some(true)));
        assert_eq!(script.array.as_ref().map(|array| array.len()), Some(4));
        assert_eq!(script.dependencies.len(), 3);
        assert_eq!((script.all_variables, script.variables.len()), (true, 1));
        insta::assert_snapshot!(script.warnings.join("\n"), @r"
        line 5: --gres=license:2 has no meaning here
        line 11: --partition has no meaning here: the allocation in which it runs (`copal queue submit`) has one
        line 13: --mail-type has no meaning here
        ");
    }

    #[test]
    fn tasks_are_spread_over_nodes() {
        let script = Script::parse("#SBATCH -n 10 -N 3 --mem-per-cpu=1G --gpus=6\necho\n").unwrap();
        assert_eq!((script.node_tasks(), script.node_gpus(), script.node_mem_mb()), (4, 2, Some(4096)));
        let script = Script::parse("#SBATCH -n 10 --ntasks-per-node=4 --gpus-per-task=1\necho\n").unwrap();
        assert_eq!((script.num_nodes(), script.node_gpus()), (3, 4));
    }
}
