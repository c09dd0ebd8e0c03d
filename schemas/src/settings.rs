//! `settings.yml` of a Site as types. The names are Balsam's where Balsam has one.
//! An unknown key is an error that names it, with its line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{SiteId, StringMap, batch_job::JobMode, lenient};

/// Limits of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueLimits {
    /// Most nodes of one BatchJob.
    #[serde(deserialize_with = "lenient::int")]
    pub max_nodes: i32,
    /// Most minutes of one BatchJob.
    #[serde(deserialize_with = "lenient::int")]
    pub max_walltime: i32,
    /// Most BatchJobs queued at once.
    #[serde(deserialize_with = "lenient::int")]
    pub max_queued_jobs: i32,
}

/// Which scheduler a Site has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerKind {
    /// Processes of this machine.
    #[default]
    Local,
    /// Slurm.
    Slurm,
    /// OpenPBS and PBS Pro.
    Pbs,
    /// LSF.
    Lsf,
    /// Cobalt.
    Cobalt,
    /// Flux.
    Flux,
}

/// How the agent deals with the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerSettings {
    /// Which one.
    pub kind: SchedulerKind,
    /// Seconds between looks at the queue when no event asks for one sooner.
    pub sync_period: f64,
    /// The script's template, relative to the Site's folder.
    pub job_template_path: String,
    /// Who may pay; empty for anybody.
    pub allowed_projects: Vec<String>,
    /// Queues and their limits; empty for any.
    pub allowed_queues: BTreeMap<String, QueueLimits>,
    /// Parameters of the template and their defaults.
    #[serde(deserialize_with = "lenient::string_map")]
    pub optional_batch_job_params: StringMap,
    /// Pretended nodes of the `local` scheduler.
    pub local_nodes: u32,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            kind: SchedulerKind::Local,
            sync_period: 10.0,
            job_template_path: "job-template.sh".into(),
            allowed_projects: Vec::new(),
            allowed_queues: BTreeMap::new(),
            optional_batch_job_params: StringMap::new(),
            local_nodes: 1,
        }
    }
}

/// In which order a launcher takes Jobs. Priority, where set, comes before the rest of any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SortBy {
    /// num_nodes up, node_packing_count down, wall_time_min down.
    #[default]
    SmallFirst,
    /// wall_time_min down, num_nodes down, node_packing_count down.
    LongLargeFirst,
    /// As they were made.
    Fifo,
    /// By priority, then as they were made.
    Priority,
    /// wall_time_min up.
    ShortestFirst,
}

impl SortBy {
    /// The spelling on the wire and in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SmallFirst => "small_first",
            Self::LongLargeFirst => "long_large_first",
            Self::Fifo => "fifo",
            Self::Priority => "priority",
            Self::ShortestFirst => "shortest_first",
        }
    }
}

/// The command that starts the ranks of a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MpiKind {
    /// Found at run time: `srun` under Slurm, else what `mpiexec --version` says.
    #[default]
    Auto,
    /// `mpiexec` of Open MPI.
    Openmpi,
    /// `mpiexec` of MPICH (hydra).
    Mpich,
    /// Slurm's `srun`.
    Srun,
    /// `mpiexec` of PALS.
    Pals,
    /// Cray's `aprun`.
    Aprun,
    /// IBM's `jsrun`.
    Jsrun,
    /// `flux run`.
    Flux,
    /// `mpi_template` of the settings.
    Template,
}

/// How launchers of this Site work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LauncherSettings {
    /// Seconds with nothing to run after which a launcher exits.
    pub idle_ttl_sec: f64,
    /// Order of Jobs.
    pub sort_by: SortBy,
    /// The command that starts ranks.
    pub mpi: MpiKind,
    /// A handlebars template of that command, for `mpi: template`.
    pub mpi_template: Option<String>,
    /// Lines of output kept from a Job that failed.
    pub error_tail_num_lines: usize,
    /// Seconds before the end of the walltime at which running Jobs are told to stop.
    pub wall_time_pad_sec: f64,
    /// Seconds between TERM and KILL.
    pub kill_grace_sec: f64,
    /// Seconds that a node may take until its worker is there, in serial mode; then the node is not used.
    pub worker_start_sec: f64,
    /// CPUs of a node, where they can't or should not be found out.
    pub cpus_per_node: Option<u32>,
    /// GPU ids of a node, where they can't or should not be found out.
    pub gpu_ids: Option<Vec<String>>,
    /// Jobs that run at the same time on a serial-mode node at most, for Jobs that leave node_packing_count at 1
    /// it is one: a Job that names no packing owns its node.
    pub max_concurrent: Option<u32>,
    /// Proxy for the way to the service (`https_proxy`).
    pub proxy: Option<String>,
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            idle_ttl_sec: 60.0,
            sort_by: SortBy::SmallFirst,
            mpi: MpiKind::Auto,
            mpi_template: None,
            error_tail_num_lines: 10,
            wall_time_pad_sec: 5.0,
            kill_grace_sec: 5.0,
            worker_start_sec: 300.0,
            cpus_per_node: None,
            gpu_ids: None,
            max_concurrent: None,
            proxy: None,
        }
    }
}

