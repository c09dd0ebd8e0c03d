//! Values of parameters in a command: each is quoted as its place in the command asks for, so that none can end a quote,
//! a word or a command. Which values there are is `app_file.rs`'s.
//!
//! The engine marks where a value stands, and the rendered text is read once as Bash reads it. Where Bash would read a
//! quoted value once more, or where only Bash itself could tell what it would do, no value may stand. What a program or a
//! builtin such as `eval` makes of a word is not to be seen here; docs/APPS.md warns of it.

/// Stands on both sides of a value until it is quoted. No command and no value has it.
const MARK: char = '\0';

/// A value on its way through the template engine.
pub(super) fn marked(value: &str) -> String {
    format!("{MARK}{}{MARK}", value.replace(MARK, ""))
}

/// The command of a rendered template, with each marked value quoted.
///
/// # Errors
/// Where a value stands that can't be quoted there, and the remedy.
pub(super) fn quote_values(rendered: &str) -> Result<String, &'static str> {
    let mut command = String::with_capacity(rendered.len());
    let mut reader = Reader::default();
    let mut parts = rendered.split(MARK);
    while let Some(text) = parts.next() {
        text.chars().for_each(|letter| reader.read(letter));
        command.push_str(text);
        if let Some(value) = parts.next() {
            command.push_str(&reader.quoted(value)?);
        }
    }
    Ok(command)
}

/// Where in a command a letter stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Outside of all quotes.
    #[default]
    Plain,
    /// Within `'…'`.
    Single,
    /// Within `"…"`.
    Double,
    /// Within `$'…'`.
    Escapes,
    /// In a comment.
    Comment,
    /// Within `${…}`, `` `…` `` or, between double quotes, `$(…)`.
    Inner {
        /// What ends it.
        end: char,
        /// What follows.
        back: Box<Place>,
        /// What it has so far.
        text: String,
    },
    /// Beyond what this reader follows.
    Lost(&'static str),
}

/// What would have to be read as Bash does it in full.
const INNER: &str = "a value stands within or after a ${…}, `…` or \"$(…)\" that is not simple; \
                     give it to a variable of the shell first, as in v={{x}}, and write \"$v\"";
const ARITHMETIC: &str = "a value stands in or after an arithmetic expression, which could run it; \
                          make it a number before that, as in printf -v n %d {{x}}, and write $((n))";
const HERE: &str = "a value stands in or after a here-document; \
                    give it to a variable of the shell before that, as in v={{x}}, and write $v";
const COMMENT: &str = "a value stands in a comment; take it out";
const ESCAPED: &str = "a value follows a backslash or a dollar sign; take that away";
const ESCAPES: &str = "a value stands within $'…'; end the quotes before it";

/// Reads a command letter by letter.
#[derive(Debug)]
struct Reader {
    place: Place,
    /// The letter before, where it means something together with the next one.
    last: char,
    /// Whether a backslash takes the next letter's meaning.
    escaped: bool,
    /// How many `<` came last.
    angles: usize,
    /// Whether a here-document begins with the next line.
    here: bool,
}

impl Default for Reader {
    fn default() -> Self {
        Self { place: Place::Plain, last: '\n', escaped: false, angles: 0, here: false }
    }
}

impl Reader {
    fn read(&mut self, letter: char) {
        if std::mem::take(&mut self.escaped) {
            // A backslash at the end of a line is as if neither were there (bash(1), QUOTING).
            if letter != '\n' || self.place == Place::Escapes {
                self.note_here_document();
                self.last = 'x';
            }
            return;
        }
        match &mut self.place {
            Place::Plain => self.read_plain(letter),
            Place::Single if letter == '\'' => self.place = Place::Plain,
            Place::Escapes if letter == '\'' => self.place = Place::Plain,
            Place::Escapes if letter == '\\' => self.escaped = true,
            Place::Comment if letter == '\n' => self.read_line_end(),
            Place::Double => match letter {
                '"' => self.place = Place::Plain,
                '\\' => self.escaped = true,
                '`' => self.enter('`'),
                '{' if self.last == '$' => self.enter('}'),
                '(' if self.last == '$' => self.enter(')'),
                _ => {}
            },
            Place::Inner { end, back, text } => {
                if letter == *end {
                    // In a `case` a parenthesis ends a pattern.
                    self.place = if text.contains("case") { Place::Lost(INNER) } else { std::mem::take(back.as_mut()) };
                } else if "'\"$`\\{}()<#".contains(letter) {
                    self.place = Place::Lost(INNER);
                } else {
                    text.push(letter);
                }
            }
            Place::Single | Place::Escapes | Place::Comment | Place::Lost(_) => {}
        }
        if !self.escaped {
            // Two dollar signs are the number of the process, and mean nothing to what follows.
            self.last = if letter == '$' && self.last == '$' { 'x' } else { letter };
        }
    }

    fn read_plain(&mut self, letter: char) {
        match letter {
            '\\' => {
                self.escaped = true;
                return;
            }
            '<' => {
                self.angles += 1;
                return;
            }
            _ => self.note_here_document(),
        }
        let starts_word = self.last.is_whitespace() || ";&|()<>".contains(self.last);
        match letter {
            '\'' if self.last == '$' => self.place = Place::Escapes,
            '\'' => self.place = Place::Single,
            '"' => self.place = Place::Double,
            '`' => self.enter('`'),
            '{' if self.last == '$' => self.enter('}'),
            '(' if self.last == '(' => self.place = Place::Lost(ARITHMETIC),
            '[' if self.last == '$' => self.place = Place::Lost(ARITHMETIC),
            '#' if starts_word => self.place = Place::Comment,
            '\n' => self.read_line_end(),
            _ => {}
        }
    }

