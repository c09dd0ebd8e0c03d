//! Arrays of Jobs: many Jobs from one template, made by one request.

use serde::{Deserialize, Serialize};

use crate::{JobId, StringMap, job::JobCreate, lenient};

/// The most Jobs of one array.
pub const MAX_ARRAY: i64 = 1_000_000;
/// The largest index.
pub const MAX_INDEX: i64 = 4_294_967_295;
/// The widest that `{index:WIDTH}` pads.
const MAX_WIDTH: usize = 20;

/// Body of `POST /job-arrays/`: one Job for each of `first`, `first + step`, … up to `last`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobArrayCreate {
    /// The first index, 0 or more.
    #[serde(default, deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub first: i64,
    /// The last index; it is met only where the steps lead to it.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_i64))]
    pub last: i64,
    /// From one index to the next, 1 or more.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub step: i64,
    /// How many of the array's Jobs may be on their way at once, from the first step to the last; the others wait for
    /// their turn in AWAITING_PARENTS. Left out: any number.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::nullable_int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub max_at_once: Option<i64>,
    /// The array that these Jobs join, which was made before and keeps its own `max_at_once`. Left out: a new one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::nullable_int")]
    pub array_id: Option<i64>,
    /// What each of them is. In its workdir and in the values of its parameters and tags, and in the paths of its
    /// transfers, `{index}` becomes the index and `{index:06}` the same with zeros in front up to six digits.
    pub job: JobCreate,
}

fn one() -> i64 {
    1
}

/// Answer of `POST /job-arrays/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobArray {
    /// By which its Jobs are found: `GET /jobs/?array_id=`.
    pub array_id: i64,
    /// How many Jobs were made.
    pub count: i64,
    /// The Job of the first index. Ids grow with the index, but Jobs that others make at the same time may lie between.
    pub first_job_id: JobId,
    /// The Job of the last index.
    pub last_job_id: JobId,
}

impl JobArrayCreate {
    /// How many Jobs it asks for; 0 where its bounds make no sense.
    #[must_use]
    pub fn count(&self) -> i64 {
        if self.step < 1 || self.last < self.first { 0 } else { self.last.saturating_sub(self.first) / self.step + 1 }
    }

    /// The last index that the steps meet.
    #[must_use]
    pub fn last_met(&self) -> i64 {
        self.first + (self.count() - 1).max(0) * self.step
    }

    /// The Job of one index.
    ///
    /// # Errors
    /// A field, and a sentence that says what is wrong with an `{index…}` in it.
    pub fn job_of(&self, index: i64) -> Result<JobCreate, (&'static str, String)> {
        job_of(&self.job, index)
    }
}

/// The Job that a template makes for one index.
///
/// # Errors
/// A field, and a sentence that says what is wrong with an `{index…}` in it.
pub fn job_of(template: &JobCreate, index: i64) -> Result<JobCreate, (&'static str, String)> {
    let fill = |field, text: &str| IndexText::parse(text).map(|text| text.fill(index)).map_err(|msg| (field, msg));
    let fill_map = |field, map: &StringMap| {
        map.iter().map(|(key, value)| Ok((key.clone(), fill(field, value)?))).collect::<Result<StringMap, _>>()
    };
    let mut job = template.clone();
    job.workdir = fill("workdir", &job.workdir)?;
    job.parameters = fill_map("parameters", &job.parameters)?;
    job.tags = fill_map("tags", &job.tags)?;
    for location in job.transfers.values_mut() {
        location.path = fill("transfers", &location.path)?;
    }
    Ok(job)
}

/// A text with places for an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexText(Vec<Part>);

/// A part of an [`IndexText`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// As it is.
    Text(String),
    /// The index, with zeros in front up to so many digits.
    Index(usize),
}

impl IndexText {
    /// Reads `{index}` and `{index:WIDTH}`. Other braces stay as they are.
    ///
    /// # Errors
    /// A sentence, when what follows `{index:` is no width.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("{index") {
            let (before, tail) = rest.split_at(start);
            plain.push_str(before);
            let inner = &tail["{index".len()..];
            let (width, after) = if let Some(after) = inner.strip_prefix('}') {
                (0, after)
            } else if let Some(spec) = inner.strip_prefix(':') {
                let width = spec.split_once('}').and_then(|(width, after)| Some((width.parse().ok()?, after)));
                width.filter(|(width, _)| *width <= MAX_WIDTH).ok_or_else(|| {
                    format!("{text:?}: the width of an index is a number up to {MAX_WIDTH}, such as {{index:06}}")
                })?
            } else {
                plain.push_str("{index");
                rest = inner;
                continue;
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Index(width));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self(parts))
    }

    /// Its parts in their order; no two texts follow one another.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// Whether there is a place for an index at all.
    #[must_use]
    pub fn has_index(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Index(_)))
    }

    /// The text for one index.
    #[must_use]
    pub fn fill(&self, index: i64) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Index(width) => format!("{index:0width$}"),
        };
        self.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AppId;

    #[test]
    fn the_index_is_filled_in_with_its_width() {
        let fill = |text: &str, index| IndexText::parse(text).map(|text| text.fill(index));
        assert_eq!(fill("seeds/{index:06}/{index}", 42).unwrap(), "seeds/000042/42");
        assert_eq!(fill("{index:2}", 12_345).unwrap(), "12345");
        assert_eq!(fill("{indexes} {x} {", 1).unwrap(), "{indexes} {x} {");
        assert_eq!(fill("", 1).unwrap(), "");
        for wrong in ["{index:a}", "{index:6", "{index:21}", "{index:-1}"] {
            assert!(fill(wrong, 1).is_err(), "{wrong}");
        }
        assert!(!IndexText::parse("{indexes}").unwrap().has_index());
    }

    #[test]
    fn the_template_is_filled_where_it_says() {
        let array: JobArrayCreate = serde_json::from_value(serde_json::json!({
            "last": 9, "step": 4, "job": {"app_id": 1, "workdir": "a/{index:03}", "parameters": {"seed": "{index}"},
            "tags": {"n": "x{index}"}}
        }))
        .unwrap();
        assert_eq!((array.first, array.count(), array.last_met()), (0, 3, 8));
        let job = array.job_of(8).unwrap();
        assert_eq!((job.app_id, job.workdir.as_str()), (AppId(1), "a/008"));
        assert_eq!((&*job.parameters["seed"], &*job.tags["n"]), ("8", "x8"));
        let backwards = JobArrayCreate { first: 5, last: 4, ..array };
        assert_eq!(backwards.count(), 0);
    }
}
