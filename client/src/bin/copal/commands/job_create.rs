//! `copal job create`: one Job, an array of them, a row of a table each, or a line of a file of commands each.

use std::{collections::BTreeMap, path::Path};

use copal_client::Client;
use copal_schemas::{AppId, JobId, app::App, job::JobCreate, site::Site, transfer::TransferLocation};

use super::{
    job_rows::Reader,
    plan::{Jobs, Plan},
    script_app,
};
use crate::{
    args::job::Create,
    context::{Context, SelectedSites},
    failure::{Failure, Result},
    human::count,
    rows,
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
            of_options(create, &app, site)?
        }
        (None, None) => return Err(Failure::usage("which App?").hint("add -a APP")),
    };
    plan.carry_out(context, &client, create.dry_run, create.yes.yes).await
}

/// The Jobs of options alone.
fn of_options(create: &Create, app: &App, site: Option<&Site>) -> Result<Plan> {
    let transfers = transfers(&create.transfers, app, site)?;
    let template = JobCreate { transfers, ..template(create, app.id) };
    let site = site.map_or_else(|| app.site_id.to_string(), |site| site.name.clone());
    let plan = Plan::new(&app.name, &site, template, create.array.clone())?;
    plan.check_parameters(app)?;
    Ok(plan)
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
        return Err(Failure::new(format!("{} has no row that makes a Job", file.display()))
            .hint("a row for each Job is wanted, below the heading where the file is CSV"));
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
    use crate::{
        args::{Cli, Command, job},
        commands::plan::of_index,
        table::at_both_widths,
    };

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
            gone: false,
            remote: None,
            refusal: None,
        }
    }

    fn plan(line: &str) -> Result<Plan> {
        let words =
            ["copal", "job", "create", "-a", "Sim"].map(String::from).into_iter().chain(shlex::split(line).unwrap());
        match Cli::try_parse_from(crate::argv::rewrite(words.map(Into::into))).unwrap().command {
            Command::Job(job::Command::Create(create)) => of_options(&create, &sim(), None),
            _ => panic!("not a create"),
        }
    }

    #[test]
    fn a_missing_parameter_is_named_before_anything_is_sent() {
        let failure = plan("-w x").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r#"
        error: App Sim: missing parameter "seed"; give it as -p seed=VALUE
        hint: `copal app show Sim` lists its parameters
        "#);
        assert_eq!(failure.exit_code(), crate::failure::FAILED);
        let failure = plan("-w x/{index} -p seed={index} -p mode=fast{index} --array 0-9").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r#"
        error: App Sim: parameter mode: "fast0" is not one of fast, slow
        hint: `copal app show Sim` lists its parameters
        "#);
        let failure = plan("-w x -p seed=1 -p mode=wild").err().unwrap();
        insta::assert_snapshot!(failure.lines(), @r#"
        error: App Sim: parameter mode: "wild" is not one of fast, slow
        hint: `copal app show Sim` lists its parameters
        "#);
    }

    #[test]
    fn an_array_has_a_folder_a_job() {
        let plan =
            plan("--array 0-20:10 -w 's/{index:03}' -p seed={index} --tag 'seed=s{index}' -rpn 4 -npc 2").unwrap();
        let Jobs::Array { template, array, .. } = &plan.jobs else { panic!("no array") };
        let jobs: Vec<JobCreate> = array.indices().map(|index| of_index(template, index).unwrap()).collect();
        let folders: Vec<&str> = jobs.iter().map(|job| job.workdir.as_str()).collect();
        assert_eq!(folders, ["s/000", "s/010", "s/020"]);
        assert_eq!(jobs[2].parameters["seed"], "20");
        assert_eq!(jobs[1].tags["seed"], "s10");
        assert_eq!((jobs[0].ranks_per_node, jobs[0].node_packing_count), (4, 2));
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
        Folder      demo/1
        Parameters  seed=1
        Tags        system=H2O
        Resources   2 nodes, 4 ranks a node
        Parents     3-5
        ");
        let plan = super::tests::plan("--array 0-49999%200 -w 's/{index:05}' -p seed={index}").unwrap();
        insta::assert_snapshot!(at_both_widths(|| plan.table().unwrap()), @r"
        --- 80 columns
        App                Sim
        Site               1
        Jobs               50000
        At once            200
        First: folder      s/00000
        First: parameters  seed=0
        First: resources   1 node, 1 rank a node
        Last: folder       s/49999
        Last: parameters   seed=49999
        Last: resources    1 node, 1 rank a node
        --- 160 columns
        App                Sim
        Site               1
        Jobs               50000
        At once            200
        First: folder      s/00000
        First: parameters  seed=0
        First: resources   1 node, 1 rank a node
        Last: folder       s/49999
        Last: parameters   seed=49999
        Last: resources    1 node, 1 rank a node
        ");
    }
}
