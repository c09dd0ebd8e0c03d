//! Who may do what: passwords, signing keys and tokens, logins and their renewal, the limit on
//! login attempts, and the guard in front of all routes.

pub(crate) mod device;
mod guard;
mod keys;
pub(crate) mod limit;
pub(crate) mod login;
pub(crate) mod password;
pub(crate) mod secret;
mod tidy;

use chrono::TimeDelta;

pub use guard::guard;
pub use keys::{KeyRing, rotate_now};
pub(crate) use keys::{Rotation, rotate};
pub(crate) use tidy::tidy;

/// How long an access token of a user or a Site is good. Balsam's clients warn when less than a
/// day is left.
const TOKEN_LIFE: TimeDelta = TimeDelta::hours(48);

/// No access token is good for longer, a launcher's in a long BatchJob neither: it is renewed.
pub(crate) const LONGEST_TOKEN_LIFE: TimeDelta = TimeDelta::days(15);

/// How long a login that is not renewed stays good.
const LOGIN_LIFE: TimeDelta = TimeDelta::days(90);

/// The id of a login: what tokens stem from and are revoked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, sqlx::Type)]
#[sqlx(transparent)]
pub struct LoginId(pub i64);
