//! Every example of every `--help` is run, as it stands, on a terminal, against a real service and a
//! real Site. Addresses, absolute paths and names that only stand for the reader's own are replaced.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use copal_tests::{Api, LIMIT, wait::wait_blocking, world::PASSWORD};
use serde_json::json;

use crate::{desk::Desk, pty::OnTerminal};

/// What stands for the reader's own things, and what it is here.
const STAND_INS: &[(&str, &str)] = &[
    ("https://copal.example.org", "$SERVICE"),
    ("http://127.0.0.1:8642", "$SERVICE"),
    ("/scratch/", "~/scratch/"),
    ("/srv/", "~/"),
    ("--site=123,my-site", "--site=1,my-site"),
];

/// A user who knows nothing but the help.
struct Reader {
    desk: Desk,
    user: Api,
    /// What was not run yet.
    left: BTreeSet<String>,
}

/// All examples of a command and of those below it.
fn examples(desk: &Desk, command: &[&str], found: &mut BTreeSet<String>) {
    let help = desk.ok(&[command, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| !line.starts_with("Example"));
    let is_example = |line: &&str| line.starts_with("  ") && line.contains("copal ");
    let shown = lines.skip(1).take_while(|line| line.starts_with("  ")).filter(is_example);
    found.extend(shown.map(|line| line.trim().to_owned()));
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for line in below {
        let name = line.trim_start().split(' ').next().unwrap();
        // A line that goes on has no name.
        if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
            examples(desk, &[command, &[name]].concat(), found);
        }
    }
}

impl Reader {
    async fn new() -> Self {
        let desk = Desk::without_site().await;
        let login = [("username", "ann"), ("password", PASSWORD)];
        let token = desk.service.api().post_form("/auth/password/login", &login).await.ok();
        let user = desk.service.api().with_token(token["access_token"].as_str().unwrap());
        let mut left = BTreeSet::new();
        examples(&desk, &[], &mut left);
        assert!(left.len() > 80, "{left:?}");
        Self { desk, user, left }
    }

    fn home(&self) -> PathBuf {
        self.desk.programs.home().into()
    }

    /// Bash at home or in the Site's folder, with what an example needs to find.
    fn bash(&self, line: &str) -> Command {
        let mut command = self.desk.shell(line);
        let service = self.desk.service.base();
        command.env("SERVICE", service).env("COPAL_API_URL", service).env("SECRET", PASSWORD);
        let site = self.home().join("my-site");
        let folder = if site.is_dir() && !line.contains("./") { site } else { self.home() };
        command.current_dir(folder);
        command
    }

    /// A step that is not an example.
    #[track_caller]
    fn prepare(&self, line: &str) {
        let output = self.bash(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", copal_tests::process::describe(&output));
    }

    /// The examples that begin so, in their order, as they are to be typed.
    fn take(&mut self, beginning: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.left).into_iter().partition(|line| line.starts_with(beginning));
        self.left = left;
        let taken: BTreeSet<String> = taken;
        assert!(!taken.is_empty(), "no example begins with {beginning}");
        let typed = |line: String| STAND_INS.iter().fold(line, |line, (theirs, ours)| line.replace(theirs, ours));
        taken.into_iter().map(typed).collect()
    }

    /// Types an example, says yes to what it asks, and gives what it showed.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        let (code, shown) = OnTerminal::start(self.bash(line)).answering("? ", "y");
        assert_eq!(code, 0, "{line}\n{shown}");
        shown
    }

    /// The same where it asks for texts: what is typed when something is shown.
    #[track_caller]
    fn enter(&self, line: &str, answers: &[(&str, &str)]) {
        let mut terminal = OnTerminal::start(self.bash(line));
        for (question, answer) in answers {
            terminal.wait_shown(question);
            match *answer {
                PASSWORD => terminal.type_secret(answer),
                answer => terminal.type_line(answer),
            }
        }
        let (code, shown) = terminal.end();
        assert_eq!(code, 0, "{line}\n{shown}");
    }

    #[track_caller]
    fn run_all(&mut self, beginning: &str) {
        for line in self.take(beginning) {
            self.run(&line);
        }
    }

    /// Runs what goes on until Ctrl-C, once it has shown something of what `happen` does.
    #[track_caller]
    fn watch(&self, line: &str, happen: impl Fn()) {
        let terminal = OnTerminal::start(self.bash(&format!("exec {line}")));
        wait_blocking(&format!("{line} to show something"), LIMIT, || {
            happen();
            if terminal.shown().trim().is_empty() { Err("nothing is shown".into()) } else { Ok(()) }
        });
        terminal.interrupt();
        let (code, shown) = terminal.end();
        assert_eq!(code, 0, "{line}\n{shown}");
    }

    /// Jobs and BatchJobs under the numbers that examples name, at an end as far as examples wait for it.
    async fn fill(&self) {
        self.prepare("copal job create -a Hello --array 1-60 -w 'x/{index}' -p name=x --tag system=H2O -y");
        self.prepare("copal job modify --all --set-state JOB_FINISHED -y");
        for number in 1..=12 {
            let made = json!({"site_id": 1, "num_nodes": 1, "wall_time_min": 5, "job_mode": "mpi", "queue": "QUEUE",
                "project": "PROJECT"});
            self.user.post("/batch-jobs/", &made).await.created();
            let queued = json!({"state": "queued", "scheduler_id": 4700 + number});
            self.user.put(&format!("/batch-jobs/{number}"), &queued).await.ok();
        }
    }
}

