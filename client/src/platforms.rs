//! The platforms that Copal ships: settings and job template of each, compiled into the programs,
//! so that an installed Copal needs nothing of the source tree. Rendering a template is the agent's.

use copal_schemas::SiteId;

/// What a new Site of one kind of machine starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// As `site init --platform` takes it.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// `settings.yml` as shipped; [`Platform::settings_for`] fills in the Site's id.
    pub settings_yml: &'static str,
    /// `job-template.sh`.
    pub job_template: &'static str,
}

/// The line of a shipped `settings.yml` that stands for the Site's id.
const SITE_ID_LINE: &str = "site_id: 0\n";

macro_rules! platforms {
    ($($name:literal: $description:literal,)+) => {
        &[$(Platform {
            name: $name,
            description: $description,
            settings_yml: include_str!(concat!("../../templates/", $name, "/settings.yml")),
            job_template: include_str!(concat!("../../templates/", $name, "/job-template.sh")),
        },)+]
    };
}

/// Every platform, in the order in which `site init` offers them.
#[must_use]
pub fn platforms() -> &'static [Platform] {
    platforms! {
        "local": "this machine, without a scheduler",
        "slurm": "any cluster with Slurm",
        "pbs": "any cluster with OpenPBS or PBS Pro",
        "lsf": "any cluster with LSF",
        "cobalt": "any system with Cobalt",
        "flux": "any Flux instance",
        "theta-knl": "Theta of the ALCF, KNL nodes",
        "theta-gpu": "Theta of the ALCF, GPU nodes",
        "polaris": "Polaris of the ALCF",
        "aurora": "Aurora of the ALCF",
        "sunspot": "Sunspot of the ALCF",
        "perlmutter-cpu": "Perlmutter of NERSC, CPU nodes",
        "perlmutter-gpu": "Perlmutter of NERSC, GPU nodes",
        "frontier": "Frontier of the OLCF",
        "summit": "Summit of the OLCF",
    }
}

/// The platform of that name.
#[must_use]
pub fn platform(name: &str) -> Option<&'static Platform> {
    platforms().iter().find(|platform| platform.name == name)
}

impl Platform {
    /// `settings.yml` of a Site of this platform.
    #[must_use]
    pub fn settings_for(&self, site_id: SiteId) -> String {
        self.settings_yml.replacen(SITE_ID_LINE, &format!("site_id: {site_id}\n"), 1)
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::settings::Settings;

    use super::*;

    #[test]
    fn every_platform_has_settings_that_can_be_read() {
        for platform in platforms() {
            let settings: Settings = serde_saphyr::from_str(&platform.settings_for(SiteId(7))).unwrap();
            assert_eq!(settings.site_id, SiteId(7), "{}", platform.name);
            assert!(
                ["{{launcher_cmd}}", "{{> launch}}"].iter().any(|end| platform.job_template.contains(end)),
                "{}",
                platform.name
            );
        }
    }
}
