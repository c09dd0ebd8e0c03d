//! Files and folders on file systems of this machine, carried from one open folder to another: linked,
//! moved or copied. Links in what is taken are followed as far as the folder that is its root, so only plain files and folders
//! are on the other side. A file gets its name there when it is whole. All calls block.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, renameat},
    sys::stat::{SFlag, fstat, fstatat},
    unistd::{UnlinkatFlags, linkat, unlinkat},
};
use tokio_util::sync::CancellationToken;

use super::{
    Cause, StagingError,
    beneath::{self, Root, Spot},
};

/// Folders in folders.
pub(super) const MAX_DEPTH: usize = 256;
/// Copied at a time, between two looks at whether to stop.
const STRETCH: u64 = 64 * 1024 * 1024;
/// Compared at a time.
const BLOCK: usize = 1024 * 1024;

/// How files get to the other side.
#[derive(Clone, Debug)]
pub enum Hand {
    /// By a hard link, or a copy where there can't be one.
    Link,
    /// By a new name, or a copy where that is on another file system.
    Move,
    /// By a copy, which shares the blocks where the file system can do that.
    Copy {
        /// Whether both are read again and compared.
        verify: bool,
        /// When to stop.
        stop: CancellationToken,
    },
}

/// Takes a file or a folder at a path below `root` to a path where nothing is. Gives its size in bytes.
///
/// # Errors
/// When it is not there, when it or a link in it leads out of the root, when it is neither file nor folder.
pub fn take(root: &Root, path: &Path, recursive: bool, to: &Path, hand: Hand) -> Result<u64, StagingError> {
    let mut taking = Taking { root, hand, bytes: 0, above: Vec::new() };
    match root.find(path)? {
        Spot::Missing { .. } => return Err(missing(&root.path().join(path))),
        Spot::Entry { .. } if recursive => {
            let message = format!("{} is a file, and its slot says recursive: true", root.path().join(path).display());
            return Err(StagingError::new(Cause::MissingSource, message));
        }
        Spot::Entry { folder, name, .. } => taking.file(folder.as_fd(), &name, path, to)?,
        Spot::Folder(folder) if recursive => taking.folder(folder.as_fd(), path, to)?,
        Spot::Folder(_) => {
            let message = format!("{} is a folder; its slot needs recursive: true", root.path().join(path).display());
            return Err(StagingError::new(Cause::MissingSource, message));
        }
    }
    Ok(taking.bytes)
}

/// Taking a tree below a root.
struct Taking<'a> {
    root: &'a Root,
    hand: Hand,
    bytes: u64,
    /// The folders above, to find links that lead in a circle.
    above: Vec<(u64, u64)>,
}

impl Taking<'_> {
    fn folder(&mut self, folder: BorrowedFd<'_>, path: &Path, to: &Path) -> Result<(), StagingError> {
        let shown = self.root.path().join(path);
        let failed = |error: io::Error| StagingError::reading(shown.display(), &error);
        let stat = fstat(folder).map_err(|errno| failed(errno.into()))?;
        let id = (stat.st_dev, stat.st_ino);
        if self.above.contains(&id) || self.above.len() >= MAX_DEPTH {
            let message = format!("{} has a link to a folder above itself", shown.display());
            return Err(StagingError::new(Cause::Escape, message));
        }
        fs::create_dir(to).map_err(|error| StagingError::writing(to.display(), &error))?;
        self.above.push(id);
        for name in beneath::names(folder).map_err(failed)? {
            let stat = fstatat(folder, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .map_err(|errno| failed(errno.into()))?;
            let (inner, to) = (path.join(&name), to.join(&name));
            match beneath::kind(&stat) {
                SFlag::S_IFDIR => {
                    let sub = beneath::open_folder(folder, &name).map_err(|errno| failed(errno.into()))?;
                    self.folder(sub.as_fd(), &inner, &to)?;
                }
                SFlag::S_IFLNK => match self.root.find(&inner)? {
                    Spot::Folder(sub) => self.folder(sub.as_fd(), &inner, &to)?,
                    Spot::Entry { folder, name, .. } => self.file(folder.as_fd(), &name, &inner, &to)?,
                    Spot::Missing { .. } => return Err(missing(&self.root.path().join(inner))),
                },
                _ => self.file(folder, &name, &inner, &to)?,
            }
        }
        self.above.pop();
        Ok(())
    }

    fn file(&mut self, folder: BorrowedFd<'_>, name: &OsStr, path: &Path, to: &Path) -> Result<(), StagingError> {
        let shown = self.root.path().join(path);
        let reading = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                StagingError::new(Cause::MissingSource, format!("{} is no plain file", shown.display()))
            }
            _ => StagingError::reading(shown.display(), &error),
        };
        if matches!(self.hand, Hand::Link) && linkat(folder, name, AT_FDCWD, to, AtFlags::empty()).is_ok() {
            // The link is of a thing, not of a name: what it is now it stays.
            let meta = fs::symlink_metadata(to).map_err(reading)?;
            if !meta.is_file() {
                let _ = fs::remove_file(to);
                return Err(reading(io::ErrorKind::InvalidInput.into()));
            }
            self.bytes += meta.len();
            return Ok(());
        }
        let source = beneath::open_file(folder, name).map_err(reading)?;
        let copy = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(to)
            .map_err(|error| StagingError::writing(to.display(), &error))?;
        self.bytes += copy_file(&source, &copy, &self.hand, &shown)?;
        Ok(())
    }
}

