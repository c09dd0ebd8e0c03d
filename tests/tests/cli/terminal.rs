//! On a terminal: bars and tables that change, and a terminal that is as it was afterwards.

use std::{
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

use copal_tests::{LIMIT, wait::wait_blocking};
use nix::{
    libc,
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        termios::{Termios, tcgetattr},
    },
    unistd::Pid,
};

use crate::desk::Desk;

/// A program on a pseudo-terminal of 100 columns.
struct OnTerminal {
    child: Child,
    terminal: OwnedFd,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let side = || pty.slave.try_clone().unwrap();
        command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().expect("copal starts");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, text) = (File::from(pty.master), Arc::clone(&shown));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                text.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { child, terminal: pty.slave, before, shown }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn wait_shown(&self, part: &str) {
        wait_blocking(&format!("{part} on the terminal"), LIMIT, || match self.shown() {
            text if text.contains(part) => Ok(()),
            text => Err(text),
        });
    }

    /// Ctrl-C, as the terminal's driver turns it into a signal.
    fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
    }

    /// Waits for the end, checks that the terminal is as it was, and gives the exit code and all that was shown.
    fn end(mut self) -> (i32, String) {
        let status = wait_blocking("copal to end", LIMIT, || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err(self.shown()),
        });
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(after.local_flags, self.before.local_flags);
        assert_eq!(after.input_flags, self.before.input_flags);
        assert_eq!(after.output_flags, self.before.output_flags);
        let text = self.shown();
        // Who hides the cursor shows it again.
        assert_eq!(text.matches("\u{1b}[?25l").count(), text.matches("\u{1b}[?25h").count(), "{text}");
        (status.code().unwrap_or(-1), text)
    }
}

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
