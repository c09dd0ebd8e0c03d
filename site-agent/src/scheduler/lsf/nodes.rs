//! Reading what LSF prints about hosts. Pure functions over text.

use copal_schemas::site::NodeStates;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: State,
    /// How many slots it has; `None` where that has no limit.
    pub slots: Option<i32>,
}

/// What a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It could take a job.
    Idle,
    /// It has one.
    Allocated,
    /// It takes none.
    Down,
}

/// The hosts in the output of `bhosts -w`: a line of headings, then a host a line. `None` for another text.
#[must_use]
pub fn hosts(text: &str) -> Option<Vec<Host>> {
    let mut lines = text.lines();
    let headings: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = |name: &str| headings.iter().position(|heading| *heading == name);
    let (name, status, jobs, slots) = (column("HOST_NAME")?, column("STATUS")?, column("NJOBS")?, column("MAX"));
    let hosts = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let jobs = fields.get(jobs)?;
        let state = match *fields.get(status)? {
            "ok" if *jobs == "0" => State::Idle,
            // Short and long form: closed because jobs fill it, not because somebody closed it.
            "ok" | "closed_Full" | "closed_Excl" | "closed_Busy" => State::Allocated,
            "closed" if *jobs != "0" => State::Allocated,
            _ => State::Down,
        };
        let slots = slots.and_then(|place| fields.get(place)?.parse().ok());
        Some(Host { name: (*fields.get(name)?).to_owned(), state, slots })
    });
    Some(hosts.collect())
}

/// How many hosts are idle, allocated and down.
#[must_use]
pub fn states(hosts: &[Host]) -> NodeStates {
    let mut states = NodeStates::default();
    for host in hosts {
        let kind = match host.state {
            State::Idle => &mut states.idle,
            State::Allocated => &mut states.allocated,
            State::Down => &mut states.down,
        };
        *kind = kind.saturating_add(1);
    }
    states
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
        let found = hosts(text).unwrap();
        assert_eq!(states(&found), NodeStates { idle: 1, allocated: 3, down: 4 });
        assert_eq!(found[0], Host { name: "h1".into(), state: State::Idle, slots: Some(42) });
        assert_eq!(hosts("LSF is down. Please wait ..."), None);
        assert_eq!(hosts(""), None);
    }
}
