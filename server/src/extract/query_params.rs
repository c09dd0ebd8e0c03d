//! The query string: repeated keys, lenient values (contract, sections 1.5 and 1.8 to 1.10).
//!
//! Unknown names are ignored; an empty text leaves its filter unapplied, and a value that can't be read is a 422 with its
//! name. That goes for an empty one that should be an id, a number, a time or a word of a list, too: a script whose
//! variable is not set must not delete all Jobs. Nor does the id 0, which is nobody's: it matches nothing.

use std::{
    fmt::Display,
    future::{Ready, ready},
    str::FromStr,
};

use actix_web::{FromRequest, HttpRequest, dev::Payload};
use copal_schemas::{Timestamp, lenient, page::MAX_PAGE, time};
use serde::de::{DeserializeOwned, value::StrDeserializer};

use crate::error::{ApiError, ApiResult};

/// The decoded query string, in order.
#[derive(Clone, Debug, Default)]
pub struct QueryParams(Vec<(String, String)>);

/// Which rows of a list are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    /// Rows at most, 0 to [`MAX_PAGE`].
    pub limit: i64,
    /// Rows left out before the first.
    pub offset: i64,
}

impl FromRequest for QueryParams {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Self::parse(request.query_string()))
    }
}

impl QueryParams {
    /// Decodes a query string.
    ///
    /// # Errors
    /// 422 for a value with a NUL, which Postgres can't take.
    pub fn parse(query: &str) -> ApiResult<Self> {
        let pairs: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        match pairs.iter().find(|(name, value)| name.contains('\0') || value.contains('\0')) {
            Some((name, _)) => Err(wrong(name, "the text has a NUL character (U+0000); take it out")),
            None => Ok(Self(pairs)),
        }
    }

    /// All values of a name that are not empty.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// The last value of a name, as FastAPI takes it.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// The last value of a name, be it empty.
    fn last(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name, the empty ones too.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name as texts.
    #[must_use]
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.values(name).map(str::to_owned).collect()
    }

    /// One value, read by its `FromStr`.
    ///
    /// # Errors
    /// 422 when it can't be read.
    pub fn parsed<T>(&self, name: &str) -> ApiResult<Option<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.last(name).map(|text| read(name, text)).transpose()
    }

    /// All values of a name, read by their `FromStr`.
    ///
    /// # Errors
    /// 422 when one can't be read.
    pub fn parsed_list<T>(&self, name: &str) -> ApiResult<Vec<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.all(name).map(|text| read(name, text)).collect()
    }

    /// One id.
    ///
    /// # Errors
    /// 422 when it is no integer of 64 bits.
    pub fn id<T: FromStr<Err = std::num::ParseIntError>>(&self, name: &str) -> ApiResult<Option<T>> {
        self.parsed(name)
    }

    /// All ids of a name; 422 when one is no integer of 64 bits.
    ///
    /// # Errors
    /// 422 when one is no integer of 64 bits.
    pub fn ids<T: FromStr<Err = std::num::ParseIntError>>(&self, name: &str) -> ApiResult<Vec<T>> {
        self.parsed_list(name)
    }

    /// One value of an enum, in its spelling on the wire.
    ///
    /// # Errors
    /// 422 when it is no value of the enum.
    pub fn variant<T: DeserializeOwned>(&self, name: &str) -> ApiResult<Option<T>> {
        self.last(name).map(|text| read_variant(name, text)).transpose()
    }

    /// All values of an enum, in their spelling on the wire.
    ///
    /// # Errors
    /// 422 when one is no value of the enum.
    pub fn variants<T: DeserializeOwned>(&self, name: &str) -> ApiResult<Vec<T>> {
        self.all(name).map(|text| read_variant(name, text)).collect()
    }

    /// A boolean in any spelling; absent is `None`.
    ///
    /// # Errors
    /// 422 when it is none.
    pub fn boolean(&self, name: &str) -> ApiResult<Option<bool>> {
        self.last(name)
            .map(|text| {
                lenient::bool_text(text).ok_or_else(|| wrong(name, format!("a boolean is wanted, not {text:?}")))
            })
            .transpose()
    }

    /// A point in time.
    ///
    /// # Errors
    /// 422 when it can't be read.
    pub fn datetime(&self, name: &str) -> ApiResult<Option<Timestamp>> {
        self.last(name)
            .map(|text| {
                time::parse(text).ok_or_else(|| {
                    wrong(name, format!("a time such as 2026-11-30T10:06:02.078662 is wanted, not {text:?}"))
                })
            })
            .transpose()
    }

    /// `KEY:VALUE` items, split at the first colon; items without a colon are dropped.
    #[must_use]
    pub fn pairs(&self, name: &str) -> Vec<(String, String)> {
        self.values(name)
            .filter_map(|item| item.split_once(':'))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// One of the words that `allowed` lists, given back from there.
    ///
    /// # Errors
    /// 422 with the words.
    pub fn one_of<'a>(&self, name: &str, allowed: &[&'a str]) -> ApiResult<Option<&'a str>> {
        match self.last(name) {
            None => Ok(None),
            Some(text) => match allowed.iter().find(|word| **word == text) {
                Some(word) => Ok(Some(word)),
                None => Err(wrong(name, format!("one of {} is wanted, not {text:?}", allowed.join(", ")))),
            },
        }
    }

    /// `limit` and `offset`.
    ///
    /// # Errors
    /// 422 when `limit` is beyond 0 to 100,000 or `offset` is negative.
    pub fn paging(&self) -> ApiResult<Paging> {
        let limit = self.parsed("limit")?.unwrap_or(MAX_PAGE);
        let offset = self.parsed("offset")?.unwrap_or(0);
        if !(0..=MAX_PAGE).contains(&limit) {
            return Err(wrong("limit", format!("0 to {MAX_PAGE} is wanted, not {limit}")));
        }
        if offset < 0 {
            return Err(wrong("offset", format!("0 or more is wanted, not {offset}")));
        }
        Ok(Paging { limit, offset })
    }
}

