//! The shipped templates rendered, values that try to leave their place, and mistakes of a user's own template.

use copal_client::{
    SiteDir,
    platforms::{Platform, platforms},
};
use copal_schemas::{
    BatchJobId, SiteId, StringMap,
    batch_job::{BatchJob, BatchJobState, JobMode},
    settings::Settings,
};
use proptest::prelude::*;

use super::*;

fn batch_job() -> BatchJob {
    BatchJob {
        num_nodes: 2,
        wall_time_min: 70,
        job_mode: JobMode::Mpi,
        optional_params: StringMap::new(),
        filter_tags: StringMap::new(),
        partitions: None,
        id: BatchJobId(7),
        site_id: SiteId(3),
        scheduler_id: None,
        project: "proj".into(),
        queue: "debug".into(),
        state: BatchJobState::PendingSubmission,
        status_info: StringMap::new(),
        start_time: None,
        end_time: None,
    }
}

fn settings() -> Settings {
    serde_json::from_value(serde_json::json!({"site_id": 3})).unwrap()
}

fn context(settings: &Settings, batch_job: &BatchJob) -> ScriptContext {
    ScriptContext::new(&SiteDir::new("/s/my site"), settings, Path::new("/opt/copal/bin"), batch_job, "cp7xabc")
}

fn render(text: &str, batch_job: &BatchJob) -> Result<String, ScriptError> {
    let mut settings = settings();
    settings.scheduler.optional_batch_job_params.insert("shout".into(), String::new());
    JobTemplate::new(Path::new("/s/job-template.sh"), text, &["shout"])?.render(&context(&settings, batch_job))
}

fn map(pairs: &[(&str, &str)]) -> StringMap {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// Three requests that differ in everything that a template may ask about.
fn requests() -> [(&'static str, BatchJob); 3] {
    let small = BatchJob { num_nodes: 1, wall_time_min: 5, job_mode: JobMode::Serial, ..batch_job() };
    let split = BatchJob {
        wall_time_min: 1441,
        num_nodes: 128,
        partitions: Some(vec!["mpi:2:role=leader".parse().unwrap(), "serial:126:role=worker bee".parse().unwrap()]),
        filter_tags: map(&[("system", "H2O"), ("it's", "$(rm -rf /)")]),
        ..batch_job()
    };
    [("small", small), ("seventy_minutes", batch_job()), ("split", split)]
}

#[test]
fn every_platforms_template_renders() {
    for platform in platforms() {
        let settings: Settings = serde_json::from_value(serde_saphyr_value(&platform.settings_for(SiteId(3)))).unwrap();
        let params = settings.scheduler.optional_batch_job_params.clone();
        let names: Vec<&str> = params.keys().map(String::as_str).collect();
        let template = JobTemplate::new(Path::new("job-template.sh"), platform.job_template, &names).unwrap();
        for (name, request) in requests() {
            let script = template.render(&context(&settings, &request)).unwrap();
            insta::assert_snapshot!(format!("{}_{name}", platform.name), script);
        }
    }
}

fn serde_saphyr_value(text: &str) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("settings.yml"), text).unwrap();
    serde_json::to_value(SiteDir::new(folder.path()).settings().unwrap()).unwrap()
}

#[test]
fn pitfall_082_minutes_become_hours() {
    for (minutes, text) in [(70, "01:10:00"), (90, "01:30:00"), (5, "00:05:00"), (6_000, "100:00:00")] {
        let request = BatchJob { wall_time_min: minutes, ..batch_job() };
        assert_eq!(render("{{hhmmss wall_time_min}}", &request).unwrap(), text);
    }
}

#[test]
fn arithmetic_and_comparison() {
    let text = "{{add num_nodes 1}} {{mul num_nodes (sub wall_time_min 10)}} {{div wall_time_min 60}} {{mod wall_time_min 60}} \
                {{#if (gt num_nodes 1)}}many{{else}}one{{/if}}{{#if (eq job_mode \"mpi\")}} mpi{{/if}}";
    assert_eq!(render(text, &batch_job()).unwrap(), "3 120 1 10 many mpi");
    let error = render("a\n{{div num_nodes 0}}", &batch_job()).unwrap_err().to_string();
    assert_eq!(error, "/s/job-template.sh:2: div 2 0 can't be computed");
}

