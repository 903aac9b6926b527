//! Figures as SVG, by plotters.

mod lines;
pub mod marks;
mod rows;
pub mod scale;

use plotters::element::PathElement;
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::style::Color;

use super::figure::{Figure, Panel, Series, Shape};
use gleaner_charts::{Area, DrawError, GREY};
use scale::{suited, written};

/// The width of every picture, in pixels: two of them stand side by side on a screen, one on a telephone.
const WIDTH: i32 = 480;

/// The size of words, as the library counts; about 13 pixels in SVG.
const TEXT: i32 = 16;

/// More lines than this stand in several pictures.
const MOST_LINES: usize = 8;

/// Letters of a method's name that are drawn; the table has all of them.
const LETTERS: usize = 26;

/// The pictures of a panel: one, or several where it has more lines than can be distinguished.
///
/// # Errors
/// What the plotting library refuses.
pub fn pictures(figure: &Figure, panel: &Panel, name: &str) -> Result<Vec<String>, DrawError> {
    let drawn = match figure.shape {
        Shape::Rows => vec![rows::marks(figure, panel)?],
        Shape::Stacks => rows::stacks(figure, panel)?,
        Shape::Lines => lines::charts(figure, panel)?,
    };
    let several = drawn.len() > 1;
    let dress = |(i, svg): (usize, String)| {
        let name = if several { format!("{name}-{i}") } else { name.to_owned() };
        described(&svg, &name, figure, panel)
    };
    Ok(drawn.into_iter().enumerate().map(dress).collect())
}

/// All pictures of these figures with their names, each of which is the figure's, followed by numbers where it has several.
///
/// # Errors
/// What the plotting library refuses.
pub fn gallery(figures: &[Figure]) -> Result<Vec<(String, String)>, DrawError> {
    let mut gallery = Vec::new();
    for figure in figures {
        let mut svgs = Vec::new();
        for (i, panel) in figure.panels.iter().enumerate() {
            svgs.extend(pictures(figure, panel, &format!("{}-{i}", figure.id))?);
        }
        let several = svgs.len() > 1;
        let name = |i| if several { format!("{}-{}", figure.id, i + 1) } else { figure.id.to_owned() };
        gallery.extend(svgs.into_iter().enumerate().map(|(i, svg)| (name(i), svg)));
    }
    Ok(gallery)
}

/// Draws on a new picture of this height.
fn draw(height: i32, paint: impl FnOnce(&Area<'_>) -> Result<(), DrawError>) -> Result<String, DrawError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
        paint(&area)?;
        area.present()?;
    }
    Ok(text)
}

/// Puts a title and a description into a picture, for those who do not see it.
fn described(svg: &str, name: &str, figure: &Figure, panel: &Panel) -> String {
    let setting = super::page::setting(&panel.setting);
    let title =
        if setting.is_empty() { figure.title.to_owned() } else { format!("{}: {setting}", figure.title) };
    let value = |s: &Series| {
        let mut values = s.points.iter().map(|p| p.spread.value);
        match figure.shape {
            Shape::Rows => values.next(),
            Shape::Stacks => Some(values.sum()),
            Shape::Lines => values.next_back(),
        }
    };
    let values: Vec<String> = panel
        .series
        .iter()
        .filter_map(|s| {
            let value = value(s)?;
            let (factor, unit) = suited(figure.value.unit, value);
            Some(format!("{} {} {unit}", s.label, written(value * factor, 3)).trim().into())
        })
        .collect();
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
fn short(label: &str) -> String {
    if label.chars().count() <= LETTERS {
        return label.to_owned();
    }
    label.chars().take(LETTERS - 1).chain(['…']).collect()
}

/// About how wide words are, rather more than less.
fn width(words: &str) -> i32 {
    words.chars().map(|c| if c.is_uppercase() || "mwMW%–".contains(c) { 10 } else { 7 }).sum()
}

fn stroke(area: &Area<'_>, points: &[(i32, i32)]) -> Result<(), DrawError> {
    Ok(area.draw(&PathElement::new(points.to_vec(), GREY.stroke_width(1)))?)
}
