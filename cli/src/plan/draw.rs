//! A schedule as a picture: ranks as rows, rounds as columns, an arrow for every message.

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{Cost, Facts, How, Program};
use gleaner_charts::{Area, DrawError, GREY, INK, write};
use plotters::element::{PathElement, Polygon};
use plotters::prelude::{IntoDrawingArea, RGBAColor, RGBColor, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, ShapeStyle, WHITE};

use gleaner_units::grouped;

/// The most ranks that a picture has.
pub const MOST_RANKS: u32 = 64;

/// Dark against light, so that the two kinds of arrows differ without colours as well.
const ADDED: RGBColor = RGBColor(22, 56, 92);
const PLACED: RGBColor = RGBColor(222, 129, 42);

/// Above so many ranks, only the messages that one rank sends are drawn in full strength.
const MANY: usize = 16;

/// Where the rows begin, and what lies around them, in pixels.
const LEFT: i32 = 76;
const TOP: i32 = 108;
const RIGHT: i32 = 40;
const LINE: i32 = 22;

/// A message.
struct Flight {
    from: Rank,
    to: Rank,
    how: How,
    /// The sender's round, from 1 on.
    round: u64,
    /// Words that the schedule allows it, at most.
    words: u64,
}

/// What stands above the picture.
pub struct Title {
    /// In large letters.
    pub heading: String,
    /// In small ones below it.
    pub subtitle: String,
}

/// The picture as SVG text. With many ranks, the messages of `front` stand out.
pub fn svg(title: &Title, programs: &[Program], cost: &Cost, front: Rank) -> Result<String, DrawError> {
    let picture = Picture::new(programs, cost, front);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, picture.size()).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, &title.heading, (24, 24), 22, HPos::Left, INK)?;
        write(&area, &title.subtitle, (24, 50), 15, HPos::Left, INK)?;
        picture.axes(&area)?;
        picture.arrows(&area)?;
        picture.marks(&area)?;
        picture.legend(&area)?;
        area.present()?;
    }
    Ok(text)
}

struct Picture<'a> {
    programs: &'a [Program],
    flights: Vec<Flight>,
    rounds: i32,
    /// Whose messages are drawn in full strength when there are many.
    front: Rank,
    /// Distances between rounds and between ranks.
    column: i32,
    row: i32,
    /// The width of the thickest arrow, in pixels.
    thickest: u32,
    /// The fewest and the most words of a message.
    words: (u64, u64),
}

