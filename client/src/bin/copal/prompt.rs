//! Questions on a terminal. Without a terminal nothing is ever asked: the command says which
//! option answers the question instead.

use std::{env, io::Read};

use dialoguer::{Confirm, Input, Password};
use secrecy::SecretString;

use crate::{
    args::account::Account,
    failure::{Failure, Result},
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
    let agreed = Confirm::new().with_prompt(question).default(default).interact()?;
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
    Ok(input.interact_text()?)
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
    Ok(prompt.interact()?.into())
}
