//! Completions as Bash, Zsh and Fish ask for them.

use std::process::Command;

use crate::{desk::Desk, pty::OnTerminal};

/// What Bash offers for the last of these words.
fn offered(desk: &Desk, words: &str) -> Vec<String> {
    let line = format!(
        "source <(copal completions bash)\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\nCOMP_TYPE=9\n\
         _clap_complete_copal copal \"${{COMP_WORDS[-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    answer(desk, desk.shell(&line))
}

/// What Fish offers for a line that ends so.
fn offered_by_fish(desk: &Desk, line: &str) -> Vec<String> {
    answer(
        desk,
        desk.shell(&format!("exec fish --no-config -c 'copal completions fish | source; complete -C \"{line}\"'")),
    )
}

fn answer(desk: &Desk, mut shell: Command) -> Vec<String> {
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{shell:?}: {}", desk.told(&output));
    // Fish writes what a word means behind it.
    let word = |line: &str| line.split('\t').next().unwrap_or_default().trim().to_owned();
    String::from_utf8(output.stdout).unwrap().lines().map(word).collect()
}

#[tokio::test]
async fn bash_is_offered_what_the_service_knows() {
    let mut desk = Desk::new().await;
    desk.app("Helper", "command: echo");
    assert_eq!(offered(&desk, "copal job ls --site th"), ["theta", "this"]);
    assert_eq!(offered(&desk, "copal job ls --site theta,al"), ["theta,all"]);
    assert_eq!(offered(&desk, "copal job create -a Hel"), ["Hello", "Helper"]);
    assert_eq!(offered(&desk, "copal job ls --state RUN_"), ["RUN_DONE", "RUN_ERROR", "RUN_TIMEOUT"]);
    assert!(offered(&desk, "copal job w").starts_with(&["why".to_owned()]), "{:?}", offered(&desk, "copal job w"));
    // A service that is away offers nothing, and says nothing in the middle of a line.
    desk.service.stop().await;
    assert_eq!(offered(&desk, "copal job create -a Hel"), [""]);
}

#[tokio::test]
async fn fish_is_offered_the_same() {
    let mut desk = Desk::new().await;
    desk.app("Helper", "command: echo");
    assert_eq!(offered_by_fish(&desk, "copal job ls --site th"), ["theta", "this"]);
    assert_eq!(offered_by_fish(&desk, "copal job create -a Hel"), ["Hello", "Helper"]);
    assert_eq!(offered_by_fish(&desk, "copal job ls --state RUN_"), ["RUN_DONE", "RUN_ERROR", "RUN_TIMEOUT"]);
    assert_eq!(offered_by_fish(&desk, "copal queue te"), ["term"]);
    desk.service.stop().await;
    assert!(offered_by_fish(&desk, "copal job create -a Hel").is_empty());
}

#[tokio::test]
async fn zsh_completes_a_line_that_is_typed() {
    let desk = Desk::new().await;
    let mut zsh = OnTerminal::start(desk.shell("PS1='ready> ' exec zsh -f -i"));
    zsh.wait_shown("ready> ");
    zsh.type_line("autoload -U compinit && compinit -u -D && source <(copal completions zsh) && echo begin$((1 + 1))");
    zsh.wait_shown("begin2");
    // Each word is completed with Tab as far as it is the only one; what comes of it is run.
    zsh.type_text("copal app sh\tHel\t--site the\t");
    zsh.wait_shown("--site theta");
    zsh.type_line("-o json");
    zsh.wait_shown("\"echo Hello, {{name}}!\"");
    zsh.type_text("copal job ls --state RUN_TI\t");
    zsh.wait_shown("RUN_TIMEOUT");
    zsh.type_line("--by-state");
    zsh.wait_shown("No Jobs.");
    zsh.type_line("exit 0");
    let (code, shown) = zsh.end();
    assert_eq!(code, 0, "{shown}");
}
