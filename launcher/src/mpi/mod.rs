//! The commands that start the ranks of a Job, one file each for a launcher of ranks. Command lines
//! are made here, pure; only [`choose`] runs anything, once, to see what this machine has.

mod aprun;
mod flux;
mod gpus;
mod jsrun;
mod mpich;
mod openmpi;
mod pals;
mod params;
mod probe;
mod ranks;
mod run;
mod srun;
mod template;
#[cfg(test)]
mod tests;

use copal_schemas::{StringMap, settings::MpiKind};

use crate::nodes::Source;
pub use run::{RankedRun, RunHost};

/// A command line and its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables to set for it, besides what it inherits. The run's own are among them.
    pub env: StringMap,
    /// Variables that it must not inherit.
    pub unset: Vec<String>,
}

/// Starts ranks in its own way.
pub trait MpiLaunch {
    /// Its name, as in settings.
    fn kind(&self) -> MpiKind;

    /// Whether several runs may share a node. Where not, let one Job run on a node at a time.
    fn shares_nodes(&self) -> bool {
        true
    }

    /// The command that starts a run.
    ///
    /// # Errors
    /// [`MpiError`] when the user's own template can't be rendered for this run.
    fn command(&self, run: &RankedRun) -> Result<LaunchCommand, MpiError>;
}

/// Why ranks can't be started.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// None of the commands is there, or it is another one than the settings say.
    #[error("no command to start MPI ranks: {0}; install one, load its module in job-template.sh, or set launcher.mpi")]
    NotFound(String),
    /// `mpi: template` without a template.
    #[error("launcher.mpi is template, but launcher.mpi_template is not set")]
    NoTemplate,
    /// The template does not render.
    #[error("launcher.mpi_template can't be rendered")]
    Template(#[source] Box<handlebars::RenderError>),
    /// The template is no template.
    #[error("launcher.mpi_template makes no sense")]
    TemplateSyntax(#[source] Box<handlebars::TemplateError>),
    /// What the template gives is not a command line.
    #[error("launcher.mpi_template gives no command line a shell could read: {0:?}")]
    TemplateWords(String),
}

/// The way to start ranks that the settings ask for, or the one found at run time. May run
/// `mpiexec --version` or `srun --version`, each with a time-out of ten seconds.
///
/// # Errors
/// [`MpiError`] when there is none, or the template is missing or wrong.
pub fn choose(
    kind: MpiKind,
    template: Option<&str>,
    source: Source,
) -> Result<Box<dyn MpiLaunch + Send + Sync>, MpiError> {
    let kind = if kind == MpiKind::Auto { probe::guess(source) } else { kind };
    let is_local = source == Source::Local;
    Ok(match kind {
        MpiKind::Auto => probe::mpiexec(None, source)?,
        MpiKind::Openmpi | MpiKind::Mpich | MpiKind::Pals => probe::mpiexec(Some(kind), source)?,
        MpiKind::Srun => Box::new(srun::Srun { version: probe::srun_version()?, binds: probe::slurm_binds() }),
        MpiKind::Aprun => Box::new(aprun::Aprun { program: probe::on_path(&["aprun"])? }),
        MpiKind::Jsrun => Box::new(jsrun::Jsrun { program: probe::on_path(&["jsrun"])? }),
        MpiKind::Flux => Box::new(flux::Flux { program: probe::on_path(&["flux"])?, is_local }),
        MpiKind::Template => Box::new(template::Template::new(template.ok_or(MpiError::NoTemplate)?)?),
    })
}
