//! Axes whose values are tables, each of which sets several options at once.

use toml::Spanned;

use super::super::case::{self, AxisValues, Case};
use super::{Placed, known_key, several, unlike};

pub(super) fn is_of_tables(value: &toml::Value) -> bool {
    value.as_array().is_some_and(|values| values.iter().any(toml::Value::is_table))
}

/// The values of an axis of tables, each of which sets several options at once: one for each combination of what its lists have.
pub(super) fn tables(
    key: &Spanned<String>,
    value: &Spanned<toml::Value>,
    known: impl Iterator<Item = &'static str> + Clone,
    fresh: impl Fn(&str) -> Result<(), Placed>,
) -> Result<AxisValues, Placed> {
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
            options.push(case::axis(option, several(option, value).map_err(refuse)?));
        }
        values.extend(case::product(&Case::default(), &options).into_iter().map(|case| case.0));
    }
    Ok(values)
}
