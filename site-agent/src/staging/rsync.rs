//! `rsync://user@host/folder`: rsync over ssh. One rsync carries all files of a batch and another one all
//! folders, however many they are. It keeps parts of files for the next try, gives a file its name when it is whole, and
//! checks each file by a checksum of its own. Where it is missing at the other end, sftp carries (`sftp.rs`).
//!
//! rsync has no way to give many files new names, so that it carries a tree in which each file has its whole remote path:
//! whatever a try leaves there, it is under no other file's name at the next one. What comes in is handed on from there, what
//! goes out is linked there.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

use copal_schemas::transfer::Direction;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{
    Adapter, Batch, Cause, Item, Run, StagingError, area,
    beneath::Root,
    program::{self, Ended},
    sftp::Sftp,
    ssh,
    tree::{self, Hand},
};

/// Where rsync keeps parts of files, beside the files.
const PARTS: &str = ".copal-part";
/// When is first looked which files of a batch are whole; the next looks come after twice as long each,
const FIRST_LOOK: Duration = Duration::from_millis(400);
/// up to this.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// Takes the other end's list of files as it is. Else each of its names is compared with all that were asked for, which is half
/// of the time of 10,000 small files. All of it lands in a folder of its own, where only what was asked for is taken from.
const TAKE_LISTS: &str = "--trust-sender";
/// Left where the other end has no rsync, so that it is not tried at each try.
const MISSING_THERE: &str = "no-rsync";

/// The adapter of `rsync:` locations.
#[derive(Clone, Copy, Debug)]
pub struct Rsync;

impl Adapter for Rsync {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let missing = batch.scratch.join(MISSING_THERE);
        if !missing.exists() {
            match carry(batch, run).await? {
                Way::Done => return Ok(()),
                Way::Missing => {
                    tracing::info!(location = batch.location.alias, "rsync is missing at one end; sftp carries");
                    fs::write(&missing, "").map_err(|error| StagingError::writing(missing.display(), &error))?;
                }
            }
        }
        Sftp.carry(batch, run).await
    }
}

enum Way {
    Done,
    /// rsync is not installed at one of the ends.
    Missing,
}

async fn carry(batch: &Batch, run: &Run) -> Result<Way, StagingError> {
    if batch.direction == Direction::Out {
        return push(batch, run, &batch.scratch.join("tree")).await;
    }
    // What one run has left to be moved into workdirs must not be in the way of the other one.
    let (tree_of_files, tree_of_folders) = (batch.scratch.join("files"), batch.scratch.join("folders"));
    for round in rounds(&batch.items) {
        let (folders, files): (Vec<&Item>, Vec<&Item>) = round.into_iter().partition(|item| item.recursive);
        for (items, tree) in [(files, &tree_of_files), (folders, &tree_of_folders)] {
            if !items.is_empty()
                && let Way::Missing = pull(batch, run, tree, &items).await?
            {
                return Ok(Way::Missing);
            }
        }
    }
    Ok(Way::Done)
}

/// Items in rounds, so that none is inside another one's folder within a round.
fn rounds(items: &[Item]) -> Vec<Vec<&Item>> {
    let mut rounds: Vec<Vec<&Item>> = Vec::new();
    let mut rest: Vec<&Item> = items.iter().collect();
    while !rest.is_empty() {
        let folders: Vec<String> = rest.iter().filter(|item| item.recursive).map(|item| item.remote.clone()).collect();
        let is_inside = |item: &Item| {
            Path::new(&item.remote)
                .ancestors()
                .skip(1)
                .any(|above| folders.iter().any(|folder| Path::new(folder) == above))
        };
        let (inner, outer): (Vec<&Item>, Vec<&Item>) = match folders.is_empty() {
            true => (Vec::new(), rest),
            false => rest.into_iter().partition(|item| is_inside(item)),
        };
        rounds.push(outer);
        rest = inner;
    }
    rounds
}

