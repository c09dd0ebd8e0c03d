//! The Jobs that are to be made: checked as far as it goes without the service, shown, and created.
//! What options and rows say of them is `job_create`, `job_rows` and `script_app`.

use copal_client::{Client, api::JobQuery};
use copal_schemas::{
    AppId, StringMap,
    app::{App, fill_parameters},
    job::{JobCreate, check_workdir},
    job_array,
};
use serde_json::json;

use crate::{
    array::{ArraySpec, has_index},
    bulk,
    context::Context,
    failure::{Failure, Result},
    human,
    ids::Shortest,
    output::is_interactive,
    prompt,
    selection::Pages,
    table::{Table, cell, pairs},
};

/// The Jobs that are to be made.
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
    Array {
        /// What is filled in.
        template: Box<JobCreate>,
        /// The indices.
        array: ArraySpec,
        /// The line of each, where they count lines of a file.
        lines: Vec<usize>,
    },
    /// Rows, and their lines in the file.
    Rows {
        /// The Jobs.
        jobs: Vec<JobCreate>,
        /// The line of each.
        lines: Vec<usize>,
    },
}

/// The Job that a template makes for one index, in its normal form.
///
/// # Errors
/// A sentence for people.
pub(super) fn of_index(template: &JobCreate, index: i64) -> std::result::Result<JobCreate, String> {
    well_formed(job_array::job_of(template, index).map_err(|(_, message)| message)?)
}

/// A Job with its folder in the normal form, and a shape that makes sense.
///
/// # Errors
/// A sentence for people.
pub(super) fn well_formed(mut job: JobCreate) -> std::result::Result<JobCreate, String> {
    job.workdir = check_workdir(&job.workdir)?;
    job.shape().validate().map_err(|error| error.to_string())?;
    Ok(job)
}

/// Whether an App takes these parameters.
///
/// # Errors
/// A sentence for people.
pub(super) fn check_parameters(app: &App, parameters: &StringMap) -> std::result::Result<(), String> {
    if app.command.is_none() {
        return match parameters.is_empty() {
            true => Ok(()),
            false => Err("its parameters are Python objects; create such Jobs with Balsam's Python client".to_owned()),
        };
    }
    fill_parameters(&app.parameters, parameters).map(drop)
}

impl Plan {
    /// Jobs of a template: one, or one for each index of an array.
    ///
    /// # Errors
    /// When there is a Job that can't be made, or several would have one folder.
    pub(super) fn new(app: &str, site: &str, template: JobCreate, array: Option<ArraySpec>) -> Result<Self> {
        let (app, site) = (app.to_owned(), site.to_owned());
        let Some(array) = array else {
            let job = well_formed(template).map_err(Failure::usage)?;
            return Ok(Self { app, site, jobs: Jobs::One(Box::new(job)) });
        };
        if array.len() > 1 && !has_index(&template.workdir) {
            let (jobs, folder) = (array.len(), &template.workdir);
            return Err(Failure::usage(format!("all {jobs} Jobs would have the folder {folder:?}"))
                .hint("write {index} into it, such as -w 'run/{index:06}'"));
        }
        // All others are between these in every respect that can be wrong.
        for index in <[i64; 2]>::from(array.ends()) {
            of_index(&template, index).map_err(Failure::usage)?;
        }
        Ok(Self { app, site, jobs: Jobs::Array { template: Box::new(template), array, lines: Vec::new() } })
    }

    /// The same where the indices count lines of a file, whose numbers are these.
    pub(super) fn of_lines(self, numbers: Vec<usize>) -> Self {
        match self.jobs {
            Jobs::Array { template, array, .. } => {
                Self { jobs: Jobs::Array { template, array, lines: numbers }, ..self }
            }
            _ => self,
        }
    }

    /// Checks the parameters of all Jobs of a template.
    ///
    /// # Errors
    /// When the App does not take them.
    pub(super) fn check_parameters(&self, app: &App) -> Result<()> {
        let check = |job: &JobCreate| {
            check_parameters(app, &job.parameters)
                .map_err(|message| Failure::new(format!("App {}: {message}", app.name)))
                .map_err(|failure| failure.hint(format!("`copal app show {}` lists its parameters", app.name)))
        };
        match &self.jobs {
            Jobs::One(job) => check(job),
            Jobs::Array { template, array, .. } => {
                // Each index gives another value, so that one index more than there are choices decides.
                let choices = app.parameters.values().map(|parameter| parameter.choices.len()).max().unwrap_or(0);
                let mut indices = array.indices().take(choices + 1);
                indices.try_for_each(|index| check(&of_index(template, index).map_err(Failure::usage)?))
            }
            Jobs::Rows { .. } => Ok(()),
        }
    }

    /// Names the App of the Jobs, where it was not known before.
    pub(super) fn set_app(&mut self, app_id: AppId) {
        match &mut self.jobs {
            Jobs::One(job) | Jobs::Array { template: job, .. } => job.app_id = app_id,
            Jobs::Rows { jobs, .. } => jobs.iter_mut().for_each(|job| job.app_id = app_id),
        }
    }

