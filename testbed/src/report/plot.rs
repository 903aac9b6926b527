//! Figures as SVG.

use gleaner_charts::{Axis, DrawError, Fill, Key, Line, Lines, Look, Marker, Page, Row, Rows};
use gleaner_units::written;

use super::exchange::ON_THE_INTERFACE;
use super::figure::{Figure, Panel, Point, Series, Shape, Unit, suited};

/// The width of every picture, in pixels: two of them stand side by side on a screen, one on a telephone.
const WIDTH: i32 = 480;

/// How high the axes of lines are with what is around them, and how high a row is.
const HIGH: i32 = 330;
const ROW: i32 = 26;

/// More lines than this stand in several pictures.
const MOST_LINES: usize = 8;

/// In one picture of bars of parts, the longest is at most so many times the shortest.
const LONGER: f64 = 8.0;

/// Letters of a method's name that are drawn beside a row, and in a legend; the table has all of them.
const LETTERS: usize = 26;
const LETTERS_OF_LEGEND: usize = 60;

/// The parts of a step.
const PARTS: [Fill; 4] = [Fill::SELECT, Fill::EXCHANGE, Fill::MERGE, Fill::REST];

/// The pictures of a panel: one, or several where it has more lines than can be distinguished, or bars of very different lengths. Each has
/// its legend, unless `shares_legend`.
pub fn pictures(
    figure: &Figure,
    panel: &Panel,
    name: &str,
    shares_legend: bool,
) -> Result<Vec<String>, DrawError> {
    let groups = groups(figure, panel);
    let several = groups.len() > 1;
    let mut pictures = Vec::new();
    for (i, series) in groups.into_iter().enumerate() {
        let legend = if shares_legend { Vec::new() } else { keys(figure, &series) };
        let page = Page { width: WIDTH, legend, ..Page::default() };
        let svg = match figure.shape {
            Shape::Lines => {
                let lines = lines(figure, panel, &series);
                page.svg(HIGH, |area| lines.draw(area))?
            }
            Shape::Rows | Shape::Stacks => {
                let rows = rows(figure, &series);
                page.svg(rows.height(), |area| rows.draw(area))?
            }
        };
        let name = if several { format!("{name}-{i}") } else { name.to_owned() };
        pictures.push(described(&svg, &name, figure, panel));
    }
    Ok(pictures)
}

/// The legend of all panels of a figure as a picture by itself, where it has several and they need one.
pub fn legend(figure: &Figure) -> Result<Option<String>, DrawError> {
    let mut series: Vec<&Series> = figure.panels.iter().flat_map(|panel| &panel.series).collect();
    series.sort_by(|a, b| a.label.cmp(&b.label));
    series.dedup_by(|a, b| a.label == b.label);
    let legend = keys(figure, &series);
    if figure.panels.len() < 2 || legend.is_empty() {
        return Ok(None);
    }
    let svg = Page { width: WIDTH, legend, ..Page::default() }.svg(1, |_| Ok(()))?;
    Ok(Some(svg.replacen("<svg", "<svg role=\"img\" aria-label=\"Legend\"", 1)))
}

/// All pictures of these figures with their names, each of which is the figure's, followed by numbers where it has several.
pub fn gallery(figures: &[Figure]) -> Result<Vec<(String, String)>, DrawError> {
    let mut gallery = Vec::new();
    for figure in figures {
        let mut svgs = Vec::new();
        for (i, panel) in figure.panels.iter().enumerate() {
            svgs.extend(pictures(figure, panel, &format!("{}-{i}", figure.id), false)?);
        }
        let several = svgs.len() > 1;
        let name = |i| if several { format!("{}-{}", figure.id, i + 1) } else { figure.id.to_owned() };
        gallery.extend(svgs.into_iter().enumerate().map(|(i, svg)| (name(i), svg)));
    }
    Ok(gallery)
}

/// The series of each picture, the smallest first.
fn groups<'a>(figure: &Figure, panel: &'a Panel) -> Vec<Vec<&'a Series>> {
    let mut series: Vec<&Series> = panel.series.iter().collect();
    series.sort_by(|a, b| key(figure, a).total_cmp(&key(figure, b)));
    match figure.shape {
        Shape::Rows => vec![series],
        // As even as can be: nine lines are five and four, not eight and one.
        Shape::Lines => {
            let pictures = series.len().div_ceil(MOST_LINES).max(1);
            series.chunks(series.len().div_ceil(pictures).max(1)).map(<[_]>::to_vec).collect()
        }
        // Bars begin at zero, so where some are many times as long as others, these have an axis of their own.
        Shape::Stacks => {
            let mut groups: Vec<Vec<&Series>> = Vec::new();
            for series in series {
                match groups.last_mut() {
                    Some(group) if key(figure, series) <= LONGER * key(figure, group[0]) => {
                        group.push(series)
                    }
                    _ => groups.push(vec![series]),
                }
            }
            groups
        }
    }
}

/// The number that a series is sorted by, and which describes it.
fn key(figure: &Figure, series: &Series) -> f64 {
    let mut values = series.points.iter().map(|point| point.spread.value);
    match figure.shape {
        Shape::Rows => values.next().unwrap_or(0.0),
        Shape::Stacks => values.sum(),
        Shape::Lines => values.next_back().unwrap_or(0.0),
    }
}