    /// Three are a here-string, which is a word like any other.
    fn note_here_document(&mut self) {
        self.here |= std::mem::take(&mut self.angles) == 2;
    }

    fn read_line_end(&mut self) {
        self.place = if self.here { Place::Lost(HERE) } else { Place::Plain };
    }

    fn enter(&mut self, end: char) {
        let back = Box::new(std::mem::take(&mut self.place));
        self.place = Place::Inner { end, back, text: String::new() };
    }

    /// A value as it has to be written here.
    fn quoted(&mut self, value: &str) -> Result<String, &'static str> {
        let is_bare = !self.escaped && self.last != '$';
        let text = match &self.place {
            Place::Plain if self.angles == 2 => return Err(HERE),
            Place::Plain if is_bare => quote(value),
            Place::Double if is_bare => in_double_quotes(value),
            Place::Plain | Place::Double => return Err(ESCAPED),
            Place::Single => value.replace('\'', r"'\''"),
            Place::Escapes => return Err(ESCAPES),
            Place::Comment => return Err(COMMENT),
            Place::Inner { .. } => return Err(INNER),
            Place::Lost(why) => return Err(why),
        };
        (self.last, self.angles) = ('x', 0);
        Ok(text)
    }
}

/// Quotes a text as one word of a POSIX shell. NUL, which no shell can carry, is left out.
#[must_use]
pub fn quote(text: &str) -> String {
    let text = text.replace('\0', "");
    shlex::try_quote(&text).map_or_else(|_| String::from("''"), std::borrow::Cow::into_owned)
}

fn in_double_quotes(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for letter in value.chars() {
        if "\\\"$`".contains(letter) {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// The command of a template with `@` in the place of its value.
    fn command(template: &str, value: &str) -> Result<String, &'static str> {
        quote_values(&template.replace('@', &marked(value)))
    }

    fn output(command: &str) -> String {
        let output = Command::new("bash").args(["-c", command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// In each the value has to arrive whole, between brackets.
    const GOOD: &[&str] = &[
        "printf %s [@]",
        "printf '[%s]' @",
        "printf %s \"[@]\"",
        "printf %s '['\"@\"']'",
        "printf %s '[@]'",
        "printf %s \"$(echo a)[@]${PWD}\"",
        "x=`echo a`; printf %s%s $x [@]",
        "IFS=$'\\n\\'\"'; printf %s '['\"@\"']'",
        "# it's\nprintf %s [@] # \"",
        "x=$(printf %s @); printf %s \"[$x]\"",
        "IFS= read -r x <<< @; printf %s \"[$x]\"",
        "case a in a) printf %s a;; esac; printf %s \"[@]\"",
        "printf %s $#[@]",
        "printf %s \\\"[@]",
        "printf %s a\\\n#[@]",
        "printf \\\n%s \\\n[@]",
    ];

    #[test]
    fn a_value_that_would_run_is_only_a_text_in_every_place() {
        for template in GOOD {
            for value in
                ["$(echo run)", "`echo run`", "'$(echo run)'", "\"; echo run; \"", "'; echo run; '", "\\", "a  b"]
            {
                let rendered = command(template, value).unwrap();
                let printed = output(&rendered);
                assert!(printed.contains(&format!("[{value}]")), "{template} became {rendered} and printed {printed}");
            }
        }
    }

    #[test]
    fn no_value_stands_where_it_could_run_all_the_same() {
        for (template, why) in [
            ("echo \\@", ESCAPED),
            ("echo $@", ESCAPED),
            ("echo \"$@\"", ESCAPED),
            ("echo $'@'", ESCAPES),
            ("echo # @", COMMENT),
            ("echo a \\\n#b @", COMMENT),
            ("echo $\\\n@", ESCAPED),
            ("echo $\\\n((@))", ARITHMETIC),
            ("cat <\\\n<EOF\n@\nEOF", HERE),
            ("cat <<EOF\n@\nEOF", HERE),
            ("cat <<-'EOF' # x\n@\nEOF", HERE),
            ("cat <<@", HERE),
            ("echo $((1 + @))", ARITHMETIC),
            ("(( x = @ ))", ARITHMETIC),
            ("echo $[@]", ARITHMETIC),
            ("echo ${x:-@}", INNER),
            ("echo \"${x:-'a}'}@\"", INNER),
            ("echo \"$(echo @)\"", INNER),
            ("echo \"$(case a in a) echo @;; esac)\"", INNER),
            ("echo \"$(case a in a) echo;; esac; echo\" @)", INNER),
            ("echo `echo @`", INNER),
        ] {
            assert_eq!(command(template, "x"), Err(why), "{template}");
        }
    }

    #[test]
    fn plain_values_are_left_plain() {
        assert_eq!(
            command("sim --in=@ \"@\" '@'", "a/b_1.dat").unwrap(),
            "sim --in=a/b_1.dat \"a/b_1.dat\" 'a/b_1.dat'"
        );
        assert_eq!(command("sim @", "").unwrap(), "sim ''");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_value_arrives_whole_in_all_quotes(value in "[^\0\r]{0,30}|['\"$`\\\\(){}<>#! \n]{0,12}") {
            let rendered = command("printf '%s|' @ \"@\" '@' a@b", &value).unwrap();
            prop_assert_eq!(output(&rendered), format!("{value}|{value}|{value}|a{value}b|"), "{}", rendered);
        }
    }
}
