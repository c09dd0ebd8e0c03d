//! `copal completions` and `copal man`: what other programs know of the command line.

use std::{
    env, fs,
    io::{self, Write},
    path::Path,
};

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
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, folder).map_err(unwritable)?;
    context.out.talk(&format!("Wrote the pages to {}; try `man -l {0}/copal.1`.", folder.display()));
    Ok(())
}

/// The page of a command and of those below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below, folder)?;
    }
    let version = format!("copal {}", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(command.clone()).source(version).manual("Copal");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(more) = command.get_after_help() {
        text.write_all(examples(&more.to_string()).as_bytes())?;
    }
    fs::write(folder.join(page.get_filename()), text)
}

/// What follows the options in `--help`: examples as they are to be typed, then paragraphs about them.
fn examples(more: &str) -> String {
    let mut text = String::new();
    for line in more.lines() {
        match line.trim_end() {
            "Example:" | "Examples:" => text.push_str(".SH EXAMPLES\n"),
            "" => text.push_str(".PP\n"),
            // A line of its own, however long, that can be copied.
            line if line.starts_with(' ') => text.push_str(&format!(".nf\n{}\n.fi\n", verbatim(line))),
            line => text.push_str(&format!("{}\n", verbatim(line))),
        }
    }
    text
}

/// A line as troff(1) shows it unchanged.
fn verbatim(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
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

    #[test]
    fn examples_are_lines_that_can_be_copied() {
        insta::assert_snapshot!(examples("Examples:\n  copal x -p 'a=\\b'\n\n.hidden\nfiles"), @r"
        .SH EXAMPLES
        .nf
          copal x \-p \(aqa=\eb\(aq
        .fi
        .PP
        \&.hidden
        files
        ");
    }
}
