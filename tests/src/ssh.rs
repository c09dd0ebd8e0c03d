//! An ssh server on the loopback for the testing user: an own host key, an own user key, a free port.
//! Nothing of the user's own ssh is read or written.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    process::{Programs, Running, free_port},
    wait::{LIMIT, wait_blocking},
};

/// An ssh server. Stopped when it goes out of scope.
#[derive(Debug)]
pub struct SshServer {
    server: Running,
    folder: TempDir,
    port: u16,
}

impl SshServer {
    /// A server that lets the testing user in by [`SshServer::options`].
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn start(programs: &Programs) -> Self {
        Self::with_rules(programs, "")
    }

    /// One on which rsync is not installed.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn without_rsync(programs: &Programs) -> Self {
        let script = "case \"$SSH_ORIGINAL_COMMAND\" in *sftp*) exec /usr/lib/openssh/sftp-server;; esac\n\
                      echo 'bash: line 1: rsync: command not found' >&2; exit 127\n";
        Self::with_rules(programs, script)
    }

    fn with_rules(programs: &Programs, command: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("copal-ssh-").tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(key))
                .stdin(Stdio::null())
                .status()
                .expect("ssh-keygen is installed (openssh-client)");
            assert!(made.success(), "ssh-keygen: {made}");
        }
        fs::copy(at("user.pub"), at("authorized_keys")).expect("an own folder");
        let port = free_port();
        let host_key = fs::read_to_string(at("host.pub")).expect("ssh-keygen made it");
        fs::write(at("known_hosts"), format!("[127.0.0.1]:{port} {host_key}")).expect("an own folder");
        let mut rules = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nAuthorizedKeysFile {keys}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nMaxStartups 100\nMaxSessions 100\nLogLevel VERBOSE\n\
             Subsystem sftp internal-sftp\n",
            host = at("host").display(),
            keys = at("authorized_keys").display(),
        );
        if !command.is_empty() {
            let path = at("command");
            fs::write(&path, format!("#!/bin/sh\n{command}")).expect("an own folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an own file");
            rules.push_str(&format!("ForceCommand {}\n", path.display()));
        }
        fs::write(at("sshd_config"), rules).expect("an own folder");
        if nix::unistd::geteuid().is_root() {
            // Where its unprivileged half lives; Debian's unit makes it.
            fs::create_dir_all("/run/sshd").expect("root may");
        }
        let config = at("sshd_config").display().to_string();
        let server = programs.start("/usr/sbin/sshd", &["-D", "-e", "-f", &config]);
        wait_blocking("sshd to listen", LIMIT, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|_| server.log())
        });
        Self { server, folder, port }
    }

    /// `user@127.0.0.1:port`, for URLs.
    ///
    /// # Panics
    /// When the testing user has no name.
    #[must_use]
    pub fn authority(&self) -> String {
        self.authority_at(self.port)
    }

    /// The same with another port, from which a wire leads here.
    ///
    /// # Panics
    /// When the testing user has no name.
    #[must_use]
    pub fn authority_at(&self, port: u16) -> String {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().expect("a user with a name");
        format!("{}@127.0.0.1:{port}", user.name)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder: `user` is the key that opens it, `known_hosts` has its host key.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Arguments for ssh by which it lets in.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.options_with(&self.folder.path().join("user"))
    }

    /// The same with another key.
    #[must_use]
    pub fn options_with(&self, key: &Path) -> Vec<String> {
        let known: PathBuf = self.folder.path().join("known_hosts");
        let option = |text: String| ["-o".to_owned(), text];
        let mut options = vec!["-F".to_owned(), "/dev/null".to_owned()];
        options.extend(option(format!("IdentityFile={}", key.display())));
        options.extend(option("IdentitiesOnly=yes".into()));
        options.extend(option(format!("UserKnownHostsFile={}", known.display())));
        options.extend(option("StrictHostKeyChecking=yes".into()));
        options
    }

    /// What it wrote so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }
}