/// Gets files, or folders, all in one run.
async fn pull(batch: &Batch, run: &Run, tree: &Path, items: &[&Item]) -> Result<Way, StagingError> {
    fs::create_dir_all(tree).map_err(|error| StagingError::writing(tree.display(), &error))?;
    let mut names: BTreeMap<&str, Vec<&Item>> = BTreeMap::new();
    for item in items {
        names.entry(relative(&item.remote)).or_default().push(item);
    }
    let list: Vec<u8> = names.keys().flat_map(|name| name.bytes().chain([0])).collect();
    let mut argv = argv(batch, run);
    argv.extend(["--files-from=-", "--from0", "--no-implied-dirs", "--copy-links"].map(String::from));
    if items.iter().any(|item| item.recursive) {
        // What a try before this one left in a folder, and the other end has no more.
        argv.extend(["--recursive", "--delete"].map(String::from));
    }
    if takes_lists(run).await {
        argv.push(TAKE_LISTS.into());
    }
    argv.push(format!("{}:/", target(batch)));
    argv.push(format!("{}/", tree.display()));
    let wanted: Vec<Wanted> = names.into_iter().map(|(name, items)| Wanted::now(tree.join(name), items)).collect();
    let over = CancellationToken::new();
    let carrying = async {
        let ended = program::run(&argv, list, run).await;
        over.cancel();
        ended
    };
    let (ended, rest) = tokio::join!(carrying, hand_on_early(run, wanted, &over));
    let (ended, rest) = (ended?, rest?);
    if is_missing(&ended) {
        return Ok(Way::Missing);
    }
    let verdict = Verdict::of(batch, &ended, true);
    let reports = run.clone();
    let work = tokio::task::spawn_blocking(move || {
        for Wanted { path, items, is_left } in rest {
            let Some(last) = items.last() else { continue };
            let bytes = area::size(&path);
            let here = match &bytes {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Here::Nothing,
                _ if is_left => Here::Left,
                _ => Here::New,
            };
            match verdict.about(last, here) {
                Some(error) => items.iter().for_each(|item| reports.failed(item.id, error.clone())),
                None => hand_on(&reports, path, &items, bytes),
            }
        }
    });
    work.await.map_err(|error| StagingError::new(Cause::Local, error.to_string()))?;
    Ok(Way::Done)
}

/// Whether rsync here has the option [`TAKE_LISTS`]: since 3.2.5, but distributions have it in earlier ones, too.
async fn takes_lists(run: &Run) -> bool {
    static TAKES_LISTS: OnceCell<bool> = OnceCell::const_new();
    let look = async || {
        let ended = program::run(&["rsync".into(), "--help".into()], Vec::new(), run).await?;
        Ok::<bool, StagingError>(ended.stdout.contains(TAKE_LISTS))
    };
    // Where it can't be run, the next command says why.
    TAKES_LISTS.get_or_try_init(look).await.is_ok_and(|takes| *takes)
}

/// A file or a folder that rsync carries.
struct Wanted {
    /// Where it comes to.
    path: PathBuf,
    /// Who wants it; never empty.
    items: Vec<Item>,
    /// Whether a try before this one left something there. The other end may have another one now, so that it is good only
    /// when rsync has compared it.
    is_left: bool,
}

impl Wanted {
    /// As it is before rsync starts.
    fn now(path: PathBuf, items: Vec<&Item>) -> Self {
        let is_left = fs::symlink_metadata(&path).is_ok();
        Self { path, items: items.into_iter().cloned().collect(), is_left }
    }
}

/// Hands on files while rsync carries the others, until that is over, so that no Job waits for more than its own. Gives what is
/// left then. rsync could tell each name, but takes twice as long for it where the files are small; and the system could, but
/// wants a watch for each folder of the tree. So it is looked at, seldom.
async fn hand_on_early(
    run: &Run,
    mut wanted: Vec<Wanted>,
    over: &CancellationToken,
) -> Result<Vec<Wanted>, StagingError> {
    let mut pause = FIRST_LOOK;
    loop {
        tokio::select! {
            () = over.cancelled() => return Ok(wanted),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_LOOK),
        }
        let reports = run.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut rest = Vec::new();
            for one in wanted {
                let may_be_whole = !one.is_left && one.items.iter().all(|item| !item.recursive);
                // rsync gives a file its name when it is whole; when a folder is, nobody can tell.
                match fs::symlink_metadata(&one.path) {
                    Ok(meta) if may_be_whole && meta.is_file() => {
                        hand_on(&reports, one.path, &one.items, Ok(meta.len()));
                    }
                    _ => rest.push(one),
                }
            }
            rest
        });
        wanted = work.await.map_err(|error| StagingError::new(Cause::Local, error.to_string()))?;
    }
}

/// Gives a file or a folder that is whole to all who want it.
fn hand_on(reports: &Run, path: PathBuf, items: &[Item], bytes: io::Result<u64>) {
    let Some((last, others)) = items.split_last() else { return };
    // A path that several Jobs want is copied for each.
    for item in others {
        report(reports, item, &bytes, duplicate(&path, &item.local));
    }
    match bytes {
        // A folder leaves the tree now, since another round may carry something in it.
        Ok(bytes) if !last.recursive => reports.arrived_at(last.id, bytes, path),
        bytes => report(reports, last, &bytes, rename(&path, &last.local)),
    }
}

