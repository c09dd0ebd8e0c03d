//! Whether a command needs a shell. One that needs none is executed directly, which saves a process.

use copal_client::app_file::quote;

/// Words that a shell knows and no program is called by, or does better than the program.
const SHELL_WORDS: &[&str] = &[
    "!",
    ".",
    ":",
    "[[",
    "alias",
    "bind",
    "break",
    "builtin",
    "caller",
    "case",
    "cd",
    "command",
    "compgen",
    "complete",
    "continue",
    "coproc",
    "declare",
    "dirs",
    "disown",
    "do",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "fc",
    "fg",
    "bg",
    "for",
    "function",
    "getopts",
    "hash",
    "help",
    "history",
    "if",
    "jobs",
    "kill",
    "let",
    "local",
    "logout",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "return",
    "select",
    "set",
    "shift",
    "shopt",
    "source",
    "suspend",
    "time",
    "times",
    "trap",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "until",
    "wait",
    "while",
    "{",
];

/// The program and its arguments of a command that means the same without a shell; `None` when it needs one.
#[must_use]
pub fn without_shell(command: &str) -> Option<Vec<String>> {
    let mut letters = command.trim().chars().peekable();
    let mut is_word_start = true;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => {
                // Nothing within has a meaning.
                letters.by_ref().find(|letter| *letter == '\'')?;
            }
            '"' => loop {
                match letters.next()? {
                    '"' => break,
                    '$' | '`' | '\\' | '!' => return None,
                    _ => {}
                }
            },
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' | '\\' | '*' | '?' | '[' | ']' | '{' | '}' | '\n' => {
                return None;
            }
            '~' | '#' if is_word_start => return None,
            // A tilde after `=` or `:` may be expanded too; an odd case, left to the shell.
            '~' => return None,
            _ => {}
        }
        is_word_start = letter == ' ' || letter == '\t';
    }
    let words = shlex::split(command.trim())?;
    let first = words.first()?;
    // `NAME=value program` sets a variable.
    if first.is_empty() || first.contains('=') || SHELL_WORDS.contains(&first.as_str()) {
        return None;
    }
    Some(words)
}

/// Words as a shell reads them back.
#[must_use]
pub fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_commands_need_no_shell() {
        let plain = |command: &str| without_shell(command).unwrap();
        assert_eq!(plain("/bin/true"), ["/bin/true"]);
        assert_eq!(
            plain(" python3 sim.py --seed 7 'a b; $x' \"c d\"\n"),
            ["python3", "sim.py", "--seed", "7", "a b; $x", "c d"]
        );
        assert_eq!(plain("run --x=1 a#b 100%"), ["run", "--x=1", "a#b", "100%"]);
    }

    #[test]
    fn whatever_means_something_to_a_shell_gets_one() {
        for command in [
            "a | b", "a; b", "a && b", "a > b", "$X", "`a`", "a\\ b", "ls *", "a\nb", "(a)", "X=1 a", "cd x", "exit 3",
            "\"$X\"", "a ~/b", "# a", "", "  ", "'open", "\"open", "{a,b}", "! a", "''",
        ] {
            assert_eq!(without_shell(command), None, "{command}");
        }
    }

    proptest! {
        #[test]
        fn without_a_shell_a_command_means_what_bash_makes_of_it(words in proptest::collection::vec("[^\0]{1,6}", 1..4)) {
            let command = quoted(&words);
            if let Some(split) = without_shell(&command) {
                prop_assert_eq!(split, words);
            }
        }
    }
}
