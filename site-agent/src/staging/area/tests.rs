//! The staging area: nothing leaves the workdir, in no direction, and nothing is seen before it is whole.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

struct Fixture {
    folder: TempDir,
    area: Area,
}

const KEY: &str = "b1";
const ID: TransferId = TransferId(7);

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path().join("site"));
        fs::create_dir_all(site.data().join("w/1/sub")).unwrap();
        let area = Area::new(&site);
        area.open_batch(KEY).unwrap();
        Self { folder, area }
    }

    fn workdir(&self) -> PathBuf {
        self.folder.path().join("site/data/w/1")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.workdir().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.workdir().join(path)).unwrap()
    }

    fn item(&self) -> PathBuf {
        self.area.item(KEY, ID)
    }

    fn out(&self, local_path: &str, recursive: bool) -> Result<u64, StagingError> {
        self.area.take_out(&place(local_path, recursive), &self.item())
    }

    /// A file or a folder with one arrives.
    fn arrive(&self, local_path: &str, recursive: bool) -> Result<(), StagingError> {
        remove(&self.item()).unwrap();
        if recursive {
            fs::create_dir_all(self.item().join("sub")).unwrap();
            fs::write(self.item().join("sub/new"), "new").unwrap();
        } else {
            fs::write(self.item(), "new").unwrap();
        }
        self.bring_in(local_path, recursive)
    }

    fn bring_in(&self, local_path: &str, recursive: bool) -> Result<(), StagingError> {
        self.bring(self.item(), place(local_path, recursive))
    }

    fn bring(&self, from: PathBuf, place: Place) -> Result<(), StagingError> {
        outcomes(&self.area, &[(from, place)]).remove(0)
    }
}

fn outcomes(area: &Area, items: &[(PathBuf, Place)]) -> Vec<Result<(), StagingError>> {
    let mut outcomes = Vec::new();
    area.bring_in(items, |outcome| outcomes.push(outcome));
    outcomes
}

fn place(local_path: &str, recursive: bool) -> Place {
    Place { workdir: "w/1".into(), local_path: local_path.into(), recursive, remote_name: "remote.dat".into() }
}

#[test]
fn files_and_folders_come_in() {
    let fixture = Fixture::new();
    fixture.arrive("input.dat", false).unwrap();
    fixture.arrive("deep/er/input.dat", false).unwrap();
    assert_eq!((fixture.read("input.dat"), fixture.read("deep/er/input.dat")), ("new".into(), "new".into()));
    // Into a folder, under the name that it has at the location.
    fixture.arrive(".", false).unwrap();
    fixture.arrive("deep/", false).unwrap();
    assert_eq!((fixture.read("remote.dat"), fixture.read("deep/remote.dat")), ("new".into(), "new".into()));
    fixture.arrive("tree", true).unwrap();
    assert_eq!(fixture.read("tree/sub/new"), "new");
    // What is there is kept or replaced, file by file.
    fixture.write("tree/sub/old", "old");
    fixture.write("tree/sub/new", "older");
    fixture.arrive("tree", true).unwrap();
    assert_eq!((fixture.read("tree/sub/new"), fixture.read("tree/sub/old")), ("new".into(), "old".into()));
    fixture.arrive(".", true).unwrap();
    assert_eq!(fixture.read("sub/new"), "new");
}

#[test]
fn a_workdir_is_made_for_what_arrives() {
    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.workdir()).unwrap();
    fixture.arrive(".", true).unwrap();
    assert_eq!(fixture.read("sub/new"), "new");
}

