//! From a request to checked values: who asks, the body, the query, the id in the path.
//! After an extractor nothing validates the same value again.

mod body;
mod current_user;
mod form;
mod idempotency_key;
mod path_id;
mod query_params;
mod valid_json;

pub use current_user::{Bound, CurrentUser};
pub use form::Form;
pub use idempotency_key::idempotency_key;
pub use path_id::PathId;
pub use query_params::{Paging, QueryParams};
pub use valid_json::{BODY_LIMIT_BYTES, PatchItems, ValidJson};
