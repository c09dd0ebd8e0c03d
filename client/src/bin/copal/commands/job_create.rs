//! `copal job create`: one Job, an array of them, a row of a table each, or a line of a file of commands each.

use std::{collections::BTreeMap, path::Path};

use copal_client::Client;
use copal_schemas::{
    AppId, JobId, StringMap,
    app::{App, fill_parameters},
    job::{JobCreate, check_workdir},
    site::Site,
    transfer::TransferLocation,
};
use serde_json::json;

use super::{job_rows::Reader, script_app};
use crate::{
    args::job::Create,
    array::{ArraySpec, fill, has_index},
    bulk,
    context::{Context, SelectedSites},
    failure::{Failure, Result},
    human::count,
    ids::Shortest,
    output::is_interactive,
    prompt, rows,
    table::{Table, cell, pairs},
};

/// Bad rows that a failure lists.
const SHOWN_ROWS: usize = 50;

pub(super) async fn create(context: Context, create: &Create) -> Result<()> {
    let client = context.client()?;
    if let Some(file) = &create.commands {
        return script_app::create_commands(context, &client, create, file).await;
    }
    let sites = context.sites(&client, create.site.site.as_deref()).await?;
    let plan = match (&create.from, &create.app) {
        (Some(file), _) => from_rows(context, &client, create, &sites, file).await?,
        (None, Some(app)) => {
            let app = sites.app(&client, app).await?;
            let site = sites.selected().find(|site| site.id == app.site_id);
            Plan::new(create, &app, site)?
        }
        (None, None) => return Err(Failure::usage("which App?").hint("add -a APP")),
    };
    carry_out(context, &client, &plan, create.dry_run, create.yes.yes).await
}

/// Shows a plan, asks, and creates its Jobs.
pub(super) async fn carry_out(context: Context, client: &Client, plan: &Plan, dry_run: bool, yes: bool) -> Result<()> {
    if dry_run {
        return plan.show(context);
    }
    if is_interactive() && !yes {
        context.out.talk(plan.table()?.render(context.out.width()).trim_end());
    }
    let question = match plan.count() {
        1 => "Create this Job?".into(),
        count => format!("Create {count} Jobs?"),
    };
    prompt::confirm_creation(&question, yes)?;
    let mut records = context.out.is_data().then(|| context.out.records());
    let ids = bulk::create_all(
        client,
        plan.count(),
        plan.jobs(),
        |index| plan.place(index),
        |jobs| records.as_mut().map_or(Ok(()), |records| records.write(&jobs)),
    )
    .await?;
    if let Some(records) = records {
        return records.finish();
    }
    match &ids[..] {
        [id] => context.out.talk(&format!("Created Job {id} of {} in {}.", plan.app, plan.job(0)?.workdir)),
        ids => context.out.talk(&format!("Created {} Jobs of {}.", ids.len(), plan.app)),
    }
    context.out.text(&format!("{}\n", Shortest::of(ids)))
}

