//! Existing job scripts: what their `#SBATCH` or `#PBS` lines ask for, in Copal's terms. Pure text;
//! the variables that such scripts expect are `environment`, how they come to a Site is
//! `commands::script_app`.

pub(crate) mod environment;
mod pbs;
mod slurm;

use copal_schemas::job::{Dependency, DependencyKind};

use crate::{array::ArraySpec, ids::IdList};

/// Whose lines a script has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Nobody's.
    #[default]
    Shell,
    /// `#SBATCH`
    Slurm,
    /// `#PBS`
    Pbs,
}

/// What a script says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Script {
    /// Whose lines it has.
    pub(crate) dialect: Dialect,
    /// The Job's name.
    pub(crate) name: Option<String>,
    /// Nodes.
    pub(crate) nodes: Option<i32>,
    /// Tasks (ranks) on all nodes together.
    pub(crate) tasks: Option<i32>,
    /// Tasks on each node.
    pub(crate) tasks_per_node: Option<i32>,
    /// CPUs of each task.
    pub(crate) cpus_per_task: Option<i32>,
    /// GPUs on each node.
    pub(crate) gpus_per_node: Option<i32>,
    /// GPUs on all nodes together.
    pub(crate) gpus: Option<i32>,
    /// GPUs of each task.
    pub(crate) gpus_per_task: Option<i32>,
    /// Memory on each node in MiB.
    pub(crate) mem_mb: Option<i64>,
    /// Memory for each CPU in MiB.
    pub(crate) mem_mb_per_cpu: Option<i64>,
    /// Minutes after which it is stopped.
    pub(crate) minutes: Option<i32>,
    /// A Job for each index.
    pub(crate) array: Option<ArraySpec>,
    /// Jobs that must end first.
    pub(crate) dependencies: Vec<Dependency>,
    /// Where its output goes, with the scheduler's own patterns.
    pub(crate) output: Option<String>,
    /// Where its errors go.
    pub(crate) error: Option<String>,
    /// Where it starts.
    pub(crate) chdir: Option<String>,
    /// Variables that are set for it; a name without a value is taken from whoever submits it.
    pub(crate) variables: Vec<(String, Option<String>)>,
    /// Whether it gets all variables of whoever submits it.
    pub(crate) all_variables: bool,
    /// Who pays.
    pub(crate) account: Option<String>,
    /// Whether it may run again.
    pub(crate) requeue: Option<bool>,
    /// Whether it wants nodes for itself.
    pub(crate) exclusive: bool,
    /// Lines without a meaning here.
    pub(crate) warnings: Vec<String>,
}

impl Script {
    /// Reads the lines of a script.
    ///
    /// # Errors
    /// The values that can't be read, each with its line.
    pub(crate) fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut script = Self::default();
        let mut errors = Vec::new();
        let has = |mark: &str| directives(text, mark).next().is_some();
        match (has("#SBATCH"), has("#PBS")) {
            (false, false) => return Ok(script),
            (true, both) => {
                script.dialect = Dialect::Slurm;
                // Sbatch makes the most of both kinds, too; two answers to one question would be worse.
                if both {
                    script.warnings.push("it has #SBATCH and #PBS lines; only #SBATCH counts".into());
                }
                for (line, options) in directives(text, "#SBATCH") {
                    read(&mut script, slurm::OPTIONS, slurm::apply, line, options, &mut errors);
                }
            }
            (false, true) => {
                script.dialect = Dialect::Pbs;
                for (line, options) in directives(text, "#PBS") {
                    read(&mut script, pbs::OPTIONS, pbs::apply, line, options, &mut errors);
                }
            }
        }
        if errors.is_empty() { Ok(script) } else { Err(errors) }
    }

    /// Nodes that it needs.
    pub(crate) fn num_nodes(&self) -> i32 {
        match (self.nodes, self.tasks, self.tasks_per_node) {
            (Some(nodes), ..) => nodes,
            (None, Some(tasks), Some(per_node)) => (tasks + per_node - 1) / per_node,
            (None, ..) => 1,
        }
    }

    /// Tasks on each node.
    pub(crate) fn node_tasks(&self) -> i32 {
        match (self.tasks_per_node, self.tasks) {
            (Some(per_node), _) => per_node,
            (None, Some(tasks)) => (tasks + self.num_nodes() - 1) / self.num_nodes(),
            (None, None) => 1,
        }
    }

    /// CPUs on each node.
    pub(crate) fn node_cpus(&self) -> i32 {
        self.node_tasks().saturating_mul(self.cpus_per_task.unwrap_or(1))
    }

    /// GPUs on each node.
    pub(crate) fn node_gpus(&self) -> i32 {
        match (self.gpus_per_node, self.gpus, self.gpus_per_task) {
            (Some(gpus), ..) => gpus,
            (None, Some(gpus), _) => (gpus + self.num_nodes() - 1) / self.num_nodes(),
            (None, None, Some(gpus)) => gpus.saturating_mul(self.node_tasks()),
            (None, None, None) => 0,
        }
    }

    /// Memory on each node in MiB.
    pub(crate) fn node_mem_mb(&self) -> Option<i64> {
        self.mem_mb.or_else(|| Some(self.mem_mb_per_cpu?.saturating_mul(i64::from(self.node_cpus()))))
    }

    fn no_meaning(&mut self, line: usize, option: &str, why: &str) {
        self.warnings.push(format!("line {line}: {option} has no meaning here{why}"));
    }
}

