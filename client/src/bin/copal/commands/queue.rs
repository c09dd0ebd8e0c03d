//! `copal queue submit|ls|show|rm`

use copal_client::{Client, ClientError};
use copal_schemas::{
    BatchJobId,
    batch_job::{BatchJob, BatchJobCreate, BatchJobPatch, BatchJobPatchItem, BatchJobState, JobMode},
    limits::Limits,
    site::Site,
};

use crate::{
    args::queue::{List, Submit},
    context::{Context, SelectedSites},
    failure::{Failure, Result},
    human::{Clock, count},
    ids::IdList,
    prompt,
    suggest::choice,
    table::{Table, batch_job_state, cell, maybe, pairs},
};

/// Hours for which `queue ls` shows a refused BatchJob, so that its reason is seen.
const REFUSED_SHOWN_HOURS: i64 = 24;

pub(super) async fn submit(context: Context, submit: &Submit) -> Result<()> {
    let client = context.client()?;
    let site = context.one_site(&client, submit.site.site.as_deref()).await?;
    let wanted = new_batch_job(submit, &site)?;
    allowed(&wanted, &site, waiting(&client, &wanted, &site).await?)?;
    let batch_job = client.create_batch_job(&wanted).await?;
    if let Some(reason) = batch_job.status_info.get("error").filter(|_| batch_job.state.is_over()) {
        // The limits changed, or somebody was quicker.
        return Err(refused(&site, reason));
    }
    if context.out.is_data() {
        return context.out.value(&batch_job);
    }
    context.out.talk(&format!(
        "BatchJob {} asks for {} for {} min at {}; `copal queue ls` shows how far it is.",
        batch_job.id,
        count(batch_job.num_nodes, "node"),
        batch_job.wall_time_min,
        site.name
    ));
    context.out.text(&format!("{}\n", batch_job.id))
}

fn new_batch_job(submit: &Submit, site: &Site) -> Result<BatchJobCreate> {
    let parts: i32 = submit.partitions.iter().map(|part| part.num_nodes).sum();
    let num_nodes = match submit.num_nodes {
        Some(nodes) if !submit.partitions.is_empty() && nodes != parts => {
            return Err(Failure::usage(format!("the parts (-p) have {parts} nodes, the BatchJob (-n) has {nodes}"))
                .hint("make them equal, or leave out -n"));
        }
        Some(nodes) => nodes,
        None => parts,
    };
    let job_mode = submit.job_mode.or_else(|| submit.partitions.first().map(|part| part.job_mode));
    let declared = &site.details.optional_batch_job_params;
    if let Some((unknown, _)) = submit.optional_params.iter().find(|(name, _)| !declared.contains_key(name)) {
        let known: Vec<&str> = declared.keys().map(String::as_str).collect();
        return Err(Failure::usage(format!("the Site {} declares no parameter {unknown:?} (-x)", site.name))
            .hint(choice(unknown, &known, "it declares none")));
    }
    Ok(BatchJobCreate {
        site_id: site.id,
        project: project(submit, site)?,
        queue: queue(submit, site)?,
        num_nodes,
        wall_time_min: submit.wall_time_min,
        job_mode: job_mode.unwrap_or(JobMode::Mpi),
        optional_params: submit.optional_params.iter().cloned().collect(),
        filter_tags: submit.tags.iter().cloned().collect(),
        partitions: (!submit.partitions.is_empty()).then(|| submit.partitions.clone()),
    })
}

/// How many of the Site's BatchJobs wait in the queue that is asked for, where that matters.
async fn waiting(client: &Client, wanted: &BatchJobCreate, site: &Site) -> Result<usize> {
    if !Limits::from(&site.details).counts_waiting(&wanted.queue) {
        return Ok(0);
    }
    let waiting = [BatchJobState::PendingSubmission, BatchJobState::Queued];
    let batch_jobs = client.list_batch_jobs(&[site.id], &waiting).await?;
    Ok(batch_jobs.iter().filter(|batch_job| batch_job.queue == wanted.queue).count())
}

