//! ExDyna's controllers on a stream of gradients, the printed and the corrected ones side by side:
//! `cargo run --release -p gleaner-algorithms --example exdyna_controllers -- --svg FILE`.
//!
//! The gradients become 100 times smaller over 2,000 steps; at three steps the learning rate jumps. Prints how near the
//! density comes to the one that was set, and f(t), which is how many times the mean the fullest partition gives (equation 5
//! of the paper); draws both, and the threshold. Options: `--workers P`, `--n ENTRIES`, `--k ENTRIES`, `--svg FILE`.

#[path = "../tests/laws/streams.rs"]
mod streams;

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{Controllers, Corrected, ExDyna};
use plotters::coord::Shift;
use plotters::element::{PathElement, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, WHITE};
use streams::{Followed, JUMPS, STEPS, follow, scale};

/// With partitions of equal lengths, which never move.
static STATIC: ExDyna = ExDyna {
    name: "corrected, static partitions",
    controllers: Controllers::Corrected(Corrected { imbalance: f64::INFINITY, ..Corrected::DEFAULT }),
};
static PRINTED: ExDyna = ExDyna { name: "printed", ..ExDyna::PRINTED };
static CORRECTED: ExDyna = ExDyna { name: "corrected", ..ExDyna::CORRECTED };

/// Dark against light, so that the lines differ without colours as well.
const LINES: [(&ExDyna, RGBColor); 3] = [
    (&STATIC, RGBColor(150, 150, 150)),
    (&PRINTED, RGBColor(222, 129, 42)),
    (&CORRECTED, RGBColor(22, 56, 92)),
];

/// Steps until a controller is expected to have settled, and steps of which the picture shows the mean.
const SETTLES: usize = 100;
const MEAN: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let number = |name: &str, default: usize| option(name).map_or(Ok(default), |text| text.parse());
    let (workers, n, k) = (number("--workers", 4)?, number("--n", 200_000)?, number("--k", 2000)?);

    println!("P = {workers}, n = {n}, k = {k}, {STEPS} steps, learning rate jumps at {JUMPS:?}");
    println!("settled: {SETTLES} steps after the start and after each jump\n");
    println!(
        "{:29} {:>12} {:>8} {:>8} {:>11} {:>8} {:>7}",
        "controllers, settled", "entries / k", "least", "most", "within 15%", "f(t)", "moves"
    );
    let mut all = Vec::new();
    for (exdyna, _) in LINES {
        let followed = follow(Method::of(exdyna).k(k), workers, n, STEPS)?;
        report(exdyna.name, &followed, k);
        all.push(followed);
    }
    if let Some(path) = option("--svg") {
        std::fs::write(path, svg(&all, k)?)?;
    }
    Ok(())
}

