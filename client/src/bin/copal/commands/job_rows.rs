//! `copal job create --from`: what the columns of a table mean for Jobs.

use std::collections::HashMap;

use copal_schemas::{app::App, job::JobCreate, job_array};
use serde_json::{Map, Value};

use super::plan::{check_parameters, well_formed};
use crate::{
    ids::IdList,
    rows::{BadRow, Row},
    suggest,
};

/// Columns that are fields of a Job as they are.
const FIELDS: &[&str] = &[
    "workdir",
    "num_nodes",
    "ranks_per_node",
    "threads_per_rank",
    "threads_per_core",
    "gpus_per_rank",
    "node_packing_count",
    "mem_mb",
    "wall_time_min",
    "walltime_limit_min",
    "max_restarts",
    "priority",
    "account",
    "checkpoint",
    "dependencies",
    "transfers",
];
/// Columns that hold pairs, or one value of them after a dot, with their other spelling.
const MAPS: &[(&str, &str)] =
    &[("tags", "tag"), ("parameters", "param"), ("launch_params", "launch_param"), ("data", "data")];

/// A Job of a row, and the row's line.
pub(super) struct RowJob {
    pub(super) line: usize,
    pub(super) job: JobCreate,
}

/// Makes Jobs of rows: what a row leaves out is as in the template, whose App is `default_app`.
pub(super) struct Reader<'a> {
    pub(super) apps: &'a [App],
    pub(super) default_app: Option<&'a App>,
    pub(super) template: &'a JobCreate,
    /// Whether the template has a folder.
    pub(super) has_workdir: bool,
}

impl Reader<'_> {
    /// All rows, the good ones and the bad ones.
    pub(super) fn read(&self, rows: impl IntoIterator<Item = Result<Row, BadRow>>) -> (Vec<RowJob>, Vec<BadRow>) {
        let (mut jobs, mut bad) = (Vec::new(), Vec::new());
        let mut folders: HashMap<String, usize> = HashMap::new();
        for (index, row) in rows.into_iter().enumerate() {
            let made = row.and_then(|row| {
                let line = row.line;
                let job = self.job(row, index as i64 + 1).map_err(|message| BadRow { line, message })?;
                match folders.insert(job.workdir.clone(), line) {
                    None => Ok(RowJob { line, job }),
                    Some(first) => {
                        let message = format!("the folder {:?} is also that of line {first}", job.workdir);
                        Err(BadRow { line, message })
                    }
                }
            });
            match made {
                Ok(job) => jobs.push(job),
                Err(row) => bad.push(row),
            }
        }
        (jobs, bad)
    }

    fn job(&self, mut row: Row, number: i64) -> Result<JobCreate, String> {
        let app = self.app(&mut row)?;
        let mut template = job_array::job_of(self.template, number).map_err(|(_, message)| message)?;
        template.app_id = app.id;
        let Ok(Value::Object(mut fields)) = serde_json::to_value(&template) else {
            return Err("the options make no Job".into());
        };
        let mut given = Map::new();
        for (name, value) in row.fields {
            place(&mut fields, &mut given, app, &name, value)?;
        }
        if !self.has_workdir && !given.contains_key("workdir") {
            return Err("it names no workdir, and neither does -w".into());
        }
        let job: JobCreate = serde_json::from_value(Value::Object(fields))
            .map_err(|error| wrong_field(&given).unwrap_or_else(|| error.to_string()))?;
        let job = well_formed(job)?;
        check_parameters(app, &job.parameters)?;
        Ok(job)
    }

    fn app(&self, row: &mut Row) -> Result<&App, String> {
        let Some(name) = row.fields.remove("app") else {
            return self.default_app.ok_or_else(|| "it names no app, and neither does -a".into());
        };
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        let mut meant = self.apps.iter().filter(|app| app.name == name || app.id.to_string() == name);
        match (meant.next(), meant.next()) {
            (Some(app), None) => Ok(app),
            (Some(_), Some(_)) => Err(format!("several Sites have an App {name}; name one with --site")),
            (None, _) => {
                let names: Vec<&str> = self.apps.iter().map(|app| app.name.as_str()).collect();
                Err(format!("no App {name:?}; {}", suggest::choice(&name, &names, "there is none")))
            }
        }
    }
}

