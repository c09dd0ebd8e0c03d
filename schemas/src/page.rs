//! Lists: the envelope and its limits (contract, section 1.8).

use serde::{Deserialize, Serialize};

/// Rows of a list answer when the request names no `limit`, and the most it may name.
pub const MAX_PAGE: i64 = 100_000;
/// The most items of one bulk request.
pub const MAX_BULK: usize = 5_000;

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// How many rows match, whatever `limit` and `offset` are.
    pub count: i64,
    /// The rows of this page.
    pub results: Vec<T>,
}