/// An option by its letter and its name, and whether it takes a value.
type Known = (&'static str, &'static str, bool);

/// The lines with directives, from 1, each with its options: those above the first command.
fn directives<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim().is_empty() || line.starts_with('#'))
        .filter_map(move |(index, line)| Some((index + 1, line.strip_prefix(mark)?)))
        .filter(|(_, options)| options.starts_with(char::is_whitespace))
}

/// Reads the options of one line.
fn read(
    script: &mut Script,
    known: &[Known],
    apply: fn(&mut Script, usize, &str, &str) -> Result<(), String>,
    line: usize,
    options: &str,
    errors: &mut Vec<String>,
) {
    let Some(words) = shlex::split(options) else {
        errors.push(format!("line {line}: a quote is open"));
        return;
    };
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let (name, mut value) = if word.starts_with("--") {
            match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word.clone(), None),
            }
        } else if let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            // `-n4` and `-n 4` are the same.
            let (letter, rest) = rest.split_at(rest.chars().next().map_or(0, char::len_utf8));
            (format!("-{letter}"), Some(rest.trim_start_matches('=').to_owned()).filter(|rest| !rest.is_empty()))
        } else {
            errors.push(format!("line {line}: {word:?} is no option"));
            return;
        };
        let Some((_, long, takes_value)) = known.iter().find(|(short, long, _)| *short == name || *long == name) else {
            script.no_meaning(line, &name, "");
            // What follows an unknown option and is none itself is its value.
            words.next_if(|next| !next.starts_with('-'));
            continue;
        };
        if *takes_value && value.is_none() {
            value = words.next();
        }
        let value = match (takes_value, value) {
            (true, None) => {
                errors.push(format!("line {line}: {name} has no value"));
                return;
            }
            (_, value) => value.unwrap_or_default(),
        };
        if let Err(error) = apply(script, line, long, &value) {
            errors.push(format!("line {line}: {name} {value}: {error}"));
        }
    }
}

fn number(text: &str) -> Result<i32, String> {
    text.trim().parse().ok().filter(|number| *number > 0).ok_or_else(|| "a number from 1 is wanted".into())
}

/// `30`, `1:30:00`, `2-00:00:00` and so on as minutes, rounded up. With two parts, they are minutes and
/// seconds, as Slurm has it, unless `hours_first`.
fn minutes(text: &str) -> Result<Option<i32>, String> {
    let wrong = || String::from("a time is wanted, such as 30 (minutes), 1:30:00 or 2-00:00:00");
    if matches!(text.to_ascii_lowercase().as_str(), "0" | "infinite" | "unlimited") {
        return Ok(None);
    }
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<i64>().map_err(|_| wrong())?), rest),
        None => (None, text),
    };
    let parts =
        rest.split(':').map(|part| part.parse::<i64>().ok().filter(|part| *part >= 0)).collect::<Option<Vec<_>>>();
    let parts = parts.ok_or_else(wrong)?;
    let seconds = match (days, &parts[..]) {
        (Some(days), [hours]) => days * 86_400 + hours * 3600,
        (Some(days), [hours, minutes]) => days * 86_400 + hours * 3600 + minutes * 60,
        (Some(days), [hours, minutes, seconds]) => days * 86_400 + hours * 3600 + minutes * 60 + seconds,
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        (None, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        _ => return Err(wrong()),
    };
    i32::try_from((seconds + 59) / 60).map(Some).map_err(|_| wrong())
}

