//! What the types of an App file can't say: names, paths and patterns that make no sense or would leave the
//! place they are meant for. Each mistake names its field. Templates are `app_file.rs`'s own.

use std::path::{Component, Path};

use copal_schemas::{
    app::{TransferSlot, is_identifier},
    app_file::{AppFile, Hooks, ParameterSpec, cleanup_parts},
};

/// Names that handlebars takes for its own helpers, so that `{{name}}` would not be the parameter.
const TEMPLATE_WORDS: &[&str] = &[
    "if", "unless", "each", "with", "lookup", "raw", "log", "eq", "ne", "gt", "gte", "lt", "lte", "and", "or", "not",
    "len", "this", "else",
];

/// A field and what is wrong with it.
pub(super) type Mistake = (String, String);

/// Checks everything but the command's template.
pub(super) fn check(spec: &AppFile) -> Result<(), Mistake> {
    if spec.command.trim().is_empty() {
        return Err(wrong("command", "it is empty; `true` does nothing and succeeds"));
    }
    no_nul("command", &spec.command)?;
    no_nul("preamble", spec.preamble.as_deref().unwrap_or_default())?;
    for (name, parameter) in &spec.parameters {
        check_parameter(&format!("parameters.{name}"), name, parameter)?;
    }
    for (name, value) in &spec.environment {
        let field = format!("environment.{name}");
        if !is_variable(name) {
            return Err(wrong(field, "the name is none of a variable (letters, digits, _)"));
        }
        no_nul(&field, value)?;
    }
    for (name, slot) in &spec.transfers {
        check_slot(&format!("transfers.{name}"), name, slot)?;
    }
    check_hooks(&spec.hooks)?;
    if spec.max_restarts.is_some_and(|restarts| restarts < 0) {
        return Err(wrong("max_restarts", "a negative number of restarts makes no sense"));
    }
    match spec.cleanup_files.iter().find(|pattern| cleanup_parts(pattern).is_none()) {
        Some(pattern) => {
            let message = format!("{pattern:?} is no pattern within a workdir; write a relative path without `..`");
            Err(wrong("cleanup_files", message))
        }
        None => Ok(()),
    }
}

fn wrong(field: impl Into<String>, message: impl Into<String>) -> Mistake {
    (field.into(), message.into())
}

fn no_nul(field: &str, text: &str) -> Result<(), Mistake> {
    if text.contains('\0') {
        Err(wrong(field, "it has a NUL character, which no program can be given"))
    } else {
        Ok(())
    }
}

fn is_variable(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn check_parameter(field: &str, name: &str, parameter: &ParameterSpec) -> Result<(), Mistake> {
    if !is_identifier(name) {
        return Err(wrong(field, "the name is not an identifier (letters, digits, _)"));
    }
    if TEMPLATE_WORDS.contains(&name) {
        return Err(wrong(field, "the name is a word of the template language; rename it"));
    }
    let default = parameter.default.as_deref();
    if parameter.required == Some(true) && default.is_some_and(|default| !default.is_empty()) {
        return Err(wrong(field, "a required parameter has no default; drop one of the two"));
    }
    // An optional parameter without a default is empty, which must be among the choices as well.
    let required = parameter.required.unwrap_or(default.is_none());
    let default = default.unwrap_or_default();
    if !required && !parameter.choices.is_empty() && !parameter.choices.iter().any(|choice| choice == default) {
        let message = format!("the default {default:?} is not among its choices: {}", parameter.choices.join(", "));
        return Err(wrong(format!("{field}.default"), message));
    }
    Ok(())
}

fn check_slot(field: &str, name: &str, slot: &TransferSlot) -> Result<(), Mistake> {
    if name.is_empty() || name.contains('=') {
        return Err(wrong(field, "the name can't be written in -s NAME=LOCATION:/PATH"));
    }
    let path = Path::new(&slot.local_path);
    let is_within = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if slot.local_path.is_empty() || !is_within {
        let message = format!("{:?} leaves the workdir; write a relative path without `..`", slot.local_path);
        return Err(wrong(format!("{field}.local_path"), message));
    }
    no_nul(&format!("{field}.local_path"), &slot.local_path)
}

fn check_hooks(hooks: &Hooks) -> Result<(), Mistake> {
    for (name, program) in hooks.programs() {
        let field = format!("hooks.{name}");
        no_nul(&field, program)?;
        if program.trim().is_empty() {
            return Err(wrong(field, "it is empty; name a program, such as ./collect.sh in apps/"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn mistake(rest: &str) -> Mistake {
        check(&serde_saphyr::from_str(&format!("name: X\n{rest}\n")).unwrap()).unwrap_err()
    }

    #[test]
    fn what_makes_no_sense_is_named_by_its_field() {
        let command = "command: run\n";
        for (rest, field) in [
            ("command: ' '", "command"),
            ("command: \"a\\0b\"", "command"),
            ("command: a\npreamble: \"\\0\"", "preamble"),
            ("command: a\nparameters: {a-b: {required: true}}", "parameters.a-b"),
            ("command: a\nparameters: {len: {required: true}}", "parameters.len"),
            ("command: a\nparameters: {a: {required: true, default: x}}", "parameters.a"),
            ("command: a\nparameters: {a: {default: x, choices: [y, z]}}", "parameters.a.default"),
            ("command: a\nparameters: {a: {required: false, choices: [y, z]}}", "parameters.a.default"),
            ("command: a\nenvironment: {A B: x}", "environment.A B"),
            ("command: a\nenvironment: {1A: x}", "environment.1A"),
            ("command: a\nenvironment: {A: \"x\\0\"}", "environment.A"),
            ("command: a\ntransfers: {a=b: {direction: in, local_path: x}}", "transfers.a=b"),
            ("command: a\ntransfers: {a: {direction: in, local_path: /x}}", "transfers.a.local_path"),
            ("command: a\ntransfers: {a: {direction: out, local_path: ../x}}", "transfers.a.local_path"),
            ("command: a\ntransfers: {a: {direction: out, local_path: ''}}", "transfers.a.local_path"),
            ("command: a\nhooks: {postprocess: ' '}", "hooks.postprocess"),
            ("command: a\nmax_restarts: -1", "max_restarts"),
            ("command: a\ncleanup_files: ['*.tmp', '../*']", "cleanup_files"),
            ("command: a\ncleanup_files: [/tmp/x]", "cleanup_files"),
        ] {
            assert_eq!(mistake(rest).0, field, "{rest}");
        }
        let good = "transfers: {a: {direction: out, local_path: .}, b: {direction: in, local_path: ./in/x}}\n\
                    parameters: {n: {default: 3, choices: [1, 3]}, on: {default: true}}\ncleanup_files: ['sub/*.tmp']\n\
                    environment: {OMP_PLACES: cores, N: 4}\n";
        check(&serde_saphyr::from_str(&format!("name: X\n{command}{good}")).unwrap()).unwrap();
    }
}
