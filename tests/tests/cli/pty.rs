//! Programs on a pseudo-terminal: what they show, and how they leave the terminal.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use copal_tests::{LIMIT, wait::wait_blocking};
use nix::{
    libc,
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, Termios, tcgetattr},
    },
    unistd::Pid,
};

/// A program on a pseudo-terminal.
pub(crate) struct OnTerminal {
    child: Child,
    keyboard: File,
    terminal: OwnedFd,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl OnTerminal {
    /// On a terminal of 100 columns.
    pub(crate) fn start(command: Command) -> Self {
        Self::with_columns(command, 100)
    }

    /// On a terminal of so many columns.
    pub(crate) fn with_columns(mut command: Command, columns: u16) -> Self {
        let size = libc::winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        // Only copies are closed in programs; an agent that is started would else keep the terminal for ever.
        let (master, terminal) = (pty.master.try_clone().unwrap(), pty.slave.try_clone().unwrap());
        drop(pty);
        let before = tcgetattr(&terminal).unwrap();
        let side = || terminal.try_clone().unwrap();
        command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().expect("copal starts");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let keyboard = File::from(master.try_clone().unwrap());
        let (mut screen, text) = (File::from(master), Arc::clone(&shown));
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                text.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { child, keyboard, terminal, before, shown, reader }
    }

    /// Gives the terminal another width, as who drags its border does.
    pub(crate) fn resize(&self, columns: u16) {
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns.to_string()]).stdin(self.terminal.try_clone().unwrap());
        assert!(stty.status().unwrap().success());
    }

    /// All that it has written so far.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until it has written this.
    #[track_caller]
    pub(crate) fn wait_shown(&self, part: &str) {
        wait_blocking(&format!("{part} on the terminal"), LIMIT, || match self.shown() {
            text if text.contains(part) => Ok(()),
            text => Err(text),
        });
    }

    /// Waits until the terminal itself does not show what is typed: the program reads it.
    #[track_caller]
    pub(crate) fn wait_read(&self) {
        wait_blocking("the terminal to show nothing that is typed", LIMIT, || {
            let flags = tcgetattr(&self.terminal).unwrap().local_flags;
            if flags.contains(LocalFlags::ECHO) { Err(self.shown()) } else { Ok(()) }
        });
    }

    /// A line that the program reads without showing it.
    pub(crate) fn type_secret(&mut self, line: &str) {
        self.wait_read();
        self.type_line(line);
    }

    /// A key of the user's.
    pub(crate) fn type_letter(&mut self, letter: char) {
        self.type_text(&letter.to_string());
    }

    /// Keys of the user's, of which none ends a line.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// A line of the user's.
    pub(crate) fn type_line(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\r").as_bytes()).unwrap();
    }

    /// Answers each question that ends so, until the end of the program; see [`OnTerminal::end`].
    pub(crate) fn answering(mut self, question: &str, answer: &str) -> (i32, String) {
        let mut answered = 0;
        wait_blocking("copal to end", LIMIT, || {
            let shown = self.shown();
            if shown.matches(question).count() > answered {
                answered += 1;
                self.type_line(answer);
            }
            if self.child.try_wait().unwrap().is_some() { Ok(()) } else { Err(shown) }
        });
        self.end()
    }

    /// Ctrl-C, as the terminal's driver turns it into a signal.
    pub(crate) fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
    }

    /// Waits for the end, checks that the terminal is as it was, and gives the exit code and all that was shown.
    pub(crate) fn end(mut self) -> (i32, String) {
        let status = wait_blocking("copal to end", LIMIT, || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err(self.shown()),
        });
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(after.local_flags, self.before.local_flags);
        assert_eq!(after.input_flags, self.before.input_flags);
        assert_eq!(after.output_flags, self.before.output_flags);
        // With its last user the terminal ends, and then all that was written has been read.
        drop(self.terminal);
        self.reader.join().unwrap();
        let text = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        // Who hides the cursor shows it again.
        assert!(text.rfind("\u{1b}[?25l") <= text.rfind("\u{1b}[?25h"), "{text}");
        (status.code().unwrap_or(-1), text)
    }
}
