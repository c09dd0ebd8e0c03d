//! `copal completions` and `copal man`: what other programs know of the command line.

use std::{env, fs, path::Path};

use clap::CommandFactory;
use clap_complete::env::Shells;

use crate::{
    args::Cli,
    context::Context,
    failure::{Failure, Result},
};

/// The variable by which a shell asks this program for completions.
pub(crate) const COMPLETE_VARIABLE: &str = "COPAL_COMPLETE";

/// Writes the shell's part of completions: it asks this program, which asks the service.
pub(super) fn completions(context: Context, shell: clap_complete::Shell) -> Result<()> {
    let shells = Shells::builtins();
    let completer = shells
        .completer(&shell.to_string())
        .ok_or_else(|| Failure::usage(format!("{shell} has no completions that ask for names")))?;
    let program = env::current_exe()?;
    let mut text = Vec::new();
    completer.write_registration(COMPLETE_VARIABLE, "copal", "copal", &program.to_string_lossy(), &mut text)?;
    context.out.text(&String::from_utf8_lossy(&text))
}

/// Writes a page for `copal` and one for each command.
pub(super) fn man(context: Context, folder: &Path) -> Result<()> {
    let unwritable = |error: std::io::Error| {
        Failure::new(format!("can't write to {}: {error}", folder.display())).hint("check the path and its permissions")
    };
    fs::create_dir_all(folder).map_err(unwritable)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(unwritable)?;
    context.out.talk(&format!("Wrote the pages to {}; try `man -l {0}/copal.1`.", folder.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{human::Clock, output::Output};

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context { out: Output::default(), clock: Clock::here() };
        man(context, &folder.path().join("man1")).unwrap();
        for name in ["copal", "copal-job", "copal-job-create", "copal-queue-submit", "copal-doctor"] {
            let text = fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            assert!(text.starts_with(".ie") && text.contains("copal"), "{name}");
        }
    }
}
