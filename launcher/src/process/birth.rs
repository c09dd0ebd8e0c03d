//! The making of one process. As `vfork` does it, the parent's memory is lent, not copied, and its thread sleeps until
//! the new program is there; `posix_spawn` does the same with more ado, a new stack and a call for each signal there is,
//! which floods of short Jobs feel. A process that is to be in a control group is put there as it is made, which takes
//! a copy of the page tables; to join afterwards would stop all forks of the machine for some 10 ms.
//!
//! What is to be started, and what an error means, is [`super::spawn`]'s.

use std::{
    ffi::{CStr, CString, OsString, c_char},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    ptr,
    sync::{
        LazyLock,
        atomic::{AtomicI32, Ordering},
    },
};

use copal_schemas::StringMap;
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sched::{CloneFlags, clone},
    sys::signal::{SigSet, SigmaskHow},
    unistd::{Pid, pipe2},
};

/// Between `clone` and `execve` only a few calls of the system are made, each of which needs next to no stack.
const STACK_BYTES: usize = 16 << 10;

/// A flag of `clone3` that libc does not name.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// This process's environment, `NAME=value` each. Nothing in the launcher changes it.
static INHERITED: LazyLock<Vec<CString>> = LazyLock::new(|| {
    let line = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        // A variable can't hold a NUL: it came from such a line.
        CString::new(name.into_vec()).unwrap_or_default()
    };
    std::env::vars_os().map(line).collect()
});

/// What `execve` takes: pointers to texts, which are kept here or for ever.
pub(super) struct Texts {
    pointers: Vec<*const c_char>,
    _kept: Vec<u8>,
}

impl Texts {
    /// An argument list.
    ///
    /// # Errors
    /// When an argument holds a NUL.
    pub(super) fn arguments(argv: &[String]) -> io::Result<Self> {
        Self::new(Vec::new(), argv.iter().map(|word| [word.as_str()]))
    }

    /// An environment: this process's own without what is in `unset`, and `set` besides.
    ///
    /// # Errors
    /// When a variable holds a NUL.
    pub(super) fn environment(set: &StringMap, unset: &[&str]) -> io::Result<Self> {
        let stays = |line: &&CString| {
            let name = line.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
            let is_other = |name: &str| !set.contains_key(name) && !unset.contains(&name);
            // A name that is not UTF-8 is none that anybody sets.
            std::str::from_utf8(name).map_or(true, is_other)
        };
        let inherited = INHERITED.iter().filter(stays).map(|line| line.as_ptr()).collect();
        Self::new(inherited, set.iter().map(|(name, value)| [name.as_str(), "=", value]))
    }

    /// All texts are kept one after the other, so that a flood of processes does not keep the allocator busy.
    fn new<'a, const N: usize>(
        mut pointers: Vec<*const c_char>,
        texts: impl Iterator<Item = [&'a str; N]>,
    ) -> io::Result<Self> {
        let (mut kept, mut starts) = (Vec::new(), Vec::new());
        for text in texts {
            starts.push(kept.len());
            text.iter().for_each(|part| kept.extend_from_slice(part.as_bytes()));
            kept.push(0);
        }
        // Each text has one NUL, at its end.
        if kept.iter().filter(|byte| **byte == 0).count() != starts.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is a NUL in an argument or a variable"));
        }
        // What the vector holds stays where it is when the vector is moved.
        pointers.extend(starts.iter().map(|start| kept[*start..].as_ptr().cast::<c_char>()));
        pointers.push(ptr::null());
        Ok(Self { pointers, _kept: kept })
    }
}

/// A process to be.
pub(super) struct Birth<'a> {
    /// The program's file.
    pub(super) program: &'a CStr,
    /// Its arguments, the name by which it is called first.
    pub(super) arguments: &'a Texts,
    /// Its environment.
    pub(super) environment: &'a Texts,
    /// The folder to run in.
    pub(super) workdir: &'a CStr,
    /// Standard input.
    pub(super) input: BorrowedFd<'a>,
    /// Standard output and error.
    pub(super) output: BorrowedFd<'a>,
    /// The folder of the control group in which it is from its first moment, so that nothing it starts is ever outside.
    pub(super) group: Option<BorrowedFd<'a>>,
    /// Whether the system kills it when the thread that starts it ends.
    pub(super) is_bound: bool,
}

