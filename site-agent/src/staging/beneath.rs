//! Paths below a folder that nothing can lead out of it: no `..`, no link, no folder that is exchanged
//! for a link while one looks. Every step is taken from an open folder, by one name, without following links; links are read
//! and followed by hand as long as they stay inside. (`openat2` would do it in one call, but kernels before 5.6, which many
//! machines have, know nothing of it.)

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat},
};

use super::{Cause, StagingError};

/// Links on one path, as the kernel allows.
const MAX_LINKS: usize = 40;

/// A folder that is held open.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// Where it really is; absolute links that begin so stay inside.
    path: PathBuf,
}

/// What a path leads to.
#[derive(Debug)]
pub enum Spot {
    /// A folder.
    Folder(OwnedFd),
    /// Something else than a folder or a link: what it is, and where.
    Entry {
        /// The folder that it is in.
        folder: OwnedFd,
        /// Its name there.
        name: OsString,
        /// What it is.
        stat: Box<FileStat>,
    },
    /// Nothing, in a folder that is there.
    Missing {
        /// The folder.
        folder: OwnedFd,
        /// The name that it would have.
        name: OsString,
    },
}

/// Whether folders that are missing on the way are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Look,
    Make,
}

impl Root {
    /// Opens a folder; links on the way to it are its owner's business.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        Ok(Self { fd: File::open(&path)?.into(), path })
    }

    /// A folder below this one as a root of its own, made where it is missing.
    ///
    /// # Errors
    /// When the path leads out or to something else, or the operating system's.
    pub fn folder(&self, path: &Path) -> Result<Self, StagingError> {
        let fd = self.make_folder(path)?;
        Self::held(fd).map_err(|error| StagingError::writing(path.display(), &error))
    }

    /// A folder that is open already.
    ///
    /// # Errors
    /// The operating system's.
    pub fn held(fd: OwnedFd) -> io::Result<Self> {
        let path = fs::read_link(proc_path(fd.as_fd()))?;
        Ok(Self { fd, path })
    }

    /// Where it really is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds what a path leads to; links inside are followed.
    ///
    /// # Errors
    /// When it leads out; when a folder on the way is missing or none.
    pub fn find(&self, path: &Path) -> Result<Spot, StagingError> {
        self.walk(path, Way::Look)
    }

    /// Opens a folder, made with those above it where they are missing.
    ///
    /// # Errors
    /// When the path leads out or to something else, or the operating system's.
    pub fn make_folder(&self, path: &Path) -> Result<OwnedFd, StagingError> {
        match self.walk(path, Way::Make)? {
            Spot::Folder(fd) => Ok(fd),
            Spot::Entry { .. } | Spot::Missing { .. } => {
                let message = format!("{} is there and is no folder", self.path.join(path).display());
                Err(StagingError::new(Cause::Destination, message))
            }
        }
    }

    fn walk(&self, path: &Path, way: Way) -> Result<Spot, StagingError> {
        let shown = self.path.join(path);
        let failed = |errno: Errno| {
            let error = io::Error::from(errno);
            match way {
                Way::Look => StagingError::reading(shown.display(), &error),
                Way::Make => StagingError::writing(shown.display(), &error),
            }
        };
        let leaves = |what: &str| {
            let message = format!("{} {what} of {}", shown.display(), self.path.display());
            StagingError::new(Cause::Escape, message)
        };
        let mut rest: VecDeque<OsString> = VecDeque::new();
        push_parts(&mut rest, path).map_err(|()| leaves("is no path inside"))?;
        let mut folders = vec![self.fd.try_clone().map_err(|error| StagingError::reading(shown.display(), &error))?];
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            // Never empty: `..` at the root is refused.
            let Some(folder) = folders.last() else { break };
            if part == ".." {
                if folders.len() == 1 {
                    return Err(leaves("leads out"));
                }
                folders.pop();
                continue;
            }
            let stat = match fstatat(folder, part.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::ENOENT) if way == Way::Make && links == 0 => {
                    make(folder.as_fd(), &part).map_err(failed)?;
                    folders.push(open_folder(folder.as_fd(), &part).map_err(failed)?);
                    continue;
                }
                Err(Errno::ENOENT) if rest.is_empty() && links == 0 => {
                    let folder = folders.pop().unwrap_or_else(|| unreachable!("there is one, see above"));
                    return Ok(Spot::Missing { folder, name: part });
                }
                Err(errno) => return Err(failed(errno)),
            };
            match kind(&stat) {
                SFlag::S_IFDIR => folders.push(open_folder(folder.as_fd(), &part).map_err(failed)?),
                SFlag::S_IFLNK => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(failed(Errno::ELOOP));
                    }
                    let target = PathBuf::from(readlinkat(folder, part.as_os_str()).map_err(failed)?);
                    let target = if target.is_absolute() {
                        folders.truncate(1);
                        match target.strip_prefix(&self.path) {
                            Ok(inside) => inside.to_path_buf(),
                            Err(_) => return Err(leaves(&format!("has a link to {} and leads out", target.display()))),
                        }
                    } else {
                        target
                    };
                    push_parts(&mut rest, &target).map_err(|()| leaves("leads out"))?;
                }
                _ if rest.is_empty() => {
                    let folder = folders.pop().unwrap_or_else(|| unreachable!("there is one, see above"));
                    return Ok(Spot::Entry { folder, name: part, stat: Box::new(stat) });
                }
                _ => return Err(failed(Errno::ENOTDIR)),
            }
        }
        Ok(Spot::Folder(folders.pop().unwrap_or_else(|| unreachable!("the root is never popped"))))
    }
}

