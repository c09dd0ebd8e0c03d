//! Completions as Bash asks for them.

use crate::desk::Desk;

/// What Bash offers for the last of these words.
fn offered(desk: &Desk, words: &str) -> Vec<String> {
    let line = format!(
        "source <(copal completions bash)\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\nCOMP_TYPE=9\n\
         _clap_complete_copal copal \"${{COMP_WORDS[-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = desk.shell(&line).output().unwrap();
    assert!(output.status.success(), "{words}: {}", desk.told(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(|word| word.trim().to_owned()).collect()
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
    for shell in ["zsh", "fish"] {
        assert!(desk.ok(&["completions", shell]).contains("COPAL_COMPLETE"), "{shell}");
    }
}
