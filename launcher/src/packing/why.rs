//! Why a waiting Job does not run, in words.

use copal_schemas::JobId;

use super::{
    packer::Packer,
    queue::{Line, OrderKey},
};

impl Packer {
    /// Why a waiting Job does not run, as of the last [`Packer::place`]; `None` when it does not wait.
    #[must_use]
    pub fn why(&self, job: JobId) -> Option<String> {
        if let Some(held) = self.reservations.iter().flatten().find(|held| held.key.job == job) {
            let when = match held.due_sec {
                due if due.is_finite() => format!("due in {:.0} min", ((due - self.now_sec) / 60.0).max(0.0)),
                _ => "due when their Jobs end, which is not known".into(),
            };
            let what = self.shortage(&held.line);
            return Some(format!("{what}; it keeps {} for its turn, {when}", count(held.nodes.len(), "node")));
        }
        let (key, line) = self.queue.line(job)?;
        Some(self.why_in_line(&key, &line))
    }

    fn why_in_line(&self, key: &OrderKey, line: &Line) -> String {
        if !self.in_time(line) {
            let left = ((self.end_sec - self.now_sec) / 60.0).max(0.0);
            return format!("it takes {} min, and {left:.0} min are left", line.minutes);
        }
        let fitting = (0..self.nodes.len()).filter(|node| self.nodes[*node].fits(&line.need));
        let fitting: Vec<usize> = fitting.collect();
        if fitting.len() < line.need.nodes {
            return self.shortage(line);
        }
        let holder = fitting.iter().find(|node| !self.may_use(**node, line, key.urgency, None));
        match holder.and_then(|node| self.reserved(self.holder[*node]?)) {
            Some(held) => format!("the free place is kept for Job {}, which waits longer", held.key.job),
            None => "it starts with the next look".into(),
        }
    }

    /// What there is too little of.
    fn shortage(&self, line: &Line) -> String {
        let aside = self.nodes.iter().filter(|node| node.is_aside()).count();
        let aside = if aside == 0 { String::new() } else { format!(" ({} set aside)", count(aside, "node")) };
        if line.need.is_wide() {
            let empty = self.empty.len();
            return format!(
                "it needs {} empty nodes; {empty} of {} are empty{aside}",
                line.need.nodes,
                self.nodes.len()
            );
        }
        // The node that comes nearest is the one that tells most.
        let best = (0..self.nodes.len())
            .filter(|node| !self.nodes[*node].is_aside() && self.nodes[*node].could_hold(&line.need))
            .max_by_key(|node| (self.nodes[*node].free_occupancy(), self.nodes[*node].free_cores()));
        let lack = best.and_then(|node| self.nodes[node].lack(&line.need));
        match lack {
            Some(lack) => format!("no node has room; on the emptiest one {lack}{aside}"),
            None if best.is_some() => format!("it fits, but not before Jobs that are ahead of it{aside}"),
            None => format!("every node that could hold it is set aside{aside}"),
        }
    }
}

fn count(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}
