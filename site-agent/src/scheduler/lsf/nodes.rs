//! Reading what LSF prints about hosts. Pure functions over text.

use copal_schemas::site::NodeStates;

/// How many hosts are idle, allocated and down, from `bhosts -w`: a line of headings, then a host a line. `None` for
/// another text.
#[must_use]
pub fn states(text: &str) -> Option<NodeStates> {
    let mut lines = text.lines();
    let headings: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = |name: &str| headings.iter().position(|heading| *heading == name);
    let (status, jobs) = (column("STATUS")?, column("NJOBS")?);
    let mut states = NodeStates::default();
    for line in lines {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(status), Some(jobs)) = (fields.get(status), fields.get(jobs)) else { continue };
        let kind = match *status {
            "ok" if *jobs == "0" => &mut states.idle,
            // Short and long form: closed because jobs fill it, not because somebody closed it.
            "ok" | "closed_Full" | "closed_Excl" | "closed_Busy" => &mut states.allocated,
            "closed" if *jobs != "0" => &mut states.allocated,
            _ => &mut states.down,
        };
        *kind = kind.saturating_add(1);
    }
    Some(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_idle_allocated_or_down() {
        let text = "\
HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV
h1                 ok                 -     42      0      0      0      0      0
h2                 ok                 -     42      7      7      0      0      0
h3                 closed_Excl        -     42     42     42      0      0      0
h4                 closed_Full        -     42     42     42      0      0      0
h5                 closed_Adm         -     42      0      0      0      0      0
h6                 unavail            -     42      0      0      0      0      0
h7                 unreach            -     42      3      3      0      0      0
h8                 a_new_word         -     42      0      0      0      0      0
";
        assert_eq!(states(text), Some(NodeStates { idle: 1, allocated: 3, down: 4 }));
        assert_eq!(states("LSF is down. Please wait ..."), None);
        assert_eq!(states(""), None);
    }
}
