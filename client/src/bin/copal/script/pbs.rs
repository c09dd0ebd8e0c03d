//! `#PBS` lines, as qsub(1B) of OpenPBS and PBS Pro defines them, and Torque's `nodes=…:ppn=…`.

use super::{Known, Script, dependencies, mebibytes, minutes, number, variables};

pub(super) const OPTIONS: &[Known] = &[
    ("-N", "-N", true),
    ("-l", "-l", true),
    ("-J", "-J", true),
    ("-t", "-J", true),
    ("-o", "-o", true),
    ("-e", "-e", true),
    ("-j", "-j", true),
    ("-W", "-W", true),
    ("-v", "-v", true),
    ("-V", "-V", false),
    ("-A", "-A", true),
    ("-P", "-A", true),
    ("-r", "-r", true),
    ("-d", "-d", true),
    ("-w", "-d", true),
    ("-q", "-q", true),
    ("-S", "-S", true),
    ("-k", "-k", true),
    ("-m", "-m", true),
    ("-M", "-M", true),
    ("-p", "-p", true),
    ("-a", "-a", true),
    ("-c", "-c", true),
    ("-u", "-u", true),
    ("-h", "-h", false),
    ("-z", "-z", false),
];

pub(super) fn apply(script: &mut Script, line: usize, option: &str, value: &str) -> Result<(), String> {
    match option {
        "-N" => script.name = Some(value.into()),
        "-l" => resources(script, line, value)?,
        "-J" => script.array = Some(value.parse()?),
        "-o" => script.output = Some(path(value)),
        "-e" => script.error = Some(path(value)),
        // Output and errors are always in one file, unless -e names another.
        "-j" if value.contains('n') => script.no_meaning(line, "-j n", ": output and errors are in one file"),
        "-j" | "-S" | "-k" => {}
        "-W" => match value.split_once('=') {
            Some(("depend", list)) => script.dependencies.extend(dependencies(list)?),
            _ => script.no_meaning(line, &format!("-W {value}"), ""),
        },
        "-v" => script.variables.extend(variables(value)),
        "-V" => script.all_variables = true,
        "-A" => script.account = Some(value.into()),
        "-r" => script.requeue = Some(value.starts_with('y')),
        "-d" => script.chdir = Some(value.into()),
        "-q" => script.no_meaning(line, "-q", ": the allocation in which it runs (`copal queue submit`) has one"),
        _ => script.no_meaning(line, option, ""),
    }
    Ok(())
}

/// `host:/path` without the host: results are where the Job runs.
fn path(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, path)| path).into()
}

/// `select=2:ncpus=4:mpiprocs=4,walltime=1:00:00` or `nodes=2:ppn=4,mem=8gb`
fn resources(script: &mut Script, line: usize, list: &str) -> Result<(), String> {
    for part in list.split(',') {
        let Some((name, value)) = part.split_once('=') else {
            script.no_meaning(line, &format!("-l {part}"), "");
            continue;
        };
        match name.trim() {
            "select" => chunk(script, line, value)?,
            "nodes" => {
                let mut words = value.split(':');
                script.nodes = Some(number(words.next().unwrap_or_default())?);
                for word in words {
                    match word.split_once('=') {
                        Some(("ppn", count)) => script.tasks_per_node = Some(number(count)?),
                        Some(("gpus", count)) => script.gpus_per_node = Some(number(count)?),
                        _ => script.no_meaning(line, &format!("-l nodes={value}"), &format!(": {word}")),
                    }
                }
            }
            "walltime" => script.minutes = walltime(value)?,
            "ncpus" => script.cpus_per_task = Some(number(value)?),
            "ngpus" => script.gpus_per_node = Some(number(value)?),
            "mem" | "pmem" => script.mem_mb = Some(mebibytes(value, 1.0 / 1024.0)?),
            "place" if value.contains("excl") => script.exclusive = true,
            "place" => {}
            other => script.no_meaning(line, &format!("-l {other}"), ""),
        }
    }
    Ok(())
}

