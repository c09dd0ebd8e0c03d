//! The OpenAPI document is true: requests generated from it, good and bad, get no 5xx, no status, type or
//! body that it does not name, and no answer without the token.

use std::process::{Command, Stdio};

use copal_tests::{World, process::describe, python};

/// Requests of each kind for each operation.
const EXAMPLES: &str = "25";

#[tokio::test]
async fn generated_requests_get_documented_answers() {
    let program = python::environment("schemathesis").join("schemathesis");
    let world = World::new().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(program);
    command
        .args(["run", &format!("{}/openapi.json", world.service.base())])
        .args(["--header", &format!("Authorization: Bearer {}", world.user.token().expect("logged in"))])
        // Input is read leniently, as Balsam's clients need it, and some rules no schema can say.
        .args(["--checks", "all", "--exclude-checks", "negative_data_rejection,positive_data_acceptance"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "1"])
        .args(["--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "35", "--no-color"])
        // An answer without end; it has tests of its own.
        .args(["--exclude-path", "/events/stream"])
        // They would end the login that the run itself uses.
        .args(["--exclude-path", "/auth/revoke", "--exclude-path-regex", "^/auth/logins"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null());
    let running = tokio::task::spawn_blocking(move || command.output()).await;
    let output = running.expect("no panic").expect("schemathesis starts");
    assert!(output.status.success(), "{}", describe(&output));
}
