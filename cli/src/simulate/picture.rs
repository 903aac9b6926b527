//! A simulated step as a picture: ranks as rows, time to the right, what each is busy with.

use gleaner_testbed::simulation::{Busy, Network, Part, Replayed};
use plotters::element::Rectangle;
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor, WHITE};

use gleaner_charts::{Area, DrawError, GREY, INK, milliseconds, write};

/// The most workers that a picture has.
pub const MOST_WORKERS: u32 = 64;

/// Dark, lighter and nearly white: told apart without colours.
const SELECT: RGBColor = RGBColor(22, 56, 92);
const MERGE: RGBColor = RGBColor(222, 129, 42);
const WAIT: RGBColor = RGBColor(238, 238, 238);

const LEFT: i32 = 90;
const WIDTH: i32 = 900;
const TOP: i32 = 104;
const RIGHT: i32 = 40;

fn colour(busy: Busy) -> RGBColor {
    match busy {
        Busy::On(Part::Select) => SELECT,
        Busy::On(Part::Merge) => MERGE,
        Busy::Waiting => WAIT,
    }
}

/// The picture as SVG text.
pub fn svg(method: &str, replayed: &Replayed, network: &Network) -> Result<String, DrawError> {
    let workers = replayed.workers.len() as i32;
    let row = (640 / workers.max(1)).clamp(9, 34);
    let size = ((LEFT + WIDTH + RIGHT) as u32, (TOP + row * workers + 64) as u32);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let heading = format!("{method}: a step of {:.2} ms, simulated", replayed.seconds() * 1e3);
        write(&area, &heading, (24, 24), 22, HPos::Left, INK)?;
        legend(&area)?;
        // Some begin after others.
        let spans = replayed.workers.iter().flat_map(|worker| &worker.spans);
        let end = spans.map(|span| span.end).fold(0.0, f64::max);
        milliseconds(&area, (LEFT, WIDTH), (TOP, TOP + row * workers), end)?;
        for (rank, worker) in (0..).zip(&replayed.workers) {
            let y = TOP + row * rank;
            if row >= 12 || rank % 4 == 0 {
                let slow = network.hosts[rank as usize].slow;
                let name = if slow == 1.0 { format!("{rank}") } else { format!("{rank} ({slow}× slower)") };
                write(&area, &name, (LEFT - 8, y + row / 2), 12, HPos::Right, INK)?;
            }
            for span in &worker.spans {
                let (from, to) = (x(span.start, end), x(span.end, end));
                let bar = Rectangle::new(
                    [(from, y + 1), (to.max(from + 1), y + row - 2)],
                    colour(span.busy).filled(),
                );
                area.draw(&bar)?;
            }
        }
        area.present()?;
    }
    Ok(text)
}

fn x(seconds: f64, of: f64) -> i32 {
    LEFT + (seconds / of.max(1e-12) * f64::from(WIDTH)).round() as i32
}

fn legend(area: &Area<'_>) -> Result<(), DrawError> {
    let kinds = [
        (Busy::On(Part::Select), "selects and encodes"),
        (Busy::On(Part::Merge), "merges and commits"),
        (Busy::Waiting, "waits"),
    ];
    let mut left = 24;
    for (busy, words) in kinds {
        area.draw(&Rectangle::new([(left, 46), (left + 22, 60)], colour(busy).filled()))?;
        area.draw(&Rectangle::new([(left, 46), (left + 22, 60)], GREY.stroke_width(1)))?;
        write(area, words, (left + 30, 53), 14, HPos::Left, INK)?;
        left += 200;
    }
    write(area, "rank", (LEFT - 8, TOP - 14), 12, HPos::Right, INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_testbed::simulation::{Link, Lived, Span};

    /// Two workers of which one begins when the other has long ended: the axis reaches to the end of the last bar.
    #[test]
    fn the_axis_has_the_scale_of_the_bars() {
        let worker = |start: f64, end: f64| {
            let spans = vec![Span { start, end, busy: Busy::Waiting }];
            Lived { seconds: end - start, spans, ..Lived::default() }
        };
        let replayed = Replayed { workers: vec![worker(0.0, 1e-3), worker(9e-3, 10e-3)] };
        let link = Link { rate: 1e8, burst: 0.0, latency: 0.0, loss: 0.0 };
        let picture = svg("ring", &replayed, &Network::star(2, link, 2.0, true)).unwrap();
        let right = LEFT + WIDTH;
        let mark = format!("<text x=\"{right}\"");
        let last = picture.split(&mark).nth(1).expect("a number at the right end of the axis");
        assert_eq!(last.split(['>', '<']).nth(1).map(str::trim), Some("10"));
        let bar = format!("<rect x=\"{}\"", LEFT + WIDTH * 9 / 10);
        assert!(picture.contains(&bar), "the second bar begins at nine of ten milliseconds");
    }
}
