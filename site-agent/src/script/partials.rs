//! Parts that several templates share, by the name under which a template takes one in: `{{> name}}`. They
//! come with the program, so that a correction reaches Sites whose template was copied long ago.

use handlebars::{Handlebars, Template, TemplateError};

/// Name and text of each.
pub(super) const PARTIALS: &[(&str, &str)] = &[
    ("launch", include_str!("../../../templates/partials/launch.sh")),
    ("mig_slices", include_str!("../../../templates/partials/mig-slices.sh")),
];

/// Whether there is one of that name.
pub(super) fn exists(name: &str) -> bool {
    PARTIALS.iter().any(|(known, _)| *known == name)
}

/// Makes them known to an engine.
///
/// # Errors
/// When one is no template, which a test rules out.
pub(super) fn register(engine: &mut Handlebars<'_>) -> Result<(), TemplateError> {
    for (name, text) in PARTIALS {
        engine.register_template(name, Template::compile(text)?);
    }
    Ok(())
}