/// Refuses what the Site would refuse, before anything is sent.
fn allowed(wanted: &BatchJobCreate, site: &Site, waiting: usize) -> Result<()> {
    Limits::from(&site.details).check(&wanted.into(), waiting).map_err(|reason| refused(site, &reason))
}

fn refused(site: &Site, reason: &str) -> Failure {
    Failure::new(format!("the Site {} does not take this BatchJob: {reason}", site.name))
        .hint("its limits are in its settings.yml; after a change there `copal site sync` makes them known")
}

fn queue(submit: &Submit, site: &Site) -> Result<String> {
    let names: Vec<&str> = site.details.allowed_queues.keys().map(String::as_str).collect();
    match (&submit.queue, &names[..]) {
        (Some(queue), _) => Ok(queue.clone()),
        (None, [only]) => Ok((*only).into()),
        (None, []) => Err(Failure::usage("which queue? The Site names none in its settings").hint("add -q QUEUE")),
        (None, _) => Err(Failure::usage(format!("which queue? The Site {} has {}", site.name, names.join(", ")))
            .hint("add -q QUEUE")),
    }
}

fn project(submit: &Submit, site: &Site) -> Result<String> {
    let is_local = || site.details.allowed_queues.keys().eq(["local"]);
    match (&submit.project, &site.details.allowed_projects[..]) {
        (Some(project), _) => Ok(project.clone()),
        (None, [only]) => Ok(only.clone()),
        // Nobody pays for the machine that the agent runs on.
        (None, []) if is_local() => Ok("local".into()),
        (None, []) => Err(Failure::usage("who pays? The Site names no project in its settings").hint("add -A PROJECT")),
        (None, several) => Err(Failure::usage(format!("who pays? The Site {} has {}", site.name, several.join(", ")))
            .hint("add -A PROJECT")),
    }
}

pub(super) async fn ls(context: Context, list: &List) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, list.site.site.as_deref()).await?;
    // Who names one, or a state, means it wherever it is in its life.
    let history = list.history || list.scheduler_id.is_some() || !list.states.is_empty();
    let states: Vec<BatchJobState> = if history { list.states.clone() } else { open_states() };
    let mut batch_jobs = client.list_batch_jobs(&sites.ids, &states).await?;
    batch_jobs.retain(|batch_job| {
        (history || is_open(batch_job, context.clock))
            && list
                .scheduler_id
                .as_ref()
                .is_none_or(|id| batch_job.scheduler_id.as_ref().is_some_and(|own| own.0 == *id))
            && list.queue.as_ref().is_none_or(|queue| batch_job.queue == *queue)
            && list.tags.iter().all(|(key, value)| batch_job.filter_tags.get(key) == Some(value))
    });
    let empty = if history { "No BatchJobs." } else { "No BatchJobs that are not over; --history shows all." };
    let wide = context.out.is_wide();
    context.out.data(&batch_jobs, empty, || table(&batch_jobs, &sites, context.clock, wide))
}

/// The states of BatchJobs that are not over, and of refused ones.
fn open_states() -> Vec<BatchJobState> {
    BatchJobState::ALL.iter().copied().filter(|state| *state != BatchJobState::Finished).collect()
}

/// Whether people want to see it without asking for history.
pub(super) fn is_open(batch_job: &BatchJob, clock: Clock) -> bool {
    match batch_job.state {
        BatchJobState::Finished => false,
        BatchJobState::SubmitFailed => {
            batch_job.end_time.is_none_or(|time| (clock.now - time).num_hours() < REFUSED_SHOWN_HOURS)
        }
        _ => true,
    }
}

pub(super) async fn show(context: Context, id: i64) -> Result<()> {
    let client = context.client()?;
    let batch_job = client.get_batch_job(BatchJobId(id)).await.map_err(|error| unknown(error, id))?;
    let sites = context.sites(&client, Some("all")).await?;
    context.out.data(&batch_job, "", || show_table(&batch_job, &sites, context.clock))
}

