//! Examples in `docs/` that are run as they stand.

use std::path::Path;

/// The files that a page of `docs/` shows, with their texts: a line with the name in backticks and a colon, then the
/// text between fences.
///
/// # Panics
/// When there is no such page.
#[must_use]
pub fn files(page: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let page = std::fs::read_to_string(path).expect("the page is there");
    let mut files = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:")) else { continue };
        let text: Vec<&str> = lines
            .by_ref()
            .skip_while(|line| !line.starts_with("```"))
            .skip(1)
            .take_while(|line| *line != "```")
            .collect();
        files.push((name.to_owned(), text.join("\n") + "\n"));
    }
    files
}
