//! What a template may use, as one type: its fields are the template's variables.

use std::path::Path;

use copal_client::SiteDir;
use copal_schemas::{
    StringMap,
    batch_job::{BatchJob, Partition},
    settings::Settings,
};
use serde::Serialize;

use super::{ScriptError, quote};

/// The variables, for people and for the check of a template.
pub const VARIABLES: &[&str] = &[
    "batch_job_id",
    "job_name",
    "project",
    "queue",
    "num_nodes",
    "wall_time_min",
    "job_mode",
    "filter_tags",
    "partitions",
    "optional_params",
    "site_path",
    "launcher_cmd",
    "proxy",
];

/// The values of one BatchJob.
#[derive(Clone, Debug, Serialize)]
pub struct ScriptContext {
    /// The BatchJob's id.
    pub batch_job_id: i64,
    /// Its key, which is the name of the scheduler's job.
    pub job_name: String,
    /// Who pays.
    pub project: String,
    /// The queue.
    pub queue: String,
    /// Nodes.
    pub num_nodes: i32,
    /// Minutes.
    pub wall_time_min: i32,
    /// `mpi` or `serial`.
    pub job_mode: String,
    /// Tags that its Jobs must have.
    pub filter_tags: StringMap,
    /// Its partitions; empty when it has none.
    pub partitions: Vec<Partition>,
    /// Every declared optional param, with its default where the BatchJob gives none.
    pub optional_params: StringMap,
    /// The Site's folder.
    pub site_path: String,
    /// The command that starts the launcher, ready for a shell.
    pub launcher_cmd: String,
    /// The way to the service from inside an allocation; null when it is direct.
    pub proxy: Option<String>,
}

impl ScriptContext {
    /// The values for this BatchJob at this Site. `programs` is the folder of Copal's programs.
    #[must_use]
    pub fn new(site: &SiteDir, settings: &Settings, programs: &Path, batch_job: &BatchJob, key: &str) -> Self {
        let mut optional_params = settings.scheduler.optional_batch_job_params.clone();
        optional_params.extend(batch_job.optional_params.clone());
        Self {
            batch_job_id: batch_job.id.0,
            job_name: key.into(),
            project: batch_job.project.clone(),
            queue: batch_job.queue.clone(),
            num_nodes: batch_job.num_nodes,
            wall_time_min: batch_job.wall_time_min,
            job_mode: batch_job.job_mode.to_string(),
            filter_tags: batch_job.filter_tags.clone(),
            partitions: batch_job.partitions.clone().unwrap_or_default(),
            optional_params,
            site_path: site.root().display().to_string(),
            launcher_cmd: launcher_cmd(site, programs, batch_job),
            proxy: settings.launcher.proxy.clone(),
        }
    }

    /// Refuses values that could leave their place in a script whatever the template does:
    /// a control character ends a comment, a quote or a directive.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn check(&self) -> Result<(), ScriptError> {
        let wrong = |field: &str, message: String| Err(ScriptError::Value { field: field.into(), message });
        let name = |letter: char| letter.is_alphanumeric() || "_-.:@+=,/%".contains(letter);
        for (field, value) in [("project", &self.project), ("queue", &self.queue)] {
            if value.starts_with('-') || !value.chars().all(name) {
                return wrong(
                    field,
                    format!("{value:?} has letters that no {field} has; use letters, digits and _-.:@+=,/%"),
                );
            }
        }
        for (key, value) in &self.optional_params {
            if let Some(letter) = value.chars().find(|letter| letter.is_control() || "\"'`$\\".contains(*letter)) {
                return wrong(
                    &format!("optional_params.{key}"),
                    format!("{value:?} has {letter:?}, which may not stand in a script"),
                );
            }
            // Not every scheduler minds quotes in its directives: such a word would be another option.
            if let Some(word) = value.split_whitespace().find(|word| word.starts_with('-')) {
                return wrong(
                    &format!("optional_params.{key}"),
                    format!("{value:?} has {word:?}, which the scheduler could take for an option"),
                );
            }
        }
        let partition_tags = self.partitions.iter().flat_map(|partition| &partition.filter_tags);
        for (key, value) in self.filter_tags.iter().chain(partition_tags) {
            if key.chars().chain(value.chars()).any(char::is_control) {
                return wrong("filter_tags", format!("{key:?}={value:?} has a control character"));
            }
        }
        if self.site_path.chars().any(char::is_control) {
            return wrong("site_path", format!("{:?} has a control character; move the Site", self.site_path));
        }
        Ok(())
    }
}

fn launcher_cmd(site: &SiteDir, programs: &Path, batch_job: &BatchJob) -> String {
    let mut words = vec![
        quote(&programs.join("copal-launcher").display().to_string()),
        "--site".into(),
        quote(&site.root().display().to_string()),
        "--batch-job-id".into(),
        batch_job.id.to_string(),
        "-j".into(),
        batch_job.job_mode.to_string(),
        "-t".into(),
        batch_job.wall_time_min.to_string(),
    ];
    for (key, value) in &batch_job.filter_tags {
        // One word, since a tag may begin with a dash.
        words.push(format!("--tag={}", quote(&format!("{key}={value}"))));
    }
    for partition in batch_job.partitions.iter().flatten() {
        words.extend(["-p".into(), quote(&partition.to_string())]);
    }
    words.join(" ")
}