fn show_table(batch_job: &BatchJob, sites: &SelectedSites, clock: Clock) -> Table {
    let mut table = Table::bare();
    table.field("BatchJob", cell(batch_job.id));
    table.field("Site", cell(format!("{} ({})", sites.name(batch_job.site_id), batch_job.site_id)));
    table.field("State", batch_job_state(batch_job.state));
    table.field("Scheduler id", maybe(batch_job.scheduler_id.as_ref()));
    table.field("Queue", cell(&batch_job.queue));
    table.field("Project", cell(&batch_job.project));
    table
        .field("Asks for", cell(format!("{} for {} min", count(batch_job.num_nodes, "node"), batch_job.wall_time_min)));
    table.field("Mode", cell(batch_job.job_mode));
    for part in batch_job.partitions.iter().flatten() {
        table.field("Part", cell(part));
    }
    for (name, map) in [("Tags", &batch_job.filter_tags), ("Params", &batch_job.optional_params)] {
        if !map.is_empty() {
            table.field(name, cell(pairs(map)));
        }
    }
    table.field("Started", maybe(batch_job.start_time.map(|time| clock.both(time))));
    table.field("Ended", maybe(batch_job.end_time.map(|time| clock.both(time))));
    for (key, value) in &batch_job.status_info {
        table.field(key, cell(value));
    }
    table
}

/// A BatchJob as a line of its own.
pub(super) fn line(batch_job: &BatchJob, sites: &SelectedSites, clock: Clock) -> String {
    let line = format!(
        "{}  {}  {}  {}  {}",
        clock.local_time(clock.now),
        batch_job.id,
        sites.name(batch_job.site_id),
        batch_job.state,
        info(batch_job)
    );
    format!("{}\n", line.trim_end())
}

pub(super) fn table(batch_jobs: &[BatchJob], sites: &SelectedSites, clock: Clock, wide: bool) -> Table {
    let headings = ["ID", "SITE", "SCHED ID", "STATE", "QUEUE", "NODES", "MIN", "MODE", "TIME", "INFO"];
    let more = ["PROJECT", "STARTED", "ENDED"];
    let mut table = Table::with_headings(headings.iter().chain(if wide { &more[..] } else { &[] }));
    for batch_job in batch_jobs {
        let mut row = vec![
            cell(batch_job.id),
            cell(sites.name(batch_job.site_id)),
            maybe(batch_job.scheduler_id.as_ref()),
            batch_job_state(batch_job.state),
            cell(&batch_job.queue),
            cell(batch_job.num_nodes),
            cell(batch_job.wall_time_min),
            cell(batch_job.job_mode),
            cell(times(batch_job, clock)),
            cell(info(batch_job)),
        ];
        if wide {
            row.push(cell(&batch_job.project));
            row.push(maybe(batch_job.start_time.map(|time| clock.local(time))));
            row.push(maybe(batch_job.end_time.map(|time| clock.local(time))));
        }
        table.push(row);
    }
    table
}

fn times(batch_job: &BatchJob, clock: Clock) -> String {
    match (batch_job.start_time, batch_job.end_time) {
        (_, Some(end)) => format!("ended {}", clock.ago(end)),
        (Some(start), None) => format!("started {}", clock.ago(start)),
        (None, None) => String::from("-"),
    }
}

/// Partitions, tags, and above all why it was refused.
fn info(batch_job: &BatchJob) -> String {
    let reasons: Vec<&str> =
        ["error", "reason"].iter().filter_map(|key| batch_job.status_info.get(*key)).map(String::as_str).collect();
    let mut asked: Vec<String> = batch_job.partitions.iter().flatten().map(ToString::to_string).collect();
    let maps = [&batch_job.filter_tags, &batch_job.optional_params];
    asked.extend(maps.into_iter().filter(|map| !map.is_empty()).map(pairs));
    let mut parts = vec![reasons.join("; "), asked.join(" ")];
    parts.retain(|part| !part.is_empty());
    parts.join("; ").replace('\n', " ")
}

/// Which BatchJobs `queue rm` means.
pub(super) struct Removal<'a> {
    pub(super) ids: &'a [IdList],
    pub(super) scheduler_id: Option<&'a str>,
    pub(super) site: Option<&'a str>,
    pub(super) dry_run: bool,
    pub(super) yes: bool,
}