/// How the agent runs hooks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessingSettings {
    /// Hooks that run at the same time.
    pub num_workers: usize,
    /// Jobs held at a time.
    pub prefetch_depth: usize,
    /// Seconds that a hook may take.
    pub hook_timeout_sec: f64,
    /// Tags that a Job must have.
    #[serde(deserialize_with = "lenient::string_map")]
    pub filter_tags: StringMap,
}

impl Default for ProcessingSettings {
    fn default() -> Self {
        Self { num_workers: 4, prefetch_depth: 500, hook_timeout_sec: 600.0, filter_tags: StringMap::new() }
    }
}

/// How the agent stages data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransferSettings {
    /// Where Jobs may stage from and to: alias to URL.
    #[serde(deserialize_with = "lenient::string_map")]
    pub transfer_locations: StringMap,
    /// Batches of transfers that run at the same time.
    pub max_concurrent_transfers: usize,
    /// Transfers of one batch at most.
    pub num_items_query_limit: usize,
    /// Seconds between looks for work when no event asks for one sooner.
    pub service_period: f64,
    /// Seconds before the first new try of a transfer that failed for a reason that may pass; doubled for each further one.
    pub retry_wait_sec: f64,
    /// Tries after the first one for reasons that pass by themselves, such as a cut network.
    pub max_retries: u32,
    /// Seconds in which nothing moves, after which a transfer counts as cut.
    pub stall_timeout_sec: f64,
    /// Whether copies of adapters that don't check by themselves are read again and compared.
    pub checksum: bool,
    /// Tokens, keys and passwords of locations: a file relative to the Site's folder, mode 0600, of the form
    /// `ALIAS: {NAME: VALUE}`.
    pub credentials_file: Option<String>,
    /// Certificates of authorities that are trusted beside the machine's own, for `https:` and `s3:` locations: a PEM
    /// file relative to the Site's folder.
    pub ca_file: Option<String>,
    /// Arguments for ssh, such as `["-i", "/home/ann/.ssh/staging"]`.
    pub ssh_options: Vec<String>,
    /// The Globus collection in which the Site's folder is.
    pub globus_endpoint_id: Option<String>,
    /// How Globus is reached, and how its collection shows this machine's files.
    pub globus: GlobusSettings,
    /// The stores behind `s3://` locations, by alias; left out, Amazon's own.
    pub s3: BTreeMap<String, S3Settings>,
}

/// An S3-compatible store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Settings {
    /// Its URL, such as `https://s3.example.org`; left out, Amazon's.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: String,
    /// Whether the bucket is a part of the host's name instead of the path.
    pub virtual_hosted_style: bool,
}

impl Default for S3Settings {
    fn default() -> Self {
        Self { endpoint: None, region: "us-east-1".into(), virtual_hosted_style: false }
    }
}

/// How Globus is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GlobusSettings {
    /// The folder of this machine that the Site's collection shows as `/`.
    pub collection_root: String,
    /// The transfer API.
    pub transfer_url: String,
    /// The service that renews tokens.
    pub auth_url: String,
    /// The longest wait between two looks at a task in seconds.
    pub poll_period_sec: f64,
}

impl Default for GlobusSettings {
    fn default() -> Self {
        Self {
            collection_root: "/".into(),
            transfer_url: "https://transfer.api.globus.org/v0.10".into(),
            auth_url: "https://auth.globus.org/v2/oauth2".into(),
            poll_period_sec: 30.0,
        }
    }
}

impl Default for TransferSettings {
    fn default() -> Self {
        Self {
            transfer_locations: StringMap::new(),
            max_concurrent_transfers: 5,
            num_items_query_limit: 10_000,
            service_period: 5.0,
            retry_wait_sec: 2.0,
            max_retries: 20,
            stall_timeout_sec: 60.0,
            checksum: true,
            credentials_file: None,
            ca_file: None,
            ssh_options: Vec::new(),
            globus_endpoint_id: None,
            globus: GlobusSettings::default(),
            s3: BTreeMap::new(),
        }
    }
}

/// What programs of the Site write to their logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingSettings {
    /// error, warn, info, debug or trace.
    pub level: String,
}

impl Default for LoggingSettings {
    fn default() -> Self {
        Self { level: "info".into() }
    }
}