/// Sends everything in one run.
async fn push(batch: &Batch, run: &Run, tree: &Path) -> Result<Way, StagingError> {
    let (items, folder) = (batch.items.clone(), tree.to_path_buf());
    let work = tokio::task::spawn_blocking(move || link_all(&items, &folder));
    let failed = work.await.map_err(|error| StagingError::new(Cause::Local, error.to_string()))??;
    for (item, error) in &failed {
        run.failed(item.id, error.clone());
    }
    let items = || batch.items.iter().filter(|item| failed.iter().all(|(other, _)| other.id != item.id));
    let list: Vec<u8> = items().flat_map(|item| relative(&item.remote).bytes().chain([0])).collect();
    let mut argv = argv(batch, run);
    // Folders on the way are nobody's to change: one that is a link there stays one, and a file in their place is an error.
    argv.extend(["--files-from=-", "--from0", "--no-implied-dirs"].map(String::from));
    argv.extend(["--recursive", "--omit-dir-times", "--keep-dirlinks"].map(String::from));
    argv.push(format!("{}/", tree.display()));
    argv.push(format!("{}:/", target(batch)));
    let ended = program::run(&argv, list, run).await?;
    if is_missing(&ended) {
        return Ok(Way::Missing);
    }
    let verdict = Verdict::of(batch, &ended, false);
    for item in items() {
        match verdict.about(item, Here::Nothing) {
            Some(error) => run.failed(item.id, error),
            None => report(run, item, &area::size(&item.local), Ok(())),
        }
    }
    Ok(Way::Done)
}

/// Puts what is to be sent into a tree by its remote path. Gives what can't be.
fn link_all(items: &[Item], folder: &Path) -> Result<Vec<(Item, StagingError)>, StagingError> {
    let failed = |error: io::Error| StagingError::writing(folder.display(), &error);
    area::remove(folder).map_err(failed)?;
    fs::create_dir_all(folder).map_err(failed)?;
    let root = Root::open(folder).map_err(failed)?;
    let link = |item: &Item| -> Result<(), StagingError> {
        let path = Path::new(item.remote.trim_start_matches('/'));
        if item.recursive {
            let to = root.make_folder(path)?;
            return tree::merge(&item.local, to.as_fd(), path, &Hand::Link);
        }
        let Some(name) = path.file_name() else {
            return Err(StagingError::new(Cause::Destination, format!("{} is a folder", item.remote)));
        };
        let parent = root.make_folder(path.parent().unwrap_or(Path::new("")))?;
        tree::put(&item.local, parent.as_fd(), name, &Hand::Link)
    };
    Ok(items.iter().filter_map(|item| Some((item.clone(), link(item).err()?))).collect())
}

