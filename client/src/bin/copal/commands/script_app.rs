//! `copal job submit` and `copal job create --commands`: existing scripts and command lines as Jobs.
//!
//! What runs at a Site is only what its owner put there. So the command copies the script into the
//! Site's `scripts/` folder and installs, at first use, the App `Script` that runs what is there; a
//! Job only says which script, and which index.

use std::{
    env, fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use copal_client::{Client, SiteDir, agent_status, app_file};
use copal_schemas::{
    AppId, JobId, SiteId, StringMap,
    app::App,
    job::{Dependency, DependencyKind, JobCreate},
};

use super::{
    app::{self, folder_of},
    job_create,
    plan::Plan,
};
use crate::{
    args::job::{Create, Submit},
    array::ArraySpec,
    context::Context,
    failure::{Failure, Result},
    rows::read_text,
    script::{
        Dialect, Script,
        environment::{self, ORIGIN, Submission},
    },
};

/// The App's name.
const APP: &str = "Script";
/// The App's file, as it is installed. Its first line tells it from a user's own App of that name.
const APP_FILE: &str = include_str!("script_app.yml");
/// How many such Jobs may share a node where the script does not ask for all of it: as many as fit.
const SHARED: i32 = 1000;
/// Parts of names of variables whose values must not be written to a file.
const SECRET: &[&str] = &["TOKEN", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL", "API_KEY", "PRIVATE"];

/// Submits a script.
pub(super) async fn submit(context: Context, submit: &Submit) -> Result<()> {
    let client = context.client()?;
    let site = Place::find(context, &client, submit.site.site.as_deref()).await?;
    let text = read_text(&submit.script)?;
    if text.trim().is_empty() {
        return Err(Failure::new(format!("the script {} is empty", submit.script.display()))
            .hint("write the commands into it that the Job is to run"));
    }
    let mut script = Script::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|error| format!("{}, {error}", submit.script.display())).collect();
        Failure::new(lines.join("\nerror: ")).hint("correct that; nothing was submitted")
    })?;
    for warning in &script.warnings {
        context.out.warn(&format!("{}: {warning}", submit.script.display()));
    }
    script.array = submit.array.clone().or(script.array);
    script.nodes = submit.num_nodes.or(script.nodes);
    script.minutes = submit.wall_time_min.or(script.minutes);
    let stem = submit.script.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = submit.name.clone().or(script.name.clone()).unwrap_or(stem);
    let files = Files::new(&site.folder, &name);
    let template = JobCreate {
        tags: [("script".to_owned(), files.key.clone())].into_iter().chain(submit.tags.iter().cloned()).collect(),
        priority: submit.priority,
        ..template(&script, &files, submit)?
    };
    let submission = Submission {
        name: &name,
        number: files.number,
        folder: &env::current_dir()?,
        host: &agent_status::this_host(),
        origin: ORIGIN.iter().filter_map(|name| Some((*name, env::var(name).ok()?))).collect(),
        variables: exported(context, &script)?,
        arguments: &submit.arguments,
    };
    let environment = environment::text(&script, &submission);
    let mut plan = Plan::new(APP, &site.name, template, script.array)?;
    if !submit.dry_run {
        plan.set_app(install(&client, &site.folder, site.id).await?.id);
        files.write(&[("script", &text, text.starts_with("#!")), ("environment.sh", &environment, false)])?;
    }
    let outcome = plan.carry_out(context, &client, submit.dry_run, submit.yes.yes).await;
    outcome.inspect_err(|failure| files.remove_unless(failure.has_changed()))
}

/// A Job of a script.
fn template(script: &Script, files: &Files, submit: &Submit) -> Result<JobCreate> {
    let index = if script.array.is_some() { "/{index}" } else { "" };
    let workdir = submit.workdir.clone().unwrap_or_else(|| format!("scripts/{}{index}", files.key));
    let (parents, others): (Vec<Dependency>, Vec<Dependency>) =
        script.dependencies.iter().copied().partition(|dependency| dependency.kind == DependencyKind::AfterOk);
    let named = submit.parents.iter().flat_map(|list| list.ids()).map(JobId);
    let is_alone = script.exclusive || script.num_nodes() > 1;
    let job = JobCreate {
        parameters: parameters(&files.key, script.array.is_some()),
        num_nodes: script.num_nodes(),
        // The script runs once and starts its own ranks; their CPUs and GPUs are set aside for it.
        threads_per_rank: script.node_cpus(),
        gpus_per_rank: f64::from(script.node_gpus()),
        node_packing_count: if is_alone { 1 } else { SHARED },
        mem_mb: script.node_mem_mb(),
        wall_time_min: script.minutes.unwrap_or(0),
        walltime_limit_min: script.minutes,
        // As with the schedulers, a script that was stopped by its limit does not run again by itself.
        max_restarts: match (script.requeue, script.minutes) {
            (Some(true), _) | (None, None) => None,
            _ => Some(0),
        },
        account: script.account.clone(),
        parent_ids: parents.iter().map(|dependency| dependency.job_id).chain(named).collect(),
        dependencies: others,
        ..JobCreate::new(AppId(0), workdir)
    };
    Ok(job)
}