#[test]
fn an_unknown_variable_is_named_with_its_line_wherever_it_stands() {
    for text in [
        "#!/bin/bash\n{{quue}}",
        "#!/bin/bash\n{{{quue}}}",
        "#!/bin/bash\n{{#if quue}}x{{/if}}",
        "#!/bin/bash\n{{#if (gt quue 1)}}x{{/if}}",
        "#!/bin/bash\n{{#if partitions}}{{quue}}{{/if}}",
        "#!/bin/bash\n{{#if queue}}{{else}}{{hhmmss quue}}{{/if}}",
    ] {
        let error = render(text, &batch_job()).unwrap_err().to_string();
        assert!(error.starts_with("/s/job-template.sh:2: unknown variable \"quue\"; there are "), "{text}: {error}");
    }
    let error = render("{{optional_params.shuot}}", &batch_job()).unwrap_err().to_string();
    assert!(error.contains("optional_params.shuot") && error.contains("declared: shout"), "{error}");
    let error = render("\n\n{{hhmm wall_time_min}}", &batch_job()).unwrap_err().to_string();
    assert!(error.starts_with("/s/job-template.sh:3: unknown helper \"hhmm\""), "{error}");
    let error = render("\n{{> mig_slice}}", &batch_job()).unwrap_err().to_string();
    assert_eq!(error, "/s/job-template.sh:2: unknown partial \"mig_slice\"; there are launch, mig_slices");
    let error = render("a\nb {{#if queue}} c", &batch_job()).unwrap_err().to_string();
    assert!(error.starts_with("/s/job-template.sh:"), "{error}");
}

#[test]
fn items_of_lists_can_be_printed() {
    let request = requests()[2].1.clone();
    let text =
        "{{#each partitions}}{{job_mode}}:{{num_nodes}} {{/each}}{{#each filter_tags}}{{@key}}={{this}};{{/each}}";
    assert_eq!(render(text, &request).unwrap(), r"mpi:2 serial:126 'it'\''s'='$(rm -rf /)';system=H2O;");
}

#[test]
fn pitfall_079_a_path_with_spaces_is_one_word() {
    assert_eq!(render("cd {{site_path}}", &batch_job()).unwrap(), "cd '/s/my site'");
    let command = render("{{launcher_cmd}}", &batch_job()).unwrap();
    assert_eq!(command, render("{{{launcher_cmd}}}", &batch_job()).unwrap());
    let words = shlex::split(&command).unwrap();
    assert_eq!(words[..3], ["/opt/copal/bin/copal-launcher", "--site", "/s/my site"]);
}

#[test]
fn values_that_could_end_a_line_or_a_name_are_refused() {
    let refused = |request: BatchJob, field: &str| {
        let error = render("{{queue}}", &request).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    };
    refused(BatchJob { queue: "a\nrm -rf /".into(), ..batch_job() }, "queue");
    refused(BatchJob { project: "a b".into(), ..batch_job() }, "project");
    refused(BatchJob { queue: "--wrap=x".into(), ..batch_job() }, "queue");
    refused(BatchJob { optional_params: map(&[("shout", "$(id)")]), ..batch_job() }, "optional_params.shout");
    refused(BatchJob { optional_params: map(&[("shout", "home -q urgent")]), ..batch_job() }, "optional_params.shout");
    refused(BatchJob { optional_params: map(&[("shout", "-q urgent")]), ..batch_job() }, "optional_params.shout");
    refused(BatchJob { filter_tags: map(&[("a", "b\n#SBATCH -N 999")]), ..batch_job() }, "filter_tags");
}

proptest! {
    #[test]
    fn pitfall_082_tags_arrive_as_given(key in "[^\\p{Cc}=:]{1,8}", value in "[^\\p{Cc}]{0,12}") {
        let request = BatchJob { filter_tags: map(&[(&key, &value)]), ..batch_job() };
        let words = shlex::split(&render("{{launcher_cmd}}", &request).unwrap()).unwrap();
        prop_assert!(words.contains(&format!("--tag={key}={value}")), "{:?}", words);
    }

    #[test]
    fn quoted_texts_are_one_word(text in "[^\\p{Cc}]{0,20}") {
        prop_assert_eq!(shlex::split(&quote(&text)).unwrap(), [text]);
    }
}

