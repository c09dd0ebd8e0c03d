//! The limits of this process's control group (version 2) and of those above it.

use std::fs;

use super::System;

/// The tightest limit that a file of these groups gives, as `parse` reads it. `None` where there is none.
pub(super) fn tightest<T: PartialOrd>(system: &System, file: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let groups = fs::read_to_string(system.proc.join("self/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = system.sys.join("fs/cgroup");
    let own = root.join(group.trim());
    let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
    let limits = folders.filter_map(|folder| parse(fs::read_to_string(folder.join(file)).ok()?.trim()));
    limits.fold(None, |least, limit| match least {
        Some(least) if least <= limit => Some(least),
        _ => Some(limit),
    })
}
