//! Rules that several kinds of bodies share.

use copal_schemas::{problem::FieldError, session::MAX_WAIT_SEC};
use serde_json::Value;

use crate::error::{ApiError, ApiResult};

/// Names are indexed, and read by people.
const MAX_NAME_LETTERS: usize = 256;

/// An error at a place of the body.
pub(super) fn error(place: &[&str], msg: impl Into<String>) -> FieldError {
    let loc = std::iter::once("body").chain(place.iter().copied()).map(Value::from).collect();
    FieldError { loc, msg: msg.into() }
}

/// A name is not empty and not long.
pub(super) fn name(place: &[&str], name: &str, errors: &mut Vec<FieldError>) {
    match name.chars().count() {
        0 => errors.push(error(place, "must not be empty")),
        letters if letters > MAX_NAME_LETTERS => {
            errors.push(error(place, format!("{letters} letters are too many; at most {MAX_NAME_LETTERS}")));
        }
        _ => {}
    }
}

/// What is wrong with the seconds that a request may wait for news.
pub(super) fn wait(wait_sec: f64) -> Option<String> {
    let is_right = (0.0..=MAX_WAIT_SEC).contains(&wait_sec);
    (!is_right).then(|| format!("{wait_sec} is not between 0 and {MAX_WAIT_SEC}"))
}

/// What is wrong with a longer text.
pub(super) fn too_long(most: usize) -> String {
    format!("at most {most} letters are taken")
}

/// The value where nothing is wrong.
pub(super) fn finish<T>(value: T, errors: Vec<FieldError>) -> ApiResult<T> {
    if errors.is_empty() { Ok(value) } else { Err(ApiError::invalid(errors)) }
}
