//! The rules for a Job's fields that need nothing but the field itself. Errors have places
//! relative to the Job.

use copal_schemas::{
    JsonObject, StringMap,
    job::{JobCreate, JobPatch, MAX_SERIALIZED, check_workdir},
    problem::FieldError,
    resources::ResourceShape,
    transfer::TransferLocation,
};

/// The most tags of one Job, and the longest key and value of one in bytes.
const MAX_TAGS: usize = 128;
const MAX_TAG_KEY: usize = 256;
const MAX_TAG_VALUE: usize = 2_048;
/// The most bytes of a Job's `data`, as JSON, and of its other maps. Big results belong into files.
const MAX_DATA: usize = 1 << 20;
const MAX_MAP: usize = 512_000;
/// The most bytes of an event's data, as JSON: a reason and the tail of an output.
const MAX_EVENT_DATA: usize = 64 << 10;
/// A year in minutes, with a lot to spare.
const MAX_MINUTES: i32 = 10_000_000;

fn add(errors: &mut Vec<FieldError>, field: &str, msg: impl Into<String>) {
    errors.push(FieldError { loc: vec![field.into()], msg: msg.into() });
}

/// Checks a new Job and brings its workdir into normal form.
pub fn check_create(job: &mut JobCreate, errors: &mut Vec<FieldError>) {
    match check_workdir(&job.workdir) {
        Ok(workdir) => job.workdir = workdir,
        Err(msg) => add(errors, "workdir", msg),
    }
    check_shape(&job.shape(), errors);
    check_tags(&job.tags, errors);
    check_serialized("serialized_parameters", &job.serialized_parameters, errors);
    check_data(&job.data, errors);
    check_map("launch_params", &job.launch_params, errors);
    check_map("parameters", &job.parameters, errors);
    check_minutes("wall_time_min", job.wall_time_min, 0, errors);
    if let Some(limit) = job.walltime_limit_min {
        check_minutes("walltime_limit_min", limit, 1, errors);
    }
    check_restarts(job.max_restarts, errors);
    if let Some(checkpoint) = &job.checkpoint
        && !(0.0..=86_400.0).contains(&checkpoint.grace_sec)
    {
        add(errors, "checkpoint", format!("grace_sec {} is not between 0 and 86400", checkpoint.grace_sec));
    }
    if job.account.as_ref().is_some_and(|account| account.len() > MAX_TAG_KEY) {
        add(errors, "account", format!("longer than {MAX_TAG_KEY} bytes"));
    }
    for (slot, TransferLocation { location_alias: _, path }) in &job.transfers {
        if !path.starts_with('/') {
            add(errors, "transfers", format!("{slot}: {path:?} is not absolute; give the path at the location"));
        }
    }
}

/// Checks the fields that an update has and brings its workdir into normal form.
pub fn check_patch(patch: &mut JobPatch, errors: &mut Vec<FieldError>) {
    if let Some(workdir) = &mut patch.workdir {
        match check_workdir(workdir) {
            Ok(normal) => *workdir = normal,
            Err(msg) => add(errors, "workdir", msg),
        }
    }
    let plain = ResourceShape::default();
    let shape = ResourceShape {
        num_nodes: patch.num_nodes.unwrap_or(plain.num_nodes),
        ranks_per_node: patch.ranks_per_node.unwrap_or(plain.ranks_per_node),
        threads_per_rank: patch.threads_per_rank.unwrap_or(plain.threads_per_rank),
        threads_per_core: patch.threads_per_core.unwrap_or(plain.threads_per_core),
        gpus_per_rank: patch.gpus_per_rank.unwrap_or(plain.gpus_per_rank),
        node_packing_count: patch.node_packing_count.unwrap_or(plain.node_packing_count),
        mem_mb: patch.mem_mb.flatten(),
    };
    check_shape(&shape, errors);
    if let Some(tags) = &patch.tags {
        check_tags(tags, errors);
    }
    let texts = [
        ("serialized_parameters", &patch.serialized_parameters),
        ("serialized_return_value", &patch.serialized_return_value),
        ("serialized_exception", &patch.serialized_exception),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            check_serialized(field, text, errors);
        }
    }
    if let Some(data) = &patch.data {
        check_data(data, errors);
    }
    check_state_data(&patch.state_data, errors);
    for (field, map) in [("launch_params", &patch.launch_params), ("parameters", &patch.parameters)] {
        if let Some(map) = map {
            check_map(field, map, errors);
        }
    }
    if let Some(minutes) = patch.wall_time_min {
        check_minutes("wall_time_min", minutes, 0, errors);
    }
    if let Some(limit) = patch.walltime_limit_min.flatten() {
        check_minutes("walltime_limit_min", limit, 1, errors);
    }
    check_restarts(patch.max_restarts.flatten(), errors);
}

