//! Near nodes first: the order of the nodes by the switches (or blocks) of Slurm's topology, as `scontrol show
//! topology` writes it. Pure, but for [`read`].

use std::{collections::HashSet, time::Duration};

use tracing::debug;

use super::Host;
use crate::{hardware, hostlist};

/// How long Slurm may take to tell. The order of its list is good, too.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What Slurm says about its network; nothing where it has no topology or does not answer.
pub(super) fn read() -> String {
    match hardware::output("scontrol", &["show", "topology"], TIMEOUT) {
        Ok(text) => text,
        Err(error) => {
            debug!("the order of nodes is that of the scheduler's list: {error}");
            String::new()
        }
    }
}

/// A switch or a block: how high it is, and the nodes below it.
struct Switch {
    level: u32,
    nodes: HashSet<String>,
}

/// Sorts nodes so that those below one switch stand together, at every level; in their old order otherwise.
pub(super) fn sort(hosts: &mut [Host], topology: &str) {
    let mut switches: Vec<Switch> = topology.lines().filter_map(parse).collect();
    // The highest decides first.
    switches.sort_by_key(|switch| std::cmp::Reverse(switch.level));
    let mut levels: Vec<&[Switch]> = switches.chunk_by(|a, b| a.level == b.level).collect();
    // A level with one switch for all tells nothing.
    levels.retain(|level| level.len() > 1);
    if levels.is_empty() {
        return;
    }
    hosts.sort_by_cached_key(|host| {
        let place =
            |level: &&[Switch]| level.iter().position(|switch| switch.nodes.contains(&host.name)).unwrap_or(usize::MAX);
        levels.iter().map(place).collect::<Vec<_>>()
    });
}

/// `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-3]`, `BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4`
fn parse(line: &str) -> Option<Switch> {
    let fields: Vec<(&str, &str)> = line.split_whitespace().filter_map(|field| field.split_once('=')).collect();
    let value = |name: &str| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    value("SwitchName").or_else(|| value("BlockName"))?;
    let level = value("Level").map_or(Some(0), |level| level.parse().ok())?;
    let nodes = hostlist::expand(value("Nodes")?).ok()?;
    Some(Switch { level, nodes: nodes.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(names: &[&str], topology: &str) -> Vec<String> {
        let mut hosts: Vec<Host> = names.iter().map(|name| Host::new(*name)).collect();
        sort(&mut hosts, topology);
        hosts.into_iter().map(|host| host.name).collect()
    }

    #[test]
    fn nodes_of_one_switch_stand_together_at_every_level() {
        let tree = "SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1,4] \n\
                    SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[2,5]\n\
                    SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3,6]\n\
                    SwitchName=mid0 Level=1 LinkSpeed=1 Nodes=n[1,3-4,6] Switches=leaf[0,2]\n\
                    SwitchName=mid1 Level=1 LinkSpeed=1 Nodes=n[2,5] Switches=leaf1\n\
                    SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-6] Switches=mid[0-1]\n";
        let names = ["n1", "n2", "n3", "n4", "n5", "n6", "stranger"];
        assert_eq!(sorted(&names, tree), ["n1", "n4", "n3", "n6", "n2", "n5", "stranger"]);
    }

    #[test]
    fn blocks_are_known_and_nothing_changes_nothing() {
        let blocks = "BlockName=b1 BlockIndex=0 Nodes=n[2,3] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[1,4]\n";
        assert_eq!(sorted(&["n1", "n2", "n3", "n4"], blocks), ["n2", "n3", "n1", "n4"]);
        for text in
            ["", "No topology information available\n", "SwitchName=s Level=0 Nodes=n[1-4]\n", "SwitchName=s Nodes=n["]
        {
            assert_eq!(sorted(&["n4", "n1"], text), ["n4", "n1"], "{text}");
        }
    }
}
