//! Runs a small tool to the end and gives its text, or gives up after a while.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// What a tool may take: nvidia-smi on a busy node takes seconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Standard output of a tool that ended well, in the C locale, repaired where it is not UTF-8.
///
/// # Errors
/// The tool is not there, failed (the error has its last words), or took too long and was killed.
pub(crate) fn output(program: &str, arguments: &[&str], timeout: Duration) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let group = i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)?;
    let (send, receive) = mpsc::channel();
    let mut errors = child.stderr.take();
    // Read apart, so that a full pipe never blocks the tool.
    let talk = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(errors) = &mut errors {
            let _ = errors.read_to_end(&mut text);
        }
        text
    });
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut text));
        let status = read.and_then(|_| child.wait());
        // The receiver is gone after a time-out; the thread has still seen the end of the child.
        let _ = send.send(status.map(|status| (status, text)));
    });
    let Ok(ended) = receive.recv_timeout(timeout) else {
        let _ = killpg(group, Signal::SIGKILL);
        let message = format!("{program} gave no answer in {} s", timeout.as_secs_f64());
        return Err(io::Error::new(io::ErrorKind::TimedOut, message));
    };
    let (status, text) = ended?;
    if !status.success() {
        let words = talk.join().unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(io::Error::other(format!("{program} ended with {status}: {last}")));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_text_or_the_reason() {
        assert_eq!(output("sh", &["-c", "echo $LC_ALL"], TIMEOUT).unwrap(), "C\n");
        let failed = output("sh", &["-c", "echo no such device >&2; exit 9"], TIMEOUT).unwrap_err().to_string();
        assert!(failed.contains("no such device") && failed.contains('9'), "{failed}");
        assert_eq!(output("no-such-tool-here", &[], TIMEOUT).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_tool_that_hangs_is_killed() {
        let error = output("sh", &["-c", "sleep 1000 & wait"], Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
