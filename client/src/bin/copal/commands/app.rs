//! `copal app sync|ls|show|rm`

use copal_client::{
    Client, SiteDir,
    api::JobQuery,
    app_file::{self, quote},
};
use copal_schemas::{
    SiteId, StringMap,
    app::{App, AppCreate, AppHooks, AppPatch},
    site::Site,
};
use serde::Serialize;

use super::agent;
use crate::{
    context::{Context, SelectedSites},
    failure::{Failure, Result, chain, one_line},
    human::count,
    prompt,
    table::{Table, cell, maybe},
};

/// What became of one App in the service's index.
#[derive(Debug, Serialize)]
pub(super) struct Synced {
    app: String,
    change: Change,
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Added,
    Changed,
    Unchanged,
    Removed,
    /// Its file is gone, but Jobs of it are not.
    Gone,
}

impl Change {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Gone => "gone",
        }
    }
}

pub(super) async fn sync(context: Context, site: Option<&str>) -> Result<()> {
    let client = context.client()?;
    let (folder, site_id) = folder_of(context, &client, site).await?;
    let synced = push(&client, &folder, site_id).await?;
    // A Site without an agent learns of its Apps when it gets one.
    agent::wake(&folder);
    show_synced(context, &synced)
}

/// The folder of the Site that is meant, which must be on this machine.
pub(super) async fn folder_of(context: Context, client: &Client, selector: Option<&str>) -> Result<(SiteDir, SiteId)> {
    let site = context.one_site(client, selector.or(Some("this"))).await?;
    if let Some(folder) = SiteDir::find()
        && folder.settings().is_ok_and(|settings| settings.site_id == site.id)
    {
        return Ok((folder, site.id));
    }
    let folder = SiteDir::new(&site.path);
    match folder.settings() {
        Ok(settings) if settings.site_id == site.id => Ok((folder, site.id)),
        Ok(_) => Err(Failure::new(format!("{} belongs to another Site than {}", site.path, site.name))),
        Err(_) if !folder.settings_path().exists() => {
            Err(Failure::new(format!("{}, the folder of the Site {}, is not on this machine", site.path, site.name))
                .hint("run the command where it is"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes the service's index of a Site's Apps equal to its files.
///
/// # Errors
/// When a file is wrong; then nothing is changed.
pub(super) async fn push(client: &Client, folder: &SiteDir, site_id: SiteId) -> Result<Vec<Synced>> {
    let (apps, errors) = folder.load_apps()?;
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(|error| one_line(&chain(error))).collect();
        return Err(
            Failure::new(lines.join("\nerror: ")).hint("correct that and run the command again; nothing was changed")
        );
    }
    let index = client.list_apps(&[site_id]).await?;
    let mut synced = Vec::new();
    // Files that the agent wrote for Apps of the API, and those Apps, are the agent's to keep equal.
    for (name, app) in apps.iter().filter(|(_, app)| app.made_for().is_none()) {
        let wanted = app.to_index(site_id);
        let (change, note) = match index.iter().find(|known| known.name == *name) {
            None => {
                client.create_app(&wanted).await?;
                (Change::Added, None)
            }
            Some(known) => match differences(known, &wanted) {
                different if different.is_empty() => (Change::Unchanged, None),
                different => {
                    client.update_app(known.id, &patch(wanted)).await?;
                    (Change::Changed, Some(different.join(", ")))
                }
            },
        };
        synced.push(Synced { app: name.clone(), change, note });
    }
    // Apps without a command were registered by Balsam's clients and have no file here.
    let has_file = |known: &App| known.remote.is_some() || apps.contains_key(&known.name);
    for known in index.iter().filter(|known| known.command.is_some() && !has_file(known)) {
        let jobs = client.count_jobs(&JobQuery { app_id: Some(known.id), ..JobQuery::default() }).await?;
        let (change, note) = if jobs == 0 {
            client.delete_app(known.id).await?;
            (Change::Removed, None)
        } else {
            if !known.gone {
                client.update_app(known.id, &AppPatch { gone: Some(true), ..AppPatch::default() }).await?;
            }
            (Change::Gone, Some(format!("kept for the sake of {}; new ones are refused", count(jobs, "Job"))))
        };
        synced.push(Synced { app: known.name.clone(), change, note });
    }
    Ok(synced)
}

/// Makes the service's index of one App equal to its file.
///
/// # Errors
/// [`Failure`]
pub(super) async fn push_one(client: &Client, site_id: SiteId, wanted: AppCreate) -> Result<App> {
    let known = client.list_apps(&[site_id]).await?.into_iter().find(|known| known.name == wanted.name);
    Ok(match known {
        None => client.create_app(&wanted).await?,
        Some(known) if differences(&known, &wanted).is_empty() => known,
        Some(known) => client.update_app(known.id, &patch(wanted)).await?,
    })
}

/// Deletes an App and its Jobs from the service.
pub(super) async fn rm(context: Context, name: &str, site: Option<&str>, yes: bool) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, site).await?;
    let app = sites.app(&client, name).await?;
    let jobs = client.count_jobs(&JobQuery { app_id: Some(app.id), ..JobQuery::default() }).await?;
    let site_name = sites.name(app.site_id);
    let question = format!(
        "Delete the App {} ({}) of {site_name} with {} from the service?",
        app.name,
        app.id,
        count(jobs, "Job")
    );
    prompt::confirm_change(&question, yes)?;
    client.delete_app(app.id).await?;
    if context.out.is_data() {
        return context.out.value(&app);
    }
    if app.remote.is_some() {
        context.out.talk(&format!("Deleted the App {}. The Site's agent removes its file.", app.name));
        return Ok(());
    }
    context.out.talk(&format!(
        "Deleted the App {}. While apps/{}.yml is there, `copal app sync` brings it back.",
        app.name, app.name
    ));
    Ok(())
}

/// Prints what changed.
pub(super) fn show_synced(context: Context, synced: &[Synced]) -> Result<()> {
    context.out.data(&synced, "The Site has no Apps; write one to apps/NAME.yml.", || synced_table(synced))
}

fn synced_table(synced: &[Synced]) -> Table {
    let mut table = Table::new(["APP", "CHANGE", "NOTE"]);
    for app in synced {
        table.row([cell(&app.app), cell(app.change.as_str()), cell(app.note.as_deref().unwrap_or_default())]);
    }
    table
}

/// What of an App is in its file another than in the index, by the names of the file; and that there is one again.
fn differences(known: &App, wanted: &AppCreate) -> Vec<&'static str> {
    let parts = [
        (known.description == wanted.description, "description"),
        (known.command == wanted.command, "command"),
        (known.parameters == wanted.parameters, "parameters"),
        (known.transfers == wanted.transfers, "transfers"),
        (known.hooks == wanted.hooks, "hooks"),
        (known.max_restarts == wanted.max_restarts, "max_restarts"),
        (known.serialized_class == wanted.serialized_class, "serialized_class"),
        (known.source_code == wanted.source_code, "source_code"),
        (!known.gone, "its file is back"),
        (known.remote.is_none(), "the Site has a file of its own"),
    ];
    parts.into_iter().filter(|(is_same, _)| !is_same).map(|(_, name)| name).collect()
}

fn patch(wanted: AppCreate) -> AppPatch {
    AppPatch {
        site_id: None,
        name: None,
        serialized_class: Some(wanted.serialized_class),
        source_code: Some(wanted.source_code),
        description: Some(wanted.description),
        parameters: Some(wanted.parameters),
        transfers: Some(wanted.transfers),
        command: Some(wanted.command),
        hooks: Some(wanted.hooks),
        max_restarts: Some(wanted.max_restarts),
        gone: Some(false),
        remote: Some(wanted.remote),
        refusal: None,
    }
}

pub(super) async fn ls(context: Context, site: Option<&str>) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, site).await?;
    let apps = client.list_apps(&sites.ids).await?;
    context.out.data(&apps, "No Apps; write one to a Site's apps folder and run `copal app sync`.", || {
        list_table(&apps, &sites)
    })
}