/// Asks for BatchJobs by itself, as many as the Site's Jobs need. Left out, it does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticQueueSettings {
    /// Seconds between looks.
    pub service_period: f64,
    /// Who pays.
    pub submit_project: String,
    /// The queue.
    pub submit_queue: String,
    /// How launchers run Jobs.
    pub job_mode: JobMode,
    /// Only ask for what the scheduler could start now.
    pub use_backfill: bool,
    /// Fewest minutes of a BatchJob.
    pub min_wall_time_min: i32,
    /// Most minutes of a BatchJob.
    pub max_wall_time_min: i32,
    /// Minutes by which a BatchJob is shorter than the backfill window that it is for.
    pub wall_time_pad_min: i32,
    /// Fewest nodes of a BatchJob.
    pub min_num_nodes: i32,
    /// Most nodes of a BatchJob.
    pub max_num_nodes: i32,
    /// Minutes after which a BatchJob that still waits is withdrawn; 0 for never.
    pub max_queue_wait_time_min: i32,
    /// Most BatchJobs of the Site that wait at once.
    pub max_queued_jobs: usize,
    /// Most BatchJobs that are asked for in an hour, whatever happens.
    pub max_requests_per_hour: usize,
}

impl Default for ElasticQueueSettings {
    fn default() -> Self {
        Self {
            service_period: 60.0,
            submit_project: String::new(),
            submit_queue: String::new(),
            job_mode: JobMode::Mpi,
            use_backfill: true,
            min_wall_time_min: 35,
            max_wall_time_min: 360,
            wall_time_pad_min: 5,
            min_num_nodes: 1,
            max_num_nodes: 512,
            max_queue_wait_time_min: 10,
            max_queued_jobs: 20,
            max_requests_per_hour: 30,
        }
    }
}

/// Keeps BatchJobs of one size queued. Left out, it does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueMaintainerSettings {
    /// Seconds between looks.
    pub service_period: f64,
    /// Seconds between two BatchJobs, at least.
    pub submit_period: f64,
    /// Who pays.
    pub submit_project: String,
    /// The queue.
    pub submit_queue: String,
    /// How launchers run Jobs.
    pub job_mode: JobMode,
    /// How many wait at once.
    pub num_queued_jobs: usize,
    /// Nodes of each.
    pub num_nodes: i32,
    /// Minutes of each.
    pub wall_time_min: i32,
    /// Most BatchJobs that are asked for in an hour, whatever happens.
    pub max_requests_per_hour: usize,
}

impl Default for QueueMaintainerSettings {
    fn default() -> Self {
        Self {
            service_period: 60.0,
            submit_period: 60.0,
            submit_project: String::new(),
            submit_queue: String::new(),
            job_mode: JobMode::Mpi,
            num_queued_jobs: 5,
            num_nodes: 1,
            wall_time_min: 60,
            max_requests_per_hour: 30,
        }
    }
}

/// Deletes what Apps declare as `cleanup_files` from the workdirs of Jobs that are JOB_FINISHED.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileCleanerSettings {
    /// Jobs looked at at a time.
    pub cleanup_batch_size: usize,
    /// Seconds between looks.
    pub service_period: f64,
}

impl Default for FileCleanerSettings {
    fn default() -> Self {
        Self { cleanup_batch_size: 180, service_period: 30.0 }
    }
}

fn usual_file_cleaner() -> Option<FileCleanerSettings> {
    Some(FileCleanerSettings::default())
}

/// A Site's `settings.yml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The Site's id at the service.
    pub site_id: SiteId,
    /// The scheduler.
    #[serde(default)]
    pub scheduler: SchedulerSettings,
    /// The launchers.
    #[serde(default)]
    pub launcher: LauncherSettings,
    /// Hooks.
    #[serde(default)]
    pub processing: ProcessingSettings,
    /// Staging.
    #[serde(default)]
    pub transfers: TransferSettings,
    /// BatchJobs by demand; none when left out.
    #[serde(default)]
    pub elastic_queue: Option<ElasticQueueSettings>,
    /// BatchJobs of one size; none when left out.
    #[serde(default)]
    pub queue_maintainer: Option<QueueMaintainerSettings>,
    /// Cleaning of workdirs; `null` for none.
    #[serde(default = "usual_file_cleaner")]
    pub file_cleaner: Option<FileCleanerSettings>,
    /// Logs.
    #[serde(default)]
    pub logging: LoggingSettings,
    /// Whether the Site's owner may also make Apps through the API, whose files the agent then writes.
    #[serde(default)]
    pub allow_remote_apps: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_id_is_needed() {
        let settings: Settings = serde_saphyr::from_str("site_id: 3\nscheduler: {local_nodes: 4}\n").unwrap();
        assert_eq!(settings.site_id, SiteId(3));
        assert_eq!(settings.scheduler.local_nodes, 4);
        assert_eq!(settings.launcher.sort_by, SortBy::SmallFirst);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = serde_saphyr::from_str::<Settings>("site_id: 3\nscheduler:\n  sync_periode: 4\n").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sync_periode") && text.contains('3'), "{text}");
    }
}