fn parameters(key: &str, is_array: bool) -> StringMap {
    let mut parameters = StringMap::from([("script".to_owned(), key.to_owned())]);
    if is_array {
        parameters.insert("task".into(), "{index}".into());
    }
    parameters
}

/// The variables that a script asks for, with their values here.
fn exported(context: Context, script: &Script) -> Result<Vec<(String, String)>> {
    let is_name = |name: &str| {
        name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let mut variables = Vec::new();
    if script.all_variables {
        let of_this_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
        variables.extend(
            env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .filter(|(name, _)| {
                    let upper = name.to_ascii_uppercase();
                    is_name(name)
                        && !upper.starts_with("COPAL_")
                        && !of_this_shell.contains(&name.as_str())
                        && !SECRET.iter().any(|part| upper.contains(part))
                }),
        );
    }
    for (name, value) in &script.variables {
        if !is_name(name) {
            return Err(Failure::usage(format!("{name:?} is no name of a variable")));
        }
        match value.clone().or_else(|| env::var(name).ok()) {
            Some(value) => variables.push((name.clone(), value)),
            None => context.out.warn(&format!("the variable {name}, which the script wants, is not set here")),
        }
    }
    Ok(variables)
}

/// A Job for each line of a file of commands.
pub(super) async fn create_commands(context: Context, client: &Client, create: &Create, file: &Path) -> Result<()> {
    let site = Place::find(context, client, create.site.site.as_deref()).await?;
    let text = read_text(file)?;
    let is_command = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let (lines, commands): (Vec<usize>, Vec<&str>) =
        text.lines().enumerate().filter(|(_, line)| is_command(line)).map(|(place, line)| (place + 1, line)).unzip();
    if commands.is_empty() {
        return Err(Failure::new(format!("{} has no command", file.display())));
    }
    let array = ArraySpec::counting(commands.len()).map_err(Failure::usage)?;
    let stem = file.file_stem().map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "-");
    let name = stem.unwrap_or_else(|| "commands".into());
    let files = Files::new(&site.folder, &name);
    let workdir = create.workdir.clone().unwrap_or_else(|| format!("scripts/{}/{{index}}", files.key));
    let mut template = job_create::template(create, AppId(0));
    template.workdir = workdir;
    template.parameters = parameters(&files.key, true);
    template.tags.entry("script".into()).or_insert_with(|| files.key.clone());
    let script = Script { dialect: Dialect::Shell, ..Script::default() };
    let folder = env::current_dir()?;
    let submission = Submission {
        name: &name,
        number: files.number,
        folder: &folder,
        host: &agent_status::this_host(),
        origin: Vec::new(),
        variables: Vec::new(),
        arguments: &[],
    };
    let environment = environment::text(&script, &submission);
    let mut plan = Plan::new(APP, &site.name, template, Some(array))?.of_lines(lines);
    if !create.dry_run {
        plan.set_app(install(client, &site.folder, site.id).await?.id);
        let list: String = commands.iter().flat_map(|command| [*command, "\n"]).collect();
        files.write(&[
            ("script", RUN_LINE, true),
            ("commands", &list, false),
            ("environment.sh", &environment, false),
        ])?;
    }
    let outcome = plan.carry_out(context, client, create.dry_run, create.yes.yes).await;
    outcome.inspect_err(|failure| files.remove_unless(failure.has_changed()))
}

/// The script of a file of commands: runs the line of its index.
const RUN_LINE: &str = "#!/bin/bash\n\
    exec bash -c \"$(sed -n \"${COPAL_ARRAY_INDEX}{p;q}\" \"$(dirname -- \"$0\")/commands\")\"\n";

/// The Site that is meant; its folder is on this machine.
struct Place {
    folder: SiteDir,
    id: SiteId,
    name: String,
}

