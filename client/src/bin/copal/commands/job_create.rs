//! `copal job create`, for one Job or an array of them.

use std::{collections::BTreeMap, time::Duration};

use copal_client::{Client, ClientError};
use copal_schemas::{
    JobId, StringMap,
    app::{App, fill_parameters},
    job::{Job, JobCreate, check_workdir},
    page::MAX_BULK,
    site::Site,
    transfer::TransferLocation,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use uuid::Uuid;

use crate::{
    args::job::Create,
    array::{ArraySpec, fill, has_index},
    context::Context,
    failure::{Failure, Result},
    ids::Shortest,
    output::{is_interactive, terminal_width},
    prompt,
    table::{Table, cell, pairs},
};

/// Tries of one call while the service is away; the same key makes a second success impossible.
const TRIES: u32 = 6;

pub(super) async fn create(context: Context, create: &Create) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, create.site.site.as_deref()).await?;
    let app = sites.app(&client, &create.app).await?;
    let site = sites.selected().find(|site| site.id == app.site_id);
    let plan = Plan::new(create, &app, site)?;
    if create.dry_run {
        return plan.show(context, &app, site);
    }
    if is_interactive() && !create.yes.yes {
        context.out.talk(plan.table(&app, site)?.render(terminal_width()).trim_end());
    }
    let question = match plan.count() {
        1 => "Create this Job?".into(),
        count => format!("Create {count} Jobs?"),
    };
    prompt::confirm_creation(&question, create.yes.yes)?;
    let jobs = send_all(&client, &plan).await?;
    if context.out.is_json() {
        return context.out.json(&jobs);
    }
    let ids = Shortest::of(jobs.iter().map(|job| job.id.0));
    match &jobs[..] {
        [job] => context.out.talk(&format!("Created Job {} of {} in {}.", job.id, app.name, job.workdir)),
        jobs => context.out.talk(&format!("Created {} Jobs of {}.", jobs.len(), app.name)),
    }
    context.out.text(&format!("{ids}\n"))
}

/// The Jobs that are to be made, checked as far as it goes without the service.
struct Plan {
    template: JobCreate,
    array: Option<ArraySpec>,
}

impl Plan {
    fn new(create: &Create, app: &App, site: Option<&Site>) -> Result<Self> {
        let template = JobCreate {
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
            transfers: transfers(&create.transfers, app, site)?,
            parameters: create.parameters.iter().cloned().collect(),
            priority: create.priority,
            mem_mb: create.mem_mb,
            walltime_limit_min: create.walltime_limit_min,
            max_restarts: create.max_restarts,
            ..JobCreate::new(app.id, &create.workdir)
        };
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
        if create.array.is_some() && !has_index(&template.workdir) {
            return Err(Failure::usage(format!("all Jobs of the array would have the folder {:?}", template.workdir))
                .hint("write {index} into it, such as -w 'run/{index:06}'"));
        }
        let plan = Self { template, array: create.array };
        plan.indices().try_for_each(|index| plan.job(index).map(drop))?;
        Ok(plan)
    }

    /// How many Jobs there are.
    fn count(&self) -> u64 {
        self.array.map_or(1, |array| array.len().unsigned_abs())
    }

    /// The index of each Job; `None` for the one that is no array.
    fn indices(&self) -> Box<dyn Iterator<Item = Option<i64>>> {
        match self.array {
            Some(array) => Box::new(array.indices().map(Some)),
            None => Box::new(std::iter::once(None)),
        }
    }

    /// One Job of the plan.
    fn job(&self, index: Option<i64>) -> Result<JobCreate> {
        let mut job = self.template.clone();
        if let Some(index) = index {
            let filled = |text: &str| fill(text, index).map_err(Failure::usage);
            let filled_map = |map: &StringMap| {
                map.iter().map(|(key, value)| Ok((key.clone(), filled(value)?))).collect::<Result<StringMap>>()
            };
            job.workdir = filled(&job.workdir)?;
            job.parameters = filled_map(&job.parameters)?;
            job.tags = filled_map(&job.tags)?;
        }
        job.workdir = check_workdir(&job.workdir).map_err(Failure::usage)?;
        Ok(job)
    }