/// `4G`, `500M`, `8gb`, `100000` in MiB, rounded up; a bare number is in units of `plain` KiB.
fn mebibytes(text: &str, plain: f64) -> Result<i64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(lower.len());
    let (amount, unit) = lower.split_at(split);
    let kib = match unit.trim_end_matches('b') {
        "" if unit == "b" => 1.0 / 1024.0,
        "" => plain,
        "k" => 1.0,
        "m" => 1024.0,
        "g" => 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("memory is wanted, such as 4G or 500M".into()),
    };
    let amount: f64 = amount.parse().map_err(|_| "memory is wanted, such as 4G or 500M")?;
    Ok((amount * kib / 1024.0).ceil() as i64)
}

/// `afterok:12:13-15,afterany:20`
fn dependencies(text: &str) -> Result<Vec<Dependency>, String> {
    if text.contains('?') {
        return Err("alternatives (?) can't be had here".into());
    }
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (kind, ids) = part.split_once(':').unwrap_or((part, ""));
        let kind = match kind {
            "afterok" => DependencyKind::AfterOk,
            "afternotok" => DependencyKind::AfterNotOk,
            "afterany" => DependencyKind::AfterAny,
            other => return Err(format!("{other} can't be had here; there is afterok, afternotok and afterany")),
        };
        for ids in ids.split(':') {
            let ids: IdList = ids.parse().map_err(|error| format!("{error}; ids of Jobs here are wanted"))?;
            all.extend(ids.ids().map(|id| Dependency { job_id: copal_schemas::JobId(id), kind }));
        }
    }
    Ok(all)
}

/// `A=1,B,C='x,y'` as names and values.
fn variables(text: &str) -> Vec<(String, Option<String>)> {
    let (mut parts, mut part, mut quote) = (Vec::new(), String::new(), None);
    for letter in text.chars() {
        match (quote, letter) {
            (None, ',') => parts.push(std::mem::take(&mut part)),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            (_, letter) => part.push(letter),
        }
    }
    parts.push(part);
    let pair = |part: String| match part.split_once('=') {
        Some((name, value)) => (name.trim().to_owned(), Some(value.to_owned())),
        None => (part.trim().to_owned(), None),
    };
    parts.into_iter().filter(|part| !part.trim().is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_end_with_the_first_command() {
        let text =
            "#!/bin/bash\n#SBATCH -n 4\n\n# note\n#SBATCHX -n 5\n##SBATCH -n 6\n#SBATCH -c2\necho\n#SBATCH -n 7\n";
        let script = Script::parse(text).unwrap();
        assert_eq!((script.dialect, script.tasks, script.cpus_per_task), (Dialect::Slurm, Some(4), Some(2)));
        assert_eq!((script.num_nodes(), script.node_tasks(), script.node_cpus()), (1, 4, 8));
        assert_eq!(Script::parse("#!/bin/sh\necho hi\n").unwrap(), Script::default());
    }

    #[test]
    fn times_and_sizes_are_read_as_schedulers_do() {
        let read = |text: &str| minutes(text).unwrap();
        assert_eq!(read("30"), Some(30));
        assert_eq!(read("30:01"), Some(31));
        assert_eq!(read("1:30:00"), Some(90));
        assert_eq!(read("1-0"), Some(1440));
        assert_eq!(read("2-00:30"), Some(2910));
        assert_eq!(read("UNLIMITED"), None);
        assert!(minutes("soon").is_err() && minutes("1:2:3:4").is_err() && minutes("-5").is_err());
        assert_eq!(mebibytes("4G", 1024.0), Ok(4096));
        assert_eq!(mebibytes("500", 1024.0), Ok(500));
        assert_eq!(mebibytes("8gb", 1.0), Ok(8192));
        assert_eq!(mebibytes("2048kb", 1.0), Ok(2));
        assert_eq!(mebibytes("1048576b", 1.0), Ok(1));
        assert!(mebibytes("much", 1.0).is_err());
    }

    #[test]
    fn variables_may_have_commas_in_quotes() {
        let read = variables("A=1, B ,C='x,y',D=a=b");
        let pairs: Vec<(&str, Option<&str>)> =
            read.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        assert_eq!(pairs, [("A", Some("1")), ("B", None), ("C", Some("x,y")), ("D", Some("a=b"))]);
    }

    #[test]
    fn wrong_values_are_all_named_with_their_lines() {
        let text = "#SBATCH -n none\n#SBATCH -t soon\n#SBATCH -d singleton\n#SBATCH --nodes\n#SBATCH 'open\necho\n";
        insta::assert_snapshot!(Script::parse(text).unwrap_err().join("\n"), @r"
        line 1: -n none: a number from 1 is wanted
        line 2: -t soon: a time is wanted, such as 30 (minutes), 1:30:00 or 2-00:00:00
        line 3: -d singleton: singleton can't be had here; there is afterok, afternotok and afterany
        line 4: --nodes has no value
        line 5: a quote is open
        ");
    }
}
