//! The service's index of a Site's Apps: `app sync`, `ls`, `show`.

use std::fs;

use crate::laptop::{Laptop, refused};

const HELLO: &str = "command: echo Hello, {{name}}!\nparameters: {name: {help: whom to greet, choices: [world, you]}}";

fn write(laptop: &Laptop, name: &str, rest: &str) {
    fs::write(laptop.site_path().join(format!("apps/{name}.yml")), format!("name: {name}\n{rest}\n")).unwrap();
}

/// `App change note` of each line that `app sync` prints.
fn sync(laptop: &Laptop) -> Vec<String> {
    let synced = laptop.json(&["app", "sync"]);
    let word = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = synced.as_array().unwrap().iter();
    rows.map(|row| format!("{} {} {}", word(row, "app"), word(row, "change"), word(row, "note")).trim().into())
        .collect()
}

#[test]
fn the_index_follows_the_files() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    write(&laptop, "Hello", HELLO);
    write(&laptop, "Idle", "command: 'true'");
    assert_eq!(sync(&laptop), ["Hello added", "Idle added"]);
    write(&laptop, "Hello", &format!("{HELLO}\nmax_restarts: 2\nhooks: {{postprocess: ./collect.sh}}"));
    assert_eq!(sync(&laptop), ["Hello changed hooks, max_restarts", "Idle unchanged"]);

    // Files that are gone: the App goes with them, unless Jobs would.
    laptop.job(&["-a", "Hello", "-w", "hello", "-p", "name=world"]);
    for app in ["Hello", "Idle"] {
        fs::remove_file(laptop.site_path().join(format!("apps/{app}.yml"))).unwrap();
    }
    let gone = sync(&laptop);
    assert_eq!(gone, ["Hello gone kept for the sake of 1 Job; new ones are refused", "Idle removed"]);
    let marked = |laptop: &Laptop| laptop.json(&["app", "ls"])[0]["gone"].clone();
    assert_eq!(marked(&laptop), true);
    assert!(laptop.site(&["app", "ls"]).contains("(gone)"));
    assert!(laptop.site(&["app", "show", "Hello"]).contains("apps/Hello.yml is gone from the Site"));
    assert_eq!(sync(&laptop).len(), 1, "it stays, marked");
    let create = ["job", "create", "-a", "Hello", "-w", "again", "-p", "name=world", "-y"];
    let text = refused(&laptop.try_site(&create), 1);
    assert!(text.contains("gone") && text.contains("copal app sync"), "{text}");
    write(&laptop, "Hello", &format!("description: Greets.\n{HELLO}"));
    assert_eq!(sync(&laptop), ["Hello changed description, hooks, max_restarts, its file is back"]);
    assert_eq!(marked(&laptop), false);
    assert_eq!(laptop.json(&["app", "ls"])[0]["description"], "Greets.");
    laptop.site(&create);
}

#[test]
fn mistakes_are_told_with_file_line_and_field_and_change_nothing() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    write(&laptop, "Good", "command: 'true'");
    write(&laptop, "Bad", "command: echo\nhooks:\n  postproces: ./collect.sh");
    write(&laptop, "Worse", "command: echo {{nobody}}");
    write(&laptop, "Worst", "command: echo\nparameters:\n  a: {required: perhaps}");
    let text = refused(&laptop.try_site(&["app", "sync"]), 1);
    for part in [
        "Bad.yml: line 4 column 3: unknown field `postproces`",
        "Worse.yml: line 2: command: the variable \"nobody\" is no parameter",
        "Worst.yml: line 4",
        "in the field parameters.a.required",
        "nothing was changed",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(laptop.json(&["app", "ls"]).as_array().unwrap().len(), 0);
}

#[test]
fn the_command_is_shown_as_it_would_run() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let site = "environment: {OMP_PLACES: all cores}\npreamble: module load gcc\n";
    laptop.app("Greet", &format!("{site}command: echo Hello, {{{{name}}}} {{{{{{rest}}}}}}\nparameters: {{name: {{required: true}}, rest: {{default: '> out'}}}}"));
    let shown = laptop.site(&["app", "show", "Greet", "-p", "name=big world; exit 3"]);
    assert_eq!(shown, "export OMP_PLACES='all cores'\nmodule load gcc\necho Hello, 'big world; exit 3' > out\n");
    let json = laptop.json(&["app", "show", "Greet", "-p", "name=x"]);
    assert_eq!((&json["command"], &json["preamble"]), (&"echo Hello, x > out".into(), &"module load gcc".into()));
    let text = refused(&laptop.try_site(&["app", "show", "Greet", "-p", "nmae=x"]), 1);
    assert!(text.contains("nmae"), "{text}");
    // Without the Site's folder the index has to do.
    fs::remove_file(laptop.site_path().join("apps/Greet.yml")).unwrap();
    assert_eq!(laptop.site(&["app", "show", "Greet", "-p", "name=x"]), "echo Hello, x > out\n");
}
