//! The report as a picture: a bar for each method, as long as its step takes.

use std::path::Path;

use gleaner_runtime::staged::{Staged, StagedError};
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::element::{PathElement, Rectangle};
use plotters::prelude::{IntoDrawingArea, RGBColor, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};

use super::summary::{Report, Summary};
use super::table::milliseconds;
use gleaner_charts::{Area, DrawError, GREY, INK, write};
use gleaner_units::{self as units, grouped};

/// The parts of a step from dark to light, so that they differ without colours as well.
const SELECT: RGBColor = RGBColor(22, 56, 92);
const EXCHANGE: RGBColor = RGBColor(222, 129, 42);
const MERGE: RGBColor = RGBColor(244, 226, 190);

/// Where the bars begin, how long the longest is, and what lies around them, in pixels.
const LEFT: i32 = 190;
const LONGEST: i32 = 560;
const RIGHT: i32 = 210;
const TOP: i32 = 116;
const ROW: i32 = 48;
const BAR: i32 = 24;

/// That a picture can be written there, before it takes long to find out.
///
/// # Errors
/// A folder that is missing or closed, or a name that is none of a file.
pub fn probe(path: &Path) -> Result<(), StagedError> {
    // What is staged vanishes unless it is published.
    Staged::default().write(path, |_| Ok(()))
}

/// The picture as SVG text.
///
/// # Errors
/// What the plotting library refuses.
pub fn svg(report: &Report) -> Result<String, DrawError> {
    let picture = Picture::new(&report.methods);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, picture.size()).into_drawing_area();
        area.fill(&WHITE)?;
        picture.title(&area)?;
        picture.axis(&area)?;
        for (row, summary) in picture.methods.iter().enumerate() {
            picture.bar(&area, row as i32, summary)?;
        }
        picture.legend(&area)?;
        area.present()?;
    }
    Ok(text)
}

struct Picture<'a> {
    methods: &'a [Summary],
    /// The time at the end of the longest bar and whisker, in seconds, above 0.
    longest: f64,
}

impl<'a> Picture<'a> {
    fn new(methods: &'a [Summary]) -> Self {
        let longest = methods.iter().map(|s| s.seconds_p75).fold(f64::MIN_POSITIVE, f64::max);
        Self { methods, longest }
    }

    fn size(&self) -> (u32, u32) {
        ((LEFT + LONGEST + RIGHT) as u32, (self.bottom() + 118) as u32)
    }

    /// Below the last bar.
    fn bottom(&self) -> i32 {
        TOP + self.methods.len() as i32 * ROW
    }

    /// Where a time stands.
    fn x(&self, seconds: f64) -> i32 {
        LEFT + (seconds / self.longest * f64::from(LONGEST)).round() as i32
    }

    fn title(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let Some(first) = self.methods.first() else { return Ok(()) };
        let among = if first.workers == 1 { "worker" } else { "workers" };
        let heading = format!("A step of {} {among}, n = {}", first.workers, grouped(first.params as u64));
        let below = format!(
            "A bar ends at the median of {} steps on the slowest rank; a whisker reaches from quartile to quartile.",
            first.steps
        );
        write(area, &heading, (24, 24), 22, HPos::Left, INK)?;
        write(area, &below, (24, 50), 15, HPos::Left, INK)?;
        write(
            area,
            "Bytes are those that the busiest worker receives in a step.",
            (24, 72),
            15,
            HPos::Left,
            INK,
        )
    }

    fn axis(&self, area: &Area<'_>) -> Result<(), DrawError> {
        // In seconds from one second on.
        let (unit, name) = if self.longest < 1.0 { (1e3, "milliseconds") } else { (1.0, "seconds") };
        let bottom = self.bottom();
        let scale = RangedCoordf64::from(0.0..self.longest * unit);
        for time in scale.key_points(8) {
            let x = self.x(time / unit);
            area.draw(&PathElement::new(vec![(x, TOP - 8), (x, bottom + 6)], GREY.stroke_width(1)))?;
            // As many digits as the steps of the scale need, and none for rounding in the library's sums.
            let digits = (time * 1e6).round() / 1e6;
            write(area, &digits.to_string(), (x, bottom + 20), 14, HPos::Center, INK)?;
        }
        let end = (LEFT + LONGEST / 2, bottom + 44);
        write(area, &format!("time of a step in {name}"), end, 14, HPos::Center, INK)
    }

    fn bar(&self, area: &Area<'_>, row: i32, s: &Summary) -> Result<(), DrawError> {
        let middle = TOP + row * ROW + ROW / 2;
        let (top, bottom) = (middle - BAR / 2, middle + BAR / 2);
        let k =
            if s.k == s.params { "all entries".to_owned() } else { format!("k = {}", grouped(s.k as u64)) };
        write(area, &s.method, (LEFT - 12, middle - 8), 15, HPos::Right, INK)?;
        write(area, &k, (LEFT - 12, middle + 10), 12, HPos::Right, INK)?;
        let mut from = 0.0;
        let rest = s.seconds - s.slowest_select - s.slowest_exchange - s.slowest_merge;
        for (part, colour) in [
            (s.slowest_select, SELECT),
            (s.slowest_exchange, EXCHANGE),
            (s.slowest_merge, MERGE),
            (rest, WHITE),
        ] {
            let to = (from + part).clamp(from, s.seconds.max(from));
            section(area, ((self.x(from), top), (self.x(to), bottom)), colour)?;
            from = to;
        }
        self.whisker(area, middle, s)?;
        let beside = format!("{}, {}", milliseconds(s.seconds), units::bytes(s.bytes_received as f64));
        let end = self.x(s.seconds.max(s.seconds_p75)) + 12;
        write(area, &beside, (end, middle), 14, HPos::Left, INK)
    }

    /// Dark on a white ground, to be seen on any part of a bar.
    fn whisker(&self, area: &Area<'_>, y: i32, s: &Summary) -> Result<(), DrawError> {
        let (from, to) = (self.x(s.seconds_p25), self.x(s.seconds_p75));
        for (colour, width) in [(WHITE, 5), (INK, 2)] {
            for line in [[(from, y), (to, y)], [(from, y - 6), (from, y + 6)], [(to, y - 6), (to, y + 6)]] {
                area.draw(&PathElement::new(line.to_vec(), colour.stroke_width(width)))?;
            }
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let y = self.bottom() + 84;
        let parts = [("select", SELECT), ("exchange", EXCHANGE), ("merge", MERGE), ("between", WHITE)];
        for (x, (name, colour)) in (LEFT..).step_by(140).zip(parts) {
            section(area, ((x, y - 8), (x + 28, y + 8)), colour)?;
            write(area, name, (x + 38, y), 14, HPos::Left, INK)?;
        }
        Ok(())
    }
}

/// A filled part with an outline; none where it has no width.
fn section(area: &Area<'_>, (from, to): ((i32, i32), (i32, i32)), colour: RGBColor) -> Result<(), DrawError> {
    if from.0 == to.0 {
        return Ok(());
    }
    area.draw(&Rectangle::new([from, to], colour.filled()))?;
    Ok(area.draw(&Rectangle::new([from, to], INK.stroke_width(1)))?)
}
