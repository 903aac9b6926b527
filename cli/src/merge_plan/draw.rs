//! The four pipelines of OMGS-SGD's Fig. 1, for one model: lanes for computing, selecting and exchanging, time to the right.

use gleaner_algorithms::merging::{
    LayerWise, Optimal, Pass, Placement, Problem, Single, Span, Strategy, Timeline, evaluate,
};
use gleaner_charts::{Area, DrawError, GREY, INK, milliseconds, write};
use plotters::element::Rectangle;
use plotters::prelude::{IntoDrawingArea, RGBColor, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};

use super::MergePlanError;
use super::table::Plan;

/// From dark to light, so that they differ without colours as well.
const FORWARD: RGBColor = RGBColor(150, 150, 150);
const BACKWARD: RGBColor = RGBColor(22, 56, 92);
const SELECT: RGBColor = RGBColor(222, 129, 42);
const EXCHANGE: RGBColor = RGBColor(120, 170, 210);

const LEFT: i32 = 110;
const WIDTH: i32 = 880;
const RIGHT: i32 = 40;
const TOP: i32 = 100;
/// Of a lane, and of what is in it.
const LANE: i32 = 26;
const BAR: i32 = 20;
/// Above the lanes of a pipeline.
const TITLE: i32 = 26;

/// Up to so many times the longer of the merged pipelines' iterations are drawn.
const MOST: f64 = 1.4;

/// The picture as SVG text.
pub fn svg(
    plan: &Plan<'_>,
    pass: &Pass,
    (problem, dense): (&Problem<'_>, &Timeline),
) -> Result<String, MergePlanError> {
    let of = |strategy: &dyn Strategy| evaluate(problem, &strategy.group(problem)?);
    let (single, layers, merged) = (of(&Single)?, of(&LayerWise)?, of(&Optimal)?);
    let pipelines = [
        ("(a) P-SGD: layer-wise, dense", dense),
        ("(b) TopK-SGD: all layers at once", &single),
        ("(c) LAGS-SGD: layer-wise", &layers),
        ("(d) merged, optimal", &merged),
    ];
    let longest = pipelines.iter().map(|(_, timeline)| timeline.iteration).fold(0.0, f64::max);
    let end = longest.min(MOST * single.iteration.max(merged.iteration));
    let high = TITLE + lanes(problem.place) * LANE + 14;
    let bottom = TOP + high * pipelines.len() as i32;
    let mut text = String::new();
    {
        let size = ((LEFT + WIDTH + RIGHT) as u32, (bottom + 64) as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(DrawError::from)?;
        let heading = format!("{}: {} among {} workers", plan.model, plan.label, plan.workers);
        write(&area, &heading, (24, 24), 22, HPos::Left, INK)?;
        legend(&area)?;
        milliseconds(&area, (LEFT, WIDTH), (TOP, bottom), end)?;
        for (i, (name, timeline)) in pipelines.into_iter().enumerate() {
            let (top, row) = (TOP + high * i as i32, timeline.groups.len());
            let groups = if row == 1 { "1 group".to_owned() } else { format!("{row} groups") };
            let title = format!("{name}: {groups}, {:.2} ms", 1e3 * timeline.iteration);
            write(&area, &title, (LEFT, top + TITLE / 2), 15, HPos::Left, INK)?;
            pipeline(&area, top + TITLE, (timeline, pass, problem.place), end)?;
        }
        area.present().map_err(DrawError::from)?;
    }
    Ok(text)
}

/// Selection has a lane of its own beside the backward pass.
fn lanes(place: Placement) -> i32 {
    if place == Placement::Beside { 3 } else { 2 }
}

fn pipeline(
    area: &Area<'_>,
    top: i32,
    (timeline, pass, place): (&Timeline, &Pass, Placement),
    end: f64,
) -> Result<(), DrawError> {
    let names = if place == Placement::Beside {
        &["compute", "select", "exchange"][..]
    } else {
        &["compute", "exchange"]
    };
    for (lane, name) in (0..).zip(names) {
        write(area, name, (LEFT - 10, top + LANE * lane + LANE / 2), 13, HPos::Right, INK)?;
    }
    let last = lanes(place) - 1;
    let bar = |lane: i32, span: Span, colour: RGBColor| {
        let x = |seconds: f64| LEFT + (seconds.min(end) / end.max(1e-12) * f64::from(WIDTH)).round() as i32;
        let (from, to, y) = (x(span.begin), x(span.end), top + LANE * lane + (LANE - BAR) / 2);
        if span.begin >= end || span.end <= span.begin {
            return Ok(());
        }
        let corners = [(from, y), (to.max(from + 1), y + BAR)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        // Thin ones would be all outline.
        if to - from > 3 {
            area.draw(&Rectangle::new(corners, WHITE.stroke_width(1)))?;
        }
        Ok::<(), DrawError>(())
    };
    bar(0, Span { begin: 0.0, end: pass.forward() }, FORWARD)?;
    for group in &timeline.groups {
        let mut begin = group.compute.begin;
        for layer in &pass.layers()[group.layers.clone()] {
            bar(0, Span { begin, end: begin + layer.backward }, BACKWARD)?;
            begin += layer.backward;
        }
        bar(last - 1, group.select, SELECT)?;
        bar(last, group.exchange, EXCHANGE)?;
    }
    if timeline.iteration > end {
        write(area, "…", (LEFT + WIDTH + 6, top + LANE * last + LANE / 2), 15, HPos::Left, INK)?;
    }
    Ok(())
}

fn legend(area: &Area<'_>) -> Result<(), DrawError> {
    let kinds = [
        (FORWARD, "forward"),
        (BACKWARD, "backward, layer by layer"),
        (SELECT, "selection"),
        (EXCHANGE, "exchange"),
    ];
    let mut left = 24;
    for (colour, words) in kinds {
        area.draw(&Rectangle::new([(left, 50), (left + 22, 64)], colour.filled()))?;
        area.draw(&Rectangle::new([(left, 50), (left + 22, 64)], GREY.stroke_width(1)))?;
        write(area, words, (left + 30, 57), 14, HPos::Left, INK)?;
        left += 60 + 8 * words.len() as i32;
    }
    Ok(())
}
