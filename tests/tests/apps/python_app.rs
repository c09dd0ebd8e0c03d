//! The Python function of `docs/PYTHON_APPS.md`, copied from there and run as the page says.

use std::fs;

use copal_tests::pages;

use crate::laptop::Laptop;

#[test]
fn the_python_function_of_the_page_runs() {
    let files = pages::files("PYTHON_APPS.md");
    let laptop = Laptop::with_site(1);
    for (name, text) in &files {
        match name.strip_prefix("apps/") {
            Some(script) => laptop.script(script, text),
            None => fs::write(laptop.site_path().join(name), text).unwrap(),
        }
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["apps/Fit.yml", "apps/fit.py", "apps/copal_function.py", "jobs.jsonl"]);
    laptop.site(&["app", "sync"]);
    laptop.site(&["job", "create", "-a", "Fit", "--from", "jobs.jsonl", "-y"]);
    laptop.allocation("serial", 10);
    let jobs = laptop.json(&["job", "ls"]);
    let ids: Vec<i64> = jobs.as_array().unwrap().iter().map(|job| job["id"].as_i64().unwrap()).collect();
    for id in &ids[..2] {
        laptop.wait_state(*id, "JOB_FINISHED");
    }
    assert_eq!(laptop.show(ids[0])["data"]["result"], serde_json::json!({"slope": 2.0, "intercept": 1.0}));
    assert_eq!(laptop.show(ids[1])["data"]["result"]["slope"], -1.0);
    // An exception is an error of the Job, with its last lines.
    laptop.wait_state(ids[2], "FAILED");
    let shown = laptop.site(&["job", "show", &ids[2].to_string()]);
    assert!(shown.contains("ZeroDivisionError"), "{shown}");
}

#[test]
fn a_module_is_an_app_too() {
    let laptop = Laptop::with_site(1);
    laptop.app("Sort", "command: python3 -m json.tool --sort-keys {{file}}\nparameters: {file: {required: true}}");
    let job = laptop.job(&["-a", "Sort", "-w", "sort", "-p", "file=in put.json"]);
    fs::create_dir_all(laptop.site_path().join("data/sort")).unwrap();
    fs::write(laptop.site_path().join("data/sort/in put.json"), "{\"b\": 1, \"a\": 2}").unwrap();
    laptop.allocation("serial", 10);
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(String::from_utf8(laptop.output("sort")).unwrap(), "{\n    \"a\": 2,\n    \"b\": 1\n}\n");
}
