//! A JSON body as a checked value.

use std::{future::Future, pin::Pin};

use actix_web::{FromRequest, HttpRequest, dev::Payload};
use copal_schemas::JsonObject;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Visitor},
};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::body;
use crate::error::{ApiError, ApiResult};

/// The largest body that is read: 5,000 Jobs of 6 KiB each.
pub const BODY_LIMIT_BYTES: usize = 32 << 20;

/// The body, read as JSON into `T`. 422 with the place of what is wrong, 413 when too large.
///
/// Deeper nesting than 128 levels is refused by the JSON reader itself, and U+0000 everywhere,
/// since Postgres can't store it. A route that anybody may call sets a smaller limit.
#[derive(Debug)]
pub struct ValidJson<T, const LIMIT_BYTES: usize = BODY_LIMIT_BYTES>(pub T);

/// The body of a bulk update: a list of objects, each with an `id` and the fields that change.
/// An error names item and field, which reading a flattened struct could not do.
#[derive(Debug)]
pub struct PatchItems<I, P>(pub Vec<(I, P)>);

impl<T: DeserializeOwned + 'static, const LIMIT_BYTES: usize> FromRequest for ValidJson<T, LIMIT_BYTES> {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, mut payload) = (request.clone(), payload.take());
        Box::pin(async move { parse(&body::read(&request, &mut payload, LIMIT_BYTES).await?).map(Self) })
    }
}

impl<I: DeserializeOwned + 'static, P: DeserializeOwned + 'static> FromRequest for PatchItems<I, P> {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let items = <ValidJson<Vec<JsonObject>>>::from_request(request, payload);
        Box::pin(
            async move { items.await?.0.into_iter().enumerate().map(patch_item).collect::<ApiResult<_>>().map(Self) },
        )
    }
}

fn patch_item<I: DeserializeOwned, P: DeserializeOwned>((index, mut fields): (usize, JsonObject)) -> ApiResult<(I, P)> {
    let at = |place: Vec<Value>| [vec!["body".into(), index.into()], place].concat();
    let id = fields
        .remove("id")
        .ok_or_else(|| ApiError::invalid_at(at(vec!["id".into()]), "the field is required"))
        .and_then(|id| {
            I::deserialize(id).map_err(|error| ApiError::invalid_at(at(vec!["id".into()]), error.to_string()))
        })?;
    let patch = serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let (place, msg) = describe(&error);
        ApiError::invalid_at(at(place), msg)
    })?;
    Ok((id, patch))
}

/// Reads a body.
fn parse<T: DeserializeOwned>(body: &[u8]) -> ApiResult<T> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::invalid_at(vec!["body".into()], "the body is empty; JSON is wanted"));
    }
    // A raw NUL is no JSON; an escaped one is looked for in the text first, which costs nothing
    // beside the parsing, and made sure of only where it seems to be there.
    if memchr::memmem::find(body, b"\\u0000").is_some()
        && let Ok(value) = serde_json::from_slice::<Value>(body)
        && let Some(mut loc) = find_nul(&value)
    {
        loc.push("body".into());
        loc.reverse();
        return Err(ApiError::invalid_at(loc, "the text has a NUL character (U+0000); take it out"));
    }
    if body.trim_ascii_start().starts_with(b"[") && !is_list::<T>() {
        return Err(ApiError::invalid_at(vec!["body".into()], "an object is wanted, not a list"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (place, msg) = describe(&error);
        ApiError::invalid_at([vec!["body".into()], place].concat(), msg)
    })?;
    json.end().map_err(|error| ApiError::invalid_at(vec!["body".into()], error.to_string()))?;
    Ok(value)
}

/// Whether `T` is read from a JSON list. Serde would read a list into a struct, too, field by
/// field, which no client means.
fn is_list<'de, T: Deserialize<'de>>() -> bool {
    matches!(T::deserialize(Probe), Err(Asked { list: true }))
}

/// Reads nothing, but notes what it is asked for first.
struct Probe;

#[derive(Debug)]
struct Asked {
    list: bool,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.list { "a list" } else { "no list" })
    }
}

impl std::error::Error for Asked {}

