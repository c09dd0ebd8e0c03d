//! Balsam's options of several letters behind one dash (`-rpn 4`), rewritten to the long forms
//! before clap, which has no such options, sees the command line. Nothing else is changed.

use std::ffi::OsString;

/// Balsam's spelling and the long option that it means.
const LETTERS: &[(&str, &str)] = &[
    ("-rpn", "--ranks-per-node"),
    ("-tpr", "--threads-per-rank"),
    ("-tpc", "--threads-per-core"),
    ("-npc", "--node-packing-count"),
    ("-lp", "--launch-param"),
    ("-pid", "--parent"),
    ("-ns", "--exclude-state"),
    ("-tag", "--tag"),
];

/// The command line with long forms. `-rpn 4` and `-rpn=4` are known; what follows `--` is left alone.
pub(crate) fn rewrite(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut open = true;
    arguments
        .into_iter()
        .map(|argument| {
            open &= argument != "--";
            if open { long_form(&argument).unwrap_or(argument) } else { argument }
        })
        .collect()
}

fn long_form(argument: &OsString) -> Option<OsString> {
    let text = argument.to_str()?;
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let (_, long) = LETTERS.iter().find(|(letters, _)| *letters == name)?;
    Some(match value {
        Some(value) => format!("{long}={value}").into(),
        None => (*long).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let words = rewrite(line.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_letter_group_of_balsam_is_known() {
        assert_eq!(
            rewritten("copal job create -n 2 -rpn 4 -tpr=2 -tpc 1 -npc 8 -lp a=b -pid 7 -tag x=y"),
            "copal job create -n 2 --ranks-per-node 4 --threads-per-rank=2 --threads-per-core 1 \
             --node-packing-count 8 --launch-param a=b --parent 7 --tag x=y"
        );
        assert_eq!(
            rewritten("copal job ls -ns FAILED --ordering -id"),
            "copal job ls --exclude-state FAILED --ordering -id"
        );
    }

    #[test]
    fn a_value_keeps_its_own_equal_sign() {
        assert_eq!(rewritten("copal job ls -tag=k=v"), "copal job ls --tag=k=v");
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for line in ["copal job ls -n 3", "copal job ls -- -tag", "copal queue submit -p mpi:1", "copal -rpnx", ""] {
            assert_eq!(rewritten(line), line);
        }
    }
}
