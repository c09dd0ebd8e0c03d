//! Where the fields of a YAML text are, so that an error can name line and field even when the reader
//! of the file knows only one of them. Nothing is checked here.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// One key of the text, with the keys around it: `parameters.name.default`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Its path.
    pub(super) path: String,
    /// Its line, from 1.
    pub(super) line: u64,
    /// Its column, from 1.
    pub(super) column: u64,
}

/// All keys in the order of the text; none when it is no YAML.
pub(super) fn fields(text: &str) -> Vec<Field> {
    let mut found = Vec::new();
    if let Ok(root) = serde_saphyr::from_str::<Node>(text) {
        collect(&root, "", &mut found);
    }
    found
}

/// The line of a field, or of the nearest one around it that is in the text.
pub(super) fn line_of(text: &str, field: &str) -> Option<u64> {
    let fields = fields(text);
    let mut wanted = field;
    loop {
        if let Some(found) = fields.iter().find(|found| found.path == wanted) {
            return Some(found.line);
        }
        wanted = wanted.rsplit_once('.')?.0;
    }
}

/// The field that a place in the text belongs to.
pub(super) fn field_at(text: &str, line: u64, column: u64) -> Option<String> {
    let mut before = fields(text).into_iter().filter(|field| (field.line, field.column) <= (line, column));
    before.next_back().map(|field| field.path)
}

fn collect(node: &Node, above: &str, found: &mut Vec<Field>) {
    match node {
        Node::Scalar => {}
        Node::List(items) => items.iter().for_each(|item| collect(item, above, found)),
        Node::Map(entries) => {
            for (key, value) in entries {
                let path = if above.is_empty() { key.value.clone() } else { format!("{above}.{}", key.value) };
                let (line, column) = (key.referenced.line(), key.referenced.column());
                found.push(Field { path: path.clone(), line, column });
                collect(value, &path, found);
            }
        }
    }
}

/// A YAML value of which only the keys matter.
enum Node {
    Map(Vec<(Spanned<String>, Node)>),
    List(Vec<Node>),
    Scalar,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }
    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\nname: X\nparameters:\n  a: {required: true,\n    default: y}\n  b:\n    choices: [1, 2]\nlist:\n- k: 1\n";

    #[test]
    fn fields_have_lines() {
        assert_eq!(line_of(TEXT, "name"), Some(2));
        assert_eq!(line_of(TEXT, "parameters.a.default"), Some(5));
        assert_eq!(line_of(TEXT, "parameters.b.choices"), Some(7));
        assert_eq!(line_of(TEXT, "parameters.b.default"), Some(6), "the field around one that is not there");
        assert_eq!(line_of(TEXT, "hooks.preprocess"), None);
        assert_eq!(line_of("a: [", "a"), None);
    }

    #[test]
    fn places_have_fields() {
        assert_eq!(field_at(TEXT, 4, 17).as_deref(), Some("parameters.a.required"));
        assert_eq!(field_at(TEXT, 7, 15).as_deref(), Some("parameters.b.choices"));
        assert_eq!(field_at(TEXT, 9, 6).as_deref(), Some("list.k"));
        assert_eq!(field_at(TEXT, 1, 1), None);
    }
}
