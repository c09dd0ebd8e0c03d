//! Secrets that the service hands out and recognises later by their hash: refresh tokens, device
//! codes, secrets of launchers.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

/// 256 bits: nothing is left to guess, so that a fast hash is enough to store.
const SECRET_BYTES: usize = 32;

/// A new secret and the hash to store. The prefix tells people, and programs that look for leaked
/// secrets, what it is.
pub(crate) fn new(prefix: &str) -> (String, Vec<u8>) {
    let text = format!("{prefix}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; SECRET_BYTES]>()));
    let hash = hash(&text);
    (text, hash)
}

/// The hash by which a secret is found.
pub(crate) fn hash(text: &str) -> Vec<u8> {
    Sha256::digest(text.as_bytes()).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_found_by_their_hash() {
        let ((a, a_hash), (b, _)) = (new("x_"), new("x_"));
        assert_ne!(a, b);
        assert!(a.starts_with("x_") && a.len() == 2 + 43);
        assert_eq!(hash(&a), a_hash);
    }
}
