//! What the elastic queue asks for and takes back, by examples.

use chrono::Utc;
use copal_schemas::{JobId, SiteId, StringMap};

use super::*;

fn job(id: i64, num_nodes: i32, packing: i32) -> Job {
    serde_json::from_value(serde_json::json!({
        "id": id, "workdir": "w", "tags": {}, "app_id": 1, "session_id": null, "serialized_parameters": "",
        "serialized_return_value": "", "serialized_exception": "", "batch_job_id": null, "state": "PREPROCESSED",
        "last_update": "2026-11-30T10:00:00.000000", "data": {}, "return_code": null, "pending_file_cleanup": true,
        "parent_ids": [], "num_nodes": num_nodes, "ranks_per_node": 1, "threads_per_rank": 1, "threads_per_core": 1,
        "gpus_per_rank": 0.0, "node_packing_count": packing, "wall_time_min": 0, "launch_params": {}, "parameters": {},
        "priority": 0, "dependencies": [], "mem_mb": null, "walltime_limit_min": null, "max_restarts": null,
        "checkpoint": null, "account": null, "array_id": null, "array_index": null, "num_attempts": 0
    }))
    .unwrap()
}

fn batch_job(id: i64, num_nodes: i32, state: BatchJobState) -> BatchJob {
    BatchJob {
        num_nodes,
        wall_time_min: 60,
        job_mode: JobMode::Mpi,
        optional_params: StringMap::new(),
        filter_tags: StringMap::new(),
        partitions: None,
        id: BatchJobId(id),
        site_id: SiteId(1),
        scheduler_id: None,
        project: String::new(),
        queue: "debug".into(),
        state,
        status_info: StringMap::new(),
        start_time: None,
        end_time: None,
    }
}

fn settings() -> ElasticQueueSettings {
    ElasticQueueSettings { use_backfill: false, max_num_nodes: 4, max_queued_jobs: 2, ..Default::default() }
}

fn planned(
    settings: &ElasticQueueSettings,
    jobs: &[Job],
    open: &[BatchJob],
    windows: Option<&[BackfillWindow]>,
) -> Plan {
    let own: Vec<_> = open.iter().map(|batch_job| (batch_job.id, Utc::now())).collect();
    plan(&View { settings, jobs, scale: 1.0, open, own: &own, windows, now: Utc::now() })
}

#[test]
fn a_hole_is_not_promised_twice() {
    let burst: Vec<Job> = (0..500).map(|id| job(id, 1, 4)).collect();
    let settings =
        ElasticQueueSettings { submit_queue: "debug".into(), max_num_nodes: 2, max_queued_jobs: 9, ..settings() };
    let windows = [BackfillWindow { num_nodes: 3, wall_time_min: 120 }];
    let mut open = vec![batch_job(1, 2, BatchJobState::Running)];
    assert_eq!(planned(&settings, &burst, &open, Some(&windows)).ask, Some((2, 115)));
    // What waits has not taken its nodes yet, which still look idle.
    open.push(batch_job(2, 2, BatchJobState::PendingSubmission));
    assert_eq!(planned(&settings, &burst, &open, Some(&windows)).ask, Some((1, 115)));
    open.push(batch_job(3, 1, BatchJobState::Queued));
    assert_eq!(planned(&settings, &burst, &open, Some(&windows)).ask, None);
    let elsewhere = BatchJob { queue: "other".into(), ..batch_job(4, 9, BatchJobState::Queued) };
    assert_eq!(planned(&settings, &burst, &[elsewhere], Some(&windows)).ask, Some((2, 115)));
}