impl serde::de::Error for Asked {
    fn custom<M: std::fmt::Display>(_: M) -> Self {
        Self { list: false }
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = Asked;

    // Whatever is asked for by name, or may be anything.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
        Err(Asked { list: false })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
        Err(Asked { list: true })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Where and what an error is. Serde names a field that is missing in its sentence only.
fn describe(error: &serde_path_to_error::Error<serde_json::Error>) -> (Vec<Value>, String) {
    let mut place = place(error.path());
    let msg = error.inner().to_string();
    let missing = msg.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match missing {
        Some(field) => {
            place.push(field.into());
            (place, "the field is required".into())
        }
        None => (place, msg),
    }
}

fn place(path: &Path) -> Vec<Value> {
    let parts = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(Value::from(*index)),
        Segment::Map { key } => Some(Value::from(key.as_str())),
        Segment::Enum { variant } => Some(Value::from(variant.as_str())),
        Segment::Unknown => None,
    });
    parts.collect()
}

/// Where a NUL is, from the inside out.
fn find_nul(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::String(text) => text.contains('\0').then(Vec::new),
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let mut loc = find_nul(item)?;
            loc.push(index.into());
            Some(loc)
        }),
        Value::Object(fields) => fields.iter().find_map(|(key, item)| {
            if key.contains('\0') {
                return Some(vec![key.replace('\0', "\u{FFFD}").into()]);
            }
            let mut loc = find_nul(item)?;
            loc.push(key.as_str().into());
            Some(loc)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{
        BatchJobId,
        batch_job::BatchJobPatch,
        problem::FieldError,
        site::{SiteCreate, SitePatch},
    };

    use super::*;

    fn error_of<T: DeserializeOwned + std::fmt::Debug>(body: &[u8]) -> FieldError {
        parse::<T>(body).unwrap_err().problem().errors[0].clone()
    }

    #[test]
    fn an_empty_body_is_no_json() {
        assert!(parse::<SitePatch>(b"").is_err());
        assert!(parse::<SitePatch>(b" \n").is_err());
        assert!(parse::<SitePatch>(b" {}").is_ok());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let error = error_of::<Vec<copal_schemas::batch_job::Partition>>(br#"[{"job_mode": "mpi", "num_nodes": []}]"#);
        assert_eq!(error.loc, [Value::from("body"), 0.into(), "num_nodes".into()]);
        assert!(error.msg.contains("an integer is wanted"), "{}", error.msg);
        let error = error_of::<SiteCreate>(br#"{"path": "/x"}"#);
        assert_eq!(error.loc, ["body", "name"]);
    }

    #[test]
    fn a_list_is_no_object() {
        assert!(parse::<SitePatch>(b" []").is_err());
        assert!(parse::<Vec<i64>>(b" [1]").is_ok());
    }

    #[test]
    fn items_of_a_bulk_update_are_named() {
        let item = |json: Value| {
            let Value::Object(fields) = json else { panic!("not an object") };
            patch_item::<BatchJobId, BatchJobPatch>((7, fields))
        };
        assert_eq!(item(serde_json::json!({"id": "3", "state": "queued"})).unwrap().0, BatchJobId(3));
        for (json, field) in
            [(serde_json::json!({"state": "queued"}), "id"), (serde_json::json!({"id": 1, "state": "x"}), "state")]
        {
            let error = item(json).unwrap_err().problem().errors[0].clone();
            assert_eq!(error.loc, [Value::from("body"), 7.into(), field.into()]);
        }
    }

    #[test]
    fn nul_is_refused_and_an_escaped_backslash_is_not() {
        let error = error_of::<JsonObject>(br#"{"tags": {"a": ["x", "b\u0000"]}}"#);
        assert_eq!(error.loc, [Value::from("body"), "tags".into(), "a".into(), 1.into()]);
        assert!(parse::<Value>(br#"{"a": "\\u0000"}"#).is_ok());
        assert!(parse::<Value>(b"{\"a\": \"\0\"}").is_err());
    }

    #[test]
    fn deep_nesting_and_trailing_text_and_broken_utf8_are_refused() {
        assert!(parse::<Vec<Value>>("[".repeat(200).as_bytes()).is_err());
        assert!(parse::<JsonObject>(b"{} x").is_err());
        assert!(parse::<Value>(b"\"\xff\"").is_err());
    }
}
