//! One newtype for each kind of id, so that a JobId is never passed where an AppId is meant.
//! Ids are given by the server, increase, and fit a Postgres `bigint`.

use std::{fmt, num::ParseIntError, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        #[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(transparent))]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;
            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.trim().parse().map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                crate::lenient::int(input).map(Self)
            }
        }
    )+};
}

ids! {
    /// A user account.
    UserId,
    /// A Site.
    SiteId,
    /// An App of one Site.
    AppId,
    /// A Job.
    JobId,
    /// A BatchJob: an allocation asked of a Site's scheduler.
    BatchJobId,
    /// A Session: a lease on Jobs.
    SessionId,
    /// A TransferItem.
    TransferId,
    /// One state change of one Job.
    EventId,
}