impl<'a> Picture<'a> {
    fn new(programs: &'a [Program], cost: &Cost, front: Rank) -> Self {
        let rounds = cost.rounds as i32;
        let flights = |program: &'a Program| {
            let to = program.schedule().rank;
            program.receipts().map(move |(receive, receipt)| Flight {
                from: receive.from,
                to,
                how: receive.how,
                round: receipt.round,
                words: receipt.words,
            })
        };
        let flights: Vec<Flight> = programs.iter().flat_map(flights).collect();
        let words = || flights.iter().map(|f| f.words);
        Self {
            programs,
            rounds,
            front,
            column: (1400 / rounds.max(1)).clamp(36, 150),
            row: (800 / programs.len() as i32).clamp(15, 56),
            thickest: match programs.len() {
                ..=8 => 6,
                9..=MANY => 4,
                _ => 3,
            },
            words: (words().min().unwrap_or(0), words().max().unwrap_or(0)),
            flights,
        }
    }

    fn size(&self) -> (u32, u32) {
        let width = LEFT + self.rounds * self.column + RIGHT;
        let height = self.bottom() + 62 + 6 * LINE;
        (width.max(640) as u32, height as u32)
    }

    fn bottom(&self) -> i32 {
        TOP + (self.programs.len() as i32 - 1) * self.row
    }

    /// Where a worker stands after so many rounds.
    fn point(&self, rank: usize, rounds: u64) -> (i32, i32) {
        (LEFT + rounds as i32 * self.column, TOP + rank as i32 * self.row)
    }

    fn axes(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let (right, bottom) = (LEFT + self.rounds * self.column, self.bottom());
        for rank in 0..self.programs.len() {
            let (x, y) = self.point(rank, 0);
            area.draw(&PathElement::new(vec![(x, y), (right, y)], GREY.stroke_width(1)))?;
            write(area, &rank.to_string(), (x - 14, y), 14, HPos::Right, INK)?;
        }
        write(area, "rank", (LEFT - 14, TOP - 24), 14, HPos::Right, INK)?;
        for round in 0..=self.rounds {
            let x = LEFT + round * self.column;
            area.draw(&PathElement::new(vec![(x, TOP - 8), (x, bottom + 8)], GREY.stroke_width(1)))?;
            if round > 0 {
                let at = (x - self.column / 2, bottom + 22);
                write(area, &round.to_string(), at, 14, HPos::Center, INK)?;
            }
        }
        write(area, "round", (LEFT - 14, bottom + 22), 14, HPos::Right, INK)
    }

    fn arrows(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut flights: Vec<&Flight> = self.flights.iter().collect();
        flights.sort_by_key(|f| (self.is_pale(f), f.words));
        for flight in flights.into_iter().rev() {
            let from = self.point(flight.from.index(), flight.round - 1);
            let to = self.point(flight.to.index(), flight.round);
            let (width, strength) =
                if self.is_pale(flight) { (1, PALE) } else { (self.thickness(flight.words), 1.0) };
            arrow(area, (from, to), width, colour(flight.how).mix(strength), flight.how)?;
        }
        Ok(())
    }

    /// Among many ranks all but one stand back.
    fn is_pale(&self, flight: &Flight) -> bool {
        self.programs.len() > MANY && flight.from != self.front
    }

    fn thickness(&self, words: u64) -> u32 {
        let (fewest, most) = self.words;
        if fewest == most {
            return 2;
        }
        1 + (words as f64 / most as f64 * f64::from(self.thickest - 1)).round() as u32
    }

    fn marks(&self, area: &Area<'_>) -> Result<(), DrawError> {
        for (rank, program) in self.programs.iter().enumerate() {
            for facts in program.facts().iter().filter(|facts| facts.selects()) {
                diamond(area, self.point(rank, facts.began - 1))?;
            }
        }
        Ok(())
    }

    fn selects(&self) -> bool {
        self.programs.iter().flat_map(Program::facts).any(Facts::selects)
    }

    fn legend(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut y = self.bottom() + 62;
        let mut line = |sample: &dyn Fn(i32) -> Result<(), DrawError>, words: &str| {
            sample(y)?;
            write(area, words, (LEFT + 44, y), 14, HPos::Left, INK)?;
            y += LINE;
            Ok::<(), DrawError>(())
        };
        let samples = [
            (How::Add, "a message, added to what the receiver holds"),
            (How::Place, "a message, placed where the receiver holds nothing"),
        ];
        for (how, words) in samples {
            if self.flights.iter().any(|f| f.how == how) {
                line(&|y| arrow(area, ((LEFT, y), (LEFT + 34, y)), 2, colour(how).mix(1.0), how), words)?;
            }
        }
        if self.programs.len() > MANY {
            line(&|_| Ok(()), &format!("dark: what {} sends; pale: what the others send", self.front))?;
        }
        if self.selects() {
            line(&|y| diamond(area, (LEFT + 17, y)), "keeps the largest entries of some blocks")?;
        }
        let (fewest, most) = self.words;
        let mut widths = if self.flights.is_empty() { vec![] } else { vec![fewest, most] };
        widths.dedup();
        for words in widths {
            let thick = INK.stroke_width(self.thickness(words));
            line(
                &|y| Ok(area.draw(&PathElement::new(vec![(LEFT, y), (LEFT + 34, y)], thick))?),
                &format!("{} words a message", grouped(words)),
            )?;
        }
        Ok(())
    }
}

/// How strong the arrows are that stand back.
const PALE: f64 = 0.3;

fn colour(how: How) -> RGBColor {
    if how == How::Add { ADDED } else { PLACED }
}

/// A line with a head: full where the message is added, hollow where it is placed.
fn arrow(
    area: &Area<'_>,
    (from, to): ((i32, i32), (i32, i32)),
    width: u32,
    colour: RGBAColor,
    how: How,
) -> Result<(), DrawError> {
    let (x, y) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let length = x.hypot(y).max(1.0);
    let (x, y) = (x / length, y / length);
    let head = 7.0 + f64::from(width);
    let half = 2.5 + f64::from(width) * 0.6;
    let at = |along: f64, across: f64| {
        let point = (f64::from(to.0) - along * x - across * y, f64::from(to.1) - along * y + across * x);
        (point.0.round() as i32, point.1.round() as i32)
    };
    area.draw(&PathElement::new(
        vec![at(length - 3.0, 0.0), at(2.0 + head, 0.0)],
        colour.stroke_width(width),
    ))?;
    let mut triangle = vec![at(2.0, 0.0), at(2.0 + head, half), at(2.0 + head, -half)];
    if how == How::Add {
        area.draw(&Polygon::new(triangle, colour.filled()))?;
    } else {
        triangle.push(triangle[0]);
        area.draw(&PathElement::new(triangle, colour.stroke_width(1)))?;
    }
    Ok(())
}

fn diamond(area: &Area<'_>, (x, y): (i32, i32)) -> Result<(), DrawError> {
    let corners = |size: i32| vec![(x - size, y), (x, y - size), (x + size, y), (x, y + size)];
    area.draw(&Polygon::new(corners(6), WHITE.filled()))?;
    Ok(area.draw(&Polygon::new(corners(5), ShapeStyle::from(&INK).filled()))?)
}