#[test]
fn nothing_comes_in_through_a_link_that_leads_out() {
    let fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("new"), "theirs").unwrap();
    symlink(&outside, fixture.workdir().join("link")).unwrap();
    symlink("../../../../outside/new", fixture.workdir().join("file")).unwrap();
    fs::remove_dir(fixture.workdir().join("sub")).unwrap();
    symlink(&outside, fixture.workdir().join("sub")).unwrap();
    for (path, recursive) in
        [("link/x", false), ("file", false), ("../../../x", false), ("link", true), (".", true), ("../2/x", false)]
    {
        assert_eq!(fixture.arrive(path, recursive).unwrap_err().cause, Cause::Escape, "{path}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("new")).unwrap(), "theirs");
    // Workdirs that are links: one stays inside, one leads out.
    symlink("1", fixture.folder.path().join("site/data/w/3")).unwrap();
    fs::write(fixture.item(), "new").unwrap();
    fixture.bring(fixture.item(), Place { workdir: "w/3".into(), ..place("inside", false) }).unwrap();
    assert_eq!(fixture.read("inside"), "new");
    symlink(&outside, fixture.folder.path().join("site/data/w/2")).unwrap();
    let place = Place { workdir: "w/2".into(), ..place("x", false) };
    fs::write(fixture.item(), "new").unwrap();
    assert_eq!(fixture.bring(fixture.item(), place).unwrap_err().cause, Cause::Escape);
}

#[test]
fn no_link_comes_in() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.item()).unwrap();
    symlink("/etc/passwd", fixture.item().join("link")).unwrap();
    fs::write(fixture.item().join("good"), "").unwrap();
    assert_eq!(fixture.bring_in("tree", true).unwrap_err().cause, Cause::Escape);
    assert!(!fixture.workdir().join("tree").exists());
}

#[test]
fn what_arrives_must_be_what_the_slot_says() {
    let fixture = Fixture::new();
    fs::write(fixture.item(), "x").unwrap();
    assert_eq!(fixture.bring_in("tree", true).unwrap_err().cause, Cause::MissingSource);
    fixture.write("input.dat/x", "");
    assert_eq!(fixture.arrive("input.dat", false).unwrap_err().cause, Cause::Destination);
}

#[test]
fn files_and_folders_go_out_and_links_inside_as_what_they_mean() {
    let fixture = Fixture::new();
    fixture.write("sub/result", "12345");
    symlink("sub/result", fixture.workdir().join("latest")).unwrap();
    symlink("sub", fixture.workdir().join("also")).unwrap();
    assert_eq!(fixture.out("sub/result", false), Ok(5));
    assert_eq!(fixture.out("latest", false), Ok(5));
    assert_eq!(fs::read_to_string(fixture.item()).unwrap(), "12345");
    assert_eq!(fixture.out(".", true), Ok(15));
    for path in ["latest", "sub/result", "also/result"] {
        let path = fixture.item().join(path);
        assert!(fs::symlink_metadata(&path).unwrap().is_file(), "{}", path.display());
    }
    assert_eq!(size(&fixture.item()).unwrap(), 15);
}

#[test]
fn nothing_goes_out_that_is_not_in_the_workdir() {
    let fixture = Fixture::new();
    fs::write(fixture.folder.path().join("secret"), "s").unwrap();
    fixture.write("tree/good", "x");
    symlink(fixture.folder.path().join("secret"), fixture.workdir().join("tree/bad")).unwrap();
    for (path, recursive) in [("tree/bad", false), ("tree", true), ("../../../secret", false), ("..", true)] {
        assert_eq!(fixture.out(path, recursive).unwrap_err().cause, Cause::Escape, "{path}");
    }
    fs::remove_file(fixture.workdir().join("tree/bad")).unwrap();
    symlink("..", fixture.workdir().join("tree/up")).unwrap();
    assert_eq!(fixture.out("tree", true).unwrap_err().cause, Cause::Escape);
    assert_eq!(fixture.out("nothing", false).unwrap_err().cause, Cause::MissingSource);
    assert_eq!(fixture.out("sub", false).unwrap_err().cause, Cause::MissingSource);
    nix::unistd::mkfifo(&fixture.workdir().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(fixture.out("pipe", false).unwrap_err().cause, Cause::MissingSource);
}

#[test]
fn many_files_come_in_together_and_a_bad_one_fails_alone() {
    let fixture = Fixture::new();
    let items: Vec<(PathBuf, Place)> = (0..40)
        .map(|index| {
            let path = fixture.area.item(KEY, TransferId(100 + index));
            if index != 5 {
                fs::write(&path, index.to_string()).unwrap();
            }
            (path, Place { workdir: format!("many/{index}"), ..place("in", false) })
        })
        .collect();
    let outcomes = outcomes(&fixture.area, &items);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1);
    assert!(outcomes[5].is_err());
    fixture.area.close_batch(KEY);
    fixture.area.open_batch("b2").unwrap();
    fixture.area.open_batch("b3").unwrap();
    fixture.area.keep_only(|key| key == "b2");
    let left: Vec<_> = fs::read_dir(&fixture.area.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["b2"]);
}
