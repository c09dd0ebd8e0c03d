//! What README.md and docs/GUIDE.md show is what a new user sees: each line behind a `$` is typed into one shell, on a
//! machine with nothing but the programs, and what it prints is compared with what is written below it.

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path};

use copal_tests::process::{Programs, describe, free_port, program_dir};

/// Between the outputs of two commands.
const MARK: char = '\u{1e}';

/// A command, and what is shown to come of it.
#[derive(Debug)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// The commands of the blocks between two headings.
fn steps(text: &str, from: &str, to: &str) -> Vec<Step> {
    let part = text.split_once(from).unwrap_or_else(|| panic!("no heading {from}")).1;
    let part = part.split_once(to).unwrap_or_else(|| panic!("no heading {to}")).0;
    let mut steps: Vec<Step> = Vec::new();
    for block in part.split("```").skip(1).step_by(2) {
        let mut lines = block.lines().skip(1);
        while let Some(line) = lines.next() {
            let Some(command) = line.strip_prefix("$ ") else {
                // A block without commands is about something else.
                if block.contains("\n$ ") {
                    steps.last_mut().unwrap().shown.push(line.into());
                }
                continue;
            };
            let mut command = command.to_owned();
            if command.contains("<<END") || command.contains("<<'END'") {
                for line in lines.by_ref() {
                    command.push_str(&format!("\n{line}"));
                    if line == "END" {
                        break;
                    }
                }
            }
            steps.push(Step { command, shown: Vec::new() });
        }
    }
    steps
}

/// A line without what differs from run to run and from machine to machine: times, sizes, process ids, widths.
fn comparable(line: &str) -> String {
    let is_number = |text: &str| {
        text.contains(|letter: char| letter.is_ascii_digit())
            && text.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
    };
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(['(', ')', ',']);
        let span = bare.trim_end_matches(char::is_alphabetic);
        let unit = &bare[span.len()..];
        let before = words.last().map(String::as_str).unwrap_or_default();
        let value = match bare {
            _ if bare.len() == 10 && bare.matches('-').count() == 2 => "DATE",
            _ if bare.len() == 8 && bare.matches(':').count() == 2 => "TIME",
            _ if is_number(span) && ["ms", "s", "m", "h"].contains(&unit) => "SPAN",
            _ if is_number(bare) && (bare.contains('.') || before == "pid") => "NUMBER",
            _ => bare,
        };
        words.push(word.replacen(bare, value, 1));
    }
    words.join(" ")
}

/// Whether a program's output is as shown, where `...` stands for any lines.
fn is_as_shown(shown: &[String], real: &[String]) -> bool {
    match (shown.split_first(), real.split_first()) {
        (None, None) => true,
        (Some((line, rest)), _) if line == "..." => (0..=real.len()).any(|skipped| is_as_shown(rest, &real[skipped..])),
        (Some((line, rest)), Some((first, others))) => {
            // Which MPI, which GPUs and how much room a machine has, and where the search for them ended, is not the same
            // everywhere.
            let of_machine =
                ["mpi ", "gpus ", "disk of "].iter().any(|name| line.starts_with(name) && first.starts_with(name));
            (of_machine || line == first) && is_as_shown(rest, others)
        }
        _ => false,
    }
}

/// Types all commands, and compares.
fn follow(steps: &[Step]) {
    let programs = Programs::new();
    // The embedded Postgres may run as another user, who must get to its folder.
    fs::set_permissions(programs.home(), fs::Permissions::from_mode(0o755)).unwrap();
    let port = free_port();
    let mut script = String::new();
    for step in steps {
        if step.command.starts_with("copal site stop") {
            // What the agent is told to end takes a moment; afterwards nobody is there to end it.
            script.push_str("until [ -z \"$(copal queue ls -o jsonl)\" ]; do sleep 0.1; done\n");
        }
        script.push_str(&format!("printf '\\036'\n{}\n", step.command.replace(":8642", &format!(":{port}"))));
        if step.command.starts_with("copal site start") {
            // The agent reports before anybody has typed the next command.
            script.push_str("until copal site ls | grep -q active; do sleep 0.1; done\n");
        }
        if step.command.starts_with("copal-server") {
            script.push_str(&format!("until (exec 3<>/dev/tcp/127.0.0.1/{port}); do sleep 0.1; done 2>/dev/null\n"));
        }
    }
    script.push_str("printf '\\036'; kill %1; wait\n");
    fs::write(programs.home().join("typed"), script).unwrap();
    let path =
        env::join_paths([program_dir()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())));
    let mut shell = programs.command("/usr/bin/timeout");
    shell.args(["150", "bash", "-c", "exec 2>&1; . ./typed"]).env("PATH", path.unwrap());
    shell.env("COPAL_LISTEN", format!("127.0.0.1:{port}")).env("COPAL_API_URL", format!("http://127.0.0.1:{port}"));
    let output = shell.env("COPAL_PASSWORD", "correct horse").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout)
        .replace(programs.home().to_str().unwrap(), "/home/ann")
        .replace(&format!(":{port}"), ":8642");
    let outputs: Vec<&str> = text.split(MARK).skip(1).collect();
    assert_eq!(outputs.len(), steps.len() + 1, "{}", describe(&output));
    for (step, real) in steps.iter().zip(outputs) {
        // The password came by another way.
        let shown = step.shown.iter().filter(|line| !line.contains("assword: "));
        let shown: Vec<String> = shown.map(|line| comparable(line)).collect();
        let real: Vec<String> = real.lines().map(comparable).collect();
        assert!(is_as_shown(&shown, &real), "{}\nshown: {shown:#?}\nreal: {real:#?}", step.command);
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

#[test]
fn the_tour_of_the_readme_prints_what_it_shows() {
    let mut steps = steps(&read("README.md"), "## A five-minute tour", "## Where to go on");
    assert!(steps.len() > 20, "{steps:#?}");
    // What was built already is on the PATH.
    steps.retain(|step| !step.command.starts_with("cargo build") && !step.command.starts_with("export PATH"));
    follow(&steps);
}

#[test]
fn the_steps_of_the_guide_print_what_they_show() {
    let steps = steps(&read("docs/GUIDE.md"), "## 2. Start", "[CLI.md](CLI.md)");
    assert!(steps.len() > 15, "{steps:#?}");
    follow(&steps);
}
