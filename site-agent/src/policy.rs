//! What the Site's owner allows to be submitted. Pure.

use copal_schemas::{batch_job::BatchJob, settings::SchedulerSettings};

/// Checks a BatchJob before it is submitted. `queued` counts the Site's BatchJobs that wait in the
/// same queue now, those submitted a moment ago included.
///
/// # Errors
/// A sentence with what is allowed.
pub fn check(settings: &SchedulerSettings, batch_job: &BatchJob, queued: usize) -> Result<(), String> {
    let BatchJob { project, queue, num_nodes, wall_time_min, .. } = batch_job;
    if !settings.allowed_projects.is_empty() && !settings.allowed_projects.contains(project) {
        return Err(format!(
            "project {project:?} is not allowed here; allowed: {}",
            settings.allowed_projects.join(", ")
        ));
    }
    if !settings.allowed_queues.is_empty() {
        let Some(limits) = settings.allowed_queues.get(queue) else {
            let queues: Vec<&str> = settings.allowed_queues.keys().map(String::as_str).collect();
            return Err(format!("queue {queue:?} is not allowed here; allowed: {}", queues.join(", ")));
        };
        if *num_nodes > limits.max_nodes {
            return Err(format!("{num_nodes} nodes are asked for; queue {queue} allows {}", limits.max_nodes));
        }
        if *wall_time_min > limits.max_walltime {
            return Err(format!("{wall_time_min} minutes are asked for; queue {queue} allows {}", limits.max_walltime));
        }
        if queued >= usize::try_from(limits.max_queued_jobs).unwrap_or(0) {
            return Err(format!(
                "queue {queue} holds {queued} waiting BatchJobs of this Site already; it allows {}",
                limits.max_queued_jobs
            ));
        }
    }
    if let Some(unknown) =
        batch_job.optional_params.keys().find(|name| !settings.optional_batch_job_params.contains_key(*name))
    {
        let declared: Vec<&str> = settings.optional_batch_job_params.keys().map(String::as_str).collect();
        let declared = if declared.is_empty() { "none".into() } else { declared.join(", ") };
        return Err(format!("optional param {unknown:?} is not declared here; declared: {declared}"));
    }
    if let Some(partitions) = &batch_job.partitions {
        let sum: i64 = partitions.iter().map(|partition| i64::from(partition.num_nodes)).sum();
        if sum > i64::from(*num_nodes) {
            return Err(format!("the partitions ask for {sum} nodes; the BatchJob has {num_nodes}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use copal_schemas::{
        BatchJobId, SiteId, StringMap,
        batch_job::{BatchJobState, JobMode},
        settings::QueueLimits,
    };

    use super::*;

    fn settings() -> SchedulerSettings {
        SchedulerSettings {
            allowed_projects: vec!["proj".into()],
            allowed_queues: [("debug".into(), QueueLimits { max_nodes: 4, max_walltime: 60, max_queued_jobs: 1 })]
                .into(),
            optional_batch_job_params: [("shout".into(), String::new())].into(),
            ..SchedulerSettings::default()
        }
    }

    fn batch_job() -> BatchJob {
        BatchJob {
            num_nodes: 4,
            wall_time_min: 60,
            job_mode: JobMode::Mpi,
            optional_params: StringMap::new(),
            filter_tags: StringMap::new(),
            partitions: None,
            id: BatchJobId(1),
            site_id: SiteId(1),
            scheduler_id: None,
            project: "proj".into(),
            queue: "debug".into(),
            state: BatchJobState::PendingSubmission,
            status_info: StringMap::new(),
            start_time: None,
            end_time: None,
        }
    }

    #[test]
    fn each_limit_is_named() {
        let refusal = |batch_job: BatchJob, queued| check(&settings(), &batch_job, queued).unwrap_err();
        assert_eq!(check(&settings(), &batch_job(), 0), Ok(()));
        assert_eq!(
            refusal(BatchJob { project: "x".into(), ..batch_job() }, 0),
            "project \"x\" is not allowed here; allowed: proj"
        );
        assert_eq!(
            refusal(BatchJob { queue: "x".into(), ..batch_job() }, 0),
            "queue \"x\" is not allowed here; allowed: debug"
        );
        assert_eq!(refusal(BatchJob { num_nodes: 5, ..batch_job() }, 0), "5 nodes are asked for; queue debug allows 4");
        assert_eq!(
            refusal(BatchJob { wall_time_min: 61, ..batch_job() }, 0),
            "61 minutes are asked for; queue debug allows 60"
        );
        assert_eq!(refusal(batch_job(), 1), "queue debug holds 1 waiting BatchJobs of this Site already; it allows 1");
        assert_eq!(
            refusal(BatchJob { optional_params: [("shuot".into(), "x".into())].into(), ..batch_job() }, 0),
            "optional param \"shuot\" is not declared here; declared: shout"
        );
        let partitions = Some(vec!["mpi:2".parse().unwrap(), "serial:3".parse().unwrap()]);
        assert_eq!(
            refusal(BatchJob { partitions, ..batch_job() }, 0),
            "the partitions ask for 5 nodes; the BatchJob has 4"
        );
    }

    #[test]
    fn nothing_declared_means_anything_goes() {
        let any = SchedulerSettings::default();
        let batch_job = BatchJob { queue: "any".into(), project: "any".into(), num_nodes: 9_999, ..batch_job() };
        assert_eq!(check(&any, &batch_job, 9_999), Ok(()));
    }
}