/// What has to be explained of these series.
fn keys(figure: &Figure, series: &[&Series]) -> Vec<(Key, String)> {
    let parts = || {
        series
            .iter()
            .max_by_key(|s| s.points.len())
            .into_iter()
            .flat_map(|s| s.points.iter().filter_map(|point| point.part))
    };
    match figure.shape {
        Shape::Lines => series
            .iter()
            .map(|s| (Key::Line(Look::new(s.style)), short(&s.label, LETTERS_OF_LEGEND)))
            .collect(),
        Shape::Stacks => PARTS.map(Key::Fill).into_iter().zip(parts().map(str::to_owned)).collect(),
        Shape::Rows if parts().count() > 1 => {
            parts().map(|part| (Key::Mark(marker(part)), part.into())).collect()
        }
        Shape::Rows => Vec::new(),
    }
}

fn marker(part: &str) -> Marker {
    if part == ON_THE_INTERFACE { Marker::Diamond } else { Marker::Dot }
}

fn lines(figure: &Figure, panel: &Panel, series: &[&Series]) -> Lines {
    let points = || panel.series.iter().flat_map(|s| &s.points);
    let against = figure.against.as_ref();
    let kind = against.map_or(Unit::None, |quantity| quantity.unit);
    let (fx, unit_x) = suited(kind, points().filter_map(|p| p.x).fold(0.0, f64::max));
    let (fy, unit_y) = suited(figure.value.unit, points().map(|p| p.spread.high).fold(0.0, f64::max));
    let places = points().filter_map(|p| p.x).map(|x| x * fx);
    let name = named(against.map_or("", |quantity| &quantity.name), unit_x);
    // Time goes on; other places are those at which something was measured.
    let is_time = kind != Unit::None;
    let x = if is_time { Axis::fit(&name, places, true) } else { Axis::around(&name, places.collect()) };
    let values = points().flat_map(|p| [p.spread.low * fy, p.spread.high * fy]);
    let y = Axis::fit(&named(&figure.value.name, unit_y), values, false);
    let ends = x.ends();
    let line = |s: &&Series| {
        let (points, has_markers) = match s.points.as_slice() {
            // Across the whole picture, for what does not depend on the axis: nothing was measured at its ends.
            [Point { x: None, spread, .. }] => {
                ([ends.0, ends.1].map(|x| (x, spread.times(fy))).to_vec(), false)
            }
            points => (points.iter().filter_map(|p| Some((p.x? * fx, p.spread.times(fy)))).collect(), true),
        };
        Line { look: Look::new(s.style), points, has_band: is_time || !has_markers, has_markers }
    };
    Lines { lines: series.iter().map(line).collect(), x, y, marked: Vec::new() }
}

fn rows(figure: &Figure, series: &[&Series]) -> Rows {
    let is_stacked = figure.shape == Shape::Stacks;
    let spreads = series.iter().flat_map(|s| &s.points).map(|p| p.spread);
    let values: Vec<f64> = match is_stacked {
        true => series.iter().map(|s| key(figure, s)).collect(),
        false => spreads.flat_map(|s| [s.low, s.value, s.high]).collect(),
    };
    let (factor, unit) = suited(figure.value.unit, values.iter().copied().fold(0.0, f64::max));
    let axis = Axis::fit(&named(&figure.value.name, unit), values.iter().map(|v| v * factor), true);
    let row = |s: &&Series| {
        let whole = key(figure, s);
        let mut row =
            Row { name: short(&s.label, LETTERS), value: in_its_unit(figure, whole), ..Row::default() };
        if is_stacked {
            let mut from = 0.0;
            for (point, fill) in s.points.iter().zip(PARTS) {
                let to = from + point.spread.value * factor;
                row.bars.push((from, to, fill));
                from = to;
            }
            return row;
        }
        // A bar's length says something only where it begins at zero.
        if !axis.is_logarithmic() {
            row.bars.push((axis.ends().0, whole * factor, Fill::BEHIND));
        }
        let mark = |p: &Point| (marker(p.part.unwrap_or_default()), p.spread.times(factor));
        row.marks = s.points.iter().map(mark).collect();
        row
    };
    let rows = series.iter().map(row).collect();
    Rows { rows, axis, high: ROW }
}

/// A value where the largest may be in megabytes and this one in kilobytes.
fn in_its_unit(figure: &Figure, value: f64) -> String {
    let (factor, unit) = suited(figure.value.unit, value);
    format!("{} {unit}", written(value * factor, 3)).trim().to_owned()
}

/// A quantity with the unit that it is written in.
pub fn named(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
}

/// Puts a title and a description into a picture, for those who do not see it.
fn described(svg: &str, name: &str, figure: &Figure, panel: &Panel) -> String {
    let setting = super::page::setting(&panel.setting);
    let title =
        if setting.is_empty() { figure.title.to_owned() } else { format!("{}: {setting}", figure.title) };
    let with_points = panel.series.iter().filter(|series| !series.points.is_empty());
    let values = with_points.map(|s| format!("{} {}", s.label, in_its_unit(figure, key(figure, s))));
    let values: Vec<String> = values.collect();
    let which = if figure.shape == Shape::Lines { "at the end of each line" } else { "by method" };
    let description = format!("{} {which}: {}.", figure.value.name, values.join(", "));
    let words = maud::html! {
        title id={ (name) "-title" } { (title) }
        desc id={ (name) "-desc" } { (description) }
    };
    let tag = format!("<svg role=\"img\" aria-labelledby=\"{name}-title {name}-desc\"");
    let svg = svg.replacen("<svg", &tag, 1);
    svg.replacen('>', &format!(">\n{}", words.into_string()), 1)
}

/// A method's name as long as there is room for it.
fn short(label: &str, most: usize) -> String {
    if label.chars().count() <= most {
        return label.to_owned();
    }
    label.chars().take(most - 1).chain(['…']).collect()
}
