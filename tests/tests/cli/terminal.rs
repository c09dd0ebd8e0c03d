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

#[tokio::test]
async fn ctrl_c_at_a_question_gives_the_terminal_back() {
    let desk = Desk::new().await;
    let create = ["job", "create", "-a", "Hello", "-w", "a", "-p", "name=x"];
    let login = ["login", "--username", "ann"];
    for (arguments, question) in [(&create[..], "? "), (&login[..], "Password: "), (&login[..1], "Username: ")] {
        let mut command = OnTerminal::start(desk.copal_bare(arguments));
        command.wait_shown(question);
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