    /// What would be made.
    fn show(&self, context: Context, app: &App, site: Option<&Site>) -> Result<()> {
        let first = self.job(self.indices().next().flatten())?;
        let last = self.job(self.indices().last().flatten())?;
        if context.out.is_json() {
            return context.out.json(&json!({"count": self.count(), "first": first, "last": last}));
        }
        let mut table = self.table(app, site)?;
        table.field("Jobs", cell(self.count()));
        context.out.text(&table.render(terminal_width()))
    }

    /// The Jobs as they are asked about: the first, and of an array the last folder.
    fn table(&self, app: &App, site: Option<&Site>) -> Result<Table> {
        let first = self.job(self.indices().next().flatten())?;
        let mut table = Table::bare();
        table.field("App", cell(&app.name));
        table.field("Site", cell(site.map_or_else(|| app.site_id.to_string(), |site| site.name.clone())));
        match self.indices().last().flatten() {
            Some(last) => {
                table.field("Folders", cell(format!("{} to {}", first.workdir, self.job(Some(last))?.workdir)))
            }
            None => table.field("Folder", cell(&first.workdir)),
        }
        for (name, value) in [("Parameters", pairs(&first.parameters)), ("Tags", pairs(&first.tags))] {
            if !value.is_empty() {
                table.field(name, cell(value));
            }
        }
        table.field("Resources", cell(super::job_show::shape(&first.shape())));
        if !first.parent_ids.is_empty() {
            table.field("Parents", cell(Shortest::of(first.parent_ids.iter().map(|id| id.0))));
        }
        Ok(table)
    }
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

/// Creates the Jobs, as many in a call as the service takes.
async fn send_all(client: &Client, plan: &Plan) -> Result<Vec<Job>> {
    let bar = progress(plan.count());
    let mut created: Vec<Job> = Vec::new();
    let mut indices = plan.indices().peekable();
    while indices.peek().is_some() {
        let chunk = indices.by_ref().take(MAX_BULK).map(|index| plan.job(index)).collect::<Result<Vec<_>>>()?;
        match send(client, &chunk).await {
            Ok(jobs) => {
                bar.inc(jobs.len() as u64);
                created.extend(jobs);
            }
            Err(failure) if created.is_empty() => return Err(failure),
            Err(failure) => {
                bar.finish_and_clear();
                let ids = Shortest::of(created.iter().map(|job| job.id.0));
                return Err(failure.hint(format!(
                    "{} of {} Jobs were created before: {ids}",
                    created.len(),
                    plan.count()
                )));
            }
        }
    }
    bar.finish_and_clear();
    Ok(created)
}

async fn send(client: &Client, jobs: &[JobCreate]) -> Result<Vec<Job>> {
    let key = Uuid::new_v4();
    let mut tries = 0;
    loop {
        tries += 1;
        match client.create_jobs(jobs, key).await {
            // Who can't even connect at first is told at once; what broke after that is repeated.
            Err(error) if error.is_transient() && tries < TRIES && !(tries == 1 && is_away(&error)) => {
                tokio::time::sleep(Duration::from_millis(100 << tries)).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Whether nobody listens at the service's address.
fn is_away(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { source, .. } if source.is_connect())
}

fn progress(count: u64) -> ProgressBar {
    if count <= MAX_BULK as u64 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} Jobs, {per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(count).with_style(style)
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
        let jobs: Vec<JobCreate> = plan.indices().map(|index| plan.job(index).unwrap()).collect();
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
        let text = plan.table(&sim(), None).unwrap().render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        App         Sim
        Site        1
        Folder      demo/1
        Parameters  seed=1
        Tags        system=H2O
        Resources   2 nodes, 4 ranks a node
        Parents     3-5
        ");
    }
}