fn list_table(apps: &[App], sites: &SelectedSites) -> Table {
    let mut table = Table::new(["ID", "NAME", "SITE", "PARAMETERS", "HOOKS", "DESCRIPTION"]);
    for app in apps {
        table.row([
            cell(app.id),
            cell(&app.name),
            cell(sites.name(app.site_id)),
            cell(parameters(app)),
            cell(hooks(app.hooks).join(" ")),
            cell(match (app.gone, &app.refusal) {
                (true, _) => format!("(gone) {}", app.description),
                (false, Some(_)) => format!("(refused) {}", app.description),
                (false, None) => app.description.clone(),
            }),
        ]);
    }
    table
}

/// `name tail=x`: a parameter with its default where it has one.
fn parameters(app: &App) -> String {
    let one = |(name, parameter): (&String, &copal_schemas::app::AppParameter)| match &parameter.default {
        Some(default) if !parameter.required => format!("[{name}={default}]"),
        _ => name.clone(),
    };
    app.parameters.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn hooks(hooks: AppHooks) -> Vec<&'static str> {
    let all = [
        (hooks.preprocess, "preprocess"),
        (hooks.postprocess, "postprocess"),
        (hooks.handle_error, "handle_error"),
        (hooks.handle_timeout, "handle_timeout"),
    ];
    all.into_iter().filter(|(declared, _)| *declared).map(|(_, name)| name).collect()
}

