//! What `copal doctor` finds when something is amiss: each of its checks fails here once, and says how to mend it.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

use copal_tests::process::program_dir;
use serde_json::Value;

use crate::{desk::Desk, other_service::OtherService};

/// What is found, by check: the verdict, what was found, and the remedy.
struct Findings(BTreeMap<String, (String, String, String)>);

impl Findings {
    /// Of a machine with these programs on its PATH, or with the usual ones.
    fn with_programs(desk: &Desk, folder: Option<&Path>) -> Self {
        let mut doctor = desk.copal(&["doctor", "-o", "json"]);
        if let Some(folder) = folder {
            doctor.env("PATH", folder);
        }
        Self::of(desk, doctor)
    }

    fn of(desk: &Desk, mut doctor: std::process::Command) -> Self {
        let output = doctor.output().unwrap();
        let rows: Vec<Value> =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", desk.told(&output)));
        let home = desk.programs.home().to_str().unwrap();
        let text =
            |value: &Value| value.as_str().unwrap_or_default().replace(home, "~").replace(desk.service.base(), "URL");
        let row =
            |row: &Value| (text(&row["check"]), (text(&row["verdict"]), text(&row["found"]), text(&row["remedy"])));
        let found = Self(rows.iter().map(row).collect());
        let is_wrong = found.0.values().any(|(verdict, ..)| verdict == "wrong");
        assert_eq!(output.status.code(), Some(i32::from(is_wrong)), "{:?}", found.0);
        found
    }

    #[track_caller]
    fn of_check(&self, check: &str) -> &(String, String, String) {
        self.0.get(check).unwrap_or_else(|| panic!("{check} is not looked at: {:?}", self.0))
    }

    /// What is found, where the verdict is the machine's.
    #[track_caller]
    fn tells(&self, check: &str, found: &str) {
        let what = self.of_check(check);
        assert!(what.1.contains(found), "{found}: {what:?}");
    }

    #[track_caller]
    fn is(&self, check: &str, verdict: &str, found: &str, remedy: &str) {
        let what = self.of_check(check);
        assert_eq!(what.0, verdict, "{what:?}");
        assert!(what.1.contains(found), "{found}: {what:?}");
        assert!(what.2.contains(remedy), "{remedy}: {what:?}");
    }
}

/// A program of the machine that writes this and ends with this code.
fn program(folder: &Path, name: &str, text: &str, code: i32) {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\nprintf '{text}'\nexit {code}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_login_and_service_is_found() {
    let mut desk = Desk::without_site().await;
    let credentials = desk.programs.home().join(".copal/client.yml");
    let good = fs::read_to_string(&credentials).unwrap();
    let well = Findings::with_programs(&desk, None);
    well.is("credentials", "ok", "ann at URL/, token renews itself", "");
    well.is("service", "ok", "version", "");
    well.is("clock", "ok", "as the service's", "");
    well.is("site", "ok", "this folder is in no Site", "");
    well.tells("disk of COPAL_HOME", "free");
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o640)).unwrap();
    let open = Findings::with_programs(&desk, None);
    open.is("credentials", "wrong", "~/.copal/client.yml has mode 0640", "chmod 600 ~/.copal/client.yml");
    fs::remove_file(&credentials).unwrap();
    Findings::with_programs(&desk, None).is("credentials", "wrong", "not logged in", "copal login");
    let write = |text: &str| {
        fs::write(&credentials, text).unwrap();
        fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    };
    // A login that can't be renewed and lapses within the day.
    let soon = (chrono::Utc::now() + chrono::TimeDelta::hours(2)).to_rfc3339();
    let line = |line: &str| match line.split(':').next() {
        Some("refresh_token") => String::new(),
        Some("token_expiry") => format!("token_expiry: {soon}\n"),
        _ => format!("{line}\n"),
    };
    write(&good.lines().map(line).collect::<String>());
    Findings::with_programs(&desk, None).is("credentials", "warning", "token lapses", "copal login");
    write(
        &good
            .lines()
            .map(|l| if l.starts_with("token:") { "token: none\n".into() } else { line(l) })
            .collect::<String>(),
    );
    Findings::with_programs(&desk, None).is("service", "wrong", "does not accept the stored token", "copal login");
    write(&good);
    let late = (chrono::Utc::now() - chrono::TimeDelta::hours(1)).to_rfc2822();
    let other = OtherService::start("9.9.9", Some(late));
    desk.point_at(&other.url());
    let strange = Findings::with_programs(&desk, None);
    strange.is("service", "warning", "version 9.9.9", "install the one of 9.9.9, or update the service");
    strange.is("clock", "warning", "apart from the service's", "set this machine's clock");
    write(&good);
    desk.service.stop().await;
    Findings::with_programs(&desk, None).is("service", "wrong", "can't reach the service", "copal-server");
    // Programs that were installed without the others.
    let alone = desk.programs.home().join("bin");
    fs::create_dir(&alone).unwrap();
    fs::copy(program_dir().join("copal"), alone.join("copal")).unwrap();
    let mut doctor = desk.programs.command(alone.join("copal").to_str().unwrap());
    doctor.args(["doctor", "-o", "json"]);
    let lonely = Findings::of(&desk, doctor);
    lonely.is("programs", "warning", "copal-agent and copal-launcher not beside it", "into one folder");
}

