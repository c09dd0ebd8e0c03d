//! Apps that their owner makes through the API: a Site whose settings allow it gets their files, and no other.

use std::fs;

use copal_tests::{
    api::{Answer, Api, id},
    wait::wait_blocking,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::laptop::{LIMIT, Laptop};

/// Whoever calls the API from anywhere, as the Site's owner.
struct Caller {
    runtime: Runtime,
    api: Api,
}

impl Caller {
    fn new(laptop: &Laptop) -> Self {
        let runtime = Runtime::new().unwrap();
        let api = Api::new(&format!("http://127.0.0.1:{}", laptop.port));
        let form = [("username", "ann"), ("password", "correct horse")];
        let tokens = runtime.block_on(api.post_form("/auth/password/login", &form)).ok();
        let api = api.with_token(tokens["access_token"].as_str().unwrap());
        Self { runtime, api }
    }

    fn make(&self, body: &Value) -> i64 {
        let made = self.runtime.block_on(self.api.post("/apps/", body)).created();
        assert!(made["refusal"].as_str().unwrap().contains("copal site start"), "not before its agent says so: {made}");
        id(&made)
    }

    fn change(&self, app: i64, body: &Value) {
        self.runtime.block_on(self.api.put(&format!("/apps/{app}"), body)).ok();
    }

    fn delete(&self, app: i64) {
        self.runtime.block_on(self.api.delete(&format!("/apps/{app}"))).deleted();
    }

    fn job(&self, app: i64, workdir: &str) -> Answer {
        let jobs = json!([{"app_id": app, "workdir": workdir, "parameters": {"name": "big $(id)"}}]);
        self.runtime.block_on(self.api.post("/jobs/", &jobs))
    }

    /// Waits until the Site's agent said what becomes of an App, and gives its reason against it.
    fn verdict(&self, laptop: &Laptop, app: i64) -> Option<String> {
        wait_blocking(&format!("the word of the agent about App {app}"), LIMIT, || {
            let now = self.runtime.block_on(self.api.get(&format!("/apps/{app}"))).ok();
            match now["refusal"].as_str() {
                Some(waiting) if waiting.contains("has not written its file yet") => Err(laptop.logs()),
                refusal => Ok(refusal.map(Into::into)),
            }
        })
    }
}

fn greet(laptop: &Laptop, remote: Value) -> Value {
    json!({"site_id": laptop.json(&["site", "ls"])[0]["id"], "name": "Greet", "serialized_class": "", "source_code": "",
        "command": "echo \"$TONE Hello, {{name}}!\"", "parameters": {"name": {"required": true}}, "remote": remote})
}

fn allow(laptop: &Laptop, allowed: bool) {
    let path = laptop.site_path().join("settings.yml");
    let settings = fs::read_to_string(&path).unwrap();
    let settings: String =
        settings.lines().filter(|line| !line.starts_with("allow_remote_apps")).fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        });
    fs::write(path, format!("{settings}allow_remote_apps: {allowed}\n")).unwrap();
    laptop.site(&["site", "sync"]);
}

/// Waits until there is an App file, or none.
fn wait_file(laptop: &Laptop, name: &str, is_wanted: bool) {
    let path = laptop.site_path().join("apps").join(name);
    wait_blocking(&format!("{name} to be there: {is_wanted}"), LIMIT, || match path.exists() == is_wanted {
        true => Ok(()),
        false => Err(laptop.logs()),
    });
}

#[test]
fn an_allowed_app_of_the_api_runs_changes_and_goes() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    allow(&laptop, true);
    laptop.site(&["site", "start"]);
    let caller = Caller::new(&laptop);
    let app = caller.make(&greet(&laptop, json!({"environment": {"TONE": "Loud:"}, "preamble": "TONE=\"$TONE ah!\""})));
    assert_eq!(caller.verdict(&laptop, app), None);
    caller.job(app, "first").created();
    laptop.allocation("serial", 5);
    let finished = |workdir: &str| {
        let job = id(&laptop.json(&["job", "ls", "--workdir", workdir])[0]);
        laptop.wait_state(job, "JOB_FINISHED");
        String::from_utf8(laptop.output(workdir)).unwrap()
    };
    assert_eq!(finished("first"), "Loud: ah! Hello, big $(id)!\n");

    // `app sync` leaves it alone, in both directions.
    laptop.app("Mine", "command: 'true'");
    let synced = laptop.json(&["app", "sync"]);
    assert_eq!(synced.as_array().unwrap().len(), 1, "{synced}");
    assert!(laptop.site(&["app", "show", "Greet"]).contains("through the API"));

    // Another command, then another name: its file follows.
    caller.change(app, &json!({"command": "echo Bye, {{name}}"}));
    assert_eq!(caller.verdict(&laptop, app), None);
    let text = fs::read_to_string(laptop.site_path().join("apps/Greet.yml")).unwrap();
    assert!(text.starts_with(&format!("# Made through the API: App {app}")) && text.contains("Bye"), "{text}");
    caller.change(app, &json!({"name": "Leave"}));
    assert_eq!(caller.verdict(&laptop, app), None);
    wait_file(&laptop, "Greet.yml", false);
    wait_file(&laptop, "Leave.yml", true);
    caller.delete(app);
    wait_file(&laptop, "Leave.yml", false);
    wait_file(&laptop, "Mine.yml", true);
}