impl Birth<'_> {
    /// Starts the process, as the leader of a process group of its own, without any signal blocked. Where the system
    /// does not let it be in its control group, it is in that of this process.
    ///
    /// # Errors
    /// What the system says when no process can be made, the folder not be entered or the program not be executed.
    pub(super) fn start(&self) -> io::Result<Pid> {
        // A handler of this process must not run in the child, where it would see memory that is not its own.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let born = match self.group {
            Some(group) => self.in_group(group).or_else(|_| self.on_lent_memory()),
            None => self.on_lent_memory(),
        };
        mask.thread_set_mask()?;
        let (pid, failure) = born?;
        if failure != 0 {
            // Else it would stay a zombie.
            let _ = nix::sys::wait::waitpid(pid, None);
            return Err(io::Error::from_raw_os_error(failure));
        }
        Ok(pid)
    }

    /// Makes the process; also says which error kept it from its program, or 0.
    #[expect(unsafe_code, reason = "no safe call makes a process without a copy of this one's page tables")]
    fn on_lent_memory(&self) -> io::Result<(Pid, i32)> {
        let failure = AtomicI32::new(0);
        let child = || {
            // SAFETY: this is the child, and `self` lives in the parent, which sleeps meanwhile.
            failure.store(unsafe { self.become_it() }, Ordering::Relaxed);
            127
        };
        let mut stack = [0; STACK_BYTES];
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
        // SAFETY: the stack is large enough for what `child` calls, and is not used once the call has returned, since
        // the parent sleeps until the child has gone over to its program or ended.
        let pid = unsafe { clone(Box::new(child), &mut stack, flags, Some(libc::SIGCHLD)) }?;
        Ok((pid, failure.into_inner()))
    }

    /// The same in a control group.
    #[expect(unsafe_code, reason = "nothing wraps clone3")]
    fn in_group(&self, group: BorrowedFd<'_>) -> io::Result<(Pid, i32)> {
        // Memory is copied here, so that an error of the child must come another way. As the parent sleeps until the
        // program is there, it has come by then.
        let (heard, told) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // As in linux/sched.h: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        // set_tid_size, cgroup.
        let mut order = [0_u64; 11];
        order[0] = CLONE_INTO_CGROUP | libc::CLONE_VFORK as u64;
        order[4] = libc::SIGCHLD as u64;
        order[10] = u64::try_from(group.as_raw_fd()).unwrap_or_default();
        // SAFETY: the system reads the array, of which it is told the size. Without a stack of its own and without
        // CLONE_VM the child goes on with a copy of this one, as after a fork.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, order.as_ptr(), size_of_val(&order)) };
        match pid {
            0 => {
                // SAFETY: this is the child. It ends without a word to anything that it has a copy of.
                unsafe {
                    let error = self.become_it().to_ne_bytes();
                    libc::write(told.as_raw_fd(), error.as_ptr().cast(), error.len());
                    libc::_exit(127)
                }
            }
            1.. => {
                let mut error = [0; 4];
                let failure = match nix::unistd::read(&heard, &mut error) {
                    Ok(4) => i32::from_ne_bytes(error),
                    // Nothing to read: it went well.
                    _ => 0,
                };
                // A process number always fits.
                Ok((Pid::from_raw(i32::try_from(pid).unwrap_or_default()), failure))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What the child does. Returns the number of an error, and not at all where there is none.
    ///
    /// # Safety
    /// Only for a child of `clone` that is about to end when this returns. Nothing is called that needs more than a child
    /// of a process with threads has.
    #[expect(unsafe_code, reason = "these are calls of the system, of which no wrapper promises what is needed here")]
    unsafe fn become_it(&self) -> i32 {
        // SAFETY: all pointers are to texts and lists that end as the system wants them, and live in the parent.
        unsafe {
            if libc::setpgid(0, 0) != 0
                || libc::dup2(self.input.as_raw_fd(), libc::STDIN_FILENO) < 0
                || libc::dup2(self.output.as_raw_fd(), libc::STDOUT_FILENO) < 0
                || libc::dup2(self.output.as_raw_fd(), libc::STDERR_FILENO) < 0
                || libc::chdir(self.workdir.as_ptr()) != 0
            {
                return Errno::last_raw();
            }
            // Should this process and all that clears up after it be killed at once. It is the thread's end that counts,
            // and the thread waits for the run. A system that refuses this still has the guard.
            if self.is_bound {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            // Rust programs ignore it, and what is ignored stays so beyond `execve`.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::sigprocmask(libc::SIG_SETMASK, SigSet::empty().as_ref(), ptr::null_mut());
            libc::execve(self.program.as_ptr(), self.arguments.pointers.as_ptr(), self.environment.pointers.as_ptr());
            Errno::last_raw()
        }
    }
}

/// The bytes of a path, as the system takes them.
///
/// # Errors
/// When it holds a NUL.
pub(super) fn text_of(path: &std::path::Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
