//! Certificates of a test's own, made by openssl: an authority with a server's that it signed, and a server's that nobody did.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::process::describe;

/// Files in PEM form.
#[derive(Clone, Debug)]
pub struct Authority {
    /// The authority's own certificate, which clients are to trust.
    pub certificate: PathBuf,
    /// The certificate of a server named `localhost` or `127.0.0.1`, signed by it.
    pub server: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one, in files of this folder.
    ///
    /// # Panics
    /// When there is no openssl.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        let (certificate, ca_key) = (file("ca.pem"), file("ca.key"));
        let (server, key) = (file("server.pem"), file("server.key"));
        request(&certificate, &ca_key, "/CN=Laboratory", &["basicConstraints=critical,CA:TRUE"], &[]);
        let signed_by = [Path::new("-CA"), &certificate, Path::new("-CAkey"), &ca_key];
        request(&server, &key, "/CN=localhost", SERVER, &signed_by);
        Self { certificate, server, key }
    }
}

/// The extensions of a server's certificate.
const SERVER: &[&str] = &["subjectAltName=DNS:localhost,IP:127.0.0.1", "basicConstraints=critical,CA:FALSE"];

/// A server's certificate that nobody signed but itself, and its key, in files of this folder.
///
/// # Panics
/// When there is no openssl.
#[must_use]
pub fn self_signed(folder: &Path, name: &str) -> [PathBuf; 2] {
    let [certificate, key] = ["crt", "key"].map(|kind| folder.join(format!("{name}.{kind}")));
    request(&certificate, &key, "/CN=localhost", SERVER, &[]);
    [certificate, key]
}

fn request(certificate: &Path, key: &Path, subject: &str, extensions: &[&str], more: &[&Path]) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", subject])
        .args(extensions.iter().flat_map(|extension| ["-addext", extension]))
        .args([Path::new("-out"), certificate, Path::new("-keyout"), key])
        .args(more)
        .output()
        .expect("openssl is installed: `apt-get install openssl`");
    assert!(made.status.success(), "{}", describe(&made));
}
