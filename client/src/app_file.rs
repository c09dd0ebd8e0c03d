//! Apps of a Site: reading `apps/<name>.yml`, filling in parameters, rendering the command.
//! The types of the file are in `copal_schemas::app_file`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use copal_schemas::{
    SiteId, StringMap,
    app::{AppCreate, AppParameter, is_identifier},
    app_file::{AppFile, ParameterSpec},
};
use handlebars::{Handlebars, RenderError, RenderErrorReason};

use crate::yaml::{self, FileError};

/// An App of this Site, ready to render commands.
#[derive(Clone, Debug)]
pub struct App {
    spec: AppFile,
    commands: Handlebars<'static>,
}

/// An App or a command that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The file can't be read or has another shape.
    #[error(transparent)]
    File(#[from] FileError),
    /// A field has a value that can't be.
    #[error("{path}: {field}: {message}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What is wrong and the remedy.
        message: String,
    },
    /// A parameter is missing, unknown or has a value that is not among its choices.
    #[error("App {app}: {message}")]
    Parameter {
        /// The App.
        app: String,
        /// What is wrong, with the parameter's name.
        message: String,
    },
    /// The command does not render.
    #[error("App {app}: the command can't be rendered")]
    Render {
        /// The App.
        app: String,
        /// Why.
        #[source]
        source: Box<RenderError>,
    },
}

/// Names that handlebars takes for its own helpers, so that `{{name}}` would not be the parameter.
const TEMPLATE_WORDS: &[&str] = &[
    "if", "unless", "each", "with", "lookup", "raw", "log", "eq", "ne", "gt", "gte", "lt", "lte", "and", "or", "not",
    "len", "this", "else",
];

impl App {
    /// Reads and checks one App file.
    ///
    /// # Errors
    /// [`AppError`] that names file, line and field.
    pub fn load(path: &Path) -> Result<Self, AppError> {
        let spec: AppFile = yaml::read(path)?;
        let field = |field: &str, message: String| AppError::Field { path: path.into(), field: field.into(), message };
        if !is_identifier(&spec.name) {
            return Err(field("name", format!("{:?} is not an identifier (letters, digits, _)", spec.name)));
        }
        if path.file_stem().is_some_and(|stem| stem != spec.name.as_str()) {
            return Err(field("name", format!("{:?} is not the file's name; rename one of them", spec.name)));
        }
        Self::new(spec).map_err(|(name, message)| field(&name, message))
    }

    /// Checks an App that is already read.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn new(spec: AppFile) -> Result<Self, (String, String)> {
        for (name, parameter) in &spec.parameters {
            if !is_identifier(name) {
                return Err((
                    format!("parameters.{name}"),
                    "the name is not an identifier (letters, digits, _)".into(),
                ));
            }
            if TEMPLATE_WORDS.contains(&name.as_str()) {
                return Err((
                    format!("parameters.{name}"),
                    "the name is a word of the template language; rename it".into(),
                ));
            }
            let default = parameter.default.as_deref();
            if parameter.required == Some(true) && default.is_some_and(|default| !default.is_empty()) {
                let message = "a required parameter has no default; drop one of the two".into();
                return Err((format!("parameters.{name}"), message));
            }
            if let Some(default) = default
                && !parameter.choices.is_empty()
                && !parameter.choices.iter().any(|choice| choice == default)
            {
                let message = format!("{default:?} is not among its choices: {}", parameter.choices.join(", "));
                return Err((format!("parameters.{name}.default"), message));
            }
        }
        if spec.max_restarts.is_some_and(|restarts| restarts < 0) {
            return Err(("max_restarts".into(), "a negative number of restarts makes no sense".into()));
        }
        let mut commands = Handlebars::new();
        commands.set_strict_mode(true);
        commands.register_escape_fn(quote);
        commands
            .register_template_string("command", &spec.command)
            .map_err(|error| ("command".into(), error.to_string()))?;
        let app = Self { spec, commands };
        // A variable that is no parameter is a mistake of the file, not of a Job: find it now.
        let probe = app.spec.parameters.keys().map(|name| (name.clone(), "x".into())).collect::<StringMap>();
        app.commands.render("command", &probe).map_err(|error| ("command".into(), unknown_variable(&error)))?;
        Ok(app)
    }

    /// The file's content.
    #[must_use]
    pub fn spec(&self) -> &AppFile {
        &self.spec
    }

    /// What the service's index keeps of it.
    #[must_use]
    pub fn to_index(&self, site_id: SiteId) -> AppCreate {
        let parameters =
            self.spec.parameters.iter().map(|(name, spec)| (name.clone(), index_parameter(spec))).collect();
        AppCreate {
            site_id,
            name: self.spec.name.clone(),
            serialized_class: String::new(),
            source_code: String::new(),
            description: self.spec.description.clone(),
            parameters,
            transfers: self.spec.transfers.clone(),
            command: Some(self.spec.command.clone()),
            hooks: self.spec.hooks.declared(),
            max_restarts: self.spec.max_restarts,
        }
    }

    /// The command as a shell reads it, with every value quoted unless the template says `{{{x}}}`.
    ///
    /// # Errors
    /// When a parameter is missing, unknown or not among its choices.
    pub fn command(&self, given: &StringMap) -> Result<String, AppError> {
        let values = self.values(given)?;
        self.commands
            .render("command", &values)
            .map_err(|source| AppError::Render { app: self.spec.name.clone(), source: Box::new(source) })
    }

    /// The given parameters with defaults filled in.
    ///
    /// # Errors
    /// When one is missing, unknown or not among its choices.
    pub fn values(&self, given: &StringMap) -> Result<StringMap, AppError> {
        let index: BTreeMap<_, _> =
            self.spec.parameters.iter().map(|(name, spec)| (name.clone(), index_parameter(spec))).collect();
        fill_parameters(&index, given).map_err(|message| AppError::Parameter { app: self.spec.name.clone(), message })
    }
}