/// Shows an App, or the command that it runs for given parameters.
pub(super) async fn show(context: Context, name: &str, given: &[(String, String)], site: Option<&str>) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, site).await?;
    let app = sites.app(&client, name).await?;
    if given.is_empty() {
        return context.out.data(&app, "", || show_table(&app, &sites));
    }
    let run = Run::of(&app, sites.selected().find(|site| site.id == app.site_id), given)?;
    if context.out.is_data() {
        return context.out.value(&run);
    }
    context.out.talk(&match &run.file {
        Some(file) => format!("What {file} runs:"),
        None if app.remote.is_some() => "What the Site's agent is to write into its file:".into(),
        None => "What the service's index says; environment and preamble are only in the Site's file:".into(),
    });
    context.out.text(&run.script())
}

/// What a Job of an App would run.
#[derive(Debug, Serialize)]
struct Run {
    app: String,
    /// The App's file, where it is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    environment: StringMap,
    #[serde(skip_serializing_if = "Option::is_none")]
    preamble: Option<String>,
    command: String,
}

impl Run {
    /// By the App's file where the Site is on this machine, since that is what runs; else by the index.
    fn of(app: &App, site: Option<&Site>, given: &[(String, String)]) -> Result<Self> {
        let path = site.and_then(folder_here).map(|folder| folder.app_file(&app.name)).filter(|path| path.exists());
        let loaded = match (&path, app_file::App::from_index(app)) {
            (Some(path), _) => app_file::App::load(path)?,
            (None, Some(loaded)) => {
                loaded.map_err(|(field, message)| Failure::new(format!("App {}: {field}: {message}", app.name)))?
            }
            (None, None) => {
                return Err(Failure::new(format!("{} is a Python class of Balsam and has no command", app.name)));
            }
        };
        let command = loaded.command(&given.iter().cloned().collect())?;
        let spec = loaded.spec();
        Ok(Self {
            app: app.name.clone(),
            file: path.map(|path| path.display().to_string()),
            environment: spec.environment.clone(),
            preamble: spec.preamble.clone(),
            command,
        })
    }

