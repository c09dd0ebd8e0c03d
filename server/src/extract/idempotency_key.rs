//! The `Idempotency-Key` of a request that makes something.

use actix_web::HttpRequest;

use crate::error::{ApiError, ApiResult};

const NAME: &str = "Idempotency-Key";

/// The longest key. Any client's own scheme of ids fits.
const MAX_BYTES: usize = 255;

/// The key, where the request has one.
///
/// # Errors
/// 422 when it is not 1 to 255 printable ASCII characters without a space.
pub fn idempotency_key(request: &HttpRequest) -> ApiResult<Option<&str>> {
    let Some(key) = request.headers().get(NAME) else { return Ok(None) };
    match key.to_str() {
        Ok(key) if (1..=MAX_BYTES).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Some(key))
        }
        _ => Err(ApiError::invalid_at(
            vec!["header".into(), NAME.into()],
            format!("1 to {MAX_BYTES} printable ASCII characters without spaces are wanted"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn keys_are_short_and_printable() {
        let read = |key: &str| {
            let request = TestRequest::default().insert_header((NAME, key)).to_http_request();
            idempotency_key(&request).map(|key| key.map(str::to_owned)).ok()
        };
        assert_eq!(read("a-1"), Some(Some("a-1".into())));
        assert_eq!(read(&"k".repeat(MAX_BYTES)), Some(Some("k".repeat(MAX_BYTES))));
        for wrong in ["", "a b", "é", &"k".repeat(MAX_BYTES + 1)] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        assert_eq!(idempotency_key(&TestRequest::default().to_http_request()).unwrap(), None);
    }
}