/// Makes folders many of which are side by side: the one above the last is held open, so that each costs two calls.
pub struct Siblings<'a> {
    root: &'a Root,
    above: Option<(PathBuf, OwnedFd)>,
}

impl<'a> Siblings<'a> {
    /// Folders below this one.
    #[must_use]
    pub fn below(root: &'a Root) -> Self {
        Self { root, above: None }
    }

    /// Opens a folder as [`Root::make_folder`] does.
    ///
    /// # Errors
    /// When the path leads out or to something else, or the operating system's.
    pub fn make(&mut self, path: &Path) -> Result<OwnedFd, StagingError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return self.root.make_folder(path) };
        let folder = match self.above.take() {
            Some((known, folder)) if known == above => folder,
            _ => self.root.make_folder(above)?,
        };
        let made = make(folder.as_fd(), name).and_then(|()| open_folder(folder.as_fd(), name));
        self.above = Some((above.to_path_buf(), folder));
        // Where a link is in its place, that is followed if it stays inside.
        made.or_else(|_| self.root.make_folder(path))
    }
}

/// Puts the names of a path before the rest; absolute paths are none here.
fn push_parts(rest: &mut VecDeque<OsString>, path: &Path) -> Result<(), ()> {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => rest.push_front(name.into()),
            Component::ParentDir => rest.push_front("..".into()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(()),
        }
    }
    Ok(())
}

/// Regular file, folder, link or whatever an entry is.
#[must_use]
pub fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Opens a folder by its name in another one; a link is none.
///
/// # Errors
/// The operating system's.
pub fn open_folder(folder: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

/// Opens a plain file for reading by its name in a folder; a link or a pipe is none.
///
/// # Errors
/// The operating system's.
pub fn open_file(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    // A pipe would hang without O_NONBLOCK, which plain files ignore.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = openat(folder, name, flags, Mode::empty())?;
    if kind(&fstat(&fd)?) == SFlag::S_IFREG { Ok(fd.into()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Makes a file for writing by a name that nothing has in a folder.
///
/// # Errors
/// The operating system's.
pub fn create_file(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    // Readable, to be compared with its source.
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(folder, name, flags, Mode::from_bits_truncate(0o666))?.into())
}

/// Makes a folder; one that is there is as good.
///
/// # Errors
/// The operating system's.
pub fn make(folder: BorrowedFd<'_>, name: &OsStr) -> nix::Result<()> {
    match mkdirat(folder, name, Mode::from_bits_truncate(0o777)) {
        Err(Errno::EEXIST) => Ok(()),
        answer => answer,
    }
}

/// The names in an open folder.
///
/// # Errors
/// The operating system's.
pub fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    // By the descriptor, so that it is this folder whatever became of its name.
    let mut names = fs::read_dir(proc_path(folder))?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    Ok(names)
}

fn proc_path(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_inside_are_followed_and_links_out_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/file"), "x").unwrap();
        fs::write(folder.path().join("secret"), "s").unwrap();
        let root = Root::open(&base).unwrap();
        for (name, target) in [
            ("in", "a/b/../file"),
            ("out", "../secret"),
            ("absolute_out", "/etc/hostname"),
            ("loop", "loop"),
            ("up", "a/.."),
            ("sneaky", "up/../secret"),
            ("folder", "a"),
            ("dangling", "nothing"),
        ] {
            symlink(target, base.join(name)).unwrap();
        }
        symlink(base.canonicalize().unwrap().join("a/file"), base.join("absolute_in")).unwrap();
        let find = |path: &str| root.find(Path::new(path));
        for path in ["a/file", "in", "absolute_in", "folder/file", "./a//file", "up/in"] {
            assert!(matches!(find(path), Ok(Spot::Entry { .. })), "{path}");
        }
        for path in ["", ".", "a", "folder/b", "up"] {
            assert!(matches!(find(path), Ok(Spot::Folder(_))), "{path}");
        }
        for path in ["out", "absolute_out", "sneaky", "..", "a/../../secret", "/etc/hostname"] {
            assert_eq!(find(path).unwrap_err().cause, Cause::Escape, "{path}");
        }
        assert!(matches!(find("a/new"), Ok(Spot::Missing { .. })));
        for path in ["nowhere/new", "dangling"] {
            assert_eq!(find(path).unwrap_err().cause, Cause::MissingSource, "{path}");
        }
        assert!(find("loop").is_err() && find("a/file/x").is_err());
    }

    #[test]
    fn folders_are_made_inside_only() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        fs::create_dir_all(&base).unwrap();
        symlink(folder.path(), base.join("out")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        let root = Root::open(&base).unwrap();
        root.make_folder(Path::new("x/y/z")).unwrap();
        assert!(base.join("x/y/z").is_dir());
        assert_eq!(root.make_folder(Path::new("out/new")).unwrap_err().cause, Cause::Escape);
        assert!(!folder.path().join("new").exists());
        assert_eq!(root.make_folder(Path::new("file")).unwrap_err().cause, Cause::Destination);
        assert_eq!(root.folder(Path::new("x/y")).unwrap().path(), base.canonicalize().unwrap().join("x/y"));
    }
}