const PASSWORDS: [(&str, &str); 2] = [("Password: ", PASSWORD), ("Repeat the password: ", PASSWORD)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_the_help_does_what_it_says() {
    let mut reader = Reader::new().await;
    accounts(&mut reader).await;
    site(&mut reader);
    reader.fill().await;
    jobs(&mut reader).await;
    queue_and_events(&mut reader);
    other_sites(&mut reader);
    assert!(reader.left.is_empty(), "examples that nobody runs: {:#?}", reader.left);
}

async fn accounts(reader: &mut Reader) {
    for (number, line) in reader.take("copal register").into_iter().enumerate() {
        let name = format!("new{number}");
        match line.contains("--username") {
            true => reader.enter(&line.replace("--username ann", &format!("--username {name}")), &PASSWORDS),
            false => reader.enter(&line, &[&[("Username: ", &*name)][..], &PASSWORDS].concat()),
        };
    }
    for line in reader.take("printf") {
        reader.run(&line.replace("--username ann", "--username carl"));
    }
    reader.run_all("copal logout");
    for line in reader.take("copal login --device") {
        let terminal = OnTerminal::start(reader.bash(&line));
        terminal.wait_shown("user_code=");
        let shown = terminal.shown();
        let code = shown.split("user_code=").nth(1).unwrap().get(..9).unwrap();
        let form = [("user_code", code), ("username", "ann"), ("password", PASSWORD), ("decision", "approve")];
        let answer = reader.desk.service.api().post_form("/auth/oauth/ALCF/login/device", &form).await;
        assert_eq!(answer.status, 200);
        assert_eq!(terminal.end().0, 0);
    }
    for line in reader.take("copal login") {
        match line.contains("--username") {
            true => reader.enter(&line, &PASSWORDS[..1]),
            false => reader.enter(&line, &[("Username: ", "ann"), PASSWORDS[0]]),
        };
    }
    reader.run_all("COPAL_PASSWORD=");
    assert!(reader.take("copal whoami").iter().all(|line| reader.run(line).contains("ann")));
}

/// The Site of all later examples, and what is done with it alone.
fn site(reader: &mut Reader) {
    let (full, bare): (Vec<String>, Vec<String>) =
        reader.take("copal site init").into_iter().partition(|line| line.contains(" -y"));
    for line in &full {
        reader.run(line);
    }
    for line in bare {
        let line = format!("mkdir -p ~/other && cd ~/other && {line}");
        reader.enter(&line, &[("Platform", "local"), ("Name of the Site", "asked")]);
    }
    let settings = reader.home().join("my-site/settings.yml");
    let text = fs::read_to_string(&settings)
        .unwrap()
        .replace("allowed_projects: []", "allowed_projects: [PROJECT, P, local]")
        .replace(
            "    local: {max_nodes",
            "    QUEUE: {max_nodes: 128, max_walltime: 90, max_queued_jobs: 100}\n    Q: {max_nodes: 128, max_walltime: 90, max_queued_jobs: 100}\n    local: {max_nodes",
        )
        .replace("  # cpus_per_node: 8", "  cpus_per_node: 64\n  gpu_ids: ['0', '1', '2', '3']")
        .replace("local_nodes: 1", "local_nodes: 128")
        .replace("{shout: \"\"}", "{shout: \"\", mig_count: \"1\"}");
    fs::write(&settings, text).unwrap();
    let app = |name: &str, rest: &str| {
        fs::write(reader.home().join(format!("my-site/apps/{name}.yml")), format!("name: {name}\n{rest}\n")).unwrap();
    };
    app("Hello", "command: echo Hello, {{name}}!\nparameters: {name: {required: true}}");
    app("Sim", "command: 'sim {{seed}}'\nparameters: {seed: {default: '0'}}");
    reader.run_all("copal app sync");
    reader.run_all("copal app ls");
    for line in reader.take("copal app show") {
        reader.run(&line.replace(" 17", " 1"));
    }
    for line in reader.take("copal site start") {
        reader.run(&line);
        reader.prepare("copal site status && copal site stop --site my-site");
    }
    for line in reader.take("copal site run") {
        reader.watch(&line, || {});
    }
    reader.prepare("copal site start --site my-site");
    reader.run_all("copal site status");
    reader.run_all("copal doctor");
    reader.run_all("copal site stop");
    reader.run_all("copal site sync");
    reader.prepare("mkdir -p ~/.config/systemd/user ~/.config/fish/completions ~/.zfunc ~/.local/share/bash-completion/completions");
    reader.run_all("copal site unit");
    reader.run_all("copal completions");
    reader.run_all("copal man");
}

async fn jobs(reader: &mut Reader) {
    let write = |name: &str, text: &str| fs::write(reader.home().join("my-site").join(name), text).unwrap();
    write("runs.csv", "seed,num_nodes\n1,1\n2,2\n");
    write("jobs.jsonl", "{\"app\": \"Hello\", \"workdir\": \"l/1\", \"name\": \"x\"}\n{\"app\": \"none\"}\n");
    write("commands.txt", "echo one\necho two\n");
    write("train.sh", "echo train\n");
    write("sweep.sbatch", "#SBATCH -n 1\necho sweep\n");
    write("job.pbs", "#PBS -l select=1:ncpus=1\ncat \"$1\"\n");
    write("input.dat", "1 2 3\n");
    for line in reader.take("copal job create").into_iter().chain(reader.take("copal job submit")) {
        reader.run(&line);
    }
    // All at an end, so that what waits for them ends, too; one is cancelled, for those who look for it.
    let settle = "copal job modify --all --set-state JOB_FINISHED -y";
    reader.prepare(settle);
    for beginning in ["copal job ls", "copal job show", "copal job why", "copal job wait", "copal job watch"] {
        let lines = reader.take(beginning);
        for line in lines {
            // Of the many arrays that there may be, this is the one that is there.
            reader.run(&line.replace("--array 12", "--array 1"));
        }
    }
    reader.prepare("copal job modify 30 7 --set-state FAILED -y");
    reader.run_all("copal job modify");
    reader.prepare("copal job modify --all --set-state PREPROCESSED -y");
    reader.run_all("copal job cancel");
    reader.prepare("copal job create -a Hello -w t -p name=x --tag workflow=temp-test -y");
    reader.run_all("copal job rm 41,42,43");
    reader.run_all("copal job rm --tag");
    reader.run_all("copal job rm");
}

fn queue_and_events(reader: &mut Reader) {
    for line in reader.take("copal queue submit").into_iter().chain(reader.take("copal queue ls")) {
        // Where a Site has several queues and projects, they are named.
        let one = if line.contains("submit") && !line.contains(" -q") { " -q QUEUE -A PROJECT" } else { "" };
        reader.run(&format!("{line}{one}"));
    }
    reader.run_all("copal queue show");
    for line in reader.take("copal queue watch") {
        reader.watch(&line, || {});
    }
    reader.prepare("copal job create -a Hello --array 1-20 -w 'y/{index}' -p name=x --tag system=H2O -y");
    reader.run_all("copal events ls");
    for line in reader.take("copal events watch") {
        reader.watch(&line, || {
            reader.prepare("copal job create -a Hello -w z -p name=x --tag system=H2O -y");
            reader.prepare("copal job cancel --tag system=H2O -y");
        });
    }
    for line in reader.take("copal queue term").into_iter().chain(reader.take("copal queue rm")) {
        let line = line.replace("4711", if line.contains("term") { "4701" } else { "4702" });
        reader.run(&line);
    }
}

/// Sites that come, move and go.
fn other_sites(reader: &mut Reader) {
    reader.run_all("copal site ls");
    let init = |reader: &Reader, path: &str, name: &str| {
        reader.prepare(&format!(
            "mkdir -p ~/scratch ~/sites && copal site init {path} --name {name} --platform local -y"
        ));
    };
    for (number, line) in reader.take("copal site mv").into_iter().enumerate() {
        init(reader, if line.contains("./old") { "./old" } else { "~/sites/a" }, &format!("moved{number}"));
        reader.run(&line);
    }
    init(reader, "./renamed", "old-name");
    for line in reader.take("copal site rename") {
        reader.run(&line);
        if !line.contains("--site") {
            reader.prepare("copal site rename my-site");
        }
    }
    for line in reader.take("copal app rm") {
        reader.run(&line);
        reader.prepare("copal app sync");
    }
    // The one with --force first: BatchJobs that are not over keep the other from it.
    let mut lines = reader.take("copal site rm");
    lines.sort_by_key(|line| !line.contains("--force"));
    for line in lines {
        reader.run(&line);
        fs::remove_dir_all(reader.home().join("my-site")).unwrap();
        init(reader, "./my-site", "my-site");
    }
}
