//! What is made of paths and of rsync's words, without rsync.

use copal_schemas::{JsonObject, TransferId};

use super::*;
use crate::staging::Location;

fn item(id: i64, remote: &str, recursive: bool) -> Item {
    Item { id: TransferId(id), remote: remote.into(), local: "/tmp/x".into(), recursive, info: JsonObject::new() }
}

fn verdict(code: i32, stderr: &str, direction: Direction) -> Verdict {
    let location = Location::parse("home", "rsync://ann@login/").unwrap();
    let batch = Batch { key: "k".into(), location, direction, items: Vec::new(), scratch: "/tmp".into() };
    let ended = Ended { code: Some(code), stdout: String::new(), stderr: stderr.into() };
    Verdict::of(&batch, &ended, direction == Direction::In)
}

fn cause(error: Option<StagingError>) -> Option<Cause> {
    error.map(|error| error.cause)
}

#[test]
fn paths_are_told_from_the_root() {
    assert_eq!(relative("/a/b/c"), "a/b/c");
    assert_eq!(relative("/"), ".");
}

#[test]
fn nothing_is_carried_beside_the_folder_that_it_is_in() {
    let items = [item(1, "/a", true), item(2, "/a/b", true), item(3, "/a/b/c", false), item(4, "/ab", false)];
    let ids: Vec<Vec<i64>> = rounds(&items).iter().map(|round| round.iter().map(|item| item.id.0).collect()).collect();
    assert_eq!(ids, [vec![1, 4], vec![2], vec![3]]);
}

#[test]
fn pitfall_129_a_file_that_is_missing_fails_and_the_others_arrive() {
    let stderr = "rsync: [sender] link_stat \"/data/b\" failed: No such file or directory (2)\n\
                  rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1865)\n";
    let verdict = verdict(23, stderr, Direction::In);
    assert_eq!(verdict.about(&item(1, "/data/a", false), Here::New), None);
    assert_eq!(cause(verdict.about(&item(2, "/data/b", false), Here::Nothing)), Some(Cause::MissingSource));
    // Not named, and not there: never taken for good.
    assert!(verdict.about(&item(3, "/data/c", false), Here::Nothing).is_some());
    // A folder is whole when no error is inside.
    assert_eq!(verdict.about(&item(4, "/other", true), Here::New), None);
    assert_eq!(cause(verdict.about(&item(5, "/data", true), Here::New)), Some(Cause::MissingSource));
}

#[test]
fn pitfall_130_what_the_other_end_can_not_write_has_its_cause() {
    let denied = "rsync: [receiver] mkstemp \"/out/.r.dat.Zx81Qp\" failed: Permission denied (13)\n";
    let verdict_of_denied = verdict(23, denied, Direction::Out);
    assert_eq!(cause(verdict_of_denied.about(&item(1, "/out/r.dat", false), Here::Nothing)), Some(Cause::Permission));
    assert_eq!(verdict_of_denied.about(&item(2, "/out/s.dat", false), Here::Nothing), None);
    let full = "rsync: [receiver] write failed on \"/out/a\": No space left on device (28)\n\
                rsync error: error in file IO (code 11) at receiver.c(393) [receiver=3.2.7]\n\
                rsync: connection unexpectedly closed (60 bytes received so far) [sender]\n";
    assert_eq!(
        cause(verdict(11, full, Direction::Out).about(&item(1, "/out/a", false), Here::Nothing)),
        Some(Cause::Full)
    );
    let folder = "rsync: [generator] recv_generator: mkdir \"/out\" failed: Permission denied (13)\n";
    assert_eq!(
        cause(verdict(23, folder, Direction::Out).about(&item(1, "/out/a", false), Here::Nothing)),
        Some(Cause::Permission)
    );
}

#[test]
fn a_cut_connection_is_tried_again_for_what_is_not_there() {
    let cut = "rsync: connection unexpectedly closed (9 bytes received so far) [receiver]\n\
               rsync error: error in rsync protocol data stream (code 12) at io.c(231) [receiver=3.2.7]\n";
    let verdict_of_cut = verdict(12, cut, Direction::In);
    assert_eq!(verdict_of_cut.about(&item(1, "/a", false), Here::New), None);
    assert_eq!(cause(verdict_of_cut.about(&item(2, "/b", false), Here::Nothing)), Some(Cause::Network));
    assert_eq!(cause(verdict_of_cut.about(&item(3, "/c", true), Here::New)), Some(Cause::Network));
    // What was there before may be another one than is there now.
    assert_eq!(cause(verdict_of_cut.about(&item(1, "/a", false), Here::Left)), Some(Cause::Network));
    assert_eq!(verdict(0, "", Direction::In).about(&item(1, "/a", false), Here::Left), None);
    let refused = "ann@login: Permission denied (publickey).\r\nrsync error: unexplained error (code 255) at io.c\n";
    assert_eq!(
        cause(verdict(255, refused, Direction::Out).about(&item(1, "/a", false), Here::Nothing)),
        Some(Cause::Permission)
    );
}

#[test]
fn temporary_names_are_seen_through() {
    assert_eq!(without_temporary(Path::new("/a/.b.dat.x1Y2z3")), Path::new("/a/b.dat"));
    assert_eq!(without_temporary(Path::new("/a/.hidden")), Path::new("/a/.hidden"));
}