/// What is wrong with a command that does not render even when all parameters are given.
fn unknown_variable(error: &RenderError) -> String {
    match error.reason() {
        RenderErrorReason::MissingVariable(Some(name)) => {
            format!("the variable {name:?} is no parameter; declare it under `parameters`, or correct its name")
        }
        _ => error.to_string(),
    }
}

fn index_parameter(spec: &ParameterSpec) -> AppParameter {
    let required = spec.required.unwrap_or(spec.default.is_none());
    let default = if required { None } else { Some(spec.default.clone().unwrap_or_default()) };
    AppParameter { required, default, help: spec.help.clone(), choices: spec.choices.clone() }
}

pub use copal_schemas::app::fill_parameters;

/// Quotes a value for a POSIX shell. NUL, which no shell can carry, is left out.
fn quote(value: &str) -> String {
    let value = value.replace('\0', "");
    shlex::try_quote(&value).map_or_else(|_| String::from("''"), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn app(yaml: &str) -> Result<App, (String, String)> {
        App::new(serde_saphyr::from_str(yaml).unwrap())
    }

    fn given(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    const HELLO: &str = "name: Hello\ncommand: 'echo Hello, {{name}} {{{tail}}}'\n\
                         parameters: {name: {required: true}, tail: {default: ''}}\n";

    #[test]
    fn values_are_quoted_unless_asked_otherwise() {
        let hello = app(HELLO).unwrap();
        let command = hello.command(&given(&[("name", "a b; rm -rf /"), ("tail", "> x")])).unwrap();
        assert_eq!(shlex::split(&command).unwrap(), ["echo", "Hello,", "a b; rm -rf /", ">", "x"]);
    }

    #[test]
    fn a_missing_and_an_unknown_parameter_are_named() {
        let hello = app(HELLO).unwrap();
        let text = hello.command(&given(&[])).unwrap_err().to_string();
        assert!(text.contains("name"), "{text}");
        let text = hello.command(&given(&[("name", "x"), ("nmae", "y")])).unwrap_err().to_string();
        assert!(text.contains("nmae"), "{text}");
    }

    #[test]
    fn a_variable_that_is_no_parameter_is_found_at_load() {
        let (field, message) = app("name: X\ncommand: 'echo {{nobody}}'\n").unwrap_err();
        assert_eq!(field, "command");
        assert!(message.contains("nobody"), "{message}");
    }

    #[test]
    fn a_parameter_that_is_a_template_word_is_refused() {
        let (field, _) = app("name: X\ncommand: 'echo {{len}}'\nparameters: {len: {required: true}}\n").unwrap_err();
        assert_eq!(field, "parameters.len");
    }

    proptest! {
        #[test]
        fn any_value_arrives_as_one_word(value in "[^\0]*") {
            let hello = app(HELLO).unwrap();
            let command = hello.command(&given(&[("name", &value)])).unwrap();
            let words = shlex::split(&command).unwrap();
            prop_assert_eq!(&words[2], &value);
        }
    }
}
