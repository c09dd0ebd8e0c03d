//! `apps/<name>.yml` at a Site as types. Reading the file and rendering its command is
//! `copal-client`'s `app_file`; the service only ever sees the index of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    StringMap,
    app::{AppHooks, TransferSlot},
    lenient,
};

/// What becomes of the standard output and error of a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OutputMode {
    /// Both go to `job.out` in the workdir.
    #[default]
    File,
    /// Both are thrown away, for floods of tiny Jobs.
    None,
}

/// A parameter in an App file. Unlike on the wire, an optional one may have an empty default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParameterSpec {
    /// Whether a Job must give it. Left out: it must, unless there is a default.
    pub required: Option<bool>,
    /// What it is when a Job does not give it.
    #[serde(deserialize_with = "lenient::nullable_string")]
    pub default: Option<String>,
    /// What it is for.
    pub help: String,
    /// The values it may have; empty for any.
    pub choices: Vec<String>,
}

/// Programs that the agent runs around a Job: with a slash relative to the Site's `apps/`, else found on PATH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Hooks {
    /// Before the run.
    pub preprocess: Option<String>,
    /// After a run with exit code 0.
    pub postprocess: Option<String>,
    /// After an error.
    pub handle_error: Option<String>,
    /// After a time-out.
    pub handle_timeout: Option<String>,
}

impl Hooks {
    /// The programs of those that are declared, each with its name.
    pub fn programs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("preprocess", &self.preprocess),
            ("postprocess", &self.postprocess),
            ("handle_error", &self.handle_error),
            ("handle_timeout", &self.handle_timeout),
        ]
        .into_iter()
        .filter_map(|(name, program)| Some((name, program.as_deref()?)))
    }

    /// Which hooks are declared.
    #[must_use]
    pub fn declared(&self) -> AppHooks {
        AppHooks {
            preprocess: self.preprocess.is_some(),
            postprocess: self.postprocess.is_some(),
            handle_error: self.handle_error.is_some(),
            handle_timeout: self.handle_timeout.is_some(),
        }
    }
}

/// What the file of an App that is made through the API says beside the fields that every App shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RemoteFile {
    /// Variables of the command's environment.
    #[serde(deserialize_with = "lenient::string_map")]
    pub environment: StringMap,
    /// Bash that is sourced before the command.
    #[serde(deserialize_with = "lenient::nullable_string")]
    pub preamble: Option<String>,
    /// Programs that the Site has in `apps/` already.
    pub hooks: Hooks,
    /// What becomes of the output.
    pub output: OutputMode,
    /// Patterns of files below the workdir that are deleted after JOB_FINISHED.
    pub cleanup_files: Vec<String>,
}

/// An App file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppFile {
    /// The App's name, an identifier; must equal the file's name without `.yml`.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// The command, a handlebars template: `{{x}}` is shell-quoted, `{{{x}}}` is raw.
    pub command: String,
    /// Its parameters by name.
    #[serde(default)]
    pub parameters: BTreeMap<String, ParameterSpec>,
    /// Variables of the command's environment.
    #[serde(default, deserialize_with = "lenient::string_map")]
    pub environment: StringMap,
    /// Bash that is sourced before the command.
    #[serde(default)]
    pub preamble: Option<String>,
    /// What is staged in and out, by slot.
    #[serde(default)]
    pub transfers: BTreeMap<String, TransferSlot>,
    /// Programs that the agent runs around a Job.
    #[serde(default)]
    pub hooks: Hooks,
    /// Runs after the first that are allowed; left out: none after an error, any number after a time-out.
    #[serde(default)]
    pub max_restarts: Option<i32>,
    /// What becomes of the output.
    #[serde(default)]
    pub output: OutputMode,
    /// Patterns of files below the workdir that are deleted after JOB_FINISHED: `*` is any text of a name, `?` any letter.
    #[serde(default)]
    pub cleanup_files: Vec<String>,
}

/// The parts of a pattern of `cleanup_files`, one for each folder and the last for the file; `None` when
/// it could mean something outside of the workdir.
#[must_use]
pub fn cleanup_parts(pattern: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let is_within = !parts.is_empty() && !pattern.starts_with('/') && !parts.contains(&"..");
    is_within.then_some(parts)
}
