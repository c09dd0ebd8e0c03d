//! Where a template puts what whoever makes a BatchJob may choose freely: tags, and the launcher's command with tags in it. They
//! are quoted as words of a shell, so between quotes of the template or in a here-document a shell would read them anew and
//! could run them. All other values have no letters that mean anything there (`context.rs`).

use handlebars::{
    Path, PathSeg, Template,
    template::{HelperTemplate, Parameter, Subexpression, TemplateElement},
};

/// Variables with texts that may hold anything.
const FREE: &[&str] = &["filter_tags", "partitions", "launcher_cmd"];
/// Of a partition, what can't.
const BOUND: &[&str] = &["job_mode", "num_nodes"];
/// Helpers that print their argument; the others print numbers, or nothing.
const PRINTING: &[&str] = &["quote", "lookup"];

/// The line of the first such place in a template, and what is wrong there.
pub(super) fn first_mistake(template: &Template) -> Option<(usize, String)> {
    Lint { reader: Reader::default(), line: 1, is_scoped: false }.template(template)
}

struct Lint {
    reader: Reader,
    line: usize,
    /// Whether names may be those of an item of `FREE`.
    is_scoped: bool,
}

impl Lint {
    fn template(&mut self, template: &Template) -> Option<(usize, String)> {
        for (index, element) in template.elements.iter().enumerate() {
            if let Some(mapping) = template.mapping.get(index) {
                self.line = mapping.0;
            }
            let mistake = match element {
                TemplateElement::RawString(text) => {
                    text.chars().for_each(|letter| self.reader.read(letter));
                    None
                }
                TemplateElement::Expression(call) => self.printed(call, false),
                TemplateElement::HtmlExpression(call) => self.printed(call, true),
                TemplateElement::HelperBlock(call) => self.block(call),
                _ => None,
            };
            if mistake.is_some() {
                return mistake;
            }
        }
        None
    }

    fn block(&mut self, call: &HelperTemplate) -> Option<(usize, String)> {
        let before = self.is_scoped;
        let is_loop = matches!(call.name.as_name(), Some("each" | "with"));
        self.is_scoped |= is_loop && call.params.iter().any(|parameter| self.free_name(parameter).is_some());
        let mistake = call.template.as_ref().and_then(|inner| self.template(inner));
        self.is_scoped = before;
        mistake.or_else(|| call.inverse.as_ref().and_then(|inner| self.template(inner)))
    }

    fn printed(&mut self, call: &HelperTemplate, is_raw: bool) -> Option<(usize, String)> {
        let name = match call.params.is_empty() && call.hash.is_empty() {
            true => self.free_name(&call.name),
            false => self.free_argument(call),
        };
        let place = self.reader.place();
        // What follows is no longer at the beginning of a word.
        self.reader.read('x');
        let name = name?;
        let remedy = match (place, is_raw && name != "launcher_cmd") {
            (Position::Comment, _) => return None,
            (Position::Word, false) => return None,
            (Position::Word, true) => "in three braces, which quote nothing; write two",
            (Position::Quotes, _) => {
                "between quotes, which a shell would read once more; take the quotes away, it has its own"
            }
            (Position::HereDocument, _) => {
                "in a here-document, in which a shell would run what it holds; quote the word after <<, as in <<'END'"
            }
        };
        Some((self.line, format!("{name} stands {remedy}")))
    }

    fn free_argument(&self, call: &HelperTemplate) -> Option<String> {
        let prints = call.name.as_name().is_some_and(|name| PRINTING.contains(&name));
        if prints { call.params.iter().find_map(|parameter| self.free_name(parameter)) } else { None }
    }

    /// The name, where it is one of a text that may hold anything.
    fn free_name(&self, parameter: &Parameter) -> Option<String> {
        match parameter {
            Parameter::Name(name) => self.is_free(name).then(|| name.clone()),
            Parameter::Path(Path::Relative((segments, raw))) => {
                let first = segments.iter().find_map(|segment| match segment {
                    PathSeg::Named(name) => Some(name.as_str()),
                    _ => None,
                });
                // `this`, and `../x` out of a loop, have nobody's name.
                first.map_or(self.is_scoped, |name| self.is_free(name)).then(|| raw.clone())
            }
            Parameter::Path(Path::Local((_, name, raw))) => (self.is_scoped && name == "key").then(|| raw.clone()),
            Parameter::Subexpression(Subexpression { element, .. }) => match element.as_ref() {
                TemplateElement::Expression(call) => self.free_argument(call),
                _ => None,
            },
            _ => None,
        }
    }

    fn is_free(&self, name: &str) -> bool {
        FREE.contains(&name) || self.is_scoped && !BOUND.contains(&name)
    }
}

/// What a value would be a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Word,
    Quotes,
    Comment,
    HereDocument,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Plain,
    Single,
    Double,
    /// Within `$'…'`, where a backslash takes a quote's meaning.
    Escapes,
    Comment,
    /// The word after `<<`, so far.
    Delimiter(String),
    Here(Delimiter),
}

/// What ends a here-document.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delimiter {
    word: String,
    is_quoted: bool,
}

/// Follows a script as a shell reads it, as far as quotes, comments and here-documents go.
#[derive(Debug)]
struct Reader {
    place: Place,
    escaped: bool,
    /// The present line up to here.
    line: String,
    /// The here-document that begins with the next line.
    next: Option<Delimiter>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { place: Place::Plain, escaped: false, line: String::new(), next: None }
    }
}

