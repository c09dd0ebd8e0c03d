//! Apps of a Site: reading `apps/<name>.yml`, filling in parameters, rendering the command.
//! The types of the file are in `copal_schemas::app_file`.

mod rules;
mod shell;

pub use shell::quote;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use copal_schemas::{
    AppId, SiteId, StringMap,
    app::{self, AppCreate, AppParameter, is_identifier},
    app_file::{AppFile, ParameterSpec},
};
use handlebars::{Handlebars, RenderError, RenderErrorReason};

use crate::{
    remote_apps,
    yaml::{self, FileError},
};

/// An App of this Site, ready to render commands.
#[derive(Clone, Debug)]
pub struct App {
    spec: AppFile,
    commands: Handlebars<'static>,
    made_for: Option<AppId>,
}

/// An App or a command that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The file can't be read or has another shape.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such file.
    #[error(
        "the App {app} is not in {folder}; it may have been removed without `copal app sync`, or was made through the API \
         and needs `allow_remote_apps: true` in settings.yml"
    )]
    Missing {
        /// The App.
        app: String,
        /// Where its file would be.
        folder: PathBuf,
    },
    /// A field has a value that can't be.
    #[error("{path}: {}{field}: {message}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    Field {
        /// The file.
        path: PathBuf,
        /// The line of the field, or of the nearest one around it.
        line: Option<u64>,
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
    /// A value stands in the command where it can't be quoted.
    #[error("App {app}: {message}")]
    Quoting {
        /// The App.
        app: String,
        /// Where, and the remedy.
        message: String,
    },
}

impl App {
    /// Reads and checks one App file.
    ///
    /// # Errors
    /// [`AppError`] that names file, line and field.
    pub fn load(path: &Path) -> Result<Self, AppError> {
        let text = yaml::text(path)?;
        let spec: AppFile = yaml::parse(path, &text)?;
        let field = |field: &str, message: String| AppError::Field {
            path: path.into(),
            line: yaml::line_of(path, field),
            field: field.into(),
            message,
        };
        if !is_identifier(&spec.name) {
            return Err(field("name", format!("{:?} is not an identifier (letters, digits, _)", spec.name)));
        }
        if path.file_stem().is_some_and(|stem| stem != spec.name.as_str()) {
            return Err(field("name", format!("{:?} is not the file's name; rename one of them", spec.name)));
        }
        let app = Self::new(spec).map_err(|(name, message)| field(&name, message))?;
        Ok(Self { made_for: remote_apps::made_for(path, &text), ..app })
    }

    /// Checks an App that is already read.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn new(spec: AppFile) -> Result<Self, (String, String)> {
        rules::check(&spec)?;
        let mut commands = Handlebars::new();
        commands.set_strict_mode(true);
        commands.register_escape_fn(shell::marked);
        commands
            .register_template_string("command", &spec.command)
            .map_err(|error| ("command".into(), error.to_string()))?;
        let app = Self { spec, commands, made_for: None };
        // A variable that is no parameter is a mistake of the file, not of a Job: find it now.
        // With texts and without them, for the sake of both sides of an `{{#if}}`.
        for value in ["x", ""] {
            let probe = app.spec.parameters.keys().map(|name| (name.clone(), value.into())).collect::<StringMap>();
            let rendered = app.commands.render("command", &probe);
            let rendered = rendered.map_err(|error| ("command".into(), unknown_variable(&error)))?;
            shell::quote_values(&rendered).map_err(|message| ("command".into(), message.to_owned()))?;
        }
        Ok(app)
    }

    /// An App as far as the service's index has it: all of one that is made through the API, others without environment,
    /// preamble, hooks and files to clean up. `None` for Balsam's Apps, which have no command.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn from_index(index: &app::App) -> Option<Result<Self, (String, String)>> {
        let parameter = |parameter: &AppParameter| ParameterSpec {
            required: Some(parameter.required),
            default: parameter.default.clone(),
            help: parameter.help.clone(),
            choices: parameter.choices.clone(),
        };
        let command = index.command.clone()?;
        let beside = index.remote.clone().unwrap_or_default();
        Some(Self::new(AppFile {
            name: index.name.clone(),
            description: index.description.clone(),
            command,
            parameters: index.parameters.iter().map(|(name, spec)| (name.clone(), parameter(spec))).collect(),
            environment: beside.environment,
            preamble: beside.preamble,
            transfers: index.transfers.clone(),
            hooks: beside.hooks,
            max_restarts: index.max_restarts,
            output: beside.output,
            cleanup_files: beside.cleanup_files,
        }))
    }

    /// The file's content.
    #[must_use]
    pub fn spec(&self) -> &AppFile {
        &self.spec
    }

    /// The App of the API that the Site's agent wrote the file for; `None` for the Site's own files.
    #[must_use]
    pub fn made_for(&self) -> Option<AppId> {
        self.made_for
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
            remote: None,
        }
    }

    /// The command as a shell reads it, with every value quoted as its place asks for, unless the template says `{{{x}}}`.
    ///
    /// # Errors
    /// When a parameter is missing, unknown or not among its choices, or stands where it can't be quoted.
    pub fn command(&self, given: &StringMap) -> Result<String, AppError> {
        let values = self.values(given)?;
        let app = || self.spec.name.clone();
        let rendered = self.commands.render("command", &values);
        let rendered = rendered.map_err(|source| AppError::Render { app: app(), source: Box::new(source) })?;
        shell::quote_values(&rendered).map_err(|message| AppError::Quoting { app: app(), message: message.into() })
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
    fn a_value_between_quotes_of_the_command_is_quoted_for_them() {
        let app = app("name: X\ncommand: 'echo \"Hello {{name}}\"'\nparameters: {name: {required: true}}\n").unwrap();
        let command = app.command(&given(&[("name", "$(id) \"x\"")])).unwrap();
        assert_eq!(command, r#"echo "Hello \$(id) \"x\"""#);
    }

    #[test]
    fn a_value_in_a_place_where_it_could_run_is_a_mistake_of_the_file() {
        let text = "name: X\ncommand: 'echo $(({{n}}))'\nparameters: {n: {required: true}}\n";
        let (field, message) = app(text).unwrap_err();
        assert_eq!(field, "command");
        assert!(message.contains("arithmetic"), "{message}");
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
    fn a_mistake_has_file_line_and_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("X.yml");
        for (text, place) in [
            ("name: X\ncommand: 'echo {{nobody}}'\n", "X.yml: line 2: command: "),
            ("name: Y\ncommand: echo\n", "X.yml: line 1: name: "),
            (
                "name: X\ncommand: a\nparameters:\n  a:\n    default: x\n    choices: [y]\n",
                "line 5: parameters.a.default: ",
            ),
            ("name: X\ncommand: a\nhooks:\n  postproces: x\n", "X.yml: line 4 column 3: unknown field `postproces`"),
            ("name: X\ncommand: a\nparameters:\n  a: {required: maybe}\n", "in the field parameters.a.required"),
            ("name: X\ncommand: a\nmax_restarts: many\n", "line 3 column 15: "),
            ("name: X\ncommand: a\ntransfers: {a: {direction: up, local_path: x}}\n", "line 3"),
            ("name: X\n", "missing field `command`"),
            ("name: X\ncommand: 'a\n", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = App::load(&path).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains("X.yml") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn both_sides_of_a_condition_are_looked_at() {
        let text = "name: X\ncommand: 'a {{#if b}}{{b}}{{else}}{{nobody}}{{/if}}'\nparameters: {b: {default: ''}}\n";
        assert_eq!(app(text).unwrap_err().0, "command");
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
