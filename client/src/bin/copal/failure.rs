//! Failures as people see them: one line that says what, one line that says what to do, and the
//! exit code. Every error of a library becomes a [`Failure`] here and nowhere else.

use std::{error::Error, io};

use copal_client::{ClientError, app_file::AppError, credentials::CredentialsError, site_dir::FileError};
use copal_schemas::problem::{ErrorCode, Problem};

/// It failed for a reason of the user's, the Site's or the service's.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// `job wait --timeout` ran out.
pub(crate) const TIMED_OUT: u8 = 3;

/// Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// The result of everything that a command does.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    exit: u8,
    broken_pipe: bool,
    changed: bool,
    misunderstood: bool,
}

impl Failure {
    /// Exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            exit: FAILED,
            broken_pipe: false,
            changed: false,
            misunderstood: false,
        }
    }

    /// Exit code 2. Without another hint it names the help.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: USAGE, ..Self::new(message).hint("--help says more") }
    }

    /// Of a stream or a file: what could not be done, and why.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        let failure = Self::new(format!("{what}: {error}"));
        let failure =
            if error.kind() == io::ErrorKind::StorageFull { failure.hint("free some space") } else { failure };
        Self { broken_pipe: error.kind() == io::ErrorKind::BrokenPipe, ..failure }
    }

    /// With a line that says what to do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With another exit code.
    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// Of a command that had changed something by then.
    pub(crate) fn after_changes(self) -> Self {
        Self { changed: true, ..self }
    }

    /// Whether something was changed before it failed.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Whether the service's answer was not understood, as happens between versions.
    pub(crate) fn is_misunderstood(&self) -> bool {
        self.misunderstood
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        self.exit
    }

    /// Whether the reader of the output is gone, which is no reason to complain.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }

    /// What it says, and what to do.
    pub(crate) fn parts(&self) -> (&str, Option<&str>) {
        (&self.message, self.hint.as_deref())
    }

    /// The lines for stderr, without colour.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!("error: {}\n", self.message);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        text
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some libraries repeat their cause in their own text.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// The last cause of an error: what the operating system said.
fn root(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

/// Why a call did not succeed, in one line without the remedy.
pub(crate) fn describe(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { url, source } => {
            let mut address = url.clone();
            // What was asked is no part of where.
            address.set_query(None);
            format!("can't reach the service at {address}: {}", root(source))
        }
        ClientError::Answer { url, source } => format!("the answer of {url} is not understood: {}", root(source)),
        ClientError::Problem(problem) => problem.detail.trim().trim_end_matches('.').to_owned(),
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let message = describe(&error);
        match error {
            // To TLS an answer in plain text is a broken message.
            ClientError::Unreachable { url, .. } if message.contains("InvalidContentType") => {
                let mut plain = url;
                plain.set_query(None);
                // The scheme of an https address can always become http.
                let _ = plain.set_scheme("http");
                Self::new(message).hint(format!("what listens there speaks no TLS; if it is the service, use {plain}"))
            }
            ClientError::Unreachable { .. } => Self::new(message)
                .hint("start it with `copal-server`, or name another one with `copal login --url URL`"),
            ClientError::Answer { .. } => Self {
                misunderstood: true,
                ..Self::new(message)
                    .hint("check that the address is a Copal service's, and that it has the version of this `copal`")
            },
            ClientError::Problem(problem) => from_problem(&problem, &message),
        }
    }
}

fn from_problem(problem: &Problem, detail: &str) -> Failure {
    match problem.code {
        ErrorCode::Unauthenticated => Failure::new(format!("the service does not accept the stored token: {detail}"))
            .hint("run `copal login`; the token may have lapsed, or another service may have made it"),
        ErrorCode::Invalid if !problem.errors.is_empty() => {
            let places: Vec<String> = problem.errors.iter().map(|error| field(&error.loc, &error.msg)).collect();
            Failure::new(places.join("; "))
        }
        ErrorCode::RateLimited => Failure::new(detail).hint("wait a minute and try again"),
        ErrorCode::Internal => Failure::new(format!("the service failed: {detail}")).hint("its log has the cause"),
        ErrorCode::Unavailable => {
            Failure::new(format!("the service can't answer now: {detail}")).hint("try again in a moment")
        }
        _ => Failure::new(detail),
    }
}

