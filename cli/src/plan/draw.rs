//! A schedule as a picture: ranks as rows, rounds as columns, an arrow for every message.

use std::cmp::Reverse;

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{Cost, How, Program};
use gleaner_charts::{Arrow, Arrows, Axis, DrawError, Head, Key, Marker, Page, Shaft};
use gleaner_units::grouped;

pub const MOST_RANKS: u32 = 64;

/// Above so many ranks, only the messages that one rank sends are drawn in full strength.
const MANY: usize = 16;

/// What lies beside the places of ranks and rounds, in pixels.
const BESIDE: (i32, i32) = (106, 80);

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

/// The picture as SVG text. With many ranks, the messages of `front` stand out.
pub fn svg(
    heading: String,
    subtitle: String,
    programs: &[Program],
    cost: &Cost,
    front: Rank,
) -> Result<String, DrawError> {
    let mut flights: Vec<Flight> = programs.iter().flat_map(flights).collect();
    let is_many = programs.len() > MANY;
    let is_pale = |flight: &Flight| is_many && flight.from != front;
    // Dark ones over pale ones, and thin ones over thick ones.
    flights.sort_by_key(|flight| Reverse((is_pale(flight), flight.words)));
    let words = || flights.iter().map(|flight| flight.words);
    let (fewest, most) = (words().min().unwrap_or(0), words().max().unwrap_or(0));
    let thickest = match programs.len() {
        ..=8 => 6.0,
        9..=MANY => 4.0,
        _ => 3.0,
    };
    let width = |words: u64| match fewest == most {
        true => 2,
        false => 1 + (words as f64 / most as f64 * (thickest - 1.0)).round() as u32,
    };
    let place = |rank: Rank, rounds: u64| (rounds as f64, f64::from(rank.0));
    let arrow = |flight: &Flight| {
        let is_pale = is_pale(flight);
        let width = if is_pale { 1 } else { width(flight.words) };
        let (from, to) = (place(flight.from, flight.round - 1), place(flight.to, flight.round));
        Arrow { from, to, shaft: Shaft { head: head(flight.how), width, is_pale } }
    };
    let selections = |program: &Program| -> Vec<_> {
        let selects = program.facts().iter().filter(|facts| facts.selects());
        selects.map(|facts| (Marker::Diamond, place(program.schedule().rank, facts.began - 1))).collect()
    };
    let (rounds, ranks) = (cost.rounds.max(1) as i32, programs.len() as i32);
    let arrows = Arrows {
        x: Axis::of_numbers("after round", 0.0, f64::from(rounds)),
        y: Axis::of_numbers("rank", f64::from(ranks) - 0.5, -0.5),
        arrows: flights.iter().map(arrow).collect(),
        marks: programs.iter().flat_map(selections).collect(),
    };

    let of_words = match fewest == most {
        true => format!("{} words a message", grouped(most)),
        false => format!("{} (thin) to {} (thick) words a message", grouped(fewest), grouped(most)),
    };
    let pale = format!("dark: what {front} sends; pale: what the others send");
    let notes = [(true, subtitle), (!flights.is_empty(), of_words), (is_many, pale)];
    let has = |how: How| flights.iter().any(|flight| flight.how == how);
    let keys = [
        (has(How::Add), (Key::Arrow(Head::Full), "a message, added to what the receiver holds")),
        (has(How::Place), (Key::Arrow(Head::Hollow), "a message, placed where the receiver holds nothing")),
        (!arrows.marks.is_empty(), (Key::Mark(Marker::Diamond), "keeps the largest entries of some blocks")),
    ];
    let page = Page {
        width: (BESIDE.0 + rounds * (1400 / rounds).clamp(36, 150)).max(640),
        heading,
        notes: shown(notes).collect(),
        legend: shown(keys).map(|(key, words)| (key, words.to_owned())).collect(),
    };
    page.svg(BESIDE.1 + ranks * (800 / ranks).clamp(15, 56), |area| arrows.draw(area))
}

/// What a rank receives.
fn flights(program: &Program) -> impl Iterator<Item = Flight> {
    let to = program.schedule().rank;
    program.receipts().map(move |(receive, receipt)| Flight {
        from: receive.from,
        to,
        how: receive.how,
        round: receipt.round,
        words: receipt.words,
    })
}

fn head(how: How) -> Head {
    match how {
        How::Add => Head::Full,
        How::Place => Head::Hollow,
    }
}

/// Those of which it is said that they are there.
fn shown<T>(all: impl IntoIterator<Item = (bool, T)>) -> impl Iterator<Item = T> {
    all.into_iter().filter_map(|(is_there, one)| is_there.then_some(one))
}