    /// The same as lines for Bash.
    fn script(&self) -> String {
        let mut lines: Vec<String> =
            self.environment.iter().map(|(name, value)| format!("export {name}={}", quote(value))).collect();
        lines.extend(self.preamble.as_deref().map(|text| text.trim_end().to_owned()));
        lines.push(self.command.trim_end().to_owned());
        lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// The folder of a Site, where it is on this machine.
fn folder_here(site: &Site) -> Option<SiteDir> {
    let folder = SiteDir::new(&site.path);
    folder.settings().is_ok_and(|settings| settings.site_id == site.id).then_some(folder)
}

fn show_table(app: &App, sites: &SelectedSites) -> Table {
    let mut table = Table::bare();
    table.field("App", cell(format!("{} ({})", app.name, app.id)));
    table.field("Site", cell(sites.name(app.site_id)));
    if app.gone {
        let file = format!("apps/{}.yml is gone from the Site; kept for the sake of its Jobs", app.name);
        table.field("Gone", cell(file));
    }
    if app.remote.is_some() {
        table.field("Made", cell("through the API"));
    }
    if let Some(refusal) = &app.refusal {
        table.field("Refused", cell(refusal));
    }
    if !app.description.is_empty() {
        table.field("Description", cell(&app.description));
    }
    table.field(
        "Command",
        maybe(app.command.as_deref().or(Some("a Python class of Balsam").filter(|_| !app.serialized_class.is_empty()))),
    );
    for (name, parameter) in &app.parameters {
        let mut text = match &parameter.default {
            Some(default) if !parameter.required => format!("default {default:?}"),
            _ => String::from("required"),
        };
        if !parameter.choices.is_empty() {
            text.push_str(&format!(", one of {}", parameter.choices.join(", ")));
        }
        if !parameter.help.is_empty() {
            text.push_str(&format!(": {}", parameter.help));
        }
        table.field(&format!("-p {name}"), cell(text));
    }
    for (name, slot) in &app.transfers {
        let direction = match slot.direction {
            copal_schemas::transfer::Direction::In => "in",
            copal_schemas::transfer::Direction::Out => "out",
        };
        let need = if slot.required { "required" } else { "optional" };
        table.field(
            &format!("-s {name}"),
            cell(format!("{direction}, {need}: {} {}", slot.local_path, slot.description)),
        );
    }
    table.field("Hooks", maybe(Some(hooks(app.hooks).join(" ")).filter(|hooks| !hooks.is_empty())));
    table.field(
        "Restarts",
        cell(app.max_restarts.map_or("none after an error, any number after a time-out".into(), |max| max.to_string())),
    );
    table
}

#[cfg(test)]
mod tests {
    use copal_client::app_file;
    use copal_schemas::AppId;

    use super::*;
    use crate::table::at_both_widths;

    const HELLO: &str = "name: Hello\ndescription: Say hello.\ncommand: 'echo Hello, {{name}}! {{{tail}}}'\n\
        parameters: {name: {required: true, help: whom to greet}, tail: {default: ''}}\n\
        hooks: {postprocess: ./collect.sh}\n";

    fn hello() -> (AppCreate, App) {
        let wanted = app_file::App::new(serde_saphyr::from_str(HELLO).unwrap()).unwrap().to_index(SiteId(1));
        let known = App {
            site_id: SiteId(1),
            name: wanted.name.clone(),
            serialized_class: String::new(),
            source_code: String::new(),
            description: wanted.description.clone(),
            parameters: wanted.parameters.clone(),
            transfers: wanted.transfers.clone(),
            id: AppId(7),
            command: wanted.command.clone(),
            hooks: wanted.hooks,
            max_restarts: wanted.max_restarts,
            gone: false,
            remote: None,
            refusal: None,
        };
        (wanted, known)
    }

    #[test]
    fn an_app_is_unchanged_until_anything_of_it_changes() {
        let (mut wanted, known) = hello();
        assert!(differences(&known, &wanted).is_empty());
        wanted.max_restarts = Some(2);
        wanted.hooks.preprocess = true;
        assert_eq!(differences(&known, &wanted), ["hooks", "max_restarts"]);
    }

    #[test]
    fn the_command_is_shown_as_it_would_run() {
        let (_, app) = hello();
        let given = [("name".to_owned(), "big world; exit".to_owned())];
        let run = Run::of(&app, None, &given).unwrap();
        assert_eq!(run.script(), "echo Hello, 'big world; exit'! \n".replace(" \n", "\n"));
        let failure = Run::of(&app, None, &[("tail".into(), "x".into())]).unwrap_err();
        assert!(failure.lines().contains("name"), "{}", failure.lines());
        let run = Run {
            app: "X".into(),
            file: None,
            environment: [("A".to_owned(), "b c".to_owned())].into(),
            preamble: Some("module load gcc\n".into()),
            command: "run".into(),
        };
        assert_eq!(run.script(), "export A='b c'\nmodule load gcc\nrun\n");
    }

    #[test]
    fn apps_are_shown_with_their_parameters() {
        let (_, app) = hello();
        let sites = SelectedSites { all: Vec::new(), ids: Vec::new() };
        let text = show_table(&app, &sites).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r#"
        App          Hello (7)
        Site         1
        Description  Say hello.
        Command      echo Hello, {{name}}! {{{tail}}}
        -p name      required: whom to greet
        -p tail      default ""
        Hooks        postprocess
        Restarts     none after an error, any number after a time-out
        "#);
        let text = list_table(&[app], &sites).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        ID  NAME   SITE  PARAMETERS    HOOKS        DESCRIPTION
        7   Hello  1     name [tail=]  postprocess  Say hello.
        ");
        let (_, app) = hello();
        insta::assert_snapshot!(at_both_widths(|| list_table(std::slice::from_ref(&app), &sites)));
        insta::assert_snapshot!(at_both_widths(|| show_table(&app, &sites)));
    }

    #[test]
    fn a_sync_shows_what_it_changed() {
        let synced =
            |app: &str, change, note: Option<&str>| Synced { app: app.into(), change, note: note.map(Into::into) };
        let all = [
            synced("Hello", Change::Unchanged, None),
            synced("Relax", Change::Added, None),
            synced(
                "Simulate",
                Change::Changed,
                Some("description, command, parameters, transfers, hooks, max_restarts"),
            ),
            synced("Old", Change::Gone, Some("kept for the sake of 200000 Jobs; new ones are refused")),
            synced("Unused", Change::Removed, None),
        ];
        insta::assert_snapshot!(at_both_widths(|| synced_table(&all)));
    }
}
