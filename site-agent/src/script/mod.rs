//! The script of a BatchJob: the Site's `job-template.sh`, a handlebars template in strict mode,
//! rendered with the typed [`context::ScriptContext`]. Mistakes of a template are named with file,
//! line and variable before anything is rendered.

pub mod context;
mod helpers;
mod lint;
mod partials;
mod quotes;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use handlebars::{Handlebars, RenderErrorReason, Template, TemplateError, TemplateErrorReason};

use context::ScriptContext;

/// A template that can't be used, or a BatchJob that it can't be rendered for.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file can't be read.
    #[error("can't read the job template {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The text is no template.
    #[error("{path}:{line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line; 0 when it is not known.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A variable or helper that there is not.
    #[error("{path}:{line}: unknown {what} {name:?}; {known}")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// `variable`, `helper` or `partial`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What there is.
        known: String,
    },
    /// A value that no script may hold.
    #[error("{field}: {message}")]
    Value {
        /// The BatchJob's field.
        field: String,
        /// What is wrong with it.
        message: String,
    },
}

/// The checked template of a Site.
pub struct JobTemplate {
    path: PathBuf,
    template: Template,
}

impl JobTemplate {
    /// Reads and checks a template. `optional_params` are the declared names.
    ///
    /// # Errors
    /// [`ScriptError`] for the first mistake in it.
    pub fn load(path: &Path, optional_params: &[&str]) -> Result<Self, ScriptError> {
        let text = fs::read_to_string(path).map_err(|source| ScriptError::Read { path: path.into(), source })?;
        Self::new(path, &text, optional_params)
    }

    /// Checks the text of a template.
    ///
    /// # Errors
    /// [`ScriptError`] for the first mistake in it.
    pub fn new(path: &Path, text: &str, optional_params: &[&str]) -> Result<Self, ScriptError> {
        let template = Template::compile(text).map_err(|error| syntax(path, &error))?;
        if let Some(mistake) = lint::first_mistake(&template, optional_params) {
            let lint::Mistake { line, what, name, known } = mistake;
            return Err(ScriptError::Unknown { path: path.into(), line, what, name, known });
        }
        if let Some((line, message)) = quotes::first_mistake(&template) {
            return Err(ScriptError::Syntax { path: path.into(), line, message });
        }
        Ok(Self { path: path.into(), template })
    }

    /// The script of one BatchJob.
    ///
    /// # Errors
    /// When a value may not stand in a script, or the template does arithmetic that can't be done.
    pub fn render(&self, context: &ScriptContext) -> Result<String, ScriptError> {
        context.check()?;
        let mut engine = Handlebars::new();
        engine.set_strict_mode(true);
        helpers::register(&mut engine);
        partials::register(&mut engine).map_err(|error| syntax(&self.path, &error))?;
        let launcher_cmd = context.launcher_cmd.clone();
        // The launcher's command is a line of shell already, with every value in it quoted.
        engine.register_escape_fn(move |text| if text == launcher_cmd { text.into() } else { quote(text) });
        engine.register_template("job", self.template.clone());
        engine.render("job", context).map_err(|error| {
            let message = match error.reason() {
                RenderErrorReason::MissingVariable(Some(name)) => format!("unknown variable {name:?}"),
                RenderErrorReason::NestedError(cause) => cause.to_string(),
                reason => reason.to_string(),
            };
            ScriptError::Syntax { path: self.path.clone(), line: error.line_no.unwrap_or(0), message }
        })
    }
}

/// A text that is no template.
fn syntax(path: &Path, error: &TemplateError) -> ScriptError {
    let (line, message) = match (error.pos(), error.reason()) {
        (Some((line, _)), reason) => (line, reason.to_string()),
        (None, TemplateErrorReason::InvalidSyntax(message)) => (0, message.clone()),
        (None, reason) => (0, reason.to_string()),
    };
    ScriptError::Syntax { path: path.into(), line, message }
}

/// Quotes a text for a POSIX shell where it needs that. Commas, `=` and `%` need none, and directives
/// of schedulers are full of them.
#[must_use]
pub fn quote(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:@%+=,/".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) && !text.starts_with(['-', '=']) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\0', "").replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