/// Puts one column where it belongs, and notes it by its name on the wire.
fn place(
    fields: &mut Map<String, Value>,
    given: &mut Map<String, Value>,
    app: &App,
    name: &str,
    value: Value,
) -> Result<(), String> {
    if FIELDS.contains(&name) {
        given.insert(name.into(), value.clone());
        fields.insert(name.into(), value);
        return Ok(());
    }
    if name == "parent_ids" || name == "parents" {
        let ids = parents(&value).map_err(|message| format!("{name}: {message}"))?;
        fields.insert("parent_ids".into(), ids);
        return Ok(());
    }
    let (head, rest) = name.split_once('.').map_or((name, None), |(head, rest)| (head, Some(rest)));
    if let Some((map, _)) = MAPS.iter().find(|(long, short)| *long == head || *short == head) {
        let pairs = match (rest, value) {
            (Some(key), value) => Map::from_iter([(key.to_owned(), value)]),
            (None, Value::Object(pairs)) => pairs,
            (None, Value::String(text)) => pairs_of(&text).map_err(|message| format!("{name}: {message}"))?,
            (None, other) => return Err(format!("{name}: {other} has no names and values")),
        };
        return insert_all(fields, map, pairs);
    }
    if app.parameters.contains_key(name) {
        return insert_all(fields, "parameters", Map::from_iter([(name.to_owned(), value)]));
    }
    let known: Vec<&str> = FIELDS.iter().copied().chain(app.parameters.keys().map(String::as_str)).collect();
    let near = suggest::nearest(name, known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    Err(format!("the column {name:?} is no field of a Job and no parameter of {}{near}", app.name))
}

fn insert_all(fields: &mut Map<String, Value>, map: &str, pairs: Map<String, Value>) -> Result<(), String> {
    let entry = fields.entry(map).or_insert_with(|| Value::Object(Map::new()));
    match entry {
        Value::Object(object) => object.extend(pairs),
        _ => return Err(format!("{map} has no names and values")),
    }
    Ok(())
}

/// `k=v k2='two words'`
fn pairs_of(text: &str) -> Result<Map<String, Value>, String> {
    let words = shlex::split(text).ok_or_else(|| format!("{text:?} has an open quote"))?;
    let pair = |word: &String| {
        word.split_once('=')
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .ok_or_else(|| format!("{word:?} is not NAME=VALUE"))
    };
    words.iter().map(pair).collect()
}

/// Ids as a JSON list, a number, or a text such as `3,5-7`.
fn parents(value: &Value) -> Result<Value, String> {
    match value {
        Value::Array(_) => Ok(value.clone()),
        Value::Number(id) => Ok(Value::from(vec![Value::from(id.clone())])),
        Value::String(text) => Ok(text.replace([' ', ';'], ",").parse::<IdList>()?.ids().collect::<Vec<i64>>().into()),
        other => Err(format!("{other} is no list of ids")),
    }
}

/// The first of the fields that by itself makes no Job, with what is wrong with it.
fn wrong_field(given: &Map<String, Value>) -> Option<String> {
    given.iter().find_map(|(name, value)| {
        let mut job = Map::from_iter([("workdir".to_owned(), Value::from("x")), ("app_id".to_owned(), Value::from(1))]);
        job.insert(name.clone(), value.clone());
        let error = serde_json::from_value::<JobCreate>(Value::Object(job)).err()?;
        Some(format!("{name}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use copal_schemas::{AppId, JobId, SiteId, app::AppHooks};

    use super::*;

    fn sim() -> App {
        let yaml = "name: Sim\ncommand: 'sim {{seed}} {{mode}}'\n\
                    parameters: {seed: {required: true}, mode: {default: fast, choices: [fast, slow]}}\n";
        let index =
            copal_client::app_file::App::new(serde_saphyr::from_str(yaml).unwrap()).unwrap().to_index(SiteId(1));
        App {
            site_id: SiteId(1),
            name: index.name,
            serialized_class: String::new(),
            source_code: String::new(),
            description: String::new(),
            parameters: index.parameters,
            transfers: index.transfers,
            id: AppId(7),
            command: index.command,
            hooks: AppHooks::default(),
            max_restarts: None,
            gone: false,
            remote: None,
            refusal: None,
        }
    }

    fn read(workdir: &str, rows: &[&str]) -> (Vec<RowJob>, Vec<BadRow>) {
        let apps = [sim()];
        let template = JobCreate::new(AppId(7), workdir);
        let reader =
            Reader { apps: &apps, default_app: Some(&apps[0]), template: &template, has_workdir: !workdir.is_empty() };
        let rows = rows
            .iter()
            .enumerate()
            .map(|(index, text)| Ok(Row { line: index + 2, fields: serde_json::from_str(text).unwrap() }));
        reader.read(rows.collect::<Vec<_>>())
    }

    #[test]
    fn columns_become_fields_parameters_and_tags() {
        let (jobs, bad) = read(
            "runs/{index:03}",
            &[
                r#"{"seed": "1", "num_nodes": "2", "tags.system": "H2O", "parent_ids": "3,5-6", "data.note": "x"}"#,
                r#"{"app": "Sim", "workdir": "b", "param.seed": 2, "tags": "a=1 b='two words'", "gpus_per_rank": 0.5}"#,
            ],
        );
        assert_eq!(bad, []);
        let (first, second) = (&jobs[0].job, &jobs[1].job);
        assert_eq!((first.workdir.as_str(), first.num_nodes), ("runs/001", 2));
        assert_eq!(first.parameters["seed"], "1");
        assert_eq!(first.tags["system"], "H2O");
        assert_eq!(first.parent_ids, [JobId(3), JobId(5), JobId(6)]);
        assert_eq!(first.data["note"], "x");
        assert_eq!((second.workdir.as_str(), second.parameters["seed"].as_str()), ("b", "2"));
        assert_eq!(second.tags["b"], "two words");
    }

    #[test]
    fn every_bad_row_says_what_is_wrong_with_it() {
        let (jobs, bad) = read(
            "",
            &[
                r#"{"workdir": "a", "seed": 1}"#,
                r#"{"seed": 1}"#,
                r#"{"workdir": "b"}"#,
                r#"{"workdir": "c", "seed": 1, "num_nodes": "two"}"#,
                r#"{"workdir": "d", "seed": 1, "num_node": 2}"#,
                r#"{"workdir": "a", "seed": 1}"#,
                r#"{"workdir": "/e", "seed": 1}"#,
                r#"{"workdir": "f", "seed": 1, "mode": "wild"}"#,
                r#"{"workdir": "g", "seed": 1, "app": "Sin"}"#,
                r#"{"workdir": "h", "seed": 1, "num_nodes": 0}"#,
                r#"{"workdir": "i", "seed": 1, "parents": "x"}"#,
            ],
        );
        assert_eq!(jobs.len(), 1);
        let text: Vec<String> = bad.iter().map(|row| format!("line {}: {}", row.line, row.message)).collect();
        insta::assert_snapshot!(text.join("\n"));
    }
}