#[test]
fn a_burst_grows_within_the_limits_and_shrinks_to_nothing() {
    let burst: Vec<Job> = (0..500).map(|id| job(id, 1, 4)).collect();
    let settings = settings();
    let mut open = Vec::new();
    assert_eq!(planned(&settings, &burst, &open, None).ask, Some((4, 360)));
    open.push(batch_job(1, 4, BatchJobState::Running));
    open.push(batch_job(2, 4, BatchJobState::Queued));
    assert_eq!(planned(&settings, &burst, &open, None).ask, Some((4, 360)));
    open.push(batch_job(3, 4, BatchJobState::PendingSubmission));
    let full = planned(&settings, &burst, &open, None);
    assert_eq!(full.ask, None);
    assert!(full.word.ends_with("2 BatchJobs wait already, which is the most allowed"), "{}", full.word);
    // Four nodes' worth is left: what runs is enough, what waits goes.
    let rest = planned(&settings, &burst[..16], &open, None);
    assert_eq!(rest.withdraw.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(planned(&settings, &[], &open, None).withdraw.len(), 2);
}

#[test]
fn pitfall_065_without_work_nothing_is_asked_for() {
    assert_eq!(planned(&settings(), &[], &[], None).ask, None);
    let served = planned(&settings(), &[job(1, 1, 1)], &[batch_job(1, 1, BatchJobState::Running)], None);
    assert_eq!((served.ask, served.withdraw), (None, vec![]));
}

#[test]
fn pitfall_133_what_more_nodes_would_not_start_is_no_demand() {
    let long = Job { wall_time_min: 361, ..job(1, 1, 1) };
    assert_eq!(planned(&settings(), &[job(1, 5, 1), long], &[], None).ask, None);
    let serial = ElasticQueueSettings { job_mode: JobMode::Serial, ..settings() };
    assert_eq!(planned(&serial, &[job(1, 2, 1)], &[], None).ask, None);
}

#[test]
fn a_wide_job_gets_a_wide_batch_job() {
    let open = [batch_job(1, 2, BatchJobState::Running), batch_job(2, 2, BatchJobState::Running)];
    assert_eq!(planned(&settings(), &[job(1, 3, 1)], &open, None).ask, Some((3, 360)));
}

#[test]
fn nodes_for_other_tags_are_no_help() {
    let mut tagged = batch_job(1, 4, BatchJobState::Running);
    tagged.filter_tags.insert("system".into(), "H2O".into());
    assert_eq!(planned(&settings(), &[job(1, 1, 1)], std::slice::from_ref(&tagged), None).ask, Some((1, 360)));
    let mut water = job(1, 1, 1);
    water.tags.insert("system".into(), "H2O".into());
    let plain = batch_job(2, 1, BatchJobState::Running);
    assert_eq!(planned(&settings(), &[water], &[tagged, plain], None).ask, None);
}

/// Asked for in one pass and withdrawn in the next, again and again: a Job that runs in an allocation for its tags, and
/// a wide one whose allocation waits beside many narrow ones.
#[test]
fn pitfall_065_what_has_its_place_is_no_demand() {
    let mut tagged = batch_job(1, 1, BatchJobState::Running);
    tagged.filter_tags.insert("kind".into(), "long".into());
    let mut long = Job { state: JobState::Running, batch_job_id: Some(tagged.id), ..job(1, 1, 1) };
    long.tags.insert("kind".into(), "long".into());
    let plan = planned(&settings(), &[long.clone()], &[tagged], None);
    assert_eq!((plan.ask, plan.withdraw), (None, vec![]), "{}", plan.word);

    let mut open = vec![batch_job(1, 2, BatchJobState::Running), batch_job(2, 2, BatchJobState::Running)];
    let jobs = [job(1, 3, 1), job(2, 1, 1)];
    assert_eq!(planned(&settings(), &jobs, &open, None).ask, Some((3, 360)));
    open.push(batch_job(3, 3, BatchJobState::Queued));
    let plan = planned(&settings(), &jobs, &open, None);
    assert_eq!((plan.ask, plan.withdraw), (None, vec![]), "{}", plan.word);
    // It is the one that is needed; a narrow one that waits is not.
    open.push(batch_job(4, 1, BatchJobState::Queued));
    let plan = planned(&settings(), &jobs, &open, None);
    assert_eq!(plan.withdraw, [(BatchJobId(4), "no Job needs it any more".to_owned())]);
}

/// What runs takes no place but its own, and asks for nothing.
#[test]
fn what_runs_stays_where_it_runs() {
    let full = batch_job(1, 1, BatchJobState::Running);
    let mut tagged = batch_job(2, 1, BatchJobState::Queued);
    tagged.filter_tags.insert("kind".into(), "long".into());
    let mut long = Job { state: JobState::Running, batch_job_id: Some(full.id), ..job(1, 1, 1) };
    long.tags.insert("kind".into(), "long".into());
    let plan = planned(&settings(), &[long, job(2, 1, 1)], &[full, tagged], None);
    assert_eq!(plan.ask, Some((1, 360)), "{}", plan.word);

    let by_hand = Job { state: JobState::Running, batch_job_id: None, ..job(1, 1, 1) };
    assert_eq!(planned(&settings(), &[by_hand], &[], None).ask, None);
}

/// What an allocation has no time or no mode for is demand all the same.
#[test]
fn an_allocation_serves_what_it_could_start() {
    let now = Utc::now();
    let mut open = [BatchJob { start_time: Some(now), ..batch_job(1, 4, BatchJobState::Running) }];
    let jobs = [Job { wall_time_min: 30, ..job(1, 1, 1) }];
    assert_eq!(planned(&settings(), &jobs, &open, None).ask, None);
    open[0].start_time = Some(now - TimeDelta::minutes(40));
    assert_eq!(planned(&settings(), &jobs, &open, None).ask, Some((1, 360)));
    open[0].start_time = Some(now);
    open[0].job_mode = JobMode::Serial;
    assert_eq!(planned(&settings(), &[Job { ranks_per_node: 2, ..job(1, 1, 1) }], &open, None).ask, Some((1, 360)));
}

/// A hole is only worth what would start in it.
#[test]
fn a_narrow_window_is_for_narrow_jobs() {
    let windows = [BackfillWindow { num_nodes: 2, wall_time_min: 60 }];
    let ask = |jobs: &[Job]| planned(&settings(), jobs, &[], Some(&windows)).ask;
    assert_eq!(ask(&[job(1, 3, 1)]), None);
    assert_eq!(ask(&[job(1, 3, 1), job(2, 1, 1)]), Some((1, 55)));
    assert_eq!(ask(&[Job { wall_time_min: 90, ..job(1, 1, 1) }]), None);
}

#[test]
fn a_backfill_window_bounds_the_request() {
    let hole = |num_nodes, wall_time_min| BackfillWindow { num_nodes, wall_time_min };
    let jobs: Vec<Job> = (0..3).map(|id| job(id, 1, 1)).collect();
    let ask = |windows: &[BackfillWindow]| planned(&settings(), &jobs, &[], Some(windows)).ask;
    assert_eq!(ask(&[]), None);
    assert_eq!(ask(&[hole(2, 39)]), None);
    assert_eq!(ask(&[hole(2, 40)]), Some((2, 35)));
    assert_eq!(ask(&[hole(1, 120), hole(9, 60)]), Some((3, 55)));
    assert_eq!(ask(&[hole(9, 9_999)]), Some((3, 360)));
}

#[test]
fn what_waits_too_long_is_withdrawn() {
    let open = [batch_job(1, 1, BatchJobState::Queued)];
    let own = [(BatchJobId(1), Utc::now() - TimeDelta::minutes(11))];
    let jobs = [job(1, 1, 1)];
    let withdrawn = |settings: &ElasticQueueSettings| {
        let view = View { settings, jobs: &jobs, scale: 1.0, open: &open, own: &own, windows: None, now: Utc::now() };
        plan(&view).withdraw
    };
    assert_eq!(withdrawn(&settings()), [(BatchJobId(1), "it has waited for more than 10 minutes".to_owned())]);
    assert_eq!(withdrawn(&ElasticQueueSettings { max_queue_wait_time_min: 0, ..settings() }), []);
    // Somebody else's is none of its business.
    let view =
        View { settings: &settings(), jobs: &[], scale: 1.0, open: &open, own: &[], windows: None, now: Utc::now() };
    assert_eq!(plan(&view).withdraw, []);
}

#[test]
fn a_sample_stands_for_all() {
    let jobs = [job(1, 1, 1)];
    assert_eq!(jobs[0].id, JobId(1));
    let settings = ElasticQueueSettings { max_num_nodes: 512, ..settings() };
    let view =
        View { settings: &settings, jobs: &jobs, scale: 99.5, open: &[], own: &[], windows: None, now: Utc::now() };
    assert_eq!(plan(&view).ask, Some((100, 360)));
}