impl Reader {
    fn place(&self) -> Position {
        match &self.place {
            Place::Plain | Place::Delimiter(_) => Position::Word,
            Place::Single | Place::Double | Place::Escapes => Position::Quotes,
            Place::Comment => Position::Comment,
            // Nothing in it is looked at: what it makes is a text of its own, in which the value is a quoted word.
            Place::Here(delimiter) if delimiter.is_quoted => Position::Word,
            Place::Here(_) => Position::HereDocument,
        }
    }

    fn read(&mut self, letter: char) {
        if let Place::Delimiter(word) = &mut self.place {
            let is_end = letter.is_whitespace() || ";&|()<>".contains(letter);
            if !is_end || word.is_empty() && (letter == ' ' || letter == '\t') {
                if !letter.is_whitespace() {
                    word.push(letter);
                }
                self.line.push(letter);
                return;
            }
            self.next = delimiter(word);
            self.place = Place::Plain;
        }
        let escaped = std::mem::take(&mut self.escaped);
        match &self.place {
            Place::Here(delimiter) if letter == '\n' && self.line.trim_start_matches('\t') == delimiter.word => {
                self.place = Place::Plain;
            }
            Place::Comment if letter == '\n' => self.begin_line(),
            Place::Single if letter == '\'' => self.place = Place::Plain,
            Place::Double | Place::Escapes | Place::Plain if escaped => {}
            Place::Double if letter == '"' => self.place = Place::Plain,
            Place::Double | Place::Escapes | Place::Plain if letter == '\\' => self.escaped = true,
            Place::Escapes if letter == '\'' => self.place = Place::Plain,
            Place::Plain => self.read_plain(letter),
            _ => {}
        }
        if letter == '\n' {
            self.line.clear();
        } else {
            self.line.push(letter);
        }
    }

    fn read_plain(&mut self, letter: char) {
        match letter {
            '\n' => self.begin_line(),
            '\'' if self.line.ends_with('$') => self.place = Place::Escapes,
            '\'' => self.place = Place::Single,
            '"' => self.place = Place::Double,
            '#' if self.line.chars().last().is_none_or(|last| last.is_whitespace() || ";&|(".contains(last)) => {
                self.place = Place::Comment;
            }
            // Three are a here-string, and in arithmetic two are a shift.
            '<' if self.line.ends_with('<') && !self.line.ends_with("<<") && !self.line.contains("((") => {
                self.place = Place::Delimiter(String::new());
            }
            _ => {}
        }
    }

    fn begin_line(&mut self) {
        self.place = self.next.take().map_or(Place::Plain, Place::Here);
    }
}

/// What the word after `<<` means; none where it is the third `<` of a here-string.
fn delimiter(word: &str) -> Option<Delimiter> {
    let word = word.strip_prefix('-').unwrap_or(word);
    let plain: String = word.chars().filter(|letter| !"'\"\\".contains(*letter)).collect();
    let is_quoted = plain.len() != word.len();
    (!plain.is_empty()).then_some(Delimiter { word: plain, is_quoted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> Option<(usize, String)> {
        first_mistake(&Template::compile(text).unwrap())
    }

    #[test]
    fn a_free_text_between_quotes_is_named_with_its_line() {
        for (line, text) in [
            (2, "#!/bin/bash\nexec \"{{launcher_cmd}}\"\n"),
            (2, "# don't\nbash -c 'exec {{launcher_cmd}}'\n"),
            (1, "bash -c \"exec {{{launcher_cmd}}}\"\n"),
            (3, "a=\"\nb\nc={{filter_tags.system}}\"\n"),
            (2, "echo it\\'s\necho \"{{quote filter_tags.system}}\"\n"),
            (1, "echo \"{{lookup filter_tags \"a\"}}\"\n"),
            (2, "{{#if filter_tags.a}}\necho \"{{filter_tags.a}}\"\n{{/if}}\n"),
            (2, "{{#each filter_tags}}\necho \"{{@key}}\"\n{{/each}}\n"),
            (2, "{{#each partitions}}\necho \"{{filter_tags.a}}\"\n{{/each}}\n"),
            (2, "cat <<END >run.sh\nexec {{launcher_cmd}}\nEND\n"),
            (1, "echo {{{filter_tags.a}}}\n"),
        ] {
            let (found, message) = mistake(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found, line, "{text}: {message}");
        }
        assert!(mistake("x=\"{{filter_tags.a}}\"").unwrap().1.contains("filter_tags.a stands between quotes"));
    }

    #[test]
    fn what_stands_as_a_word_or_can_hold_nothing_is_right() {
        for text in [
            "# it's \"{{launcher_cmd}}\n#SBATCH --comment=\"{{filter_tags.a}}\nexec {{launcher_cmd}} \"$@\"\n",
            "echo \"it's\" 'a \"b' \\\" x#'y'\nexec {{launcher_cmd}}\n",
            "cd \"{{site_path}}\"; echo \"{{queue}} {{num_nodes}} {{optional_params.a}} {{len partitions}}\"\n",
            "{{#each partitions}}echo \"{{job_mode}} {{num_nodes}}\"\n{{/each}}",
            "echo $'it\\'s'\nexec {{launcher_cmd}}\n",
            "cat <<END\nit's \"{{queue}}\nEND\nexec {{launcher_cmd}}\n",
            "cat <<-'END' >run.sh\n\texec {{launcher_cmd}}\n\tEND\n{{launcher_cmd}}\n",
            "x=$((1<<n))\nread y <<<z\nread y <<< \"a b\"\n{{{launcher_cmd}}}\n",
            "{{#if filter_tags.a}}echo {{filter_tags.a}}{{else}}echo \"none\"{{/if}}\n",
        ] {
            assert_eq!(mistake(text), None, "{text}");
        }
    }
}
