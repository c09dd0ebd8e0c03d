//! Finds names in a template that mean nothing. Handlebars' strict mode sees only what is printed
//! and rendered; a misspelt name in an `{{#if}}` would be false for ever.

use handlebars::{
    Path, PathSeg, Template,
    template::{HelperTemplate, Parameter, Subexpression, TemplateElement},
};

use super::{
    context::VARIABLES,
    helpers::{BUILT_IN, NAMES},
    partials::{self, PARTIALS},
};

/// A name that means nothing.
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) what: &'static str,
    pub(super) name: String,
    pub(super) known: String,
}

/// The first one in a template.
pub(super) fn first_mistake(template: &Template, optional_params: &[&str]) -> Option<Mistake> {
    Lint { optional_params, line: 1, inner: 0 }.template(template)
}

struct Lint<'a> {
    optional_params: &'a [&'a str],
    line: usize,
    /// How many blocks deep a name may also be one of an item's fields.
    inner: usize,
}

impl Lint<'_> {
    fn template(&mut self, template: &Template) -> Option<Mistake> {
        for (index, element) in template.elements.iter().enumerate() {
            if let Some(mapping) = template.mapping.get(index) {
                self.line = mapping.0;
            }
            let mistake = match element {
                TemplateElement::Expression(call) | TemplateElement::HtmlExpression(call) => self.expression(call),
                TemplateElement::HelperBlock(call) => self.block(call),
                TemplateElement::PartialExpression(call) | TemplateElement::PartialBlock(call) => {
                    self.partial(&call.name)
                }
                _ => None,
            };
            if mistake.is_some() {
                return mistake;
            }
        }
        None
    }

    fn expression(&mut self, call: &HelperTemplate) -> Option<Mistake> {
        if call.params.is_empty() && call.hash.is_empty() {
            return self.parameter(&call.name);
        }
        self.helper(&call.name).or_else(|| self.parameters(call))
    }

    fn block(&mut self, call: &HelperTemplate) -> Option<Mistake> {
        if let Some(mistake) = self.helper(&call.name).or_else(|| self.parameters(call)) {
            return Some(mistake);
        }
        let scoped = matches!(call.name.as_name(), Some("each" | "with"));
        self.inner += usize::from(scoped);
        let mistake = call.template.as_ref().and_then(|inner| self.template(inner));
        self.inner -= usize::from(scoped);
        mistake.or_else(|| call.inverse.as_ref().and_then(|inner| self.template(inner)))
    }

    fn partial(&self, name: &Parameter) -> Option<Mistake> {
        let name = name.as_name()?;
        if partials::exists(name) {
            return None;
        }
        let known: Vec<&str> = PARTIALS.iter().map(|(name, _)| *name).collect();
        Some(Mistake {
            line: self.line,
            what: "partial",
            name: name.into(),
            known: format!("there are {}", known.join(", ")),
        })
    }

    fn parameters(&mut self, call: &HelperTemplate) -> Option<Mistake> {
        call.params.iter().chain(call.hash.values()).find_map(|parameter| self.parameter(parameter))
    }

    fn parameter(&mut self, parameter: &Parameter) -> Option<Mistake> {
        match parameter {
            Parameter::Name(name) => self.name(&[name]),
            Parameter::Path(path) => self.path(path),
            Parameter::Subexpression(Subexpression { element, .. }) => match element.as_ref() {
                TemplateElement::Expression(call) => self.expression(call),
                _ => None,
            },
            _ => None,
        }
    }

    fn path(&self, path: &Path) -> Option<Mistake> {
        let Path::Relative((segments, raw)) = path else { return None };
        let mut names = Vec::new();
        for segment in segments {
            match segment {
                PathSeg::Named(name) => names.push(name.as_str()),
                // `this`, `../x`, `@root.x` and the like: left to strict mode.
                _ => return None,
            }
        }
        if names.is_empty() || raw.starts_with("this") { None } else { self.name(&names) }
    }

    fn name(&self, names: &[&str]) -> Option<Mistake> {
        if self.inner > 0 {
            return None;
        }
        let unknown = |name: &str, known| Some(Mistake { line: self.line, what: "variable", name: name.into(), known });
        match names {
            ["optional_params", name, ..] if !self.optional_params.contains(name) => unknown(
                &format!("optional_params.{name}"),
                format!(
                    "declare it in settings.yml under scheduler.optional_batch_job_params; declared: {}",
                    if self.optional_params.is_empty() { "none".into() } else { self.optional_params.join(", ") }
                ),
            ),
            [name, ..] if !VARIABLES.contains(name) => unknown(name, format!("there are {}", VARIABLES.join(", "))),
            _ => None,
        }
    }

    fn helper(&self, name: &Parameter) -> Option<Mistake> {
        let name = name.as_name()?;
        if NAMES.contains(&name) || BUILT_IN.contains(&name) {
            return None;
        }
        let known = format!("there are {}, {}", NAMES.join(", "), BUILT_IN.join(", "));
        Some(Mistake { line: self.line, what: "helper", name: name.into(), known })
    }
}
