//! Questions on a terminal. Without a terminal nothing is ever asked: the command says which
//! option answers the question instead.

use std::{
    env,
    io::{self, Read, Write},
};

use dialoguer::{Confirm, Input, Password};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;

use crate::{
    args::account::Account,
    failure::{Failure, INTERRUPTED, Result},
    interrupt::Tidy,
    output::is_interactive,
};

/// Asks before something is made that can be undone. Without a terminal the answer is yes.
pub(crate) fn confirm_creation(question: &str, yes: bool) -> Result<()> {
    if yes || !is_interactive() { Ok(()) } else { ask(question, true) }
}

/// Asks before something is changed or lost. Without a terminal only `-y` says yes.
pub(crate) fn confirm_change(question: &str, yes: bool) -> Result<()> {
    match yes {
        true => Ok(()),
        false if is_interactive() => ask(question, false),
        false => Err(Failure::usage(format!("{question} Nobody can be asked here")).hint("add -y to answer yes")),
    }
}

fn ask(question: &str, default: bool) -> Result<()> {
    let terminal = Terminal::keep();
    let agreed = terminal.asked(Confirm::new().with_prompt(question).default(default).interact())?;
    if agreed { Ok(()) } else { Err(Failure::new("not confirmed; nothing was changed")) }
}

/// Asks for a line, with an answer for those who only press Enter.
pub(crate) fn line(
    question: &str,
    default: Option<&str>,
    check: impl Fn(&str) -> std::result::Result<(), String>,
) -> Result<String> {
    let mut input = Input::<String>::new().with_prompt(question).validate_with(|answer: &String| check(answer));
    if let Some(default) = default {
        input = input.default(default.into());
    }
    let terminal = Terminal::keep();
    terminal.asked(input.interact_text())
}

/// The terminal as it was before a question. Questions hide the cursor or what is typed; whoever presses Ctrl-C then
/// gets the terminal back as it was.
struct Terminal {
    before: Option<Termios>,
    _tidy: Tidy,
}

impl Terminal {
    fn keep() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        let kept = before.clone();
        Self { before, _tidy: Tidy::by(move || restore(kept.as_ref())) }
    }

    /// The answer. Ctrl-C, which a question may read as a letter, ends the command.
    fn asked<T>(self, answer: std::result::Result<T, dialoguer::Error>) -> Result<T> {
        match answer {
            Err(dialoguer::Error::IO(error)) if error.kind() == io::ErrorKind::Interrupted => {
                restore(self.before.as_ref());
                Err(Failure::new("interrupted; nothing was changed").exit(INTERRUPTED))
            }
            answer => Ok(answer?),
        }
    }
}

/// Best effort: there is nobody to tell.
fn restore(before: Option<&Termios>) {
    let _ = io::stderr().write_all(b"\x1b[?25h\n");
    // Last, and the end comes right behind it: a question that is about to be read would change it again.
    if let Some(before) = before {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
    }
}

/// The user's name: the option, else asked for.
pub(crate) fn username(account: &Account) -> Result<String> {
    match &account.username {
        Some(username) => Ok(username.clone()),
        None if is_interactive() => line("Username", None, |_| Ok(())),
        None => Err(Failure::usage("no username is given, and nobody can be asked here").hint("add --username NAME")),
    }
}

/// The password: from stdin, from COPAL_PASSWORD, else asked for, twice where `confirm` says so.
pub(crate) fn password(account: &Account, confirm: bool) -> Result<SecretString> {
    if account.password_stdin {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        let password = text.trim_end_matches(['\n', '\r']);
        return if password.is_empty() {
            Err(Failure::usage("stdin has no password"))
        } else {
            Ok(SecretString::from(password))
        };
    }
    if let Some(password) = &account.password {
        return Ok(password.clone().into());
    }
    if let Some(password) = env::var("COPAL_PASSWORD").ok().filter(|password| !password.is_empty()) {
        return Ok(password.into());
    }
    if !is_interactive() {
        return Err(Failure::usage("no password is given, and nobody can be asked here")
            .hint("set COPAL_PASSWORD, or add --password-stdin and write it to stdin"));
    }
    let mut prompt = Password::new().with_prompt("Password");
    if confirm {
        prompt = prompt.with_confirmation("Repeat the password", "The two are not the same.");
    }
    let terminal = Terminal::keep();
    Ok(terminal.asked(prompt.interact())?.into())
}