/// A line of the table.
fn report(name: &str, followed: &[Followed], k: usize) {
    let is_settled = |t: usize| t >= SETTLES && JUMPS.iter().all(|(at, _)| !(*at..at + SETTLES).contains(&t));
    let settled = || followed.iter().enumerate().filter(|(t, _)| is_settled(*t)).map(|(_, f)| f);
    let shares = || settled().map(|f| f.count() as f64 / k as f64);
    let mean = |sum: f64| sum / settled().count() as f64;
    println!(
        "{name:29} {:>12.3} {:>8.3} {:>8.3} {:>10.1}% {:>8.3} {:>7}",
        mean(shares().sum()),
        shares().fold(f64::INFINITY, f64::min),
        shares().fold(0.0, f64::max),
        100.0 * mean(shares().filter(|share| (share - 1.0).abs() <= 0.15).count() as f64),
        mean(settled().map(Followed::imbalance).sum()),
        followed.iter().filter(|f| f.moved).count(),
    );
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const LEFT: i32 = 84;
const WIDTH: i32 = 660;
const TOP: i32 = 84;
const HEIGHT: i32 = 150;
const GAP: i32 = 46;
const INK: RGBColor = RGBColor(30, 30, 30);
const GREY: RGBColor = RGBColor(214, 214, 214);

/// A diagram of one number over the steps.
struct Panel {
    name: &'static str,
    top: i32,
    /// The least and the greatest; logarithms where the axis is logarithmic.
    range: (f64, f64),
    /// Lines across, with their labels.
    marks: Vec<(f64, String)>,
}

impl Panel {
    fn x(step: f64) -> i32 {
        LEFT + (step / STEPS as f64 * f64::from(WIDTH)).round() as i32
    }

    fn y(&self, value: f64) -> i32 {
        let (least, greatest) = self.range;
        let share = (value.clamp(least, greatest) - least) / (greatest - least);
        self.top + HEIGHT - (share * f64::from(HEIGHT)).round() as i32
    }

    fn axes(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        write(area, self.name, (LEFT, self.top - 14), HPos::Left)?;
        for (value, label) in &self.marks {
            let y = self.y(*value);
            area.draw(&PathElement::new(vec![(LEFT, y), (LEFT + WIDTH, y)], GREY.stroke_width(1)))?;
            write(area, label, (LEFT - 8, y), HPos::Right)?;
        }
        for (at, _) in JUMPS {
            let x = Self::x(at as f64);
            let line = vec![(x, self.top), (x, self.top + HEIGHT)];
            area.draw(&PathElement::new(line, GREY.stroke_width(3)))?;
        }
        Ok(())
    }

    /// A number of each step, as means over a few.
    fn line(
        &self,
        area: &Area<'_>,
        numbers: impl Iterator<Item = f64>,
        style: (RGBColor, u32),
    ) -> Result<(), Box<dyn Error>> {
        let numbers: Vec<f64> = numbers.collect();
        let points = numbers.chunks(MEAN).enumerate().map(|(i, some)| {
            let mean = some.iter().sum::<f64>() / some.len() as f64;
            (Self::x((i * MEAN) as f64 + MEAN as f64 / 2.0), self.y(mean))
        });
        area.draw(&PathElement::new(points.collect::<Vec<_>>(), style.0.stroke_width(style.1)))?;
        Ok(())
    }
}

fn write(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", 14).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(words.to_owned(), at, style))?)
}

fn top(row: i32) -> i32 {
    TOP + row * (HEIGHT + GAP)
}

fn panels(workers: usize) -> [Panel; 3] {
    let shares = [0.1, 0.3, 1.0, 3.0, 10.0f64];
    [
        Panel {
            name: "entries selected, as a multiple of k",
            top: top(0),
            range: (-1.0, 1.0),
            marks: shares.iter().map(|share| (share.log10(), share.to_string())).collect(),
        },
        Panel {
            name: "f(t): the fullest partition, as a multiple of the mean",
            top: top(1),
            range: (1.0, workers as f64),
            marks: (1..=workers).map(|times| (times as f64, times.to_string())).collect(),
        },
        Panel {
            name: "the threshold; thin, the scale of the gradients",
            top: top(2),
            range: (-5.0, 1.0),
            marks: (-5..=1).map(|power| (f64::from(power), format!("1e{power}"))).collect(),
        },
    ]
}

fn svg(all: &[Vec<Followed>], k: usize) -> Result<String, Box<dyn Error>> {
    let [density, balance, threshold] = panels(all[0][0].counts.len());
    let mut text = String::new();
    {
        let size = ((LEFT + WIDTH + 30) as u32, (top(3) + 10) as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        for ((exdyna, colour), x) in LINES.into_iter().zip([LEFT + 260, LEFT + 140, LEFT]) {
            area.draw(&PathElement::new(vec![(x, 28), (x + 28, 28)], colour.stroke_width(3)))?;
            write(&area, exdyna.name, (x + 36, 28), HPos::Left)?;
        }
        for panel in [&density, &balance, &threshold] {
            panel.axes(&area)?;
        }
        for (followed, (_, colour)) in all.iter().zip(LINES) {
            let shares = followed.iter().map(|f| (f.count().max(1) as f64 / k as f64).log10());
            density.line(&area, shares, (colour, 2))?;
            balance.line(&area, followed.iter().map(Followed::imbalance), (colour, 2))?;
            threshold.line(&area, followed.iter().map(|f| f.threshold.log10()), (colour, 2))?;
        }
        threshold.line(&area, (0..STEPS).map(|step| f64::from(scale(step)).log10()), (INK, 1))?;
        for step in (0..=STEPS).step_by(500) {
            write(&area, &step.to_string(), (Panel::x(step as f64), top(2) + HEIGHT + 18), HPos::Center)?;
        }
        write(&area, "step", (LEFT - 8, top(2) + HEIGHT + 18), HPos::Right)?;
        area.present()?;
    }
    Ok(text)
}
