//! The rows that a benchmark prints, as Markdown.

use std::fmt;

/// One figure beside its goal.
#[derive(Debug)]
struct Row {
    what: String,
    figure: String,
    goal: String,
    is_met: bool,
    raw: String,
}

/// Figures, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// A ratio that should be at least `goal`.
    pub(crate) fn at_least(&mut self, what: impl Into<String>, ratio: f64, goal: f64, raw: impl Into<String>) {
        self.add(what, format!("{ratio:.2}"), format!("≥ {goal}"), ratio >= goal, raw);
    }

    /// A figure with a unit that should be at most `goal`.
    pub(crate) fn at_most(
        &mut self,
        what: impl Into<String>,
        figure: f64,
        goal: f64,
        unit: &str,
        raw: impl Into<String>,
    ) {
        self.add(what, format!("{figure:.2}{unit}"), format!("≤ {goal}{unit}"), figure <= goal, raw);
    }

    fn add(&mut self, what: impl Into<String>, figure: String, goal: String, is_met: bool, raw: impl Into<String>) {
        let row = Row { what: what.into(), figure, goal, is_met, raw: raw.into() };
        println!("{row}");
        self.rows.push(row);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, figure, goal, is_met, raw } = self;
        let verdict = if *is_met { "met" } else { "missed" };
        write!(f, "| {what} | {figure} | {goal} | {verdict} | {raw} |")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | measured | goal | | raw figures |\n| --- | --- | --- | --- | --- |")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}
