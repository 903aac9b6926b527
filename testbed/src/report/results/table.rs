//! A table of a page: what its rows and columns are, and their numbers.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_statistics::{Spread, median};
use gleaner_units::fixed;
use serde::Deserialize;
use serde_json::Value;

use super::stored::{Row, Stored};
use crate::experiment::plain;

/// Values that a case has to have: of each key one, or one of a list. What a case does not say is false.
type Pattern = BTreeMap<String, Value>;

fn fits(pattern: &Pattern, case: &BTreeMap<String, Value>) -> bool {
    pattern.iter().all(|(key, wanted)| {
        // As they are written: a text that a column's `each` gave may stand for a number.
        let value = plain(case.get(key).unwrap_or(&Value::Bool(false)));
        let is = |one: &Value| plain(one) == value;
        match wanted {
            Value::Array(several) => several.iter().any(is),
            one => is(one),
        }
    })
}

/// In place of an axis: everything else in which the cases of a table differ, but for seeds and what its columns choose.
const OTHERS: &str = "*";

/// A table, as the comment above it says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The experiment, by the name of its file.
    pub experiment: String,
    /// Which of its cases; all, if nothing is said.
    #[serde(default)]
    cases: Pattern,
    /// The axes whose values are the rows; [`OTHERS`] is one cell with all others.
    rows: Vec<String>,
    /// Other words for axes and their values.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// The head of the column by whose numbers rows are sorted, the smallest first.
    sort: Option<String>,
    columns: Vec<Column>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Column {
    head: String,
    /// What it shows of a measurement: a [`Product`].
    value: String,
    /// Which measurements, besides those of the row.
    #[serde(default)]
    cases: Pattern,
    /// A column for each of these, which stand for `{}` in the head, the value and the cases.
    #[serde(default)]
    each: Vec<Value>,
    /// Divided by this of the measurement of the same turn whose case differs in this, or has less.
    over: Option<BTreeMap<String, Value>>,
    /// What of that measurement; the same `value`, if nothing is said.
    over_value: Option<String>,
    #[serde(default)]
    show: Show,
    /// Digits behind the point.
    #[serde(default)]
    digits: usize,
    /// What follows each number.
    #[serde(default)]
    unit: String,
}

/// What is shown of several turns and seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Show {
    #[default]
    Median,
    Mean,
    Least,
    Most,
    /// The median, with the least and the largest.
    Range,
    /// The mean, and half of the largest less the smallest where there are several.
    Spread,
}

/// A product of numbers and of what a measurement has under names, as in `1e3 * seconds` or `dense_bytes_per_step / bytes_per_step`: the
/// factors, and which of them divide.
struct Product<'a>(Vec<(bool, &'a str)>);

impl<'a> Product<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        let mut divides = false;
        let factors = text.split_inclusive(['*', '/']).map(|part| {
            let factor = (divides, part.trim_end_matches(['*', '/']).trim());
            divides = part.ends_with('/');
            factor
        });
        let product = Self(factors.collect());
        let is_word = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_@.-".contains(c));
        match product.0.iter().all(|(_, word)| !word.is_empty() && is_word(word))
            && !text.ends_with(['*', '/'])
        {
            true => Ok(product),
            false => {
                Err(format!("'{text}' cannot be read; expected names and numbers with * and / between them"))
            }
        }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let words = self.0.iter().map(|(_, word)| *word);
        words.filter(|word| !word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
    }

    /// Its value; none where a measurement has no such number, or it is infinite.
    fn value(&self, row: &Row) -> Option<f64> {
        let value = self.0.iter().try_fold(1.0, |value, (divides, word)| {
            let factor = row.values.get(*word).copied().or_else(|| word.parse().ok())?;
            Some(if *divides { value / factor } else { value * factor })
        });
        value.filter(|value: &f64| value.is_finite())
    }
}

/// What a column shows, read.
struct Read<'a> {
    column: &'a Column,
    value: Product<'a>,
    over: Product<'a>,
}

impl Column {
    fn read(&self) -> Result<Read<'_>, String> {
        let product =
            |text| Product::read(text).map_err(|reason| format!("column '{}': {reason}", self.head));
        let over = self.over_value.as_ref().unwrap_or(&self.value);
        Ok(Read { column: self, value: product(&self.value)?, over: product(over)? })
    }

    /// A column for each value of `each`.
    fn all(&self) -> Vec<Column> {
        let with = |value: &Value| {
            let text = |text: &str| text.replace("{}", &plain(value));
            let mut column = Column { head: text(&self.head), value: text(&self.value), ..self.clone() };
            for one in column.cases.values_mut() {
                if let Value::String(pattern) = one {
                    *pattern = text(pattern);
                }
            }
            column
        };
        if self.each.is_empty() { vec![self.clone()] } else { self.each.iter().map(with).collect() }
    }
}

impl Table {
    /// The names of all numbers that it shows.
    pub fn numbers(&self) -> Result<BTreeSet<String>, String> {
        let mut names = BTreeSet::new();
        for column in self.columns.iter().flat_map(Column::all) {
            let read = column.read()?;
            names.extend(read.value.names().chain(read.over.names()));
        }
        Ok(names)
    }