pub(super) async fn rm(context: Context, removal: Removal<'_>) -> Result<()> {
    let client = context.client()?;
    let mut meant = Vec::new();
    if removal.ids.is_empty() {
        let site = removal.site.or(if removal.scheduler_id.is_some() { Some("all") } else { None });
        let sites = context.sites(&client, site).await?;
        meant = client.list_batch_jobs(&sites.ids, &open_states()).await?;
        if let Some(id) = removal.scheduler_id {
            meant.retain(|batch_job| batch_job.scheduler_id.as_ref().is_some_and(|own| own.0 == id));
            if meant.is_empty() {
                return Err(Failure::new(format!("no BatchJob that is not over has the scheduler id {id}"))
                    .hint("`copal queue ls --site all` lists yours"));
            }
        }
    }
    for id in removal.ids.iter().flat_map(|list| list.ids()) {
        meant.push(client.get_batch_job(BatchJobId(id)).await.map_err(|error| unknown(error, id))?);
    }
    if !removal.ids.is_empty() {
        for over in meant.iter().filter(|batch_job| batch_job.state.is_over()) {
            context.out.talk(&format!("BatchJob {} is over already ({}).", over.id, over.state));
        }
    }
    meant.retain(|batch_job| !batch_job.state.is_over());
    if removal.dry_run {
        let sites = context.sites(&client, Some("all")).await?;
        return context.out.data(&meant, "None would be deleted.", || table(&meant, &sites, context.clock, false));
    }
    // Ids that were typed one by one need no question.
    if removal.ids.is_empty() && meant.len() > 1 {
        prompt::confirm_change(&format!("Delete {} BatchJobs?", meant.len()), removal.yes)?;
    }
    let patch = BatchJobPatch { state: Some(BatchJobState::PendingDeletion), ..BatchJobPatch::default() };
    let patches: Vec<BatchJobPatchItem> =
        meant.iter().map(|batch_job| BatchJobPatchItem { id: batch_job.id, patch: patch.clone() }).collect();
    let batch_jobs = if patches.is_empty() { Vec::new() } else { client.update_batch_jobs(&patches).await? };
    if context.out.is_data() {
        return context.out.value(&batch_jobs);
    }
    for batch_job in &batch_jobs {
        context.out.talk(&format!("BatchJob {} will be deleted by its Site's agent.", batch_job.id));
    }
    Ok(())
}