/// `body.0.num_nodes: message`, without the word that says in which part of the request it was.
fn field(place: &[serde_json::Value], message: &str) -> String {
    let path: Vec<String> =
        place.iter().skip(1).map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect();
    if path.is_empty() { message.into() } else { format!("{}: {message}", path.join(".")) }
}

impl From<CredentialsError> for Failure {
    fn from(error: CredentialsError) -> Self {
        match &error {
            CredentialsError::Missing(path) => Self::new(format!("not logged in: there is no {}", path.display()))
                .hint("run `copal login`, or `copal register` for a new account"),
            CredentialsError::Exposed { path, mode } => {
                Self::new(format!("{} has mode {mode:04o}: others can read the token in it", path.display()))
                    .hint(format!("run `chmod 600 {}`, and `copal login` for a new token", path.display()))
            }
            CredentialsError::Foreign { path, owner } => {
                Self::new(format!("{} belongs to another user ({owner}), who decides what is in it", path.display()))
                    .hint(format!("run `rm {}`, and `copal login`", path.display()))
            }
            CredentialsError::File(_) => {
                Self::new(one_line(&chain(&error))).hint("mend the file, or delete it and run `copal login`")
            }
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let hint = match &error {
            FileError::Content { .. } => "correct the file there and run the command again",
            FileError::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space there and run the command again"
            }
            FileError::Read { .. } | FileError::Write { .. } => "check that the path exists and its permissions",
        };
        Self::new(one_line(&chain(&error))).hint(hint)
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        match error {
            AppError::File(error) => error.into(),
            error => Self::new(one_line(&chain(&error))),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self { broken_pipe, ..Self::new(error.to_string()) }
    }
}

impl From<clap::Error> for Failure {
    /// A wrong command line: what clap says in its first paragraph, and its tip or the usage.
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let mut paragraphs = text.split("\n\n").map(|paragraph| {
            paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
        });
        let message = paragraphs.next().unwrap_or_default();
        let mut message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
        for technical in ["invalid digit found in string", "invalid float literal"] {
            message = message.replace(technical, "a number is wanted");
        }
        if let Some(without_scheme) = message.strip_suffix("relative URL without a base") {
            message = format!("{without_scheme}an address begins with https:// or http://");
        }
        let message = range_in_words(&message).unwrap_or(message);
        let rest: Vec<String> = paragraphs.collect();
        let hint = rest
            .iter()
            .filter_map(|line| line.strip_prefix("tip: "))
            // Nothing here takes a word that begins with a dash for a value, which is what this proposes.
            .find(|tip| !tip.starts_with("to pass "))
            .or_else(|| rest.iter().find_map(|line| line.strip_prefix("Usage: ")))
            .map_or_else(|| "--help says more".into(), |line| format!("{line}; --help says more"));
        Self::usage(message).hint(hint)
    }
}

/// `0 is not in 1..=2147483647`, said as people say it.
fn range_in_words(message: &str) -> Option<String> {
    let (value, range) = message.rsplit_once(" is not in ")?;
    let (least, most) = range.split_once("..")?;
    let most = most.trim_start_matches('=');
    let is_open = most.is_empty() || most == i32::MAX.to_string() || most == i64::MAX.to_string();
    // Before it stands whose value it is.
    let number = value.rsplit(' ').next()?.parse::<i128>();
    let is_below = matches!((number, least.parse()), (Ok(number), Ok(least)) if number < least);
    Some(match (is_open, is_below) {
        (false, _) => format!("{value} is not from {least} to {most}"),
        (true, true) => format!("{value} is less than {least}"),
        (true, false) => format!("{value} is more than {most}"),
    })
}

impl From<dialoguer::Error> for Failure {
    fn from(error: dialoguer::Error) -> Self {
        Self::new(format!("no answer: {error}"))
    }
}

