//! A Job's `launch_params`: words that are passed through to the command that starts ranks.

use copal_schemas::StringMap;

/// How a command takes the value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `--name value`; a value of several words gives several arguments.
    Apart,
    /// `--name=value`, as commands want it whose options may go without a value.
    Joined,
}

/// The parameters as arguments, by name. A name with dashes of its own is taken as it is; else one letter
/// gets one dash, more get two. An empty value gives the name alone.
pub(super) fn arguments(params: &StringMap, style: Style) -> Vec<String> {
    let mut arguments = Vec::new();
    for (name, value) in params {
        let option = option(name);
        let value = value.trim();
        if value.is_empty() {
            arguments.push(option);
        } else if style == Style::Joined && option.starts_with("--") {
            arguments.push(format!("{option}={value}"));
        } else {
            arguments.push(option);
            arguments.extend(shlex::split(value).unwrap_or_else(|| vec![value.to_owned()]));
        }
    }
    arguments
}

fn option(name: &str) -> String {
    if name.starts_with('-') {
        return name.to_owned();
    }
    let name = name.replace('_', "-");
    if name.chars().count() == 1 { format!("-{name}") } else { format!("--{name}") }
}

/// Whether the parameters say how ranks are bound or mapped; then nothing else may.
pub(super) fn has_own_binding(params: &StringMap) -> bool {
    const WORDS: &[&str] =
        &["bind", "bind-to", "cpu-bind", "cpu-affinity", "cc", "map-by", "rankfile", "cpu-set", "cpu-list", "exact"];
    params.keys().any(|name| {
        let name = name.trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
        WORDS.contains(&name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(&str, &str)], style: Style) -> String {
        let params = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        arguments(&params, style).join("|")
    }

    #[test]
    fn names_become_options() {
        assert_eq!(words(&[("cpu_bind", "verbose"), ("v", "")], Style::Apart), "--cpu-bind|verbose|-v");
        assert_eq!(words(&[("--mca", "btl self,tcp")], Style::Apart), "--mca|btl|self,tcp");
        assert_eq!(words(&[("network", "no_vni"), ("K", "1")], Style::Joined), "-K|1|--network=no_vni");
        assert_eq!(words(&[("x", "it's")], Style::Apart), "-x|it's");
    }
}