/// The Jobs of a table's rows.
async fn from_rows(
    context: Context,
    client: &Client,
    create: &Create,
    sites: &SelectedSites,
    file: &Path,
) -> Result<Plan> {
    let rows = rows::read(file)?;
    let mut apps = client.list_apps(&sites.ids).await?;
    apps.retain(|app| sites.ids.contains(&app.site_id));
    let default_app = match &create.app {
        Some(app) => Some(sites.app(client, app).await?),
        None => None,
    };
    let mut template = template(create, default_app.as_ref().map_or(AppId(0), |app| app.id));
    if let Some(app) = &default_app {
        template.transfers = transfers(&create.transfers, app, sites.selected().find(|site| site.id == app.site_id))?;
    }
    let reader = Reader {
        apps: &apps,
        default_app: default_app.as_ref(),
        template: &template,
        has_workdir: create.workdir.is_some(),
    };
    let (jobs, bad) = reader.read(rows);
    if !bad.is_empty() {
        let mut lines: Vec<String> = bad
            .iter()
            .take(SHOWN_ROWS)
            .map(|row| format!("{}, line {}: {}", file.display(), row.line, row.message))
            .collect();
        if bad.len() > SHOWN_ROWS {
            lines.push(format!("and {} more", count(bad.len() as i64 - SHOWN_ROWS as i64, "bad row")));
        }
        if !create.skip_bad {
            return Err(Failure::new(lines.join("\nerror: "))
                .hint("correct that; nothing was created. --skip-bad leaves those rows out"));
        }
        lines.iter().for_each(|line| context.out.warn(&format!("left out: {line}")));
    }
    if jobs.is_empty() {
        return Err(Failure::new(format!("{} has no row that makes a Job", file.display())));
    }
    let mut names: Vec<&str> = jobs
        .iter()
        .filter_map(|row| apps.iter().find(|app| app.id == row.job.app_id))
        .map(|app| app.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    let (app, site) = (names.join(", "), site_names(sites, &apps, jobs.iter().map(|row| row.job.app_id)));
    let lines = jobs.iter().map(|row| row.line).collect();
    Ok(Plan { app, site, jobs: Jobs::Rows { jobs: jobs.into_iter().map(|row| row.job).collect(), lines } })
}

/// The names of the Sites of these Apps.
fn site_names(sites: &SelectedSites, apps: &[App], ids: impl Iterator<Item = AppId>) -> String {
    let mut names: Vec<String> =
        ids.filter_map(|id| apps.iter().find(|app| app.id == id)).map(|app| sites.name(app.site_id)).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

/// What the options say of every Job.
pub(super) fn template(create: &Create, app_id: AppId) -> JobCreate {
    JobCreate {
        tags: create.tags.iter().cloned().collect(),
        num_nodes: create.num_nodes,
        ranks_per_node: create.ranks_per_node,
        threads_per_rank: create.threads_per_rank,
        threads_per_core: create.threads_per_core,
        launch_params: create.launch_params.iter().cloned().collect(),
        gpus_per_rank: create.gpus_per_rank,
        node_packing_count: create.node_packing_count,
        wall_time_min: create.wall_time_min,
        parent_ids: create.parents.iter().flat_map(|list| list.ids()).map(JobId).collect(),
        parameters: create.parameters.iter().cloned().collect(),
        priority: create.priority,
        mem_mb: create.mem_mb,
        walltime_limit_min: create.walltime_limit_min,
        max_restarts: create.max_restarts,
        ..JobCreate::new(app_id, create.workdir.clone().unwrap_or_default())
    }
}

/// The Jobs that are to be made, checked as far as it goes without the service.
pub(super) struct Plan {
    /// The names of their Apps.
    pub(super) app: String,
    /// The names of their Sites.
    pub(super) site: String,
    /// The Jobs.
    pub(super) jobs: Jobs,
}

/// How the Jobs of a plan are written down.
pub(super) enum Jobs {
    /// One.
    One(Box<JobCreate>),
    /// One for each index, which is filled in.
    Array(Box<JobCreate>, ArraySpec),
    /// Rows, and their lines in the file.
    Rows {
        /// The Jobs.
        jobs: Vec<JobCreate>,
        /// The line of each.
        lines: Vec<usize>,
    },
}

/// Says that an array can't be held to so many Jobs at once.
pub(super) fn refuse_limit(array: &ArraySpec) -> Result<()> {
    match array.at_once {
        None => Ok(()),
        Some(most) => Err(Failure::usage(format!("the service can't hold an array to {most} Jobs at once (%{most})"))
            .hint(format!(
                "leave %{most} out; fewer nodes (`copal queue submit -n`) or a smaller -npc limit what runs at once"
            ))),
    }
}

impl Plan {
    fn new(create: &Create, app: &App, site: Option<&Site>) -> Result<Self> {
        let template =
            JobCreate { transfers: transfers(&create.transfers, app, site)?, ..self::template(create, app.id) };
        template.shape().validate().map_err(|error| Failure::usage(error.to_string()))?;
        match app.command {
            Some(_) => {
                fill_parameters(&app.parameters, &template.parameters)
                    .map_err(|message| Failure::new(format!("App {}: {message}", app.name)))?;
            }
            None if !template.parameters.is_empty() => {
                return Err(Failure::usage(format!("the parameters of {} are Python objects", app.name))
                    .hint("create its Jobs with Balsam's Python client"));
            }
            None => {}
        }
        let jobs = match &create.array {
            Some(array) if !has_index(&template.workdir) => {
                return Err(Failure::usage(format!(
                    "all {} Jobs of the array would have the folder {:?}",
                    array.len(),
                    template.workdir
                ))
                .hint("write {index} into it, such as -w 'run/{index:06}'"));
            }
            Some(array) => {
                refuse_limit(array)?;
                Jobs::Array(Box::new(template), array.clone())
            }
            None => Jobs::One(Box::new(template)),
        };
        let plan = Self {
            app: app.name.clone(),
            site: site.map_or_else(|| app.site_id.to_string(), |site| site.name.clone()),
            jobs,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Names the App of the Jobs, where it was not known before.
    pub(super) fn set_app(&mut self, app_id: AppId) {
        match &mut self.jobs {
            Jobs::One(job) | Jobs::Array(job, _) => job.app_id = app_id,
            Jobs::Rows { jobs, .. } => jobs.iter_mut().for_each(|job| job.app_id = app_id),
        }
    }

    /// Makes every Job once, so that nothing is sent of a plan that has a bad one.
    pub(super) fn check(&self) -> Result<()> {
        match &self.jobs {
            Jobs::One(_) => self.job(0).map(drop),
            Jobs::Array(template, array) => array.indices().try_for_each(|index| of_index(template, index).map(drop)),
            Jobs::Rows { .. } => Ok(()),
        }
    }

    /// How many Jobs there are.
    fn count(&self) -> usize {
        match &self.jobs {
            Jobs::One(_) => 1,
            Jobs::Array(_, array) => usize::try_from(array.len()).unwrap_or(usize::MAX),
            Jobs::Rows { jobs, .. } => jobs.len(),
        }
    }

    /// One Job of the plan by its number.
    fn job(&self, number: usize) -> Result<JobCreate> {
        match &self.jobs {
            Jobs::One(job) => checked(job.as_ref().clone()),
            Jobs::Array(template, array) => {
                let index = array.indices().nth(number).ok_or_else(|| Failure::new("the array is shorter"))?;
                of_index(template, index)
            }
            Jobs::Rows { jobs, .. } => jobs.get(number).cloned().ok_or_else(|| Failure::new("the table is shorter")),
        }
    }

    /// All of them. A plan is checked, so none is missing.
    fn jobs(&self) -> Box<dyn Iterator<Item = JobCreate> + '_> {
        match &self.jobs {
            Jobs::One(_) => Box::new(self.job(0).into_iter()),
            Jobs::Array(template, array) => {
                Box::new(array.indices().filter_map(|index| of_index(template, index).ok()))
            }
            Jobs::Rows { jobs, .. } => Box::new(jobs.iter().cloned()),
        }
    }

    /// What people call a Job of the plan.
    fn place(&self, number: usize) -> Option<String> {
        match &self.jobs {
            Jobs::Rows { lines, .. } => lines.get(number).map(|line| format!("line {line}")),
            Jobs::One(_) | Jobs::Array(..) => None,
        }
    }

    /// What would be made.
    fn show(&self, context: Context) -> Result<()> {
        let (first, last) = (self.job(0)?, self.job(self.count() - 1)?);
        if context.out.is_data() {
            return context.out.value(&json!({"count": self.count(), "first": first, "last": last}));
        }
        context.out.text(&self.table()?.render(context.out.width()))
    }

    /// The Jobs as they are asked about: the first, the last where there are several, and how many.
    fn table(&self) -> Result<Table> {
        let first = self.job(0)?;
        let mut table = Table::bare();
        table.field("App", cell(&self.app));
        table.field("Site", cell(&self.site));
        if self.count() == 1 {
            describe(&mut table, &first, "");
            return Ok(table);
        }
        table.field("Jobs", cell(self.count()));
        describe(&mut table, &first, "First: ");
        describe(&mut table, &self.job(self.count() - 1)?, "Last: ");
        Ok(table)
    }
}

fn describe(table: &mut Table, job: &JobCreate, which: &str) {
    table.field(&format!("{which}folder"), cell(&job.workdir));
    for (name, map) in [("parameters", &job.parameters), ("tags", &job.tags)] {
        if !map.is_empty() {
            table.field(&format!("{which}{name}"), cell(pairs(map)));
        }
    }
    table.field(&format!("{which}resources"), cell(super::job_show::shape(&job.shape())));
    if !job.parent_ids.is_empty() {
        table.field(&format!("{which}parents"), cell(Shortest::of(job.parent_ids.iter().map(|id| id.0))));
    }
}

/// The Job of one index of an array.
fn of_index(template: &JobCreate, index: i64) -> Result<JobCreate> {
    let filled = |text: &str| fill(text, index).map_err(Failure::usage);
    let filled_map = |map: &StringMap| {
        map.iter().map(|(key, value)| Ok((key.clone(), filled(value)?))).collect::<Result<StringMap>>()
    };
    checked(JobCreate {
        workdir: filled(&template.workdir)?,
        parameters: filled_map(&template.parameters)?,
        tags: filled_map(&template.tags)?,
        ..template.clone()
    })
}

fn checked(mut job: JobCreate) -> Result<JobCreate> {
    job.workdir = check_workdir(&job.workdir).map_err(Failure::usage)?;
    Ok(job)
}

/// Reads `SLOT=LOCATION:/PATH` against what App and Site declare.
fn transfers(given: &[(String, String)], app: &App, site: Option<&Site>) -> Result<BTreeMap<String, TransferLocation>> {
    let mut transfers = BTreeMap::new();
    for (slot, place) in given {
        if !app.transfers.contains_key(slot) {
            let slots: Vec<&str> = app.transfers.keys().map(String::as_str).collect();
            return Err(Failure::usage(format!("the App {} has no transfer slot {slot:?}", app.name))
                .hint(if slots.is_empty() { "it has none".into() } else { format!("it has {}", slots.join(", ")) }));
        }
        let Some((location_alias, path)) = place.split_once(':').filter(|(_, path)| path.starts_with('/')) else {
            return Err(
                Failure::usage(format!("{place:?} is not LOCATION:/PATH")).hint("write it as -s SLOT=LOCATION:/PATH")
            );
        };
        if let Some(site) = site
            && !site.details.transfer_locations.contains_key(location_alias)
        {
            return Err(Failure::usage(format!("the Site {} has no location {location_alias:?}", site.name))
                .hint("add it to transfer_locations in its settings.yml and run `copal site sync`"));
        }
        transfers.insert(slot.clone(), TransferLocation { location_alias: location_alias.into(), path: path.into() });
    }
    let missing = app.transfers.iter().find(|(name, slot)| slot.required && !transfers.contains_key(*name));
    match missing {
        Some((name, _)) => Err(Failure::usage(format!("the App {} needs to know where {name} is", app.name))
            .hint(format!("add -s {name}=LOCATION:/PATH"))),
        None => Ok(transfers),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use copal_schemas::{AppId, SiteId, app::AppHooks};

    use super::*;
    use crate::args::{Cli, Command, job};

    fn sim() -> App {
        let yaml = "name: Sim\ncommand: 'sim {{seed}} {{mode}}'\n\
                    parameters: {seed: {required: true}, mode: {default: fast, choices: [fast, slow]}}\n\
                    transfers: {input: {direction: in, required: false, local_path: input.dat}}\n";
        let index =
            copal_client::app_file::App::new(serde_saphyr::from_str(yaml).unwrap()).unwrap().to_index(SiteId(1));
        App {
            site_id: SiteId(1),
            name: index.name,
            serialized_class: String::new(),
            source_code: String::new(),
            description: String::new(),
            parameters: index.parameters,
            transfers: index.transfers,
            id: AppId(7),
            command: index.command,
            hooks: AppHooks::default(),
            max_restarts: None,
        }
    }

    fn plan(line: &str) -> Result<Plan> {
        let words =
            ["copal", "job", "create", "-a", "Sim"].map(String::from).into_iter().chain(shlex::split(line).unwrap());
        match Cli::try_parse_from(crate::argv::rewrite(words.map(Into::into))).unwrap().command {
            Command::Job(job::Command::Create(create)) => Plan::new(&create, &sim(), None),
            _ => panic!("not a create"),
        }
    }

    #[test]
    fn a_missing_parameter_is_named_before_anything_is_sent() {
        let failure = plan("-w x").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r#"error: App Sim: missing parameter "seed"; give it as -p seed=VALUE"#);
        assert_eq!(failure.exit_code(), crate::failure::FAILED);
        let failure = plan("-w x -p seed=1 -p mode=wild").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r#"error: App Sim: parameter mode: "wild" is not one of fast, slow"#);
    }

    #[test]
    fn an_array_has_a_folder_a_job() {
        let plan =
            plan("--array 0-20:10 -w 's/{index:03}' -p seed={index} --tag 'seed=s{index}' -rpn 4 -npc 2").unwrap();
        let jobs: Vec<JobCreate> = plan.jobs().collect();
        let folders: Vec<&str> = jobs.iter().map(|job| job.workdir.as_str()).collect();
        assert_eq!(folders, ["s/000", "s/010", "s/020"]);
        assert_eq!(jobs[2].parameters["seed"], "20");
        assert_eq!(jobs[1].tags["seed"], "s10");
        assert_eq!((jobs[0].ranks_per_node, jobs[0].node_packing_count), (4, 2));
        assert_eq!(plan.count(), 3);
    }

    #[test]
    fn what_can_never_run_is_refused_here() {
        for line in [
            "-w /abs -p seed=1",
            "-w ../x -p seed=1",
            "-w x -n 0 -p seed=1",
            "--array 0-9 -w x -p seed=1",
            "-w x -p seed=1 -s output=home:/x",
            "-w x -p seed=1 -s input=/x",
        ] {
            assert_eq!(plan(line).err().unwrap().exit_code(), crate::failure::USAGE, "{line}");
        }
    }

    #[test]
    fn a_job_is_shown_before_it_is_made() {
        let plan = plan("-w demo/1 -p seed=1 --tag system=H2O -n 2 -rpn 4 --parent 3-5").unwrap();
        let text = plan.table().unwrap().render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        App         Sim
        Site        1
        folder      demo/1
        parameters  seed=1
        tags        system=H2O
        resources   2 nodes, 4 ranks a node
        parents     3-5
        ");
        let plan = super::tests::plan("--array 0-49999 -w 's/{index:05}' -p seed={index}").unwrap();
        let text = plan.table().unwrap().render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        App                Sim
        Site               1
        Jobs               50000
        First: folder      s/00000
        First: parameters  seed=0
        First: resources   1 node, 1 rank a node
        Last: folder       s/49999
        Last: parameters   seed=49999
        Last: resources    1 node, 1 rank a node
        ");
    }

    #[test]
    fn a_limit_that_can_not_be_kept_is_refused() {
        let failure = plan("--array 0-9%4 -w 's/{index}' -p seed=1").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r"
        error: the service can't hold an array to 4 Jobs at once (%4)
        hint: leave %4 out; fewer nodes (`copal queue submit -n`) or a smaller -npc limit what runs at once
        ");
    }
}
