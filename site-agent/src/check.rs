//! `copal-agent check`: everything about a Site that can be wrong before anything runs: settings,
//! job template, Apps and their hooks. Changes nothing and asks nobody.

use std::{io::Write, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, bail};
use copal_client::SiteDir;
use copal_schemas::{
    BatchJobId, SiteId, StringMap,
    batch_job::{BatchJob, BatchJobState, JobMode},
    limits::{Limits, Request},
    settings::Settings,
};

use crate::{
    agent::programs,
    script::{JobTemplate, context::ScriptContext},
    staging::{Location, Secrets, authorities::Authorities},
};

/// Checks a Site; writes what is right and what is wrong to `out`.
///
/// # Errors
/// When something is wrong; the first mistake is in the error, all are in `out`.
pub fn run(site: &SiteDir, out: &mut impl Write) -> anyhow::Result<()> {
    let mut mistakes = Vec::new();
    let settings = site.settings()?;
    writeln!(out, "settings.yml is right")?;
    match template(site, &settings) {
        Ok(()) => writeln!(out, "{} is right", settings.scheduler.job_template_path)?,
        Err(error) => mistakes.push(format!("{error:#}")),
    }
    mistakes.extend(requests(&settings));
    let (apps, errors) = site.load_apps()?;
    mistakes.extend(errors.into_iter().map(|error| format!("{:#}", anyhow::Error::from(error))));
    for (name, app) in &apps {
        let hooks = &app.spec().hooks;
        let declared = [&hooks.preprocess, &hooks.postprocess, &hooks.handle_error, &hooks.handle_timeout];
        let wrong: Vec<String> =
            declared.into_iter().flatten().filter_map(|program| hook_mistake(site, program)).collect();
        match wrong.is_empty() {
            true => writeln!(out, "App {name} is right")?,
            false => mistakes.extend(wrong.into_iter().map(|mistake| format!("App {name}: {mistake}"))),
        }
    }
    let secrets = Secrets::new(site, &settings.transfers);
    for (alias, url) in &settings.transfers.transfer_locations {
        let usable = Location::parse(alias, url).and_then(|location| match secrets.of(alias)?.is_empty() {
            true => Ok(()),
            false => location.check_secrecy(),
        });
        match usable {
            Ok(()) => writeln!(out, "location {alias} is right")?,
            Err(error) => mistakes.push(error.message),
        }
    }
    if settings.transfers.ca_file.is_some() {
        match Authorities::of(site, &settings.transfers).and_then(|authorities| authorities.for_web()) {
            Ok(_) => writeln!(out, "transfers.ca_file is right")?,
            Err(error) => mistakes.push(error.message),
        }
    }
    for mistake in &mistakes {
        writeln!(out, "wrong: {mistake}")?;
    }
    match mistakes.first() {
        None => Ok(()),
        Some(first) if mistakes.len() == 1 => bail!("{first}"),
        Some(first) => bail!("{first} (and {} more)", mistakes.len() - 1),
    }
}

/// Checks the job template and renders it for a made-up BatchJob.
fn template(site: &SiteDir, settings: &Settings) -> anyhow::Result<()> {
    let path = site.root().join(&settings.scheduler.job_template_path);
    let names: Vec<&str> = settings.scheduler.optional_batch_job_params.keys().map(String::as_str).collect();
    let template = JobTemplate::load(&path, &names)?;
    let plain = BatchJob {
        num_nodes: 2,
        wall_time_min: 70,
        job_mode: JobMode::Mpi,
        optional_params: StringMap::new(),
        filter_tags: StringMap::new(),
        partitions: None,
        id: BatchJobId(1),
        site_id: SiteId(1),
        scheduler_id: None,
        project: "project".into(),
        queue: "queue".into(),
        state: BatchJobState::PendingSubmission,
        status_info: StringMap::new(),
        start_time: None,
        end_time: None,
    };
    let tags: StringMap = [("system".into(), "H2O".into())].into();
    let partitions = "mpi:1:role=leader".parse().ok().zip("serial:1".parse().ok()).map(|(a, b)| vec![a, b]);
    let full = BatchJob { filter_tags: tags, partitions, ..plain.clone() };
    for batch_job in [plain, full] {
        let context = ScriptContext::new(site, settings, &programs()?, &batch_job, "check");
        template.render(&context)?;
    }
    Ok(())
}