/// How many words each line of a script has, directives included, when every optional param has this value. A comment
/// with an apostrophe in it is no line of words.
fn words(platform: &Platform, value: &str, tag: &str) -> Result<Vec<Option<usize>>, ScriptError> {
    let settings: Settings = serde_json::from_value(serde_saphyr_value(&platform.settings_for(SiteId(3)))).unwrap();
    let names: Vec<&str> = settings.scheduler.optional_batch_job_params.keys().map(String::as_str).collect();
    let params: Vec<(&str, &str)> = names.iter().map(|name| (*name, value)).collect();
    let request = BatchJob { optional_params: map(&params), filter_tags: map(&[("tag", tag)]), ..batch_job() };
    let template = JobTemplate::new(Path::new("job-template.sh"), platform.job_template, &names)?;
    let script = template.render(&context(&settings, &request))?;
    let count = |line: &str| shlex::split(line.trim_start_matches('#')).map(|words| words.len());
    Ok(script.lines().map(count).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever a value holds, it is refused or stays one word in its place: no line and no option more.
    #[test]
    fn values_stay_in_their_place(value in "[ -~\u{a0}-\u{2fff}]{1,16}", tag in "[^\\p{Cc}]{0,12}") {
        // Brings lines in.
        prop_assume!(value != "yes");
        for platform in platforms() {
            let usual = words(platform, "x", "x").unwrap();
            prop_assert!(usual.iter().flatten().count() > 3);
            match words(platform, &value, &tag) {
                Err(ScriptError::Value { .. }) => {}
                shape => prop_assert_eq!(shape.unwrap(), usual, "{}: {:?}", platform.name, value),
            }
        }
    }
}

/// A request with optional params for a shipped platform.
fn rendered(platform: &str, params: &[(&str, &str)]) -> String {
    let platform = copal_client::platforms::platform(platform).unwrap();
    let settings: Settings = serde_json::from_value(serde_saphyr_value(&platform.settings_for(SiteId(3)))).unwrap();
    let names: Vec<&str> = settings.scheduler.optional_batch_job_params.keys().map(String::as_str).collect();
    let template = JobTemplate::new(Path::new("job-template.sh"), platform.job_template, &names).unwrap();
    template.render(&context(&settings, &BatchJob { optional_params: map(params), ..batch_job() })).unwrap()
}

#[test]
fn declared_params_of_platforms_reach_the_script() {
    insta::assert_snapshot!("polaris_mig", rendered("polaris", &[("mig_count", "3")]));
    insta::assert_snapshot!("theta-gpu_mig", rendered("theta-gpu", &[("mig_count", "7")]));
    insta::assert_snapshot!("theta-knl_cache", rendered("theta-knl", &[("singularity_prime_cache", "yes")]));
    insta::assert_snapshot!(
        "summit_reserved",
        rendered("summit", &[("reservation", "r1"), ("alloc_flags", "smt4 gpumps")])
    );
    let perlmutter = rendered("perlmutter-gpu", &[("reservation", "r1")]);
    assert!(perlmutter.contains("#SBATCH --reservation=r1\n") && perlmutter.contains("#SBATCH --constraint=gpu\n"));
    assert!(perlmutter.contains("#SBATCH --qos=debug\n"), "a queue of Perlmutter is a quality of service");
}

#[test]
fn a_script_that_splits_gpus_makes_them_whole_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = rendered("polaris", &[("mig_count", "2")]);
    // Stand-ins for the machine's commands say what they are asked.
    let fakes = "mpiexec() { shift 4; \"$@\"; }\nnvidia-smi() { echo \"nvidia-smi $*\"; }\nexport -f nvidia-smi\n\
                 launcher() { echo launcher; return 5; }\n";
    let script = script.replace("/opt/copal/bin/copal-launcher", "launcher").replacen("#!/bin/bash\n", fakes, 1);
    let path = folder.path().join("job.sh");
    std::fs::write(&path, script.replace("sh -c", "bash -c")).unwrap();
    let output = std::process::Command::new("bash").arg(&path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "nvidia-smi mig -cgi 9,9 -C\nlauncher\nnvidia-smi mig -dci\nnvidia-smi mig -dgi\n");
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn partials_are_templates_that_use_only_what_there_is() {
    for (name, text) in partials::PARTIALS {
        // Each of the optional params that one uses is declared by every template that takes it in.
        JobTemplate::new(Path::new(name), text, &["mig_count"]).unwrap();
    }
}

#[test]
fn every_rendered_script_is_clean_shell() {
    let folder = tempfile::tempdir().unwrap();
    let mut scripts = Vec::new();
    for platform in platforms() {
        let settings: Settings = serde_json::from_value(serde_saphyr_value(&platform.settings_for(SiteId(3)))).unwrap();
        // Every param with a value, as far as one is known that the script takes.
        let all: StringMap = settings
            .scheduler
            .optional_batch_job_params
            .keys()
            .map(|name| {
                let value = match name.as_str() {
                    "mig_count" => "7",
                    "singularity_prime_cache" => "yes",
                    _ => "a:b,c=d e",
                };
                (name.clone(), value.to_owned())
            })
            .collect();
        let full = BatchJob { optional_params: all, ..requests()[2].1.clone() };
        let names: Vec<&str> = settings.scheduler.optional_batch_job_params.keys().map(String::as_str).collect();
        let template = JobTemplate::new(Path::new("job-template.sh"), platform.job_template, &names).unwrap();
        for (name, request) in requests().into_iter().chain([("full", full)]) {
            let path = folder.path().join(format!("{}-{name}.sh", platform.name));
            let mut settings = settings.clone();
            settings.launcher.proxy = Some("http://proxy.example.org:3128".into());
            std::fs::write(&path, template.render(&context(&settings, &request)).unwrap()).unwrap();
            scripts.push(path);
        }
    }
    // A tag with a dollar sign in it is meant as it is.
    let output =
        std::process::Command::new("shellcheck").args(["--shell=bash", "--exclude=SC2016"]).args(&scripts).output();
    let output = output.expect("shellcheck, which is a package of its name");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
