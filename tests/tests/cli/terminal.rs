//! On a terminal: bars and tables that change, and a terminal that is as it was afterwards.

use copal_tests::{LIMIT, wait::wait_blocking};

use crate::{desk::Desk, pty::OnTerminal};

#[tokio::test]
async fn watch_shows_a_bar_until_all_is_done() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "--array", "0-1", "-w", "a/{index}", "-p", "name=x", "-y"]);
    let watch = OnTerminal::start(desk.copal_bare(&["job", "watch", "1-2"]));
    watch.wait_shown("0/2 Jobs");
    watch.wait_shown("2 PREPROCESSED");
    desk.ok(&["job", "cancel", "1"]);
    watch.wait_shown("1/2 Jobs");
    desk.ok(&["job", "modify", "2", "--set-state", "JOB_FINISHED"]);
    let (code, text) = watch.end();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("left"), "the time left: {text}");
    // The end is a table, on lines of its own.
    assert!(text.contains("STATE") && text.contains("FAILED"), "{text}");
}

#[tokio::test]
async fn ctrl_c_leaves_the_terminal_as_it_was() {
    let desk = Desk::new().await;
    desk.ok(&["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x", "-y"]);
    desk.ok(&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"]);
    let watch = OnTerminal::start(desk.copal_bare(&["job", "watch", "1"]));
    watch.wait_shown("0/1 Jobs");
    watch.interrupt();
    let (code, text) = watch.end();
    assert_eq!(code, 130);
    assert!(text.contains("interrupted; the Jobs go on"), "{text}");
    let queue = OnTerminal::start(desk.copal_bare(&["queue", "watch"]));
    queue.wait_shown("pending_submission");
    desk.ok(&["queue", "rm", "1"]);
    queue.wait_shown("pending_deletion");
    queue.interrupt();
    assert_eq!(queue.end().0, 0);
    let events = OnTerminal::start(desk.copal_bare(&["events", "watch", "--to-state", "FAILED"]));
    // The stream is open once the service knows of it; a change before that is nobody's to show.
    wait_blocking("an event to be shown", LIMIT, || {
        desk.ok(&["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x", "-y"]);
        desk.ok(&["job", "cancel", "--all", "-y"]);
        if events.shown().contains("FAILED") { Ok(()) } else { Err(events.shown()) }
    });
    events.interrupt();
    assert_eq!(events.end().0, 0);
}

/// The rows of the last of several frames that were drawn one over the other, on a terminal of so many columns.
fn last_frame(shown: &str, last_row: &str, columns: usize) -> Vec<String> {
    let plain = anstream::adapter::strip_str(shown).to_string();
    let frames: Vec<&str> = plain.split(last_row).collect();
    // What comes behind the last complete frame may be a part of the next.
    let [.., frame, _] = frames[..] else { return Vec::new() };
    let mut rows = vec![String::new()];
    for letter in frame.chars() {
        match letter {
            '\r' | '\n' => rows.push(String::new()),
            letter => match rows.last_mut() {
                Some(row) if row.chars().count() < columns => row.push(letter),
                // Full: the terminal goes on in the next.
                _ => rows.push(letter.into()),
            },
        }
    }
    rows.push(last_row.into());
    rows
}

#[tokio::test]
async fn what_is_watched_follows_the_width_of_the_terminal() {
    let desk = Desk::new().await;
    let tags = ["--tag", "campaign=a_long_name_of_a_campaign_of_many_words", "--tag", "system=H2O"];
    desk.ok(&[&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"][..], &tags].concat());
    let watch = OnTerminal::with_columns(desk.copal_bare(&["queue", "watch"]), 160);
    let laid_out_for = |columns: usize, rows_of_tags: usize| {
        wait_blocking(&format!("a table for {columns} columns"), LIMIT, || {
            let rows = last_frame(&watch.shown(), "Ctrl-C ends; the BatchJobs go on.", columns);
            // Drawn for another width, some row would begin in the middle of the terminal.
            let begins = |with: &str| rows.iter().any(|row| row.starts_with(with));
            let of_tags = rows.iter().filter(|row| row.contains("campaign") || row.contains("H2O")).count();
            let is_right = begins("ID  SITE") && begins("1   theta") && of_tags == rows_of_tags;
            if is_right { Ok(()) } else { Err(format!("{rows:#?}")) }
        });
    };
    laid_out_for(160, 1);
    watch.resize(100);
    laid_out_for(100, 2);
    watch.resize(160);
    laid_out_for(160, 1);
    watch.interrupt();
    assert_eq!(watch.end().0, 0);
    // The states behind a bar are cut where they do not fit.
    desk.ok(&["job", "create", "-a", "Hello", "--array", "0-9", "-w", "a/{index}", "-p", "name=x", "-y"]);
    desk.ok(&["job", "cancel", "1-3", "-y"]);
    let watch = OnTerminal::with_columns(desk.copal_bare(&["job", "watch", "1-10"]), 160);
    watch.wait_shown("7 PREPROCESSED, 3 FAILED");
    watch.resize(60);
    let before = watch.shown().len();
    desk.ok(&["job", "cancel", "4", "-y"]);
    wait_blocking("the bar to move", LIMIT, || match watch.shown().split_off(before) {
        text if text.contains("4/10 Jobs") => Ok(()),
        text => Err(text),
    });
    let text = anstream::adapter::strip_str(&watch.shown().split_off(before)).to_string().replace('\r', "\n");
    let line = text.lines().rfind(|line| line.contains("4/10 Jobs")).unwrap_or_default();
    assert!(line.trim_end().chars().count() <= 60, "{line:?}");
    watch.interrupt();
    assert_eq!(watch.end().0, 130);
}

#[tokio::test]
async fn ctrl_c_in_a_long_creation_says_what_was_made_and_how_to_go_on() {
    let desk = Desk::new().await;
    let line = "job create -a Hello --array 0-999999 -w a/{index} -p name=x -y";
    let create = OnTerminal::start(desk.copal_bare(&line.split(' ').collect::<Vec<_>>()));
    create.wait_shown("25000/1000000 Jobs");
    create.interrupt();
    let (code, text) = create.end();
    let made = desk.json(&["job", "ls", "--by-state"])["PREPROCESSED"].as_i64().unwrap();
    let plain = anstream::adapter::strip_str(&text).to_string();
    assert_eq!(code, 130, "{plain}");
    let told = format!("error: interrupted: {made} of 1000000 Jobs were created: array 1, Jobs 1-{made}");
    assert!(plain.contains(&told), "{told}\n{plain}");
    let hint = format!("hint: `copal job rm --array 1` deletes them, --array {made}-999999 makes the rest");
    assert!(plain.contains(&hint), "{hint}\n{plain}");
    desk.ok(&["job", "rm", "--array", "1", "-y"]);
    // The same of a table, whose rest is told by its line.
    let rows: String = (0..100_000).map(|row| format!("n{row}\n")).collect();
    std::fs::write(desk.site_path().join("rows.csv"), format!("name\n{rows}")).unwrap();
    let line = "job create -a Hello --from rows.csv -w r/{index} -y";
    let create = OnTerminal::start(desk.copal_bare(&line.split(' ').collect::<Vec<_>>()));
    create.wait_shown("500/100000 Jobs");
    create.interrupt();
    let (code, text) = create.end();
    let made = desk.json(&["job", "ls", "--by-state"])["PREPROCESSED"].as_i64().unwrap();
    let plain = anstream::adapter::strip_str(&text).to_string();
    assert_eq!(code, 130, "{plain}");
    assert!(plain.contains(&format!("error: interrupted: {made} of 100000 Jobs were created: ")), "{plain}");
    assert!(plain.contains(&format!(" deletes them, the rest begins in line {}", made + 2)), "{plain}");
}

#[tokio::test]
async fn ctrl_c_at_a_question_gives_the_terminal_back() {
    let desk = Desk::new().await;
    let create = ["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x"];
    let login = ["login", "--username", "ann"];
    for (arguments, question) in [(&create[..], "? "), (&login[..], "Password: "), (&login[..1], "Username: ")] {
        let mut command = OnTerminal::start(desk.copal_bare(arguments));
        command.wait_shown(question);
        // Between the question and the first look at the keyboard it may go either way.
        command.wait_read();
        // The letter that a terminal makes a signal of, unless the program reads letters itself; and the signal.
        if question == "? " {
            command.type_letter('\u{3}');
        } else {
            command.interrupt();
        }
        let (code, shown) = command.end();
        assert_eq!(code, 130, "{arguments:?}: {shown}");
    }
    assert_eq!(desk.json(&["job", "ls"]), serde_json::json!([]));
}

/// `copal` itself puts Ctrl-C off; what it starts, and what that starts, must not inherit this.
#[tokio::test]
async fn programs_that_copal_starts_hear_ctrl_c() {
    let desk = Desk::new().await;
    let deaf_to = |status: &str| -> String {
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        line.unwrap_or_else(|| panic!("{status}")).trim().trim_start_matches('0').into()
    };
    desk.ok(&["site", "start"]);
    let agent = desk.json(&["site", "status"])["agent"]["pid"].to_string();
    assert_eq!(deaf_to(&std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap()), "");
    desk.ok(&["site", "stop"]);
    let bin = desk.programs.home().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("mpiexec"), "#!/bin/sh\nexec /bin/cat /proc/self/status > ../status\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("mpiexec"), executable).unwrap();
    assert!(desk.copal(&["doctor"]).env("PATH", &bin).output().unwrap().status.success());
    assert_eq!(deaf_to(&std::fs::read_to_string(desk.programs.home().join("status")).unwrap()), "");
}

#[tokio::test]
async fn tables_fit_the_terminal_and_colours_can_be_had_or_not() {
    let desk = Desk::new().await;
    let long = format!("a/{}", "long name ".repeat(15).trim());
    desk.ok(&["job", "create", "-a", "Hello", "-w", &long, "-p", "name=x", "-y"]);
    let (code, text) = OnTerminal::start(desk.copal_bare(&["job", "ls"])).end();
    assert_eq!(code, 0);
    assert!(text.contains("\u{1b}[1m"), "{text}");
    let mut plain = desk.copal_bare(&["job", "ls"]);
    plain.env("NO_COLOR", "1");
    let (_, text) = OnTerminal::start(plain).end();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.lines().all(|line| line.trim_end().chars().count() <= 100), "{text}");
    assert!(text.lines().count() > 2, "{text}");
}
