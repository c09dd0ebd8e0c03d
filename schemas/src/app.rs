//! Apps as the service indexes them (contract, section 4, and DESIGN's App files).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AppId, SiteId, app_file::RemoteFile, lenient, transfer::Direction};

/// The longest `serialized_class` in characters.
pub const MAX_SERIALIZED_CLASS: usize = 262_144;

/// A parameter of an App.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppParameter {
    /// Whether a Job must give it.
    #[serde(deserialize_with = "lenient::boolean")]
    pub required: bool,
    /// What it is when a Job does not give it; null when required.
    #[serde(default, deserialize_with = "lenient::nullable_string")]
    pub default: Option<String>,
    /// What it is for.
    #[serde(default, deserialize_with = "lenient::string")]
    pub help: String,
    /// The values it may have; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
}

/// A file or folder that a Job of the App stages in or out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferSlot {
    /// Whether a Job must say where it comes from or goes.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub required: bool,
    /// Which way.
    pub direction: Direction,
    /// The path below the workdir.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(pattern = r"^(?!/)(?!(.*/)?\.\.(/|$))"))]
    pub local_path: String,
    /// What it is for.
    #[serde(default, deserialize_with = "lenient::string")]
    pub description: String,
    /// Whether a folder is meant with all that is in it.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub recursive: bool,
}

/// The hooks that an App may declare. In the index only whether there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AppHooks {
    /// Runs between staging in and the run.
    pub preprocess: bool,
    /// Runs after a run that ended with exit code 0.
    pub postprocess: bool,
    /// Decides after an error.
    pub handle_error: bool,
    /// Decides after a time-out.
    pub handle_timeout: bool,
}

/// An App, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct App {
    /// The Site that has it.
    pub site_id: SiteId,
    /// Its name, an identifier, unique at the Site.
    pub name: String,
    /// Balsam's pickled class; empty for Copal's Apps.
    pub serialized_class: String,
    /// Balsam's source text; empty for Copal's Apps.
    pub source_code: String,
    /// What it is for.
    pub description: String,
    /// Its parameters by name.
    pub parameters: BTreeMap<String, AppParameter>,
    /// Its transfer slots by name.
    pub transfers: BTreeMap<String, TransferSlot>,
    /// The App's id.
    pub id: AppId,
    /// The command template of a Copal App, for people to read: what runs is the Site's own file.
    #[serde(default)]
    pub command: Option<String>,
    /// Which hooks a Copal App declares.
    #[serde(default)]
    pub hooks: AppHooks,
    /// Runs after the first that the retry policy allows; null for the default:
    /// none after an error, any number after a time-out.
    #[serde(default)]
    pub max_restarts: Option<i32>,
    /// Whether its file is gone from the Site: kept for the sake of its Jobs, runs no more.
    #[serde(default)]
    pub gone: bool,
    /// What its file says beside, where it is made through the API; null for an App whose file the Site's owner wrote.
    #[serde(default)]
    pub remote: Option<RemoteFile>,
    /// Why the Site does not run it, where it is made through the API and its agent has not written its file.
    #[serde(default)]
    pub refusal: Option<String>,
}

/// Body of `POST /apps/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppCreate {
    /// The Site that has it.
    pub site_id: SiteId,
    /// An identifier, unique at the Site.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Balsam's pickled class, or empty.
    #[serde(deserialize_with = "lenient::string")]
    pub serialized_class: String,
    /// Balsam's source text, or empty.
    #[serde(deserialize_with = "lenient::string")]
    pub source_code: String,
    /// What it is for.
    #[serde(default, deserialize_with = "lenient::string")]
    pub description: String,
    /// Its parameters by name.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, crate::openapi::AppParameterCreate>))]
    pub parameters: BTreeMap<String, AppParameter>,
    /// Its transfer slots by name.
    #[serde(default)]
    pub transfers: BTreeMap<String, TransferSlot>,
    /// The command template of a Copal App.
    #[serde(default, deserialize_with = "lenient::nullable_string")]
    pub command: Option<String>,
    /// Which hooks a Copal App declares.
    #[serde(default)]
    pub hooks: AppHooks,
    /// The retry policy of a Copal App.
    #[serde(default, deserialize_with = "lenient::nullable_int")]
    pub max_restarts: Option<i32>,
    /// Makes the App through the API: the Site's agent writes its file, where the settings of the Site say
    /// `allow_remote_apps: true`. Left out, the App is one whose file the Site's owner wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteFile>,
}

