//! The one error body of the service: RFC 9457 problem details, with a code that clients match on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The media type of a [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $code:literal $status:literal $title:literal,)+) => {
        /// What went wrong, for programs. Clients match on this and never on a text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)+
            /// A code of a newer service.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl ErrorCode {
            /// Every code that this version of the service sends.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The HTTP status that goes with the code.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ Self::Unknown => 500 }
            }
            /// The spelling on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ Self::Unknown => "unknown" }
            }
            /// A short title for people, the same for every occurrence.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ Self::Unknown => "Unknown error" }
            }
        }
    };
}

codes! {
    /// A rule of the domain forbids it: a taken name, an unknown id in a bulk call.
    Conflict "conflict" 400 "The request conflicts with what is stored",
    /// Too many items in one bulk call.
    BulkTooLarge "bulk_too_large" 400 "Too many items in one call",
    /// No token, a bad one, a lapsed one, a wrong password.
    Unauthenticated "unauthenticated" 401 "Not authenticated",
    /// The credential is good but not for this.
    Forbidden "forbidden" 403 "Not allowed",
    /// No such object for this user.
    NotFound "not_found" 404 "Not found",
    /// The path exists with other methods.
    MethodNotAllowed "method_not_allowed" 405 "Method not allowed",
    /// The Idempotency-Key was used for another request.
    IdempotencyMismatch "idempotency_mismatch" 409 "The key belongs to another request",
    /// The Session ended; its Jobs belong to nobody or to another Session.
    SessionEnded "session_ended" 404 "The Session ended",
    /// The body is larger than the service reads.
    BodyTooLarge "body_too_large" 413 "The body is too large",
    /// The body, query or path does not have the shape it must have.
    Invalid "invalid" 422 "Invalid request",
    /// Too many tries.
    RateLimited "rate_limited" 429 "Too many requests",
    /// A fault of the service; its log has the cause.
    Internal "internal" 500 "Internal error",
    /// The database can't be reached now.
    Unavailable "unavailable" 503 "Temporarily unavailable",
}

// Written out, since the derive does not see the spellings that the macro gives.
#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What went wrong, for programs. Clients match on this and never on a text."))
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ErrorCode {}

/// One wrong value in a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// Where: `["body", 0, "num_nodes"]`, starting with body, query or path.
    pub loc: Vec<Value>,
    /// What is wrong with the value and what is wanted.
    pub msg: String,
}

/// An error answer (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// What went wrong, for programs.
    pub code: ErrorCode,
    /// What went wrong, the same text for every occurrence of the code.
    pub title: String,
    /// A sentence about this occurrence, with the remedy.
    pub detail: String,
    /// The wrong values, for `invalid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

impl Problem {
    /// A problem with its code's status and title.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { status: code.status(), code, title: code.title().into(), detail: detail.into(), errors: Vec::new() }
    }
}