/// Copies a file with its permissions and times. Gives its size in bytes.
fn copy_file(source: &File, copy: &File, hand: &Hand, shown: &Path) -> Result<u64, StagingError> {
    let failed = |error: io::Error| StagingError::writing(format_args!("a copy of {}", shown.display()), &error);
    let before = source.metadata().map_err(failed)?;
    let mut bytes = 0;
    loop {
        if let Hand::Copy { stop, .. } = hand
            && stop.is_cancelled()
        {
            return Err(StagingError::stopped());
        }
        let stretch = io::copy(&mut source.take(STRETCH), &mut &*copy).map_err(failed)?;
        bytes += stretch;
        if stretch < STRETCH {
            break;
        }
    }
    let after = source.metadata().map_err(failed)?;
    let is_same =
        bytes == before.len() && after.len() == before.len() && after.modified().ok() == before.modified().ok();
    if !is_same {
        let message = format!("{} changed while it was copied", shown.display());
        return Err(StagingError::new(Cause::Checksum, message));
    }
    if let Hand::Copy { verify: true, .. } = hand
        && !is_equal(source, copy).map_err(failed)?
    {
        let message = format!("the copy of {} differs from it", shown.display());
        return Err(StagingError::new(Cause::Checksum, message));
    }
    copy.set_permissions(before.permissions()).map_err(failed)?;
    if let Ok(time) = before.modified() {
        copy.set_modified(time).map_err(failed)?;
    }
    Ok(bytes)
}

/// Whether two files hold the same, read from their starts.
fn is_equal(one: &File, other: &File) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    loop {
        let count = one.read_at(&mut left, at)?;
        if count == 0 {
            return Ok(other.read_at(&mut right[..1], at)? == 0);
        }
        match other.read_exact_at(&mut right[..count], at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            outcome => outcome?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
}

/// Puts the entries of a folder into another one, over what has their names.
///
/// # Errors
/// When a link or a file is where a folder belongs, or the operating system's.
pub fn merge(from: &Path, to: BorrowedFd<'_>, shown: &Path, hand: &Hand) -> Result<(), StagingError> {
    let failed = |error: io::Error| StagingError::writing(shown.display(), &error);
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !entry.file_type().map_err(failed)?.is_dir() {
            put(&entry.path(), to, &name, hand)?;
            continue;
        }
        beneath::make(to, &name).map_err(|errno| failed(errno.into()))?;
        match beneath::open_folder(to, &name) {
            Ok(folder) => merge(&entry.path(), folder.as_fd(), &shown.join(&name), hand)?,
            Err(Errno::ELOOP | Errno::ENOTDIR) => {
                let message = format!("{} is a link or a file where a folder arrives", shown.join(&name).display());
                return Err(StagingError::new(Cause::Escape, message));
            }
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    Ok(())
}

/// Gives a plain file its name in a folder, in one step.
///
/// # Errors
/// The operating system's; when a copy is not what it should be.
pub fn put(from: &Path, folder: BorrowedFd<'_>, name: &OsStr, hand: &Hand) -> Result<(), StagingError> {
    let failed = |error: io::Error| StagingError::writing(format_args!("{}", name.display()), &error);
    match hand {
        Hand::Move => match renameat(AT_FDCWD, from, folder, name) {
            Err(Errno::EXDEV) => {}
            answer => return answer.map_err(|errno| failed(errno.into())),
        },
        Hand::Link => {
            let _ = unlinkat(folder, name, UnlinkatFlags::NoRemoveDir);
            if linkat(AT_FDCWD, from, folder, name, AtFlags::empty()).is_ok() {
                return Ok(());
            }
        }
        Hand::Copy { .. } => {}
    }
    let mut part = OsString::from(".");
    part.push(name);
    part.push(".copal-part");
    // What a try before this one left.
    let _ = unlinkat(folder, part.as_os_str(), UnlinkatFlags::NoRemoveDir);
    let source = File::open(from).map_err(|error| StagingError::reading(from.display(), &error))?;
    let copy = beneath::create_file(folder, &part).map_err(failed)?;
    let finish = || -> Result<(), StagingError> {
        copy_file(&source, &copy, hand, from)?;
        copy.sync_all().map_err(failed)?;
        renameat(folder, part.as_os_str(), folder, name).map_err(|errno| failed(errno.into()))
    };
    finish().inspect_err(|_| {
        let _ = unlinkat(folder, part.as_os_str(), UnlinkatFlags::NoRemoveDir);
    })?;
    if matches!(hand, Hand::Move) {
        fs::remove_file(from).map_err(|error| StagingError::writing(from.display(), &error))?;
    }
    Ok(())
}

/// What is to be taken is not there.
pub(super) fn missing(path: &Path) -> StagingError {
    StagingError::new(Cause::MissingSource, format!("{} does not exist", path.display()))
}