    /// The table in Markdown.
    pub fn markdown(&self, stored: &Stored) -> Result<String, String> {
        let columns: Vec<Column> = self.columns.iter().flat_map(Column::all).collect();
        let columns = columns.iter().map(Column::read).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<&Row> = stored.rows.iter().filter(|row| fits(&self.cases, &row.case)).collect();
        let others = self.others(&rows);
        let mut lines: Vec<(Vec<String>, Vec<Cell>)> = Vec::new();
        for row in &rows {
            let label = self.label(&row.case, &others);
            if lines.iter().all(|(known, _)| *known != label) {
                let of_line: Vec<&Row> =
                    rows.iter().copied().filter(|other| self.label(&other.case, &others) == label).collect();
                lines.push((label, columns.iter().map(|column| column.cell(&of_line, stored)).collect()));
            }
        }
        lines.retain(|(_, cells)| cells.iter().any(|(text, _)| !text.is_empty()));
        for (i, read) in columns.iter().enumerate() {
            if lines.iter().all(|(_, cells)| cells[i].0.is_empty()) {
                return Err(format!(
                    "column '{}' has no number: expected measurements of {} that fit its cases and have what '{}' names; where a number is new, \
                     store the measurements again with --from",
                    read.column.head, self.experiment, read.column.value
                ));
            }
        }
        let heads: Vec<&str> = columns.iter().map(|read| &*read.column.head).collect();
        if let Some(sort) = &self.sort {
            let by = heads.iter().position(|head| head == sort);
            let by = by.ok_or_else(|| format!("'sort' is {sort}; expected one of {}", heads.join(", ")))?;
            lines.sort_by(|(_, a), (_, b)| a[by].1.total_cmp(&b[by].1));
        }
        let axes =
            self.rows.iter().map(|axis| if axis == OTHERS { "options".into() } else { self.named(axis) });
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(axes.chain(heads.iter().map(|head| (*head).to_owned())).collect());
        text += &format!("|{}\n", "---|".repeat(self.rows.len() + heads.len()));
        for (label, cells) in lines {
            text += &line(label.into_iter().chain(cells.into_iter().map(|(text, _)| text)).collect());
        }
        Ok(text)
    }

    /// The keys in the cell of [`OTHERS`], of these measurements.
    fn others(&self, rows: &[&Row]) -> BTreeSet<String> {
        let chosen = |key: &str| {
            let by = |column: &Column| {
                column.cases.contains_key(key)
                    || column.over.as_ref().is_some_and(|over| over.contains_key(key))
            };
            key == "seed" || self.rows.iter().any(|axis| axis == key) || self.columns.iter().any(by)
        };
        let differs = |key: &str| rows.iter().any(|row| row.case.get(key) != rows[0].case.get(key));
        let keys: BTreeSet<&String> = rows.iter().flat_map(|row| row.case.keys()).collect();
        keys.into_iter().filter(|key| !chosen(key) && differs(key)).cloned().collect()
    }

    fn label(&self, case: &BTreeMap<String, Value>, others: &BTreeSet<String>) -> Vec<String> {
        let value = |axis: &str| case.get(axis).map(|value| self.named(&plain(value)));
        let other = |key: &String| match value(key)?.as_str() {
            "true" => Some(self.named(key)),
            value => Some(format!("{} {value}", self.named(key))),
        };
        let all = || others.iter().filter_map(other).collect::<Vec<_>>().join(", ");
        let cell = |axis: &String| if axis == OTHERS { all() } else { value(axis).unwrap_or_default() };
        self.rows.iter().map(cell).collect()
    }

    fn named(&self, word: &str) -> String {
        self.names.get(word).map_or(word, |name| name).to_owned()
    }
}

/// What it shows, and the number that rows are sorted by.
type Cell = (String, f64);

impl Read<'_> {
    fn cell(&self, rows: &[&Row], stored: &Stored) -> Cell {
        let of_cell: Vec<&Row> =
            rows.iter().copied().filter(|row| fits(&self.column.cases, &row.case)).collect();
        let failed = of_cell.iter().filter(|row| row.values.is_empty()).count();
        let values: Vec<f64> = of_cell.iter().filter_map(|row| self.number(row, stored)).collect();
        let Some(Spread { value: mean, low, high }) = Spread::mean(&values).filter(|_| failed == 0) else {
            let text =
                if failed > 0 { format!("{failed} of {} failed", of_cell.len()) } else { String::new() };
            return (text, f64::INFINITY);
        };
        let several = values.len() > 1;
        let median = median(values);
        let Column { digits, unit, .. } = self.column;
        let write = |number| fixed(number, *digits);
        let (number, text) = match self.column.show {
            Show::Median => (median, write(median)),
            Show::Least => (low, write(low)),
            Show::Most => (high, write(high)),
            Show::Range => (median, format!("{} ({} to {})", write(median), write(low), write(high))),
            Show::Spread if several => (mean, format!("{} ± {}", write(mean), write((high - low) / 2.0))),
            Show::Mean | Show::Spread => (mean, write(mean)),
        };
        (text + unit, number)
    }

    fn number(&self, row: &Row, stored: &Stored) -> Option<f64> {
        let value = self.value.value(row)?;
        let Some(differs) = &self.column.over else { return Some(value) };
        let mut case = row.case.clone();
        case.extend(differs.clone());
        let of_turn = || stored.rows.iter().filter(|other| other.turn == row.turn);
        // A dense method has no density.
        let has_less = |other: &Row| other.case.iter().all(|(key, value)| case.get(key) == Some(value));
        let other =
            of_turn().find(|other| other.case == case).or_else(|| of_turn().find(|other| has_less(other)))?;
        Some(value / self.over.value(other)?)
    }
}