fn unknown(error: ClientError, id: i64) -> Failure {
    match error.code() {
        Some(copal_schemas::problem::ErrorCode::NotFound) => {
            Failure::new(format!("you have no BatchJob {id}")).hint("`copal queue ls --history --site all` lists yours")
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use copal_schemas::{SiteId, batch_job::SchedulerId, settings::QueueLimits, site::SiteDetails, time};

    use super::*;
    use crate::args::{Cli, Command, queue};
    use crate::table::at_both_widths;

    fn site(queues: &[&str], projects: &[&str]) -> Site {
        let limits = QueueLimits { max_nodes: 1, max_walltime: 1, max_queued_jobs: 1 };
        Site {
            name: "theta".into(),
            path: "/theta".into(),
            details: SiteDetails {
                allowed_queues: queues.iter().map(|name| ((*name).into(), limits)).collect(),
                allowed_projects: projects.iter().map(|name| (*name).into()).collect(),
                ..SiteDetails::default()
            },
            id: SiteId(1),
            last_refresh: time::parse("2026-11-30").unwrap(),
            creation_date: time::parse("2026-11-30").unwrap(),
        }
    }

    fn parsed(line: &str) -> Submit {
        let words = ["copal", "queue", "submit"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Queue(queue::Command::Submit(submit)) => *submit,
            _ => panic!("not a submit"),
        }
    }

    fn made(line: &str, site: &Site) -> Result<BatchJobCreate> {
        new_batch_job(&parsed(line), site)
    }

    #[test]
    fn the_only_queue_and_project_need_not_be_named() {
        let batch_job = made("-n 2 -t 60 -j mpi", &site(&["local"], &[])).unwrap();
        assert_eq!((batch_job.queue.as_str(), batch_job.project.as_str()), ("local", "local"));
        let batch_job = made("-n 2 -t 60 -j mpi", &site(&["debug"], &["chem"])).unwrap();
        assert_eq!((batch_job.queue.as_str(), batch_job.project.as_str()), ("debug", "chem"));
        let failure = made("-n 2 -t 60 -j mpi -A chem", &site(&["debug", "prod"], &[])).unwrap_err();
        insta::assert_snapshot!(failure.lines(), @r"
        error: which queue? The Site theta has debug, prod
        hint: add -q QUEUE
        ");
        assert!(made("-n 2 -t 60 -j mpi -q debug", &site(&["debug"], &[])).is_err());
    }

    #[test]
    fn parts_say_how_many_nodes_and_which_mode() {
        let here = site(&["local"], &[]);
        let batch_job = made("-t 60 -p mpi:2:role=leader -p serial:126:role=worker", &here).unwrap();
        assert_eq!((batch_job.num_nodes, batch_job.job_mode), (128, JobMode::Mpi));
        assert!(made("-n 127 -t 60 -p mpi:2 -p serial:126", &here).is_err());
    }

    #[test]
    fn an_undeclared_parameter_is_named() {
        let failure = made("-n 1 -t 1 -j mpi -x mig=3", &site(&["local"], &[])).unwrap_err();
        insta::assert_snapshot!(failure.lines(), @r#"
        error: the Site theta declares no parameter "mig" (-x)
        hint: it declares none
        "#);
    }

    #[test]
    fn what_the_site_forbids_is_refused_before_it_is_sent() {
        let here = site(&["debug"], &["chem"]);
        assert!(allowed(&made("-n 1 -t 1 -j mpi", &here).unwrap(), &here, 0).is_ok());
        let lines = |line: &str, waiting| allowed(&made(line, &here).unwrap(), &here, waiting).unwrap_err().lines();
        insta::assert_snapshot!(lines("-n 2 -t 1 -j mpi", 0), @r"
        error: the Site theta does not take this BatchJob: 2 nodes are asked for; queue debug allows 1
        hint: its limits are in its settings.yml; after a change there `copal site sync` makes them known
        ");
        for (line, waiting, word) in [
            ("-n 1 -t 2 -j mpi", 0, "2 minutes are asked for"),
            ("-n 1 -t 1 -j mpi -q prod", 0, "queue \"prod\" is not allowed"),
            ("-n 1 -t 1 -j mpi -A bio", 0, "project \"bio\" is not allowed"),
            ("-n 1 -t 1 -j mpi", 1, "holds 1 waiting BatchJobs"),
        ] {
            let text = lines(line, waiting);
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn the_reason_of_a_refusal_is_shown() {
        let batch_job = |id, state, info: &[(&str, &str)]| BatchJob {
            num_nodes: 128,
            wall_time_min: 60,
            job_mode: JobMode::Mpi,
            optional_params: Default::default(),
            filter_tags: Default::default(),
            partitions: None,
            id: BatchJobId(id),
            site_id: SiteId(1),
            scheduler_id: (state == BatchJobState::Running).then(|| SchedulerId("41".into())),
            project: "chem".into(),
            queue: "debug".into(),
            state,
            status_info: info.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            start_time: (state == BatchJobState::Running).then(|| time::parse("2026-11-30T11:50:00").unwrap()),
            end_time: None,
        };
        let batch_jobs = [
            batch_job(7, BatchJobState::Running, &[]),
            batch_job(8, BatchJobState::SubmitFailed, &[("error", "would exceed the per-project limit")]),
        ];
        let sites = SelectedSites { all: vec![site(&[], &[])], ids: vec![SiteId(1)] };
        let text = table(&batch_jobs, &sites, Clock::fixed("2026-11-30T12:00:00"), false).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        ID  SITE   SCHED ID  STATE          QUEUE  NODES  MIN  MODE  TIME             INFO
        7   theta  41        running        debug  128    60   mpi   started 10m ago
        8   theta  -         submit_failed  debug  128    60   mpi   -                would exceed the per-project limit
        ");
        let clock = Clock::fixed("2026-11-30T12:00:00");
        insta::assert_snapshot!(at_both_widths(|| table(&batch_jobs, &sites, clock, false)));
        insta::assert_snapshot!(at_both_widths(|| show_table(&batch_jobs[1], &sites, clock)));
    }
}
