//! The folder of a Site: moved by command or by hand, with another name, and gone.

use std::fs;

use copal_tests::{
    at_site::AtSite,
    laptop::{Laptop, refused},
};

#[test]
fn a_site_is_moved_renamed_and_removed() {
    let laptop = Laptop::with_site(1);
    laptop.app("Hello", "command: echo hello");
    let (old, new) = (laptop.site_path(), laptop.programs.home().join("moved"));
    let (old_text, new_text) = (old.to_str().unwrap(), new.to_str().unwrap());
    let text = refused(&laptop.programs.run("copal", &["site", "mv", old_text, new_text]), 1);
    assert!(text.contains("the agent of laptop runs") && text.contains("site stop"), "{text}");
    laptop.site(&["site", "stop"]);
    laptop.copal(&["site", "mv", old_text, new_text]);
    assert!(!old.exists() && new.join("settings.yml").exists());
    laptop.copal(&["site", "start", new_text]);
    let site = |words: &[&str]| laptop.copal(&[words, &["--site", "laptop"]].concat());
    site(&["job", "create", "-a", "Hello", "-w", "hello", "-y"]);
    site(&["queue", "submit", "-n", "1", "-t", "10", "-j", "serial"]);
    laptop.copal(&["job", "wait", "--site", "laptop", "--timeout", "60"]);
    assert_eq!(fs::read_to_string(new.join("data/hello/job.out")).unwrap(), "hello\n");

    laptop.copal(&["site", "rename", "notebook", "--site", "laptop"]);
    let table = laptop.copal(&["site", "ls"]);
    assert!(table.contains("notebook") && !table.contains("laptop") && table.contains(new_text), "{table}");

    // Nobody deletes a Site whose agent runs, or that has an allocation, or without being asked.
    let rm = |more: &[&str]| laptop.programs.run("copal", &[&["site", "rm", "--site", "notebook"], more].concat());
    let text = refused(&rm(&["-y"]), 1);
    assert!(text.contains("the agent of notebook runs") && text.contains("--force"), "{text}");
    laptop.copal(&["site", "stop", new_text]);
    laptop.copal(&["queue", "submit", "--site", "notebook", "-n", "1", "-t", "10", "-j", "serial"]);
    let text = refused(&rm(&["-y"]), 1);
    assert!(text.contains("not over") && text.contains("queue rm --all"), "{text}");
    let text = refused(&rm(&[]), 1);
    assert!(text.contains("not over"), "{text}");
    assert!(rm(&["--force"]).status.success());
    let text = laptop.programs.run("copal", &["site", "ls"]);
    assert!(String::from_utf8_lossy(&text.stderr).contains("You have no Site"));
    assert!(new.join("settings.yml").exists(), "the folder is its owner's");
}

/// A folder that somebody moves under the agent: nothing is done meanwhile, nothing is made in the old place.
#[test]
fn a_folder_moved_by_hand_stops_everything_until_it_is_told() {
    let laptop = Laptop::with_site(1);
    laptop.wait_status("well");
    let (old, new) = (laptop.site_path(), laptop.programs.home().join("moved"));
    fs::rename(&old, &new).unwrap();
    let words = ["queue", "submit", "--site", "laptop", "-n", "1", "-t", "10", "-j", "serial", "-o", "json"];
    let made: serde_json::Value = serde_json::from_str(&laptop.copal(&words)).unwrap();
    let log = || fs::read_to_string(new.join("log/agent.log")).unwrap();
    copal_tests::wait::wait_blocking("the agent to notice", copal_tests::laptop::LIMIT, || match log() {
        text if text.contains("is gone, so nothing is done") => Ok(()),
        text => Err(text),
    });
    // A second agent is not possible, since the lock moved along.
    let text = refused(&laptop.programs.run("copal", &["site", "mv", new.to_str().unwrap()]), 1);
    assert!(text.contains("the agent of laptop runs"), "{text}");
    laptop.copal(&["site", "stop", new.to_str().unwrap()]);
    assert!(!old.exists(), "the agent made the old folder again");
    laptop.copal(&["site", "mv", new.to_str().unwrap()]);
    fs::create_dir(&old).unwrap();
    fs::remove_dir(&old).unwrap();
    fs::rename(&new, &old).unwrap();
    laptop.copal(&["site", "mv", old.to_str().unwrap()]);
    laptop.site(&["site", "start"]);
    let id = made["id"].as_i64().unwrap();
    laptop.wait_batch_job(id, "finished");
    assert_eq!(laptop.batch_job(id)["state"], "finished");
}