    /// Shows the Jobs, asks, and creates them; with `dry_run` it only shows them.
    ///
    /// # Errors
    /// When the answer is no, and the service's.
    pub(super) async fn carry_out(&self, context: Context, client: &Client, dry_run: bool, yes: bool) -> Result<()> {
        if dry_run {
            return self.show(context);
        }
        if is_interactive() && !yes {
            context.out.talk(self.table()?.render(context.out.width()).trim_end());
        }
        let question = match self.count() {
            1 => "Create this Job?".into(),
            count => format!("Create {count} Jobs?"),
        };
        prompt::confirm_creation(&question, yes)?;
        match &self.jobs {
            Jobs::Array { template, array, lines } => self.create_array(context, client, template, array, lines).await,
            Jobs::One(job) => self.create_list(context, client, std::slice::from_ref(job.as_ref()), &[]).await,
            Jobs::Rows { jobs, lines } => self.create_list(context, client, jobs, lines).await,
        }
    }

    async fn create_array(
        &self,
        context: Context,
        client: &Client,
        template: &JobCreate,
        array: &ArraySpec,
        lines: &[usize],
    ) -> Result<()> {
        let rest = |made: i64| match usize::try_from(made).ok().and_then(|made| lines.get(made)) {
            Some(line) => format!("the rest begins in line {line}"),
            None => format!("--array {} makes the rest", array.after(made)),
        };
        let made = bulk::create_array(client, template, array, rest).await?;
        if context.out.is_data() {
            let mut records = context.out.records();
            let query = JobQuery { array_id: Some(made.id), ..JobQuery::default() };
            let mut pages = Pages::of(std::slice::from_ref(&query), None, None);
            while let Some(page) = pages.next(client).await? {
                records.write(&page)?;
            }
            return records.finish();
        }
        context.out.talk(&format!("Created {} of {}, array {}.", human::count(array.len(), "Job"), self.app, made.id));
        context.out.text(&format!("{}\n", made.ids))
    }

    async fn create_list(&self, context: Context, client: &Client, jobs: &[JobCreate], lines: &[usize]) -> Result<()> {
        let mut records = context.out.is_data().then(|| context.out.records());
        let ids = bulk::create_all(
            client,
            jobs,
            |number| lines.get(number).map(|line| format!("line {line}")),
            |jobs| records.as_mut().map_or(Ok(()), |records| records.write(&jobs)),
        )
        .await?;
        if let Some(records) = records {
            return records.finish();
        }
        match (&ids[..], &self.jobs) {
            ([id], Jobs::One(job)) => {
                context.out.talk(&format!("Created Job {id} of {} in {}.", self.app, job.workdir));
            }
            _ => {
                context.out.talk(&format!("Created {} of {}.", human::count(ids.len() as i64, "Job"), self.app));
            }
        }
        context.out.text(&format!("{}\n", Shortest::of(ids.iter().map(|id| id.0))))
    }

    /// How many Jobs there are.
    fn count(&self) -> usize {
        match &self.jobs {
            Jobs::One(_) => 1,
            Jobs::Array { array, .. } => usize::try_from(array.len()).unwrap_or(usize::MAX),
            Jobs::Rows { jobs, .. } => jobs.len(),
        }
    }

    /// The first and the last Job.
    fn ends(&self) -> Result<(JobCreate, JobCreate)> {
        match &self.jobs {
            Jobs::One(job) => Ok((job.as_ref().clone(), job.as_ref().clone())),
            Jobs::Array { template, array, .. } => {
                let (first, last) = array.ends();
                let job = |index| of_index(template, index).map_err(Failure::usage);
                Ok((job(first)?, job(last)?))
            }
            Jobs::Rows { jobs, .. } => match (jobs.first(), jobs.last()) {
                (Some(first), Some(last)) => Ok((first.clone(), last.clone())),
                _ => Err(Failure::new("the table is empty")),
            },
        }
    }

    fn show(&self, context: Context) -> Result<()> {
        if context.out.is_data() {
            let (first, last) = self.ends()?;
            return context.out.value(&json!({"count": self.count(), "first": first, "last": last}));
        }
        context.out.text(&self.table()?.render(context.out.width()))
    }

    /// The Jobs as people look at them before they say yes.
    pub(super) fn table(&self) -> Result<Table> {
        let mut table = Table::bare();
        table.field("App", cell(&self.app));
        table.field("Site", cell(&self.site));
        let (first, last) = self.ends()?;
        if self.count() == 1 {
            describe(&mut table, &first, None);
            return Ok(table);
        }
        table.field("Jobs", cell(self.count()));
        if let Jobs::Array { array: ArraySpec { at_once: Some(most), .. }, .. } = &self.jobs {
            table.field("At once", cell(most));
        }
        describe(&mut table, &first, Some("First"));
        describe(&mut table, &last, Some("Last"));
        Ok(table)
    }
}

/// The fields of a Job; of one of several with a word before each that says which.
fn describe(table: &mut Table, job: &JobCreate, which: Option<&str>) {
    let name = |name: &str| which.map_or_else(|| name.into(), |which| format!("{which}: {}", name.to_lowercase()));
    table.field(&name("Folder"), cell(&job.workdir));
    for (field, map) in [("Parameters", &job.parameters), ("Tags", &job.tags)] {
        if !map.is_empty() {
            table.field(&name(field), cell(pairs(map)));
        }
    }
    table.field(&name("Resources"), cell(super::job_show::shape(&job.shape())));
    if !job.parent_ids.is_empty() {
        table.field(&name("Parents"), cell(Shortest::of(job.parent_ids.iter().map(|id| id.0))));
    }
}
