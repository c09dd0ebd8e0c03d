//! The staging area, `data/.staging/`: what arrives is put together there and moved into the workdir
//! when it is whole, so that nobody sees a part of a file under its name; what is sent is a tree of hard links there, of
//! files that were in the workdir, so that no link leads an adapter anywhere else. It is on the file system of the workdirs:
//! moving and linking cost nothing. All calls block.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use copal_client::SiteDir;
use copal_schemas::TransferId;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, renameat},
    sys::stat::{SFlag, fstatat},
    unistd::{fsync, syncfs},
};

use super::{
    Cause, StagingError,
    beneath::{self, Root, Siblings, Spot},
    tree::{self, Hand, MAX_DEPTH, missing},
};

/// More files than this are written to the disk by one call for the whole file system.
const SINGLE_SYNCS: usize = 16;

/// Files that get their names before these are written to the disk and told of.
const NAMED_AT_ONCE: usize = 1_500;

/// The staging area of a Site.
#[derive(Clone, Debug)]
pub struct Area {
    data: PathBuf,
    folder: PathBuf,
    /// Held while files get their names: a file system lets one in at a time, and who waits there keeps a CPU busy.
    naming: Arc<Mutex<()>>,
}

/// Where one transfer's file or folder is in a workdir.
#[derive(Clone, Debug)]
pub struct Place {
    /// The Job's workdir, below `data/`.
    pub workdir: String,
    /// The path below it; `.` is the workdir itself.
    pub local_path: String,
    /// Whether a folder is meant.
    pub recursive: bool,
    /// The name at the location, for a file that is staged into a folder.
    pub remote_name: String,
}

impl Area {
    /// The area of a Site; nothing is made yet.
    #[must_use]
    pub fn new(site: &SiteDir) -> Self {
        Self { data: site.data(), folder: site.data().join(".staging"), naming: Arc::default() }
    }

    /// The folder of a batch.
    #[must_use]
    pub fn batch(&self, key: &str) -> PathBuf {
        self.folder.join(key)
    }

    /// The path of an item of a batch.
    #[must_use]
    pub fn item(&self, key: &str, id: TransferId) -> PathBuf {
        self.batch(key).join("items").join(id.to_string())
    }

    /// The adapter's own folder.
    #[must_use]
    pub fn scratch(&self, key: &str) -> PathBuf {
        self.batch(key).join("scratch")
    }

