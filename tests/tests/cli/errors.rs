//! Every error takes two lines: what, and what to do.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::{desk::Desk, other_service::OtherService};

#[tokio::test]
async fn whoever_is_not_logged_in_is_told_how_to() {
    let mut desk = Desk::without_site().await;
    let credentials = desk.programs.home().join(".copal/client.yml");
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        desk.refused(&["job", "ls"]),
        "1\nerror: ~/.copal/client.yml has mode 0644: others can read the token in it\n\
         hint: run `chmod 600 ~/.copal/client.yml`, and `copal login` for a new token\n"
    );
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    let text = fs::read_to_string(&credentials).unwrap();
    let changed = |name: &str, value: &str| -> String {
        let line = |line: &str| match line.starts_with(&format!("{name}:")) {
            true => format!("{name}: {value}\n"),
            // Without it the login can't be renewed.
            false if line.starts_with("refresh_token:") => String::new(),
            false => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    };
    fs::write(&credentials, changed("token_expiry", "2020-01-01T00:00:00+00:00")).unwrap();
    let told = desk.refused(&["job", "ls"]);
    assert!(told.starts_with("1\nerror: the token of ann at http://SERVICE/ lapsed "), "{told}");
    assert!(told.ends_with(" ago\nhint: run `copal login`\n"), "{told}");
    fs::write(&credentials, changed("token", "nonsense")).unwrap();
    let told = desk.refused(&["whoami"]);
    assert!(told.starts_with("1\nerror: the service does not accept the stored token: "), "{told}");
    assert!(told.contains("\nhint: run `copal login`"), "{told}");
    fs::write(&credentials, "token: [").unwrap();
    let told = desk.refused(&["whoami"]);
    assert!(told.starts_with("1\nerror: ~/.copal/client.yml"), "{told}");
    assert!(told.ends_with("hint: mend the file, or delete it and run `copal login`\n"), "{told}");
    fs::remove_file(&credentials).unwrap();
    assert_eq!(
        desk.refused(&["site", "ls"]),
        "1\nerror: not logged in: there is no ~/.copal/client.yml\n\
         hint: run `copal login`, or `copal register` for a new account\n"
    );
    fs::write(&credentials, text).unwrap();
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    desk.service.stop().await;
    assert_eq!(
        desk.refused(&["queue", "ls"]),
        "1\nerror: can't reach the service at http://SERVICE/: Connection refused (os error 111)\n\
         hint: start it with `copal-server`, or name another one with `copal login --url URL`\n"
    );
}