fn report(run: &Run, item: &Item, bytes: &io::Result<u64>, outcome: io::Result<()>) {
    match (bytes, outcome) {
        (Ok(bytes), Ok(())) => run.arrived(item.id, *bytes),
        (Err(error), _) => run.failed(item.id, StagingError::reading(&item.remote, error)),
        (_, Err(error)) => run.failed(item.id, StagingError::writing(item.local.display(), &error)),
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    area::remove(to)?;
    fs::rename(from, to)
}

fn duplicate(from: &Path, to: &Path) -> io::Result<()> {
    area::remove(to)?;
    if !fs::symlink_metadata(from)?.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        duplicate(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn argv(batch: &Batch, run: &Run) -> Vec<String> {
    let mut ssh = vec!["ssh".to_owned()];
    ssh.extend(ssh::options(&run.settings));
    if let Some(port) = batch.location.port {
        ssh.extend(["-p".to_owned(), port.to_string()]);
    }
    // rsync takes the command apart at blanks, with quotes as a shell has them.
    let ssh = shlex::try_join(ssh.iter().map(String::as_str)).unwrap_or_default();
    let stall = run.settings.stall_timeout_sec.clamp(1.0, 86_400.0).ceil();
    let mut argv: Vec<String> = ["rsync", "--times", "--executability", "--protect-args"].map(String::from).into();
    argv.extend([format!("--partial-dir={PARTS}"), format!("--timeout={stall}"), "-e".into(), ssh]);
    argv
}

/// The host as rsync takes it: an IPv6 address in brackets.
fn target(batch: &Batch) -> String {
    let target = batch.location.ssh_target();
    match batch.location.host.contains(':') {
        true => target.replace(&batch.location.host, &format!("[{}]", batch.location.host)),
        false => target,
    }
}

fn is_missing(ended: &Ended) -> bool {
    let says = |words: &str| ended.stderr.contains(words);
    ended.code != Some(0) && (says("rsync: command not found") || says("rsync: not found") || ended.code == Some(127))
}

/// An absolute path below the root, or `.` for the root itself.
fn relative(path: &str) -> &str {
    let inside = path.trim_start_matches('/');
    if inside.is_empty() { "." } else { inside }
}

/// What is in the place of an item that is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Nothing,
    /// What was there before rsync began, or what it has made of that.
    Left,
    /// What rsync has brought.
    New,
}

/// What the end of rsync says about each item.
struct Verdict {
    is_success: bool,
    /// Errors that name a path.
    named: Vec<(PathBuf, StagingError)>,
    /// What holds for everything that is not named.
    rest: Option<StagingError>,
    /// Whether a file that rsync has brought is whole, whatever else happened.
    inwards: bool,
}

impl Verdict {
    fn of(batch: &Batch, ended: &Ended, inwards: bool) -> Self {
        let mut named = Vec::new();
        let mut unnamed = None;
        for line in ended.stderr.lines() {
            // rsync's own summary at the end.
            if line.starts_with("rsync error:") || line.starts_with("rsync warning:") {
                continue;
            }
            let at_far_end = line.contains("[sender]") == inwards;
            let Some(cause) = ssh::cause_of(line, line.contains("[sender]") || !line.contains('[')) else { continue };
            let place = if at_far_end { batch.location.ssh_target() } else { "this machine".into() };
            let error = StagingError::new(cause, format!("rsync on {place}: {}", line.trim()));
            match quoted(line) {
                Some(path) => named.push((without_temporary(path), error)),
                None => unnamed = Some(error),
            }
        }
        let code = ended.code.map_or_else(|| "a signal".into(), |code| format!("exit code {code}"));
        let rest = match ended.code {
            Some(0) => None,
            // Some files could not be carried; those are named.
            Some(23 | 24) if !named.is_empty() && unnamed.is_none() => None,
            _ => ssh::explain(&batch.location, &ended.stderr).or(unnamed).or_else(|| {
                let last = ended.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                // 10, 12, 30, 35: sockets, the protocol's stream, time-outs; 255: ssh itself.
                let cause = match ended.code {
                    Some(10 | 12 | 20 | 30 | 35 | 255) => Cause::Network,
                    _ => named.first().map_or(Cause::Local, |(_, error): &(PathBuf, StagingError)| error.cause),
                };
                Some(StagingError::new(cause, format!("rsync ended with {code}: {last}")))
            }),
        };
        Self { is_success: ended.code == Some(0), named, rest, inwards }
    }

    /// Why an item is not where it belongs; `None` when it is.
    fn about(&self, item: &Item, here: Here) -> Option<StagingError> {
        if self.inwards && !item.recursive && here == Here::New {
            // rsync gives a file its name when it is whole.
            return None;
        }
        let remote = Path::new(&item.remote);
        let matches = |path: &Path| match path.is_absolute() {
            true => path.starts_with(remote) || (!self.inwards && remote.starts_with(path)),
            // Some messages have the path that rsync was given.
            false => remote.ends_with(path) || item.recursive,
        };
        if let Some((_, error)) = self.named.iter().find(|(path, _)| matches(path)) {
            return Some(error.clone());
        }
        if let Some(error) = &self.rest {
            return Some(error.clone());
        }
        if self.inwards && here == Here::Nothing {
            return Some(match self.named.first() {
                Some((_, error)) if !self.is_success => error.clone(),
                _ => StagingError::new(Cause::MissingSource, format!("{} is no file that rsync carries", item.remote)),
            });
        }
        None
    }
}

/// The first text in double quotes.
fn quoted(line: &str) -> Option<&Path> {
    let mut parts = line.split('"');
    parts.next()?;
    let path = parts.next().filter(|_| parts.next().is_some())?;
    Some(Path::new(OsStr::from_bytes(path.as_bytes())))
}

/// rsync writes `a/b` as `a/.b.XXXXXX` first; its messages may have that name.
fn without_temporary(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let plain = name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.')).filter(|(_, end)| end.len() == 6);
    match plain {
        Some((plain, _)) => path.with_file_name(plain),
        None => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests;