/// The first line of a text that quotes the file in further lines.
pub(crate) fn one_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use copal_schemas::problem::FieldError;
    use serde_json::json;

    use super::*;

    fn problem(code: ErrorCode, detail: &str) -> Problem {
        Problem::new(code, detail)
    }

    fn shown(problem: Problem) -> Failure {
        ClientError::Problem(Box::new(problem)).into()
    }

    #[test]
    fn a_lapsed_token_says_what_to_do() {
        insta::assert_snapshot!(shown(problem(ErrorCode::Unauthenticated, "Could not validate credentials.")).lines(), @r"
        error: the service does not accept the stored token: Could not validate credentials
        hint: run `copal login`; the token may have lapsed, or another service may have made it
        ");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_place() {
        let mut wrong = problem(ErrorCode::Invalid, "the request is not valid");
        wrong.errors.push(FieldError {
            loc: vec![json!("body"), json!(0), json!("num_nodes")],
            msg: "must be 1 or more".into(),
        });
        insta::assert_snapshot!(shown(wrong).lines(), @"error: 0.num_nodes: must be 1 or more");
    }

    #[test]
    fn credentials_that_others_can_read_are_refused_with_the_remedy() {
        let error = CredentialsError::Exposed { path: "/h/client.yml".into(), mode: 0o644 };
        insta::assert_snapshot!(Failure::from(error).lines(), @r"
        error: /h/client.yml has mode 0644: others can read the token in it
        hint: run `chmod 600 /h/client.yml`, and `copal login` for a new token
        ");
        insta::assert_snapshot!(Failure::from(CredentialsError::Missing("/h/client.yml".into())).lines(), @r"
        error: not logged in: there is no /h/client.yml
        hint: run `copal login`, or `copal register` for a new account
        ");
    }

    #[test]
    fn a_wrong_command_line_takes_two_lines() {
        use clap::Parser;
        let lines = |line: &str| {
            let words = crate::argv::rewrite(line.split(' ').map(Into::into));
            Failure::from(crate::args::Cli::try_parse_from(words).unwrap_err()).lines()
        };
        insta::assert_snapshot!(lines("copal job create -a X"), @r"
        error: the following required arguments were not provided: --workdir <FOLDER>
        hint: copal job create --app <APP> --workdir <FOLDER>; --help says more
        ");
        insta::assert_snapshot!(lines("copal job crate"), @r"
        error: unrecognized subcommand 'crate'
        hint: some similar subcommands exist: 'cancel', 'create'; --help says more
        ");
        insta::assert_snapshot!(lines("copal job ls --stat FAILED"), @r"
        error: unexpected argument '--stat' found
        hint: a similar argument exists: '--state'; --help says more
        ");
        insta::assert_snapshot!(lines("copal job ls --state FALED"), @r#"
        error: invalid value 'FALED' for '--state <STATE>': "FALED" is not a job state; did you mean FAILED?
        hint: --help says more
        "#);
        insta::assert_snapshot!(lines("copal job create -a X -w y -p name"), @r#"
        error: invalid value 'name' for '--param <NAME=VALUE>': "name" is not KEY=VALUE
        hint: --help says more
        "#);
        insta::assert_snapshot!(lines("copal job show seven"), @r"
        error: invalid value 'seven' for '<ID>': a number is wanted
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal queue submit -n 0 -t 5 -j mpi"), @r"
        error: invalid value '0' for '--num-nodes <NODES>': 0 is less than 1
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal queue submit -n 3000000000 -t 5 -j mpi"), @r"
        error: invalid value '3000000000' for '--num-nodes <NODES>': 3000000000 is more than 2147483647
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal events ls --limit 0"), @r"
        error: invalid value '0' for '--limit <NUMBER>': 0 is not from 1 to 100000
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal job ls --limit 0"), @r"
        error: invalid value '0' for '--limit <NUMBER>': 0 is less than 1
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal job watch --timeout 5"), @r"
        error: unexpected argument '--timeout' found
        hint: copal job watch [OPTIONS] [IDS]...; --help says more
        ");
        insta::assert_snapshot!(lines("copal login --url 127.0.0.1:8642"), @r"
        error: invalid value '127.0.0.1:8642' for '--url <URL>': an address begins with https:// or http://
        hint: --help says more
        ");
        insta::assert_snapshot!(lines("copal queue submit -n 1 -t 5 -p gpu:1"), @r#"
        error: invalid value 'gpu:1' for '--part <MODE:NODES[:KEY=VALUE]...>': "gpu" is not a job mode; use mpi or serial
        hint: --help says more
        "#);
    }

    #[test]
    fn a_broken_pipe_is_told_from_other_failures() {
        assert!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).is_broken_pipe());
        assert!(!Failure::from(io::Error::from(io::ErrorKind::NotFound)).is_broken_pipe());
    }
}
