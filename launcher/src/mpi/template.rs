//! A command of the user's own: `mpi_template` in settings, a handlebars template of everything that stands
//! before the program. `{{x}}` is shell-quoted, `{{{x}}}` is raw, an unknown variable is an error.

use copal_client::app_file::quote;
use copal_schemas::settings::MpiKind;
use handlebars::Handlebars;
use serde_json::json;

use super::{
    LaunchCommand, MpiError, MpiLaunch,
    params::{self, Style},
    ranks,
    run::{RankedRun, distinct},
};
use crate::hardware::gpu_environment;

/// A template that was read.
#[derive(Debug)]
pub(super) struct Template {
    commands: Handlebars<'static>,
}

impl Template {
    pub(super) fn new(text: &str) -> Result<Self, MpiError> {
        let mut commands = Handlebars::new();
        commands.set_strict_mode(true);
        commands.register_escape_fn(quote);
        commands.register_template_string("mpi", text).map_err(|error| MpiError::TemplateSyntax(Box::new(error)))?;
        Ok(Self { commands })
    }
}

impl MpiLaunch for Template {
    fn kind(&self) -> MpiKind {
        MpiKind::Template
    }

    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError> {
        let gpus = run.hosts.first().map(|host| distinct(host.gpus.iter().flatten())).unwrap_or_default();
        let ids: Vec<&str> = gpus.iter().map(|gpu| gpu.id.as_str()).collect();
        let environment = gpu_environment(&gpus);
        let mut env = run.env.clone();
        env.extend(environment.set);
        let cpus: Vec<String> =
            run.binding().map(|cpus| cpus.iter().map(|cpus| ranks::list(cpus)).collect()).unwrap_or_default();
        let values = json!({
            "job_id": run.job,
            "num_nodes": run.hosts.len(),
            "num_ranks": run.ranks(),
            "ranks_per_node": run.ranks_per_node(),
            "threads_per_rank": run.threads_per_rank(),
            "threads_per_core": run.threads_per_core(),
            "cores_per_rank": run.cores_per_rank(),
            "gpus_per_rank": run.shape.gpus_per_rank,
            "gpus_per_node": ids.len(),
            "hosts": run.host_names().join(","),
            "host_list": run.host_names(),
            "gpu_ids": ids.join(","),
            "cpu_lists": cpus.join(":"),
            "env_names": env.keys().collect::<Vec<_>>(),
            "launch_params": run.launch_params,
            "launch_args": params::arguments(&run.launch_params, Style::Apart),
        });
        let text = self.commands.render("mpi", &values).map_err(|error| MpiError::Template(Box::new(error)))?;
        let mut argv = shlex::split(&text).filter(|words| !words.is_empty()).ok_or(MpiError::TemplateWords(text))?;
        argv.extend(run.program.iter().cloned());
        Ok(LaunchCommand { argv, env, unset: environment.unset })
    }
}
