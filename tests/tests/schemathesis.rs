//! The OpenAPI document is true: requests generated from it, good and bad, get no 5xx, no status, type or
//! body that it does not name, and no answer without the token; and what it calls good is taken.
#![expect(clippy::expect_used, reason = "a test's helper fails as a test does")]

use std::{
    fs,
    process::{Command, Stdio},
};

use copal_tests::{Api, Settings, World, process::describe, python};

/// Requests of each kind for each operation.
const EXAMPLES: &str = "15";

/// What holds for all runs. U+0000 is refused everywhere, since Postgres can't store it, which no schema can say;
/// `api/bad_input.rs` sends it. Nobody waits for what does not come.
///
/// What a schema allows may still be refused for what is stored: names that are taken, ids that nobody has (400, 404).
const SETTINGS: &str = r#"
[generation]
allow-x00 = false

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "409", "429"]

[parameters]
"query.wait_sec" = 0
"#;

/// The walk along the document's links, from a creation to the end of what was made. More links would be guessed from names
/// than there are, and followed instead.
///
/// A change of an App to a Site that is not there is a 404 by the contract, though the App is.
const WALK: &str = r#"
[phases.stateful.inference]
algorithms = []

[[operations]]
include-name = "PUT /apps/{id}"
checks.ensure_resource_availability.enabled = false
"#;

/// Every id in a path, and that of a Site in a query, is 1: else the generator writes integers as `50.0`, too, which is right in JSON only.
const PLAIN_IDS: &str = "\"path.id\" = 1\n\"query.site_id\" = 1\n";

async fn run(world: &World, user: &Api, settings: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("schemathesis.toml"), settings).expect("the folder is this test's own");
    let mut command = Command::new(python::environment("schemathesis").join("schemathesis"));
    command
        .args(["run", &format!("{}/openapi.json", world.service.base())])
        .args(["--header", &format!("Authorization: Bearer {}", user.token().expect("logged in"))])
        .args(["--seed", "1", "--continue-on-failure", "--suppress-health-check", "all"])
        .args(["--request-timeout", "35", "--no-color"])
        .args(arguments)
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("NO_PROXY", "127.0.0.1")
        .envs([("PYTHONPATH", python::scripts().as_os_str()), ("SCHEMATHESIS_HOOKS", "lenient_input".as_ref())])
        // The source tree stays as it is.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    let running = tokio::task::spawn_blocking(move || command.output()).await;
    let output = running.expect("no panic").expect("schemathesis starts");
    assert!(output.status.success(), "{}", describe(&output));
}

/// An acquire waits for half a lease at most.
async fn world() -> World {
    World::with(Settings { lease_sec: 1.0, ..Settings::default() }).await
}

/// Not among the operations: streams have no end, and have tests of their own; the two others end logins.
const ENDLESS: [&str; 4] = ["--exclude-path", "/events/stream", "--exclude-path", "/subscribe-user"];
const LOGINS: &str = "^/auth/(revoke|logins)";

#[tokio::test]
async fn generated_requests_get_documented_answers() {
    let world = world().await;
    // What must be refused and what must be taken is tried apart, each with input of its kind alone.
    let checks = ["--checks", "all", "--exclude-checks", "negative_data_rejection,positive_data_acceptance"];
    let phases = ["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES];
    let without = [ENDLESS.as_slice(), &["--exclude-path-regex", LOGINS]].concat();
    run(&world, &world.user, SETTINGS, &[checks.as_slice(), &phases, &without].concat()).await;
}

/// Values of the wrong type that Balsam's clients send are taken (`tests/python/lenient_input.py`).
#[tokio::test]
async fn what_the_document_calls_bad_is_refused() {
    let world = world().await;
    let checks = ["--checks", "negative_data_rejection", "--mode", "negative"];
    let phases = ["--phases", "coverage,fuzzing", "--max-examples", EXAMPLES];
    let without = [ENDLESS.as_slice(), &["--exclude-path-regex", LOGINS]].concat();
    let settings = format!("{SETTINGS}{PLAIN_IDS}");
    run(&world, &world.user, &settings, &[checks.as_slice(), &phases, &without].concat()).await;
}

#[tokio::test]
async fn links_lead_from_a_creation_to_the_end_of_what_was_made() {
    let world = world().await;
    let checks = ["--checks", "all", "--exclude-checks", "negative_data_rejection,positive_data_acceptance"];
    let phases = ["--phases", "stateful", "--mode", "positive", "--max-examples", "60"];
    let without = [ENDLESS.as_slice(), &["--exclude-path-regex", "^/auth/"]].concat();
    run(&world, &world.user, &format!("{SETTINGS}{WALK}"), &[checks.as_slice(), &phases, &without].concat()).await;
    // Whoever does not follow links has the id of nothing. Which ones are followed is left to chance; `api/links.rs`
    // follows all.
    let metrics = reqwest::get(format!("{}/metrics", world.service.base())).await.expect("an answer");
    let metrics = metrics.text().await.expect("a text");
    let followed = |line: &&str| line.contains("/{id}\"") && line.contains("status=\"20");
    assert!(metrics.lines().any(|line| followed(&line)), "no link was followed:\n{metrics}");
}

/// Fields that bind each other are made to (`tests/python/lenient_input.py`).
#[tokio::test]
async fn what_the_document_calls_good_is_taken() {
    let world = world().await;
    let checks = ["--checks", "positive_data_acceptance", "--mode", "positive"];
    let phases = ["--phases", "fuzzing", "--max-examples", EXAMPLES];
    let without = [ENDLESS.as_slice(), &["--exclude-path-regex", LOGINS]].concat();
    let settings = format!("{SETTINGS}{PLAIN_IDS}");
    run(&world, &world.user, &settings, &[checks.as_slice(), &phases, &without].concat()).await;
}

/// With a user of its own, who is logged out by it when the generator hits upon the right id.
#[tokio::test]
async fn generated_ends_of_logins_get_documented_answers() {
    let world = World::new().await;
    let bob = world.service.user("bob").await;
    let checks = ["--checks", "all"];
    let phases = ["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES];
    let only = ["--include-path-regex", LOGINS];
    run(&world, &bob, &format!("{SETTINGS}{PLAIN_IDS}"), &[checks.as_slice(), &phases, &only].concat()).await;
}