    /// Makes the folders of a batch; those that are there stay as they are.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open_batch(&self, key: &str) -> Result<(), StagingError> {
        for folder in [self.batch(key).join("items"), self.scratch(key)] {
            fs::create_dir_all(&folder).map_err(|error| StagingError::writing(folder.display(), &error))?;
        }
        Ok(())
    }

    /// Deletes what is left of a batch.
    pub fn close_batch(&self, key: &str) {
        if let Err(error) = remove(&self.batch(key)) {
            tracing::warn!("can't delete {}: {error}", self.batch(key).display());
        }
    }

    /// Deletes the batches that nobody knows any more.
    pub fn keep_only(&self, known: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_none_or(|key| !known(key))
                && let Err(error) = remove(&entry.path())
            {
                tracing::warn!("can't delete {}: {error}", entry.path().display());
            }
        }
    }

    /// Links what a transfer sends into the area; what an earlier try left there is replaced. Gives its size in bytes.
    ///
    /// # Errors
    /// When it is not there, leads out of the workdir or is neither file nor folder.
    pub fn take_out(&self, place: &Place, to: &Path) -> Result<u64, StagingError> {
        let data = Root::open(&self.data).map_err(|error| StagingError::reading(self.data.display(), &error))?;
        let shown = self.data.join(&place.workdir).join(&place.local_path);
        let workdir = match data.find(Path::new(&place.workdir))? {
            Spot::Folder(_) => data.folder(Path::new(&place.workdir))?,
            Spot::Entry { .. } | Spot::Missing { .. } => return Err(missing(&shown)),
        };
        remove(to).map_err(|error| StagingError::writing(to.display(), &error))?;
        tree::take(&workdir, Path::new(&place.local_path), place.recursive, to, Hand::Link)
    }

    /// Moves what arrived into workdirs: all of it is on the disk before any of it gets its name. Tells each
    /// outcome, in order, as soon as the name is on the disk, too; what an item has brought that must not be there fails that
    /// item alone.
    pub fn bring_in(&self, items: &[(PathBuf, Place)], mut tell: impl FnMut(Result<(), StagingError>)) {
        let mut checked: Vec<Result<usize, StagingError>> =
            items.iter().map(|(from, place)| check(from, place)).collect();
        let files: usize = checked.iter().flatten().sum();
        let prepared = self
            .write_through(items.iter().map(|(from, _)| from.as_path()), files)
            .and_then(|()| Root::open(&self.data).map_err(|error| StagingError::writing(self.data.display(), &error)));
        let data = match prepared {
            Ok(data) => data,
            Err(error) => return items.iter().for_each(|_| tell(Err(error.clone()))),
        };
        let mut workdirs = Siblings::below(&data);
        let mut checked = checked.drain(..);
        for part in items.chunks(NAMED_AT_ONCE) {
            let turn = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
            let moved: Vec<Result<(), StagingError>> = part
                .iter()
                .zip(&mut checked)
                .map(|((from, place), checked)| checked.and_then(|_| self.move_in(&mut workdirs, from, place)))
                .collect();
            drop(turn);
            if files > SINGLE_SYNCS {
                let _ = File::open(&self.data).map(syncfs);
            } else {
                let folders = part.iter().map(|(_, place)| self.data.join(&place.workdir));
                folders.for_each(|folder| drop(File::open(folder).map(fsync)));
            }
            moved.into_iter().for_each(&mut tell);
        }
    }

    fn write_through<'a>(&self, paths: impl Iterator<Item = &'a Path>, files: usize) -> Result<(), StagingError> {
        let failed = |path: &Path, error: io::Error| StagingError::writing(path.display(), &error);
        if files > SINGLE_SYNCS {
            let folder = File::open(&self.folder).map_err(|error| failed(&self.folder, error))?;
            return syncfs(folder).map_err(|errno| failed(&self.folder, errno.into()));
        }
        for path in paths {
            sync_tree(path).map_err(|error| failed(path, error))?;
        }
        Ok(())
    }

    fn move_in(&self, workdirs: &mut Siblings<'_>, from: &Path, place: &Place) -> Result<(), StagingError> {
        let workdir = workdirs.make(Path::new(&place.workdir))?;
        let named = Path::new(&place.local_path);
        // Most are files that go right into the workdir, where nothing has their name.
        if !place.recursive
            && let Some(name) = named.file_name()
            && name == place.local_path.as_str()
            && fstatat(&workdir, name, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(Errno::ENOENT)
        {
            return tree::put(from, workdir.as_fd(), name, &Hand::Move);
        }
        let shown = self.data.join(&place.workdir).join(&place.local_path);
        let failed = |errno: Errno| StagingError::writing(shown.display(), &errno.into());
        let workdir = Root::held(workdir).map_err(|error| StagingError::writing(shown.display(), &error))?;
        if place.recursive {
            let path = Path::new(&place.local_path);
            if let Some(name) = path.file_name()
                && path.components().all(|part| part != std::path::Component::ParentDir)
                && let parent = workdir.make_folder(path.parent().unwrap_or(Path::new("")))?
                && fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(Errno::ENOENT)
            {
                match renameat(AT_FDCWD, from, &parent, name) {
                    Ok(()) => return Ok(()),
                    Err(Errno::EXDEV | Errno::EEXIST | Errno::ENOTEMPTY) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
            let target = workdir.make_folder(path)?;
            return tree::merge(from, target.as_fd(), &shown, &Hand::Move);
        }
        let into_folder = place.local_path.ends_with('/') || named.file_name().is_none();
        let path = if into_folder { named.join(&place.remote_name) } else { named.to_path_buf() };
        let Some(name) = path.file_name().map(OsStr::to_os_string) else {
            return Err(StagingError::new(Cause::Destination, format!("{} has no name", shown.display())));
        };
        let parent = workdir.make_folder(path.parent().unwrap_or(Path::new("")))?;
        // A link by that name would be replaced, not followed; one that leads out is refused all the same.
        match fstatat(&parent, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if beneath::kind(&stat) == SFlag::S_IFLNK => drop(workdir.find(&path)?),
            Ok(stat) if beneath::kind(&stat) == SFlag::S_IFDIR => {
                let message = format!("{} is a folder and a file arrives", shown.display());
                return Err(StagingError::new(Cause::Destination, message));
            }
            _ => {}
        }
        tree::put(from, parent.as_fd(), &name, &Hand::Move)
    }
}

/// How many files arrived for an item; fails when there is something else than plain files and folders, or not what the
/// slot says.
fn check(from: &Path, place: &Place) -> Result<usize, StagingError> {
    let meta = fs::symlink_metadata(from)
        .map_err(|_| StagingError::new(Cause::Local, format!("{} arrived and is not there", from.display())))?;
    if meta.is_file() && !place.recursive {
        return Ok(1);
    }
    if meta.is_dir() != place.recursive {
        let (is, wanted) = if meta.is_dir() { ("a folder", "a file") } else { ("a file", "a folder") };
        let message = format!("{} is {is} at the location and {wanted} by its slot", place.remote_name);
        return Err(StagingError::new(Cause::MissingSource, message));
    }
    count_files(from, 0)
}

fn count_files(path: &Path, depth: usize) -> Result<usize, StagingError> {
    let failed = |error: io::Error| StagingError::reading(path.display(), &error);
    let meta = fs::symlink_metadata(path).map_err(failed)?;
    if meta.is_file() {
        return Ok(1);
    }
    if !meta.is_dir() || depth > MAX_DEPTH {
        let message = format!("{} is a link or another thing that is not staged in", path.display());
        return Err(StagingError::new(Cause::Escape, message));
    }
    let mut files = 0;
    for entry in fs::read_dir(path).map_err(failed)? {
        files += count_files(&entry.map_err(failed)?.path(), depth + 1)?;
    }
    Ok(files)
}

fn sync_tree(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        for entry in fs::read_dir(path)? {
            sync_tree(&entry?.path())?;
        }
    }
    match File::open(path) {
        Ok(file) => file.sync_all(),
        // An item that did not arrive is told so by `check`.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes a file or a folder with all that is in it; nothing is as good.
///
/// # Errors
/// The operating system's.
pub fn remove(path: &Path) -> io::Result<()> {
    let outcome = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// The size of a file or of all files in a folder, in bytes.
///
/// # Errors
/// The operating system's.
pub fn size(path: &Path) -> io::Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_dir() {
        return Ok(meta.size());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}

#[cfg(test)]
mod tests;