/// What the agent would ask for by itself and the Site's own rules forbid, at its smallest.
fn requests(settings: &Settings) -> Vec<String> {
    let optional_params = &StringMap::new();
    let limits = Limits::from(&settings.scheduler);
    let elastic = settings.elastic_queue.as_ref().map(|elastic| {
        let (project, queue) = (elastic.submit_project.as_str(), elastic.submit_queue.as_str());
        // Without windows it asks for as long as the queue allows.
        let wall_time_min = if elastic.use_backfill { elastic.min_wall_time_min } else { 1 };
        let num_nodes = elastic.min_num_nodes;
        ("elastic_queue", Request { project, queue, num_nodes, wall_time_min, optional_params, partitions: None })
    });
    let maintainer = settings.queue_maintainer.as_ref().map(|wanted| {
        let (project, queue) = (wanted.submit_project.as_str(), wanted.submit_queue.as_str());
        let (num_nodes, wall_time_min) = (wanted.num_nodes, wanted.wall_time_min);
        ("queue_maintainer", Request { project, queue, num_nodes, wall_time_min, optional_params, partitions: None })
    });
    let refused = |(name, request): (&str, Request<'_>)| {
        let reason = limits.check(&request, 0).err()?;
        Some(format!("settings.yml: {name} could ask for nothing: {reason}"))
    };
    elastic.into_iter().chain(maintainer).filter_map(refused).collect()
}

fn hook_mistake(site: &SiteDir, program: &str) -> Option<String> {
    if !program.contains('/') {
        return None;
    }
    let path = site.apps().join(program);
    match executable(&path) {
        Ok(true) => None,
        Ok(false) => Some(format!("the hook {} is not executable; run chmod +x on it", path.display())),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn executable(path: &Path) -> anyhow::Result<bool> {
    let meta = std::fs::metadata(path).with_context(|| format!("the hook {} can't be read", path.display()))?;
    Ok(meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use copal_client::platforms::platform;

    use super::*;

    #[test]
    fn every_mistake_is_listed_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        site.create_folders().unwrap();
        let local = platform("local").unwrap();
        fs::write(site.settings_path(), local.settings_for(SiteId(3))).unwrap();
        fs::write(site.root().join("job-template.sh"), local.job_template).unwrap();
        fs::write(site.apps().join("Hello.yml"), "name: Hello\ncommand: echo\n").unwrap();
        let check = || {
            let mut out = Vec::new();
            (run(&site, &mut out), String::from_utf8(out).unwrap())
        };
        let (outcome, text) = check();
        outcome.unwrap();
        assert_eq!(text, "settings.yml is right\njob-template.sh is right\nApp Hello is right\n");

        let elastic =
            "\nelastic_queue: {submit_queue: locale}\nqueue_maintainer: {submit_queue: local, num_nodes: 1001}\n";
        fs::write(site.settings_path(), local.settings_for(SiteId(3)) + elastic).unwrap();
        let (_, text) = check();
        assert!(text.contains("wrong: settings.yml: elastic_queue could ask for nothing: queue \"locale\""), "{text}");
        assert!(text.contains("queue_maintainer could ask for nothing: 1001 nodes"), "{text}");
        fs::write(site.settings_path(), local.settings_for(SiteId(3))).unwrap();

        let secrets = site.root().join("secrets.yml");
        fs::write(&secrets, "web: {token: t0ken}\n").unwrap();
        fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
        let locations = "transfer_locations: {web: 'http://data.example.org', open: 'http://data.example.org'}\n  \
                         credentials_file: secrets.yml";
        let settings = local.settings_for(SiteId(3)).replace("transfer_locations: {}", locations);
        fs::write(site.settings_path(), settings).unwrap();
        let (outcome, text) = check();
        assert!(
            outcome.unwrap_err().to_string().contains("\"web\" has a login and is http://data.example.org"),
            "{text}"
        );
        assert!(text.contains("location open is right") && !text.contains("t0ken"), "{text}");
        fs::write(site.settings_path(), local.settings_for(SiteId(3))).unwrap();

        fs::write(site.root().join("job-template.sh"), "#!/bin/sh\nexec \"{{launcher_cmd}}\"\n").unwrap();
        let (outcome, _) = check();
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("job-template.sh:2: launcher_cmd stands between quotes"), "{error}");

        fs::write(site.root().join("job-template.sh"), "#!/bin/sh\n{{num_node}}\n").unwrap();
        fs::write(site.apps().join("Hello.yml"), "name: Hello\ncommand: echo\nhooks: {preprocess: ./none.sh}\n")
            .unwrap();
        fs::write(site.apps().join("Bad.yml"), "name: Bad\ncomand: echo\n").unwrap();
        let (outcome, text) = check();
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains("job-template.sh:2: unknown variable \"num_node\"") && error.ends_with("(and 2 more)"),
            "{error}"
        );
        assert!(text.contains("none.sh can't be read") && text.contains("comand"), "{text}");
    }
}
