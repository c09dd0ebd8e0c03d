//! A location of the Site's settings: an alias and the URL that it stands for. Here the URL is taken
//! apart and paths are put below it; what a scheme does is its adapter's.

use url::{Host, Url};

use super::{Cause, StagingError};

/// Which adapter a location has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A folder that this machine sees.
    File,
    /// rsync over ssh.
    Rsync,
    /// sftp over ssh, as scp does it.
    Scp,
    /// A web server, with or without TLS.
    Http,
    /// An S3-compatible store.
    S3,
    /// Globus Transfer.
    Globus,
}

/// Where Jobs may stage from and to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its name in `transfer_locations`.
    pub alias: String,
    /// Which adapter it has.
    pub scheme: Scheme,
    /// The whole URL.
    pub url: Url,
    /// The user before the host, where there is one.
    pub user: Option<String>,
    /// The host: a machine, a bucket, a collection's UUID; empty for files.
    pub host: String,
    /// The port, where there is one.
    pub port: Option<u16>,
    /// The path below which everything is, as written (nothing is decoded): `""` or `/a/b`.
    pub base: String,
}

impl Location {
    /// Takes a URL of the settings apart.
    ///
    /// # Errors
    /// When there is no adapter for it, when it can't be read, when it has a password in it.
    pub fn parse(alias: &str, text: &str) -> Result<Self, StagingError> {
        let wrong = |what: String| StagingError::new(Cause::Settings, format!("the location {alias:?}: {what}"));
        let url = Url::parse(text).map_err(|error| wrong(format!("{error}")))?;
        let scheme = match url.scheme() {
            "file" => Scheme::File,
            "rsync" => Scheme::Rsync,
            "scp" | "sftp" | "ssh" => Scheme::Scp,
            "http" | "https" => Scheme::Http,
            "s3" => Scheme::S3,
            "globus" => Scheme::Globus,
            other => {
                return Err(wrong(format!("{other}:// is none of file, rsync, scp, http, https, s3, globus")));
            }
        };
        if url.password().is_some() {
            // The service and everybody who sees the Site would see it too.
            return Err(wrong(
                "a password does not belong into the URL; put it into transfers.credentials_file".into(),
            ));
        }
        let host = match url.host() {
            // In brackets in a URL, without them for ssh.
            Some(Host::Ipv6(address)) if scheme != Scheme::Http => address.to_string(),
            Some(host) => host.to_string(),
            None => String::new(),
        };
        match (scheme, host.as_str()) {
            (Scheme::File, "" | "localhost") => {}
            (Scheme::File, _) => {
                return Err(wrong("file:// is followed by an absolute path, as in file:///data".into()));
            }
            (_, "") => return Err(wrong("it names no host".into())),
            (Scheme::Rsync | Scheme::Scp, host) if host.starts_with('-') => {
                return Err(wrong(format!("{host:?} is no host")));
            }
            _ => {}
        }
        let user = Some(url.username().to_owned()).filter(|user| !user.is_empty());
        if user.as_ref().is_some_and(|user| user.starts_with('-')) {
            return Err(wrong("the user's name begins with a dash".into()));
        }
        let written = text.split_once("://").map_or("", |(_, rest)| rest);
        let base = written.find('/').map_or("", |start| &written[start..]).trim_end_matches('/').to_owned();
        let location = Self { alias: alias.into(), scheme, user, host, port: url.port(), base, url };
        location.remote("/")?;
        Ok(location)
    }

    /// The path of something at this location: below its base, absolute, without `..` and doubled slashes.
    ///
    /// # Errors
    /// When the path would leave the base.
    pub fn remote(&self, path: &str) -> Result<String, StagingError> {
        let mut remote = String::new();
        for part in self.base.split('/').chain(path.split('/')) {
            match part {
                "" | "." => {}
                ".." => {
                    let message = format!("{path:?} leads out of the location {:?}", self.alias);
                    return Err(StagingError::new(Cause::Escape, message));
                }
                part if part.contains(['\0', '\n', '\r']) => {
                    let message = format!("{path:?} has a line break or a NUL in it");
                    return Err(StagingError::new(Cause::Escape, message));
                }
                part => {
                    remote.push('/');
                    remote.push_str(part);
                }
            }
        }
        Ok(if remote.is_empty() { "/".into() } else { remote })
    }

    /// Refuses to send a secret in the clear to another machine.
    ///
    /// # Errors
    /// When that is what a login at this location would do.
    pub fn check_secrecy(&self) -> Result<(), StagingError> {
        let is_here = match self.url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if self.url.scheme() != "http" || is_here {
            return Ok(());
        }
        let message = format!(
            "the location {:?} has a login and is {}, which everybody on the way can read; make it https://, or take the \
             login out of transfers.credentials_file",
            self.alias, self.url
        );
        Err(StagingError::new(Cause::Settings, message))
    }

    /// `user@host`, as ssh takes it.
    #[must_use]
    pub fn ssh_target(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.host),
            None => self.host.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Location {
        Location::parse("home", text).unwrap()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let location = parse("rsync://ann@login.example.org:2222/scratch/my data/");
        assert_eq!((location.scheme, location.port), (Scheme::Rsync, Some(2222)));
        assert_eq!(location.ssh_target(), "ann@login.example.org");
        assert_eq!(location.remote("/x//./y.dat").unwrap(), "/scratch/my data/x/y.dat");
        assert_eq!(parse("scp://[::1]/data").ssh_target(), "::1");
        assert_eq!(parse("file:///").remote("/a").unwrap(), "/a");
        assert_eq!(parse("s3://bucket/pre").remote("/a").unwrap(), "/pre/a");
        assert_eq!(parse("globus://8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0").host, "8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0");
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        for (url, word) in [
            ("ftp://host/x", "is none of file, rsync"),
            ("data", "relative URL"),
            ("file://host/x", "absolute path"),
            ("https://ann:secret@host/", "credentials_file"),
            ("rsync:///x", "no host"),
            ("rsync://-oProxyCommand=x/x", "no host"),
            ("scp://-x@host/x", "dash"),
            ("file:///a/../b", "leads out"),
        ] {
            let error = Location::parse("home", url).unwrap_err();
            assert!(error.message.contains(word) && !error.message.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn a_login_goes_over_tls_or_stays_on_this_machine() {
        for url in ["https://host/x", "http://localhost:8080/", "http://127.0.0.5/", "http://[::1]:80/", "s3://bucket"]
        {
            assert!(parse(url).check_secrecy().is_ok(), "{url}");
        }
        for url in ["http://host/x", "http://localhost.example.org/", "http://128.0.0.1/", "http://[::2]/"] {
            let error = parse(url).check_secrecy().unwrap_err();
            assert!(error.cause == Cause::Settings && error.message.contains("make it https://"), "{url}: {error}");
        }
    }

    #[test]
    fn no_path_leaves_the_location() {
        let location = parse("file:///scratch");
        for path in ["/../etc/passwd", "/a/../../b", "/a\n/b"] {
            assert_eq!(location.remote(path).unwrap_err().cause, Cause::Escape, "{path}");
        }
    }
}
