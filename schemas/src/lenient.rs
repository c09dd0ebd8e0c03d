//! Lenient reading of JSON values, as pydantic v1 does it and Balsam's clients rely on
//! (contract, section 1.5): numbers become texts where a text is wanted, floats are cut to
//! integers, "yes" is true. Null is an error unless the function says `nullable`.
//!
//! All functions are meant for `#[serde(deserialize_with = "...")]`. Those named `some_*` read an
//! optional field that may be absent but not null (`Option<T>`, with `#[serde(default)]`);
//! `nullable_*` read null as `None`; `patch_*` read a nullable field of an update, where absent
//! (outer `None`) and null (`Some(None)`) mean different things.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use crate::{StringMap, Timestamp};

/// A text, or a number or boolean spelled as Python spells it.
pub fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(true) => Ok("True".into()),
        Value::Bool(false) => Ok("False".into()),
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            Ok(if float == float.trunc() && float.abs() < 1e16 { format!("{float:.1}") } else { format!("{float}") })
        }
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("a string is wanted, not {}", kind_of(other))),
    }
}

/// An integer; a float is cut toward zero, a numeric text is read.
pub fn int_of(value: &Value) -> Result<i64, String> {
    const RANGE: &str = "the integer is beyond 64 bits";
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Ok(int),
            (None, Some(float)) if float.is_finite() && float.abs() < 9.2e18 => Ok(float.trunc() as i64),
            _ => Err(RANGE.into()),
        },
        Value::String(text) => text.trim().parse::<i64>().map_err(|_| format!("an integer is wanted, not {text:?}")),
        Value::Bool(flag) => Ok(i64::from(*flag)),
        other => Err(format!("an integer is wanted, not {}", kind_of(other))),
    }
}

/// A finite float; integers and numeric texts are read.
pub fn float_of(value: &Value) -> Result<f64, String> {
    let float = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse::<f64>().ok(),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        _ => None,
    };
    float.filter(|float| float.is_finite()).ok_or_else(|| format!("a finite number is wanted, not {value}"))
}

/// A boolean in any of pydantic's spellings.
pub fn bool_of(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => match number.as_f64() {
            Some(1.0) => Some(true),
            Some(0.0) => Some(false),
            _ => None,
        },
        Value::String(text) => bool_text(text),
        _ => None,
    }
    .ok_or_else(|| format!("a boolean is wanted, not {value}"))
}

/// The texts that mean true or false, whatever their case.
#[must_use]
pub fn bool_text(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" | "t" | "y" => Some(true),
        "false" | "0" | "off" | "no" | "f" | "n" => Some(false),
        _ => None,
    }
}

/// A point in time: ISO 8601 or a Unix time.
pub fn datetime_of(value: &Value) -> Result<Timestamp, String> {
    match value {
        Value::String(text) => crate::time::parse(text),
        Value::Number(number) => number.as_f64().and_then(crate::time::from_unix),
        _ => None,
    }
    .ok_or_else(|| format!("a time such as 2026-11-30T10:06:02.078662 is wanted, not {value}"))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A required text.
pub fn string<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    text_of(&Value::deserialize(input)?).map_err(D::Error::custom)
}
/// An optional text, not null.
pub fn some_string<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    string(input).map(Some)
}
/// A text or null.
pub fn nullable_string<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    nullable(input, text_of)
}

/// An integer that fits `T`.
pub fn int<'de, D: Deserializer<'de>, T: TryFrom<i64>>(input: D) -> Result<T, D::Error> {
    let int = int_of(&Value::deserialize(input)?).map_err(D::Error::custom)?;
    T::try_from(int).map_err(|_| D::Error::custom(format!("the integer {int} is out of range")))
}
/// An optional integer, not null.
pub fn some_int<'de, D: Deserializer<'de>, T: TryFrom<i64>>(input: D) -> Result<Option<T>, D::Error> {
    int(input).map(Some)
}
/// An integer or null.
pub fn nullable_int<'de, D: Deserializer<'de>, T: TryFrom<i64>>(input: D) -> Result<Option<T>, D::Error> {
    nullable(input, |value| {
        let int = int_of(value)?;
        T::try_from(int).map_err(|_| format!("the integer {int} is out of range"))
    })
}
/// An integer or null in an update.
pub fn patch_int<'de, D: Deserializer<'de>, T: TryFrom<i64>>(input: D) -> Result<Option<Option<T>>, D::Error> {
    nullable_int(input).map(Some)
}