#[tokio::test]
async fn what_is_wrong_with_a_site_is_found() {
    let mut desk = Desk::new().await;
    let settings = desk.site_path().join("settings.yml");
    let good = fs::read_to_string(&settings).unwrap();
    let well = Findings::with_programs(&desk, None);
    well.is("site files", "ok", "are good", "");
    well.is("scheduler", "ok", "local: this machine", "");
    well.tells("disk of the Site", "free");
    fs::write(&settings, good.replace("site_id: 1", "site_id: 77")).unwrap();
    Findings::with_programs(&desk, None).is("site", "wrong", "no Site 77 of yours", "copal whoami");
    fs::write(&settings, good.replace("sync_period:", "sync_perod:")).unwrap();
    Findings::with_programs(&desk, None).is("site", "wrong", "sync_perod", "correct the file");
    fs::write(&settings, &good).unwrap();
    let template = desk.site_path().join("job-template.sh");
    let script = fs::read_to_string(&template).unwrap();
    fs::write(&template, format!("{script}{{{{nonsense}}}}\n")).unwrap();
    Findings::with_programs(&desk, None).is("site files", "wrong", "nonsense", "correct that");
    fs::write(&template, script).unwrap();
    // Moved by hand, without a word to the service.
    let (here, there) = (desk.site_path(), desk.programs.home().join("elsewhere"));
    fs::rename(&here, &there).unwrap();
    let mut doctor = desk.copal(&["doctor", "-o", "json"]);
    doctor.current_dir(&there);
    Findings::of(&desk, doctor).is("site", "wrong", "holds it to be in ~/site", "copal site mv ~/elsewhere");
    fs::rename(&there, &here).unwrap();
    Findings::with_programs(&desk, None).is("site", "warning", "was not started yet", "copal site start");
    let mut database = desk.service.database().connect().await;
    sqlx::query("update sites set last_refresh = now() - interval '1 day'").execute(&mut database).await.unwrap();
    Findings::with_programs(&desk, None).is("site", "warning", "its agent was last heard of", "copal site start");
    // A service that says nothing does not say that there is no such Site.
    desk.service.stop().await;
    let away = Findings::with_programs(&desk, None);
    away.is("service", "wrong", "can't reach the service", "copal-server");
    away.is("site", "ok", "the service can't be asked about it", "");
}

#[tokio::test]
async fn what_is_wrong_with_the_machine_is_found() {
    let desk = Desk::new().await;
    let settings = desk.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("kind: local", "kind: slurm")).unwrap();
    let bin = desk.programs.home().join("machine");
    fs::create_dir(&bin).unwrap();
    let bare = Findings::with_programs(&desk, Some(&bin));
    bare.is("scheduler", "wrong", "slurm: sbatch, squeue, scancel not on PATH", "load the scheduler's module");
    bare.is("mpi", "warning", "no mpiexec, srun, aprun or jsrun on PATH", "install MPICH or Open MPI");
    bare.is("gpus", "ok", "none on this machine", "");
    for name in ["sbatch", "squeue", "scancel"] {
        program(&bin, name, "", 0);
    }
    program(&bin, "sinfo", "slurm_load_partitions: Unable to contact slurm controller", 1);
    program(&bin, "nvidia-smi", "NVIDIA-SMI has failed", 9);
    let ill = Findings::with_programs(&desk, Some(&bin));
    ill.is("scheduler", "wrong", "`sinfo --version` does not answer", "operators");
    ill.is("gpus", "warning", "NVIDIA: `nvidia-smi -L` fails", "check the driver");
    program(&bin, "sinfo", "slurm 22.05.8\\n", 0);
    program(&bin, "mpiexec", "HYDRA build details:\\n    Version: 4.0.2\\n", 0);
    program(&bin, "nvidia-smi", "GPU 0: NVIDIA H200 (UUID: GPU-1)\\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\\n", 0);
    let well = Findings::with_programs(&desk, Some(&bin));
    well.is("scheduler", "ok", "slurm: slurm 22.05.8", "");
    well.is("mpi", "ok", "mpiexec: Version: 4.0.2", "");
    well.is("gpus", "ok", "NVIDIA: 1 GPU, 1 MIG slice", "");
}
