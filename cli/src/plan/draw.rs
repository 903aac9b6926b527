//! A schedule as a picture: ranks as rows, rounds as columns, an arrow for every message.

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{Cost, Facts, How, Program};
use gleaner_charts::{Area, DrawError, GREY, INK, Key, Page, write};
use gleaner_units::grouped;
use plotters::element::{PathElement, Polygon};
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, ShapeStyle, WHITE};

pub const MOST_RANKS: u32 = 64;

/// Dark against light, so that the two kinds of arrows differ without colours as well.
const ADDED: RGBColor = RGBColor(22, 56, 92);
const PLACED: RGBColor = RGBColor(222, 129, 42);

/// Above so many ranks, only the messages that one rank sends are drawn in full strength.
const MANY: usize = 16;

/// Where the rows begin, and what lies around them, in pixels.
const LEFT: i32 = 76;
const TOP: i32 = 46;
const RIGHT: i32 = 40;
const BELOW: i32 = 40;

struct Flight {
    from: Rank,
    to: Rank,
    how: How,
    /// The sender's round, from 1 on.
    round: u64,
    /// Words that the schedule allows it, at most.
    words: u64,
}

/// The picture as SVG text. With many ranks, the messages of `front` stand out.
pub fn svg(
    heading: String,
    subtitle: String,
    programs: &[Program],
    cost: &Cost,
    front: Rank,
) -> Result<String, DrawError> {
    let picture = Picture::new(programs, cost, front);
    let page = Page {
        width: (LEFT + picture.rounds * picture.column + RIGHT).max(640),
        heading,
        notes: [subtitle].into_iter().chain(picture.notes()).collect(),
        legend: picture.legend(),
    };
    page.svg(picture.bottom() + BELOW, |area| {
        picture.axes(area)?;
        picture.arrows(area)?;
        picture.marks(area)
    })
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
            write(area, &rank.to_string(), (x - 14, y), HPos::Right)?;
        }
        write(area, "rank", (LEFT - 14, TOP - 24), HPos::Right)?;
        for round in 0..=self.rounds {
            let x = LEFT + round * self.column;
            area.draw(&PathElement::new(vec![(x, TOP - 8), (x, bottom + 8)], GREY.stroke_width(1)))?;
            if round > 0 {
                let at = (x - self.column / 2, bottom + 22);
                write(area, &round.to_string(), at, HPos::Center)?;
            }
        }
        write(area, "round", (LEFT - 14, bottom + 22), HPos::Right)
    }

    fn arrows(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut flights: Vec<&Flight> = self.flights.iter().collect();
        flights.sort_by_key(|f| (self.is_pale(f), f.words));
        for flight in flights.into_iter().rev() {
            let from = self.point(flight.from.index(), flight.round - 1);
            let to = self.point(flight.to.index(), flight.round);
            let line = if self.is_pale(flight) { (1, PALE) } else { (self.thickness(flight.words), 1.0) };
            arrow(area, (from, to), line, flight.how)?;
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

    fn legend(&self) -> Vec<(Key, String)> {
        let has = |how: How| self.flights.iter().any(|flight| flight.how == how);
        let added = Key::Own(|area, (x, y), wide| arrow(area, ((x, y), (x + wide, y)), (2, 1.0), How::Add));
        let placed =
            Key::Own(|area, (x, y), wide| arrow(area, ((x, y), (x + wide, y)), (2, 1.0), How::Place));
        let chosen = Key::Own(|area, (x, y), wide| diamond(area, (x + wide / 2, y)));
        let entries = [
            (has(How::Add), added, "a message, added to what the receiver holds"),
            (has(How::Place), placed, "a message, placed where the receiver holds nothing"),
            (self.selects(), chosen, "keeps the largest entries of some blocks"),
        ];
        let here = entries.into_iter().filter(|(is_here, ..)| *is_here);
        here.map(|(_, key, words)| (key, words.to_owned())).collect()
    }

    /// What the legend cannot show.
    fn notes(&self) -> Vec<String> {
        let pale = format!("dark: what {} sends; pale: what the others send", self.front);
        let (fewest, most) = self.words;
        let words = match fewest == most {
            true => format!("{} words a message", grouped(most)),
            false => format!("{} (thin) to {} (thick) words a message", grouped(fewest), grouped(most)),
        };
        let all = [(!self.flights.is_empty(), words), (self.programs.len() > MANY, pale)];
        all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words).collect()
    }
}

/// How strong the arrows are that stand back.
const PALE: f64 = 0.3;

/// A line with a head: full where the message is added, hollow where it is placed.
fn arrow(
    area: &Area<'_>,
    (from, to): ((i32, i32), (i32, i32)),
    (width, strength): (u32, f64),
    how: How,
) -> Result<(), DrawError> {
    let colour = if how == How::Add { ADDED } else { PLACED }.mix(strength);
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
