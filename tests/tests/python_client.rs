//! The Python package `balsam`, as it is on PyPI, works against the service with nothing changed but a URL.

use std::process::{Command, Stdio};

use copal_tests::{Service, Settings, process::describe, python};

#[tokio::test]
async fn a_campaign_written_for_balsam_runs_unchanged() {
    let python = python::environment("balsam").join("python");
    let service = Service::start(Settings::default()).await;
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(python);
    command
        .args(["-W", "ignore::DeprecationWarning", "-B"])
        .arg(python::scripts().join("test_campaign.py"))
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("BALSAM_CLIENT_PATH", home.path().join("client.yml"))
        .env_remove("BALSAM_SITE_PATH")
        .env("NO_PROXY", "127.0.0.1")
        .env("COPAL_TEST_URL", service.base())
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("python starts");
    assert!(output.status.success(), "{}", describe(&output));
}
