//! The certificate and key of a service that ends TLS itself.

use std::path::Path;

use anyhow::Context as _;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::config::Config;

/// The TLS set-up, where the config names a certificate.
///
/// # Errors
/// When certificate or key can't be read or do not fit together.
pub(crate) fn server_config(config: &Config) -> anyhow::Result<Option<ServerConfig>> {
    let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
    load(cert, key).map(Some)
}

fn load(cert: &Path, key: &Path) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("can't read the certificate chain {}; a PEM file is wanted", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("can't read the private key {}; a PEM file is wanted", key.display()))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("{} is not the key of {}", key.display(), cert.display()))
}
