//! The manual pages, as man(1) shows them.

use std::{fs, path::PathBuf};

use copal_tests::process::{Programs, describe};

#[test]
fn man_shows_every_page_without_a_warning() {
    let programs = Programs::new();
    programs.run_ok("copal", &["man", "pages"]);
    let mut pages: Vec<PathBuf> =
        fs::read_dir(programs.home().join("pages")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.sort();
    assert!(pages.len() > 40, "{pages:?}");
    let mut man = programs.command("/usr/bin/man");
    man.args(["--warnings", "-P", "cat", "-l"]).args(&pages);
    let output = man.env("MANWIDTH", "70").env("LC_ALL", "C.UTF-8").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", describe(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    // Longer than the page is wide, and still a line that can be copied.
    let example = "copal job create -a Sim --array 0-99 -w 'seeds/{index:06}' -p 'seed={index}' -y\n";
    assert!(text.contains(example), "{text}");
    assert!(text.contains("EXAMPLES\n") && !text.contains("EXTRA\n"), "{text}");
}
