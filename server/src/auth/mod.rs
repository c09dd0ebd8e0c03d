//! Who may do what: passwords, signing keys and tokens, the limit on logins, and the guard in
//! front of all routes.

mod guard;
mod keys;
pub(crate) mod limit;
pub(crate) mod password;

pub use guard::guard;
pub use keys::{KeyRing, TOKEN_LIFE};
