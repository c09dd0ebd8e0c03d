//! What a Site's owner allows to be submitted. The command checks a BatchJob before it is sent, the service
//! before it is taken on, and the agent before it is submitted, all by the one function here.

use std::collections::BTreeMap;

use crate::{
    StringMap,
    batch_job::{BatchJob, BatchJobCreate, Partition},
    settings::{QueueLimits, SchedulerSettings},
    site::SiteDetails,
};

/// The rules of a Site.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Who may pay; empty for anybody.
    pub projects: &'a [String],
    /// Queues and their limits; empty for any.
    pub queues: &'a BTreeMap<String, QueueLimits>,
    /// Declared parameters of the template; `None` where it is not known which there are.
    pub params: Option<&'a StringMap>,
}

impl<'a> From<&'a SchedulerSettings> for Limits<'a> {
    fn from(settings: &'a SchedulerSettings) -> Self {
        Self {
            projects: &settings.allowed_projects,
            queues: &settings.allowed_queues,
            params: Some(&settings.optional_batch_job_params),
        }
    }
}

impl<'a> From<&'a SiteDetails> for Limits<'a> {
    fn from(site: &'a SiteDetails) -> Self {
        // A Site that Balsam's clients made may declare none and have some.
        let params = Some(&site.optional_batch_job_params).filter(|declared| !declared.is_empty());
        Self { projects: &site.allowed_projects, queues: &site.allowed_queues, params }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who pays.
    pub project: &'a str,
    /// The queue.
    pub queue: &'a str,
    /// Nodes.
    pub num_nodes: i32,
    /// Minutes.
    pub wall_time_min: i32,
    /// Parameters of the template.
    pub optional_params: &'a StringMap,
    /// Parts of the nodes.
    pub partitions: Option<&'a [Partition]>,
}

impl<'a> From<&'a BatchJob> for Request<'a> {
    fn from(batch_job: &'a BatchJob) -> Self {
        Self {
            project: &batch_job.project,
            queue: &batch_job.queue,
            num_nodes: batch_job.num_nodes,
            wall_time_min: batch_job.wall_time_min,
            optional_params: &batch_job.optional_params,
            partitions: batch_job.partitions.as_deref(),
        }
    }
}

impl<'a> From<&'a BatchJobCreate> for Request<'a> {
    fn from(batch_job: &'a BatchJobCreate) -> Self {
        Self {
            project: &batch_job.project,
            queue: &batch_job.queue,
            num_nodes: batch_job.num_nodes,
            wall_time_min: batch_job.wall_time_min,
            optional_params: &batch_job.optional_params,
            partitions: batch_job.partitions.as_deref(),
        }
    }
}

impl Limits<'_> {
    /// Whether the number of BatchJobs that wait in this queue matters.
    #[must_use]
    pub fn counts_waiting(&self, queue: &str) -> bool {
        self.queues.contains_key(queue)
    }

    /// Checks a request. `waiting` counts the Site's BatchJobs that wait in the same queue now.
    ///
    /// # Errors
    /// A sentence with what is allowed.
    pub fn check(&self, request: &Request<'_>, waiting: usize) -> Result<(), String> {
        let Request { project, queue, num_nodes, wall_time_min, .. } = *request;
        if !self.projects.is_empty() && !self.projects.iter().any(|allowed| allowed == project) {
            return Err(format!("project {project:?} is not allowed here; allowed: {}", self.projects.join(", ")));
        }
        if !self.queues.is_empty() {
            let Some(limits) = self.queues.get(queue) else {
                let queues: Vec<&str> = self.queues.keys().map(String::as_str).collect();
                return Err(format!("queue {queue:?} is not allowed here; allowed: {}", queues.join(", ")));
            };
            if num_nodes > limits.max_nodes {
                return Err(format!("{num_nodes} nodes are asked for; queue {queue} allows {}", limits.max_nodes));
            }
            if wall_time_min > limits.max_walltime {
                return Err(format!(
                    "{wall_time_min} minutes are asked for; queue {queue} allows {}",
                    limits.max_walltime
                ));
            }
            if waiting >= usize::try_from(limits.max_queued_jobs).unwrap_or(0) {
                return Err(format!(
                    "queue {queue} holds {waiting} waiting BatchJobs of this Site already; it allows {}",
                    limits.max_queued_jobs
                ));
            }
        }
        if let Some(declared) = self.params
            && let Some(unknown) = request.optional_params.keys().find(|name| !declared.contains_key(*name))
        {
            let names: Vec<&str> = declared.keys().map(String::as_str).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(format!("optional param {unknown:?} is not declared here; declared: {names}"));
        }
        if let Some(partitions) = request.partitions {
            let sum: i64 = partitions.iter().map(|partition| i64::from(partition.num_nodes)).sum();
            if sum > i64::from(num_nodes) {
                return Err(format!("the partitions ask for {sum} nodes; the BatchJob has {num_nodes}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { max_nodes: 4, max_walltime: 60, max_queued_jobs: 1 };

    fn settings() -> SchedulerSettings {
        SchedulerSettings {
            allowed_projects: vec!["proj".into()],
            allowed_queues: [("debug".into(), LIMITS)].into(),
            optional_batch_job_params: [("shout".into(), String::new())].into(),
            ..SchedulerSettings::default()
        }
    }

    fn request(params: &StringMap) -> Request<'_> {
        Request {
            project: "proj",
            queue: "debug",
            num_nodes: 4,
            wall_time_min: 60,
            optional_params: params,
            partitions: None,
        }
    }

    #[test]
    fn each_limit_is_named() {
        let (settings, none) = (settings(), StringMap::new());
        let limits = Limits::from(&settings);
        let refusal = |request: Request<'_>, waiting| limits.check(&request, waiting).unwrap_err();
        assert_eq!(limits.check(&request(&none), 0), Ok(()));
        assert_eq!(
            refusal(Request { project: "x", ..request(&none) }, 0),
            "project \"x\" is not allowed here; allowed: proj"
        );
        assert_eq!(
            refusal(Request { queue: "x", ..request(&none) }, 0),
            "queue \"x\" is not allowed here; allowed: debug"
        );
        assert_eq!(
            refusal(Request { num_nodes: 5, ..request(&none) }, 0),
            "5 nodes are asked for; queue debug allows 4"
        );
        assert_eq!(
            refusal(Request { wall_time_min: 61, ..request(&none) }, 0),
            "61 minutes are asked for; queue debug allows 60"
        );
        assert_eq!(
            refusal(request(&none), 1),
            "queue debug holds 1 waiting BatchJobs of this Site already; it allows 1"
        );
        let params = [("shuot".to_owned(), "x".to_owned())].into();
        assert_eq!(refusal(request(&params), 0), "optional param \"shuot\" is not declared here; declared: shout");
        let partitions: Vec<Partition> = vec!["mpi:2".parse().unwrap(), "serial:3".parse().unwrap()];
        assert_eq!(
            refusal(Request { partitions: Some(&partitions), ..request(&none) }, 0),
            "the partitions ask for 5 nodes; the BatchJob has 4"
        );
    }

    #[test]
    fn nothing_declared_means_anything_goes() {
        let params = [("shuot".to_owned(), "x".to_owned())].into();
        let wide = Request { project: "any", queue: "any", num_nodes: 9_999, ..request(&params) };
        assert_eq!(Limits::from(&SiteDetails::default()).check(&wide, 9_999), Ok(()));
        // A settings.yml says for certain that there is no parameter.
        let settings = SchedulerSettings::default();
        assert!(Limits::from(&settings).check(&wide, 0).unwrap_err().ends_with("declared: none"));
    }
}