/// `2:ncpus=8:mpiprocs=4:ngpus=1:mem=8gb`
fn chunk(script: &mut Script, line: usize, text: &str) -> Result<(), String> {
    if text.contains('+') {
        return Err("chunks of several kinds (+) can't be had here; make a Job of each".into());
    }
    let (mut cpus, mut ranks, mut threads) = (None, None, None);
    let mut nodes = 1;
    for (index, word) in text.split(':').enumerate() {
        match word.split_once('=') {
            None if index == 0 => nodes = number(word)?,
            Some(("ncpus", count)) => cpus = Some(number(count)?),
            Some(("mpiprocs", count)) => ranks = Some(number(count)?),
            Some(("ompthreads", count)) => threads = Some(number(count)?),
            Some(("ngpus", count)) => script.gpus_per_node = Some(number(count)?),
            Some(("mem", size)) => script.mem_mb = Some(mebibytes(size, 1.0 / 1024.0)?),
            _ => script.no_meaning(line, &format!("select: {word}"), ""),
        }
    }
    script.nodes = Some(nodes);
    let ranks = ranks.unwrap_or(1);
    script.tasks_per_node = Some(ranks);
    script.cpus_per_task = Some(threads.unwrap_or(1).max(cpus.map_or(1, |cpus| (cpus + ranks - 1) / ranks)));
    Ok(())
}

/// PBS counts a bare number in seconds, and two parts as minutes and seconds.
fn walltime(text: &str) -> Result<Option<i32>, String> {
    match text.parse::<i64>() {
        Ok(seconds) if seconds > 0 => Ok(i32::try_from((seconds + 59) / 60).ok()),
        _ => minutes(text),
    }
}

#[cfg(test)]
mod tests {
    use crate::script::{Dialect, Script};

    #[test]
    fn a_usual_script_is_understood() {
        let text = "#!/bin/bash\n#PBS -N sweep\n#PBS -l select=2:ncpus=32:mpiprocs=8:ngpus=4:mem=64gb\n\
                    #PBS -l walltime=01:30:00,place=scatter\n#PBS -J 0-99:10\n#PBS -j oe\n#PBS -o host:/logs/\n\
                    #PBS -W depend=afterok:12\n#PBS -v MODE=fast,HOME\n#PBS -A chem\n#PBS -q prod\n#PBS -r n\ncd $PBS_O_WORKDIR\n";
        let script = Script::parse(text).unwrap();
        assert_eq!((script.dialect, script.name.as_deref()), (Dialect::Pbs, Some("sweep")));
        assert_eq!((script.num_nodes(), script.node_tasks(), script.node_cpus(), script.node_gpus()), (2, 8, 32, 4));
        assert_eq!((script.mem_mb, script.minutes), (Some(65_536), Some(90)));
        assert_eq!(script.array.as_ref().map(|array| array.len()), Some(10));
        assert_eq!((script.output.as_deref(), script.account.as_deref()), (Some("/logs/"), Some("chem")));
        assert_eq!((script.dependencies.len(), script.variables.len(), script.requeue), (1, 2, Some(false)));
        insta::assert_snapshot!(script.warnings.join("\n"), @"line 11: -q has no meaning here: the allocation in which it runs (`copal queue submit`) has one");
    }

    #[test]
    fn torque_is_understood_too() {
        let script = Script::parse("#PBS -l nodes=3:ppn=4:gpus=1,mem=8gb,walltime=600\n#PBS -t 1,3,5\necho\n").unwrap();
        assert_eq!((script.num_nodes(), script.node_tasks(), script.node_gpus()), (3, 4, 1));
        assert_eq!((script.minutes, script.array.map(|array| array.len())), (Some(10), Some(3)));
        assert!(Script::parse("#PBS -l select=1:ncpus=4+2:ncpus=8\necho\n").is_err());
    }
}
