//! What this machine has to start ranks with. The only file here that runs anything.

use std::{env, path::Path, time::Duration};

use copal_schemas::settings::MpiKind;
use nix::unistd::{AccessFlags, access};

use super::{
    MpiError, MpiLaunch,
    mpich::Mpich,
    openmpi::{self, Folders, OpenMpi},
    pals::Pals,
};
use crate::{hardware, nodes::Source};

/// What `--version` may take: programs on a busy parallel file system start slowly.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The command that belongs to the scheduler, when it is there; else `Auto`.
pub(super) fn guess(source: Source) -> MpiKind {
    let (kind, program) = match source {
        Source::Slurm => (MpiKind::Srun, "srun"),
        Source::Flux => (MpiKind::Flux, "flux"),
        Source::Lsf => (MpiKind::Jsrun, "jsrun"),
        Source::Cobalt => (MpiKind::Aprun, "aprun"),
        Source::Pbs | Source::Local => return MpiKind::Auto,
    };
    if on_path(&[program]).is_ok() { kind } else { MpiKind::Auto }
}

/// The first of these programs that is on PATH.
pub(super) fn on_path(programs: &[&str]) -> Result<String, MpiError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        let runs = |file: &Path| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
        if program.contains('/') {
            runs(Path::new(program))
        } else {
            env::split_paths(&path).any(|folder| runs(&folder.join(program)))
        }
    };
    let found = programs.iter().find(|program| is_there(program));
    found
        .map(|program| (*program).to_owned())
        .ok_or_else(|| MpiError::NotFound(format!("{} is not on PATH", programs.join(" or "))))
}

/// Slurm's version, major and minor.
pub(super) fn srun_version() -> Result<(u32, u32), MpiError> {
    let text = hardware::output("srun", &["--version"], TIMEOUT)
        .map_err(|error| MpiError::NotFound(format!("srun --version: {error}")))?;
    // What can't be read is a recent one.
    Ok(parse_srun_version(&text).unwrap_or((99, 0)))
}

/// Whether Slurm can bind ranks to CPUs. Where it does not say, it is asked to.
pub(super) fn slurm_binds() -> bool {
    hardware::output("scontrol", &["show", "config"], TIMEOUT).map_or(true, |text| binds(&text))
}

/// By `TaskPlugin = task/cgroup,task/affinity`: the cgroup plugin alone confines a step, but binds no rank.
fn binds(config: &str) -> bool {
    let value =
        |line: &str| line.split_once('=').filter(|(key, _)| key.trim() == "TaskPlugin").map(|(_, v)| v.to_owned());
    config.lines().find_map(value).is_none_or(|plugins| plugins.contains("affinity"))
}

/// `slurm 22.05.8`, `slurm-wlm 23.11.4`
fn parse_srun_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers =
        text.split_whitespace().find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Which `mpiexec` it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavor {
    /// Up to version 4.
    OpenRte,
    OpenMpi,
    Hydra,
    Intel,
    Pals,
}

impl Flavor {
    /// By what `mpiexec --version` says.
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text.contains("openrte") {
            Some(Self::OpenRte)
        } else if text.contains("open mpi") || text.contains("open-mpi") || text.contains("prte") {
            Some(Self::OpenMpi)
        } else if text.contains("intel(r) mpi") {
            Some(Self::Intel)
        } else if text.contains("hydra") || text.contains("mpich") {
            Some(Self::Hydra)
        } else if text.contains("pals") || text.trim_start().starts_with("mpiexec version") {
            Some(Self::Pals)
        } else {
            None
        }
    }

    fn kind(self) -> MpiKind {
        match self {
            Self::OpenRte | Self::OpenMpi => MpiKind::Openmpi,
            Self::Hydra | Self::Intel => MpiKind::Mpich,
            Self::Pals => MpiKind::Pals,
        }
    }
}

/// The `mpiexec` of this machine, of the wanted kind where one is wanted.
pub(super) fn mpiexec(wanted: Option<MpiKind>, source: Source) -> Result<Box<dyn MpiLaunch + Send + Sync>, MpiError> {
    // Debian installs each MPI's own name beside the common one.
    let programs: &[&str] = match wanted {
        Some(MpiKind::Openmpi) => &["mpiexec", "mpirun", "mpiexec.openmpi", "mpirun.openmpi"],
        Some(MpiKind::Mpich) => &["mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun"],
        _ => &["mpiexec", "mpirun"],
    };
    let mut seen = Vec::new();
    for program in programs {
        if on_path(&[program]).is_err() {
            continue;
        }
        match hardware::output(program, &["--version"], TIMEOUT) {
            Ok(text) => match Flavor::parse(&text) {
                Some(flavor) if wanted.is_none_or(|wanted| wanted == flavor.kind()) => {
                    return Ok(launcher(flavor, (*program).to_owned(), source));
                }
                Some(flavor) => seen.push(format!("{program} is {flavor:?}")),
                None => seen.push(format!("{program} --version says {:?}", text.lines().next().unwrap_or_default())),
            },
            Err(error) => seen.push(error.to_string()),
        }
    }
    if seen.is_empty() {
        seen.push(format!("none of {} is on PATH", programs.join(", ")));
    }
    Err(MpiError::NotFound(seen.join("; ")))
}

fn launcher(flavor: Flavor, program: String, source: Source) -> Box<dyn MpiLaunch + Send + Sync> {
    let (is_local, in_slurm) = (source == Source::Local, source == Source::Slurm);
    match flavor {
        Flavor::OpenRte | Flavor::OpenMpi => {
            let as_root = nix::unistd::geteuid().is_root();
            // Who has chosen a folder already knows why.
            let is_chosen = env::var_os(openmpi::FOLDER_VARIABLE).is_some();
            let folders = (flavor == Flavor::OpenRte && !is_chosen).then(Folders::default);
            Box::new(OpenMpi { program, is_local, in_slurm, as_root, folders })
        }
        Flavor::Hydra => Box::new(Mpich { program, is_local, in_slurm, can_bind: true }),
        Flavor::Intel => Box::new(Mpich { program, is_local, in_slurm, can_bind: false }),
        Flavor::Pals => Box::new(Pals { program }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mpiexec_is_known_by_what_it_says() {
        let cases = [
            ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", Flavor::OpenRte),
            ("mpiexec (Open MPI) 5.0.3\n", Flavor::OpenMpi),
            ("HYDRA build details:\n    Version:                                 4.0.2\n", Flavor::Hydra),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n", Flavor::Intel),
            ("mpiexec version 1.3.4\n", Flavor::Pals),
        ];
        for (text, flavor) in cases {
            assert_eq!(Flavor::parse(text), Some(flavor), "{text}");
        }
        assert_eq!(Flavor::parse("something else"), None);
    }

    #[test]
    fn slurm_versions() {
        assert_eq!(parse_srun_version("slurm 22.05.8\n"), Some((22, 5)));
        assert_eq!(parse_srun_version("slurm-wlm 23.11.4"), Some((23, 11)));
        assert_eq!(parse_srun_version("?"), None);
    }

    #[test]
    fn slurm_binds_only_with_its_affinity_plugin() {
        assert!(binds("SwitchType = switch/none\nTaskPlugin              = task/cgroup,task/affinity\n"));
        assert!(!binds("TaskPluginParam         = (null type)\nTaskPlugin              = task/none\n"));
        assert!(!binds("TaskPlugin = task/cgroup"));
        assert!(binds("something else"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = on_path(&["no-such-mpiexec"]).unwrap_err().to_string();
        assert!(error.contains("no-such-mpiexec") && error.contains("launcher.mpi"), "{error}");
    }
}