/// Body of `PUT /apps/{id}`; only the fields present change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppPatch {
    /// Another Site of the same owner.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub site_id: Option<SiteId>,
    /// Another name.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 256, pattern = r"^[A-Za-z_][A-Za-z0-9_]*$", nullable = false)
    )]
    pub name: Option<String>,
    /// Balsam's pickled class.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub serialized_class: Option<String>,
    /// Balsam's source text.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub source_code: Option<String>,
    /// What it is for.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub description: Option<String>,
    /// Replaces the parameters.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = BTreeMap<String, crate::openapi::AppParameterCreate>, nullable = false)
    )]
    pub parameters: Option<BTreeMap<String, AppParameter>>,
    /// Replaces the transfer slots.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub transfers: Option<BTreeMap<String, TransferSlot>>,
    /// Replaces the command template; null makes it none.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub command: Option<Option<String>>,
    /// Replaces the declared hooks.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub hooks: Option<AppHooks>,
    /// Replaces the retry policy; null for the default.
    #[serde(default, deserialize_with = "lenient::patch_int", skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<Option<i32>>,
    /// Says whether its file is gone from the Site.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub gone: Option<bool>,
    /// Replaces what the file of an App that is made through the API says beside; null when the Site's owner wrote it.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub remote: Option<Option<RemoteFile>>,
    /// Says, for the Site's agent, why the Site does not run it; null when its file is written.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Option<String>>,
}

/// Whether a text is a Python identifier in ASCII, as App names must be.
#[must_use]
pub fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// Checks a parameter against the rule that binds `required` and `default` (contract, section 4).
///
/// # Errors
/// A sentence with the remedy.
pub fn check_parameter(name: &str, parameter: &AppParameter) -> Result<(), String> {
    let has_default = parameter.default.as_deref().is_some_and(|default| !default.is_empty());
    match (parameter.required, has_default) {
        (true, true) => {
            Err(format!("{name}: a required parameter has no default; drop `default` or set `required: false`"))
        }
        (false, false) => {
            Err(format!("{name}: an optional parameter needs a default; add `default` or set `required: true`"))
        }
        _ => Ok(()),
    }
}

/// Fills the defaults into the parameters that a Job gives.
///
/// # Errors
/// A sentence that names the parameter that is missing, unknown or not among its choices.
pub fn fill_parameters(
    parameters: &BTreeMap<String, AppParameter>,
    given: &crate::StringMap,
) -> Result<crate::StringMap, String> {
    let names = || match parameters.is_empty() {
        true => "the App has none".into(),
        false => format!("the App has {}", parameters.keys().cloned().collect::<Vec<_>>().join(", ")),
    };
    if let Some(unknown) = given.keys().find(|name| !parameters.contains_key(*name)) {
        return Err(format!("unknown parameter {unknown:?}; {}", names()));
    }
    let mut values = crate::StringMap::new();
    for (name, parameter) in parameters {
        let value = match (given.get(name), &parameter.default) {
            (Some(value), _) => value.clone(),
            (None, Some(default)) if !parameter.required => default.clone(),
            _ => return Err(format!("missing parameter {name:?}; give it as -p {name}=VALUE")),
        };
        if !parameter.choices.is_empty() && !parameter.choices.contains(&value) {
            return Err(format!("parameter {name}: {value:?} is not one of {}", parameter.choices.join(", ")));
        }
        values.insert(name.clone(), value);
    }
    Ok(values)
}