fn read<T>(name: &str, text: &str) -> ApiResult<T>
where
    T: FromStr,
    T::Err: Display,
{
    text.trim().parse().map_err(|error| wrong(name, format!("{text:?}: {error}")))
}

fn read_variant<T: DeserializeOwned>(name: &str, text: &str) -> ApiResult<T> {
    T::deserialize(StrDeserializer::<serde::de::value::Error>::new(text))
        .map_err(|error| wrong(name, error.to_string()))
}

fn wrong(name: &str, msg: impl Into<String>) -> ApiError {
    ApiError::invalid_at(vec!["query".into(), name.into()], msg)
}

#[cfg(test)]
mod tests {
    use copal_schemas::{JobId, JobState};

    use super::*;

    fn query(text: &str) -> QueryParams {
        QueryParams::parse(text).unwrap()
    }

    #[test]
    fn keys_repeat_and_empty_texts_drop() {
        let query = query("id=1&id=2&site_id=0&name=&unknown=x");
        assert_eq!(query.ids::<JobId>("id").unwrap(), [JobId(1), JobId(2)]);
        assert_eq!(query.id::<JobId>("site_id").unwrap(), Some(JobId(0)));
        assert_eq!(query.text("name"), None);
    }

    #[test]
    fn an_empty_value_of_a_kind_is_wrong() {
        let query = query("id=1&id=&app_id=&state=&state__ne=&time=&flag=&ordering=&limit=");
        assert!(query.ids::<JobId>("id").is_err() && query.id::<JobId>("app_id").is_err());
        assert!(query.variants::<JobState>("state").is_err() && query.variant::<JobState>("state__ne").is_err());
        assert!(query.datetime("time").is_err() && query.boolean("flag").is_err());
        assert!(query.one_of("ordering", &["id"]).is_err() && query.paging().is_err());
    }

    #[test]
    fn pairs_split_at_the_first_colon() {
        let query = query("data=message:OK:+done!&data=nocolon&data=a:");
        assert_eq!(query.pairs("data"), [("message".into(), "OK: done!".into()), ("a".into(), String::new())]);
    }

    #[test]
    fn values_are_read_leniently_or_refused_by_name() {
        let query = query("b=True&t=2026-11-30+10:06:02.078662&s=RUNNING&x=RUN&n=99999999999999999999");
        assert_eq!(query.boolean("b").unwrap(), Some(true));
        assert!(query.datetime("t").unwrap().is_some());
        assert_eq!(query.variants::<JobState>("s").unwrap(), [JobState::Running]);
        let error = query.variants::<JobState>("x").unwrap_err();
        assert_eq!(error.problem().errors[0].loc, ["query", "x"]);
        assert!(query.ids::<JobId>("n").is_err());
        assert!(QueryParams::parse("a=%00").is_err());
    }

    #[test]
    fn pages_are_bounded() {
        assert_eq!(query("").paging().unwrap(), Paging { limit: 100_000, offset: 0 });
        assert_eq!(query("limit=0&offset=7").paging().unwrap(), Paging { limit: 0, offset: 7 });
        for text in ["limit=100001", "limit=-1", "offset=-1", "limit=x"] {
            assert!(query(text).paging().is_err(), "{text}");
        }
    }
}