impl Place {
    async fn find(context: Context, client: &Client, selector: Option<&str>) -> Result<Self> {
        let (folder, id) = folder_of(context, client, selector).await?;
        let name = client.get_site(id).await?.name;
        Ok(Self { folder, id, name })
    }
}

/// The App at the service, installed at the Site where it is missing or of another version.
async fn install(client: &Client, folder: &SiteDir, site_id: SiteId) -> Result<App> {
    let path = folder.apps().join(format!("{APP}.yml"));
    let mark = APP_FILE.lines().next().unwrap_or_default();
    match fs::read_to_string(&path) {
        Ok(text) if text == APP_FILE => {}
        Ok(text) if !text.starts_with(mark) => {
            return Err(Failure::new(format!("{} is an App of your own", path.display()))
                .hint("give it another name; `copal job submit` needs this one"));
        }
        _ => fs::write(&path, APP_FILE).map_err(|error| unwritable(&path, &error))?,
    }
    let wanted = app_file::App::load(&path)?.to_index(site_id);
    app::push_one(client, site_id, wanted).await
}

/// The files of one script at the Site: a folder of their own below `scripts/`.
struct Files {
    folder: PathBuf,
    key: String,
    number: i64,
}

impl Files {
    /// A folder that is not there yet, named after the script and the time.
    fn new(site: &SiteDir, name: &str) -> Self {
        let letter = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        let name: String = name.chars().map(letter).take(60).collect();
        let name = name.trim_start_matches(['.', '-']);
        let scripts = site.root().join("scripts");
        let mut number = chrono::Utc::now().timestamp();
        loop {
            let key = format!("{name}-{number}");
            let folder = scripts.join(&key);
            if !folder.exists() {
                return Self { folder, key, number };
            }
            number += 1;
        }
    }

    /// Writes them, for the user's eyes only: variables may hold more than their names say.
    fn write(&self, files: &[(&str, &str, bool)]) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(|error| unwritable(&self.folder, &error))?;
        for (name, text, executable) in files {
            let path = self.folder.join(name);
            let mode = if *executable { 0o700 } else { 0o600 };
            let written = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&path)
                .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
            written.map_err(|error| unwritable(&path, &error))?;
        }
        Ok(())
    }

    /// Takes them away again unless a Job came of them. Best effort: the failure that led here is the one to tell.
    fn remove_unless(&self, used: bool) {
        if !used {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("can't write {}: {error}", path.display()))
        .hint("check the disk's free space and who owns the Site's folder")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, job};

    fn job(text: &str, line: &str) -> Result<JobCreate> {
        let words = ["copal", "job", "submit"].into_iter().chain(line.split_whitespace()).map(Into::into);
        let Command::Job(job::Command::Submit(submit)) =
            Cli::try_parse_from(crate::argv::rewrite(words)).unwrap().command
        else {
            panic!("not a submit")
        };
        let files = Files { folder: "/site/scripts/train-17".into(), key: "train-17".into(), number: 17 };
        template(&Script::parse(text).unwrap(), &files, &submit)
    }

    #[test]
    fn the_app_is_a_good_app() {
        let app = app_file::App::new(serde_saphyr::from_str(APP_FILE).unwrap()).unwrap();
        let given = StringMap::from([("script".to_owned(), "../x; y".to_owned())]);
        let command = app.command(&given).unwrap();
        assert!(command.contains("basename -- '../x; y'"), "{command}");
    }

    #[test]
    fn a_script_takes_what_it_asks_for() {
        let made =
            job("#SBATCH -n 4 -c 2 --gres=gpu:1 --mem=1G -t 30 -a 0-3 -d afterok:3,afterany:4\n", "train.sh").unwrap();
        assert_eq!(made.workdir, "scripts/train-17/{index}");
        assert_eq!((made.num_nodes, made.ranks_per_node, made.threads_per_rank), (1, 1, 8));
        assert_eq!((made.gpus_per_rank, made.mem_mb, made.node_packing_count), (1.0, Some(1024), SHARED));
        assert_eq!((made.walltime_limit_min, made.max_restarts), (Some(30), Some(0)));
        assert_eq!((made.parent_ids, made.dependencies.len()), (vec![JobId(3)], 1));
        assert_eq!(made.parameters["task"], "{index}");
        let made = job("#SBATCH -N 2 --requeue\n", "train.sh -w here --parent 5").unwrap();
        assert_eq!((made.num_nodes, made.node_packing_count, made.max_restarts), (2, 1, None));
        assert_eq!((made.workdir.as_str(), made.parent_ids), ("here", vec![JobId(5)]));
    }
}