/// Whether a Job's `data` is small enough to be kept.
pub fn check_data(data: &JsonObject, errors: &mut Vec<FieldError>) {
    check_object("data", data, MAX_DATA, errors);
}

/// Whether an event's data is small enough to be kept.
pub fn check_state_data(data: &JsonObject, errors: &mut Vec<FieldError>) {
    check_object("state_data", data, MAX_EVENT_DATA, errors);
}

fn check_object(field: &str, object: &JsonObject, most: usize, errors: &mut Vec<FieldError>) {
    if object.is_empty() {
        return;
    }
    let bytes = serde_json::to_vec(object).map_or(0, |text| text.len());
    if bytes > most {
        add(errors, field, format!("{bytes} bytes as JSON; {most} is the most, keep larger results in files"));
    }
}

fn check_shape(shape: &ResourceShape, errors: &mut Vec<FieldError>) {
    if let Err(error) = shape.validate() {
        add(errors, error.field, error.message);
    }
}

fn check_tags(tags: &StringMap, errors: &mut Vec<FieldError>) {
    if tags.len() > MAX_TAGS {
        add(errors, "tags", format!("{} tags; {MAX_TAGS} is the most", tags.len()));
    }
    for (key, value) in tags {
        if key.len() > MAX_TAG_KEY || value.len() > MAX_TAG_VALUE {
            let key: String = key.chars().take(40).collect();
            let msg =
                format!("the tag {key:?} is too long; a key has at most {MAX_TAG_KEY} bytes, a value {MAX_TAG_VALUE}");
            add(errors, "tags", msg);
        }
    }
}

fn check_serialized(field: &str, text: &str, errors: &mut Vec<FieldError>) {
    // Bytes bound characters from above, so that most texts are never counted.
    if text.len() > MAX_SERIALIZED && text.chars().count() > MAX_SERIALIZED {
        add(errors, field, format!("longer than {MAX_SERIALIZED} characters"));
    }
}

fn check_map(field: &str, map: &StringMap, errors: &mut Vec<FieldError>) {
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_MAP {
        add(errors, field, format!("{bytes} bytes; {MAX_MAP} is the most"));
    }
}

fn check_minutes(field: &str, minutes: i32, least: i32, errors: &mut Vec<FieldError>) {
    if !(least..=MAX_MINUTES).contains(&minutes) {
        add(errors, field, format!("{minutes} is not between {least} and {MAX_MINUTES}"));
    }
}

fn check_restarts(max_restarts: Option<i32>, errors: &mut Vec<FieldError>) {
    if let Some(restarts) = max_restarts.filter(|restarts| *restarts < 0) {
        add(errors, "max_restarts", format!("{restarts} is negative; 0 means no restart, null the App's policy"));
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::AppId;

    use super::*;

    fn fields_of(job: &mut JobCreate) -> Vec<String> {
        let mut errors = Vec::new();
        check_create(job, &mut errors);
        errors.into_iter().map(|error| error.loc[0].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn wrong_fields_are_named() {
        let mut job = JobCreate::new(AppId(1), "ok");
        assert!(fields_of(&mut job).is_empty());
        job.node_packing_count = 0;
        job.wall_time_min = -1;
        job.max_restarts = Some(-1);
        job.tags.insert("big".into(), "x".repeat(1 << 20));
        job.serialized_parameters = "x".repeat(MAX_SERIALIZED + 1);
        job.transfers.insert("in".into(), TransferLocation { location_alias: "a".into(), path: "relative".into() });
        let expected =
            ["node_packing_count", "tags", "serialized_parameters", "wall_time_min", "max_restarts", "transfers"];
        assert_eq!(fields_of(&mut job), expected);
    }

    #[test]
    fn an_update_is_checked_in_the_fields_it_has() {
        let mut errors = Vec::new();
        let mut patch = JobPatch { workdir: Some("a//b".into()), num_nodes: Some(-1), ..JobPatch::default() };
        check_patch(&mut patch, &mut errors);
        assert_eq!(patch.workdir.as_deref(), Some("a/b"));
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].loc, ["num_nodes"]);
    }
}