#[test]
fn what_the_sites_owner_does_not_allow_is_not_written_and_its_jobs_are_told() {
    let laptop = Laptop::with_site(1);
    let caller = Caller::new(&laptop);
    let app = caller.make(&greet(&laptop, json!({})));
    let refusal = caller.verdict(&laptop, app).unwrap();
    assert!(refusal.contains("allow_remote_apps: true"), "{refusal}");
    let refused = caller.job(app, "first").invalid("app_id");
    assert!(refused.to_string().contains("allow_remote_apps: true"), "{refused}");
    assert!(laptop.site(&["app", "ls"]).contains("(refused)"));
    let apps = || fs::read_dir(laptop.site_path().join("apps")).unwrap().count();
    let before = apps();

    // Allowed for a while: then the file goes again, and a Job from before says why it waits, and why it failed.
    allow(&laptop, true);
    wait_file(&laptop, "Greet.yml", true);
    wait_blocking("the App to be taken", LIMIT, || match caller.verdict(&laptop, app) {
        None => Ok(()),
        Some(refusal) => Err(refusal),
    });
    let job = id(&caller.job(app, "second").created()[0]);
    allow(&laptop, false);
    wait_file(&laptop, "Greet.yml", false);
    assert_eq!(apps(), before);
    let why = wait_blocking("the Job to know", LIMIT, || {
        let why = laptop.site(&["job", "why", &job.to_string()]);
        if why.contains("allow_remote_apps: true") { Ok(why) } else { Err(why) }
    });
    assert!(why.contains("does not run the App Greet"), "{why}");
    laptop.allocation("serial", 5);
    laptop.wait_state(job, "FAILED");
    let shown = laptop.site(&["job", "show", &job.to_string()]);
    assert!(shown.contains("allow_remote_apps: true"), "{shown}");
}

#[test]
fn a_file_of_the_site_and_programs_of_the_machine_are_not_the_apis() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    laptop.script("collect.sh", "#!/bin/sh\n");
    let own = laptop.site_path().join("apps/Greet.yml");
    fs::write(&own, "name: Greet\ncommand: echo mine\n").unwrap();
    allow(&laptop, true);
    // The index has the Site's own by that name; deleted from there, its file is still the Site's.
    let caller = Caller::new(&laptop);
    caller.delete(laptop.json(&["app", "ls"])[0]["id"].as_i64().unwrap());
    laptop.site(&["site", "start"]);
    let app = caller.make(&greet(&laptop, json!({})));
    let refusal = caller.verdict(&laptop, app).unwrap();
    assert!(refusal.contains("the Site's own"), "{refusal}");
    let other = |name: &str, body: Value| {
        let mut app = greet(&laptop, body);
        app["name"] = name.into();
        let app = caller.make(&app);
        caller.verdict(&laptop, app)
    };
    let refusal = other("Hooked", json!({"hooks": {"postprocess": "/bin/sh"}})).unwrap();
    assert!(refusal.contains("hooks.postprocess"), "{refusal}");
    assert_eq!(other("Collecting", json!({"hooks": {"postprocess": "./collect.sh"}})), None);
    let hooks = &laptop.json(&["app", "ls"])[2]["hooks"];
    assert_eq!(hooks["postprocess"], true, "{hooks}");
    // The owner's word about the name counts.
    let synced = laptop.site(&["app", "sync"]);
    assert!(synced.contains("the Site has a file of its own"), "{synced}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "name: Greet\ncommand: echo mine\n");
    caller.job(app, "mine").invalid("parameters");
}
