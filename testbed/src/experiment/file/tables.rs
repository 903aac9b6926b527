//! Axes whose values are tables, each of which sets several options at once.

use serde_json::Value;
use toml::Spanned;

use super::super::case::{self, Case};
use super::{Placed, known_key, several, unlike};

/// Whether some cases of this axis have a key: its own, or one of a table.
pub(super) fn sets((name, values): &(String, Vec<Value>), key: &str) -> bool {
    values.iter().any(|value| has(name, value, key))
}

/// Whether all of them have.
pub(super) fn always_sets((name, values): &(String, Vec<Value>), key: &str) -> bool {
    values.iter().all(|value| has(name, value, key))
}

fn has(name: &str, value: &Value, key: &str) -> bool {
    value.as_object().map_or(name == key, |table| table.contains_key(key))
}

pub(super) fn is_of_tables(value: &toml::Value) -> bool {
    value.as_array().is_some_and(|values| values.iter().any(toml::Value::is_table))
}

/// The values of an axis of tables, each of which sets several options at once: one for each combination of what its lists have.
pub(super) fn tables(
    key: &Spanned<String>,
    value: &Spanned<toml::Value>,
    known: impl Iterator<Item = &'static str> + Clone,
    fresh: impl Fn(&str) -> Result<(), Placed>,
) -> Result<Vec<Value>, Placed> {
    let refuse = |problem| (value.span(), problem);
    let expects = |expected| refuse(unlike(key.get_ref(), value.get_ref(), expected));
    if known.clone().any(|name| name == key.get_ref()) {
        return Err(expects(
            "values of this option; tables that set several options make an axis of another name",
        ));
    }
    let mut values = Vec::new();
    for table in value.get_ref().as_array().into_iter().flatten() {
        let toml::Value::Table(table) = table else { return Err(expects("tables only")) };
        let mut options = Vec::new();
        for (option, value) in table {
            known_key(&Spanned::new(key.span(), option.clone()), "matrix", known.clone())?;
            fresh(option)?;
            options.push((option.clone(), several(option, value).map_err(refuse)?));
        }
        let cases = case::product(&Case::default(), &options);
        values.extend(cases.into_iter().map(|case| Value::Object(case.0.into_iter().collect())));
    }
    Ok(values)
}
