//! What a template can do besides handlebars' own: times, integer arithmetic, quoting.
//! Comparison (`eq ne gt gte lt lte and or not`) is handlebars' own.

use handlebars::{Handlebars, handlebars_helper};

use super::quote;

pub(super) const NAMES: &[&str] = &["hhmmss", "add", "sub", "mul", "div", "mod", "quote"];
/// Handlebars' own.
pub(super) const BUILT_IN: &[&str] =
    &["if", "unless", "each", "with", "lookup", "raw", "eq", "ne", "gt", "gte", "lt", "lte", "and", "or", "not", "len"];

pub(super) fn register(engine: &mut Handlebars<'_>) {
    handlebars_helper!(hhmmss_helper: |minutes: i64| hhmmss(minutes));
    handlebars_helper!(add: |a: i64, b: i64| a.saturating_add(b));
    handlebars_helper!(sub: |a: i64, b: i64| a.saturating_sub(b));
    handlebars_helper!(mul: |a: i64, b: i64| a.saturating_mul(b));
    engine.register_helper("hhmmss", Box::new(hhmmss_helper));
    engine.register_helper("add", Box::new(add));
    engine.register_helper("sub", Box::new(sub));
    engine.register_helper("mul", Box::new(mul));
    engine.register_helper("div", Box::new(Divide { name: "div", of: i64::checked_div_euclid }));
    engine.register_helper("mod", Box::new(Divide { name: "mod", of: i64::checked_rem_euclid }));
    engine.register_helper("quote", Box::new(quote_helper));
}

/// Minutes as `HH:MM:SS`; hours go beyond 24 where they must.
fn hhmmss(minutes: i64) -> String {
    let minutes = minutes.max(0);
    format!("{:02}:{:02}:00", minutes / 60, minutes % 60)
}

struct Divide {
    name: &'static str,
    of: fn(i64, i64) -> Option<i64>,
}

impl handlebars::HelperDef for Divide {
    fn call_inner<'reg: 'rc, 'rc>(
        &self,
        helper: &handlebars::Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc handlebars::Context,
        _: &mut handlebars::RenderContext<'reg, 'rc>,
    ) -> Result<handlebars::ScopedJson<'rc>, handlebars::RenderError> {
        let number = |index| {
            helper
                .param(index)
                .and_then(|value| value.value().as_i64())
                .ok_or(handlebars::RenderErrorReason::ParamNotFoundForIndex(self.name, index))
        };
        let (a, b) = (number(0)?, number(1)?);
        let result = (self.of)(a, b)
            .ok_or_else(|| handlebars::RenderErrorReason::Other(format!("{} {a} {b} can't be computed", self.name)))?;
        Ok(handlebars::ScopedJson::Derived(result.into()))
    }
}

/// Written past the escape function, which would quote a second time.
fn quote_helper(
    helper: &handlebars::Helper<'_>,
    _: &Handlebars<'_>,
    _: &handlebars::Context,
    _: &mut handlebars::RenderContext<'_, '_>,
    out: &mut dyn handlebars::Output,
) -> handlebars::HelperResult {
    use handlebars::JsonRender;
    let value = helper.param(0).ok_or(handlebars::RenderErrorReason::ParamNotFoundForIndex("quote", 0))?;
    Ok(out.write(&quote(&value.value().render()))?)
}