#[tokio::test]
async fn names_that_mean_nothing_or_too_much_list_what_could_be_meant() {
    let desk = Desk::new().await;
    let other = desk.programs.home().join("site2");
    desk.ok(&["site", "init", other.to_str().unwrap(), "--name", "polaris", "--platform", "local", "-y"]);
    let refused = |line: &str| desk.refused(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(
        refused("job ls --site tetha"),
        "1\nerror: no Site of yours has the id, the name or a path with \"tetha\"\nhint: did you mean theta?\n"
    );
    assert_eq!(
        refused("queue submit --site all -n 1 -t 5 -j mpi"),
        "2\nerror: 2 Sites could be meant: theta (1), polaris (2)\nhint: name one with --site\n"
    );
    assert_eq!(
        refused("job create -a Helo -w x -p name=x"),
        "1\nerror: no App \"Helo\" at the Sites meant\nhint: did you mean Hello?\n"
    );
    assert_eq!(
        refused("queue submit -n 1 -t 5 -j mpi -x shot=1"),
        "2\nerror: the Site theta declares no parameter \"shot\" (-x)\nhint: did you mean shout?\n"
    );
    assert_eq!(refused("job show 99"), "1\nerror: you have no Job 99\nhint: `copal job ls --site all` lists yours\n");
    assert_eq!(
        refused("queue rm 99"),
        "1\nerror: you have no BatchJob 99\nhint: `copal queue ls --history --site all` lists yours\n"
    );
    assert_eq!(
        refused("job crate"),
        "2\nerror: unrecognized subcommand 'crate'\n\
         hint: some similar subcommands exist: 'cancel', 'create'; --help says more\n"
    );
    assert_eq!(
        refused("job ls --state FINISHED"),
        "2\nerror: invalid value 'FINISHED' for '--state <STATE>': \"FINISHED\" is not a job state; the states are \
         CREATED AWAITING_PARENTS READY STAGED_IN PREPROCESSED RUNNING RUN_DONE RUN_ERROR RUN_TIMEOUT RESTART_READY \
         POSTPROCESSED STAGED_OUT JOB_FINISHED FAILED\nhint: --help says more\n"
    );
    assert_eq!(
        refused("job create -a Hello -w x -p name=x -p tail=y"),
        "1\nerror: App Hello: parameter tail: \"y\" is not one of , x\nhint: `copal app show Hello` lists its parameters\n"
    );
    assert_eq!(
        refused("job create -a Hello -w s/{index} -p name=x --array 0-9%0"),
        "2\nerror: invalid value '0-9%0' for '--array <RANGE>': \"0-9%0\" is not an array; write FIRST-LAST or \
         FIRST-LAST:STEP, such as 0-99, 0-99:10 or 1,5,10-19, and %MOST behind it for the most at once\n\
         hint: --help says more\n"
    );
    assert_eq!(
        refused("job ls --feilds id"),
        "2\nerror: unexpected argument '--feilds' found\nhint: a similar argument exists: '--fields'; --help says more\n"
    );
    assert_eq!(
        refused("queue ls --state runing"),
        "2\nerror: invalid value 'runing' for '--state <STATE>': \"runing\" is not a BatchJob's state; did you mean \
         running?\nhint: --help says more\n"
    );
    assert_eq!(
        refused("job show seven"),
        "2\nerror: invalid value 'seven' for '<ID>': a number is wanted\nhint: --help says more\n"
    );
    assert_eq!(
        refused("job ls --after yesterday"),
        "2\nerror: \"yesterday\" is no time; write 2h (ago), 13:05, 2026-11-30T13:05 or RFC 3339\nhint: --help says more\n"
    );
    // The same App at two Sites, and two Sites with one part of their paths in common.
    fs::copy(desk.site_path().join("apps/Hello.yml"), other.join("apps/Hello.yml")).unwrap();
    desk.ok(&["app", "sync", "--site", "polaris"]);
    let several = "2\nerror: several Sites have an App Hello: theta, polaris\nhint: name one with --site\n";
    assert_eq!(refused("job create --site all -a Hello -w x -p name=x"), several);
    assert_eq!(refused("app show Hello --site all"), several);
    assert_eq!(
        refused("site rm --site site -y"),
        "2\nerror: 2 Sites could be meant: theta (1), polaris (2)\nhint: name one with --site\n"
    );
    assert_eq!(refused("job rm"), "2\nerror: which Jobs?\nhint: name ids, states or tags, or add --all\n");
    assert_eq!(
        refused("site rename polaris"),
        "1\nerror: you have a Site named \"polaris\" already\nhint: choose another name\n"
    );
    assert_eq!(
        refused("job wait --timeout -1"),
        "2\nerror: unexpected argument '-1' found\nhint: copal job wait [OPTIONS] [IDS]...; --help says more\n"
    );
}

#[tokio::test]
async fn a_folder_that_names_another_services_site_is_told() {
    let desk = Desk::new().await;
    let settings = desk.site_path().join("settings.yml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("site_id: 1", "site_id: 77")).unwrap();
    assert_eq!(
        desk.refused(&["job", "ls"]),
        "1\nerror: the service has no Site 77 of yours, which this folder's settings.yml names\n\
         hint: check with `copal whoami` that you are logged in to the right service as the right user\n"
    );
    fs::write(&settings, text.replace("sync_period:", "sync_perod:")).unwrap();
    let told = desk.refused(&["job", "ls"]);
    assert!(told.contains("sync_perod") && told.contains("settings.yml"), "{told}");
    assert!(told.ends_with("hint: correct the file there and run the command again\n"), "{told}");
}

#[tokio::test]
async fn a_service_of_another_version_is_named() {
    let desk = Desk::without_site().await;
    let future = OtherService::start("9.9.9", None);
    desk.point_at(&future.url());
    let told = desk.refused(&["site", "ls"]);
    assert!(
        told.starts_with(&format!("1\nerror: the answer of {}/sites/ is not understood: ", future.url())),
        "{told}"
    );
    let ours = env!("CARGO_PKG_VERSION");
    let hint = format!(
        "\nhint: the service has version 9.9.9: this `copal` is {ours}; install the one of 9.9.9, or update the service\n"
    );
    assert!(told.ends_with(&hint) && told.lines().count() == 3, "{told}");
}

#[tokio::test]
async fn scripts_need_the_sites_own_machine() {
    let desk = Desk::without_site().await;
    let far = desk.service.api();
    let login = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let token = far.post_form("/auth/password/login", &login).await.ok();
    far.with_token(token["access_token"].as_str().unwrap()).site("far").await;
    fs::write(desk.programs.home().join("job.sh"), "echo hi\n").unwrap();
    assert_eq!(
        desk.refused(&["job", "submit", "job.sh"]),
        "2\nerror: this folder is in no Site\nhint: go to a Site's folder, or name one with --site\n"
    );
    assert_eq!(
        desk.refused(&["job", "submit", "job.sh", "--site", "far"]),
        "1\nerror: /home/far, the folder of the Site far, is not on this machine\nhint: run the command where it is\n"
    );
}

#[tokio::test]
async fn a_site_is_named_so_that_it_can_be_chosen() {
    let desk = Desk::new().await;
    let new = desk.programs.home().join("new");
    let refused = |name: &str, why: &str| {
        let told = format!(
            "2\nerror: {name:?} can't be a Site's name: it {why}\n\
             hint: choose another one: `copal site init FOLDER --name NAME`, `copal site rename NAME`\n"
        );
        let init = ["site", "init", new.to_str().unwrap(), "--name", name, "--platform", "local", "-y"];
        assert_eq!(desk.refused(&init), told);
        assert_eq!(desk.refused(&["site", "rename", name]), told);
    };
    refused("all", "means other Sites where one is chosen");
    refused("42", "would be taken for an id");
    refused("a,b", "has a comma, which stands between names of Sites");
    refused("a\nb", "has a control character");
    refused(" ", "is empty");
    assert!(!new.exists());
    assert_eq!(desk.json(&["site", "ls", "--fields", "name"]), serde_json::json!([{"name": "theta"}]));
}

#[tokio::test]
async fn files_that_make_no_job_and_output_without_room_are_told() {
    let desk = Desk::new().await;
    let file = |name: &str, text: &str| fs::write(desk.site_path().join(name), text).unwrap();
    file("empty.sh", " \n");
    assert_eq!(
        desk.refused(&["job", "submit", "empty.sh"]),
        "1\nerror: the script empty.sh is empty\nhint: write the commands into it that the Job is to run\n"
    );
    let refused = |name: &str| desk.refused(&["job", "create", "-a", "Hello", "-w", "x/{index}", "--from", name]);
    file("heading.csv", "name\n");
    assert_eq!(
        refused("heading.csv"),
        "1\nerror: heading.csv has no row that makes a Job\n\
         hint: a row for each Job is wanted, below the heading where the file is CSV\n"
    );
    file("one.json", "{\"name\": \"x\"}");
    let told = refused("one.json");
    assert!(told.starts_with("1\nerror: one.json: a list of objects is wanted: "), "{told}");
    assert!(told.ends_with("\nhint: `copal job create --help` says what a table has\n"), "{told}");
    let mut full = desk.copal(&["site", "ls"]);
    full.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(
        desk.told(&full.output().unwrap()),
        "1\nerror: can't write to stdout: No space left on device (os error 28)\nhint: free some space\n"
    );
}