/// A float.
pub fn float<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    float_of(&Value::deserialize(input)?).map_err(D::Error::custom)
}
/// An optional float, not null.
pub fn some_float<'de, D: Deserializer<'de>>(input: D) -> Result<Option<f64>, D::Error> {
    float(input).map(Some)
}
/// A float or null.
pub fn nullable_float<'de, D: Deserializer<'de>>(input: D) -> Result<Option<f64>, D::Error> {
    nullable(input, float_of)
}

/// A boolean.
pub fn boolean<'de, D: Deserializer<'de>>(input: D) -> Result<bool, D::Error> {
    bool_of(&Value::deserialize(input)?).map_err(D::Error::custom)
}
/// An optional boolean, not null.
pub fn some_boolean<'de, D: Deserializer<'de>>(input: D) -> Result<Option<bool>, D::Error> {
    boolean(input).map(Some)
}

/// A point in time.
pub fn datetime<'de, D: Deserializer<'de>>(input: D) -> Result<Timestamp, D::Error> {
    datetime_of(&Value::deserialize(input)?).map_err(D::Error::custom)
}
/// A point in time or null.
pub fn nullable_datetime<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Timestamp>, D::Error> {
    nullable(input, datetime_of)
}
/// A point in time or null in an update.
pub fn patch_datetime<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<Timestamp>>, D::Error> {
    nullable_datetime(input).map(Some)
}

/// Texts.
pub fn string_list<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    Vec::<Value>::deserialize(input)?.iter().map(text_of).collect::<Result<_, _>>().map_err(D::Error::custom)
}
/// Optional texts, not null.
pub fn some_string_list<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    string_list(input).map(Some)
}

/// Names to texts.
pub fn string_map<'de, D: Deserializer<'de>>(input: D) -> Result<StringMap, D::Error> {
    BTreeMap::<String, Value>::deserialize(input)?
        .into_iter()
        .map(|(key, value)| match text_of(&value) {
            Ok(text) => Ok((key, text)),
            Err(error) => Err(D::Error::custom(format!("{key}: {error}"))),
        })
        .collect()
}
/// Optional names to texts, not null.
pub fn some_string_map<'de, D: Deserializer<'de>>(input: D) -> Result<Option<StringMap>, D::Error> {
    string_map(input).map(Some)
}

/// An optional value of any type that may be absent but not null.
pub fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}
/// A nullable value of an update.
pub fn patch<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(input).map(Some)
}

fn nullable<'de, D: Deserializer<'de>, T>(
    input: D,
    read: impl Fn(&Value) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    match Value::deserialize(input)? {
        Value::Null => Ok(None),
        value => read(&value).map(Some).map_err(D::Error::custom),
    }
}

/// A POSIX path with `.` and doubled slashes taken out, as the contract stores paths.
#[must_use]
pub fn normal_path(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    match (root, parts.is_empty()) {
        ("", true) => ".".into(),
        _ => format!("{root}{}", parts.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_spelled_as_python_spells_them() {
        for (value, text) in [
            (json!(1), "1"),
            (json!(1.0), "1.0"),
            (json!(2.0), "2.0"),
            (json!(2.5), "2.5"),
            (json!(true), "True"),
            (json!("x"), "x"),
        ] {
            assert_eq!(text_of(&value).unwrap(), text);
        }
        for value in [json!(null), json!([]), json!({})] {
            assert!(text_of(&value).is_err());
        }
    }

    #[test]
    fn integers_are_cut_and_read() {
        assert_eq!(int_of(&json!(59.97)), Ok(59));
        assert_eq!(int_of(&json!(-59.97)), Ok(-59));
        assert_eq!(int_of(&json!("12")), Ok(12));
        for value in [json!("12.5"), json!(1e30), json!(null), json!("")] {
            assert!(int_of(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn booleans_have_many_spellings() {
        for yes in [json!(true), json!(1), json!("True"), json!("yes"), json!("ON")] {
            assert_eq!(bool_of(&yes), Ok(true));
        }
        assert_eq!(bool_of(&json!("n")), Ok(false));
        assert!(bool_of(&json!("maybe")).is_err());
        assert!(bool_of(&json!(2)).is_err());
    }

    #[test]
    fn paths_lose_redundant_parts() {
        assert_eq!(normal_path("a/./b//c/"), "a/b/c");
        assert_eq!(normal_path("//x/"), "/x");
        assert_eq!(normal_path("./"), ".");
    }
}
