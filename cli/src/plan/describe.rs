//! A schedule in words, and its cost in a table.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::{
    After, Arrival, Cost, Fault, How, Lanes, Machine, Note, Program, Progress, Reader, Rule, Schedule, Send,
    Slots, Store,
};
use gleaner_algorithms::{Block, Rank};

use gleaner_units::{Rate, grouped};

/// What some ranks do, round by round.
pub fn programs(programs: &[Program], rounds: u64) -> Result<String, Fault> {
    let mut lines: BTreeMap<(u64, Rank), Vec<String>> = BTreeMap::new();
    for program in programs {
        let schedule = program.schedule();
        let mut words = Words { program, lines: &mut lines, joined: None };
        let mut machine = Machine::new(Store::new(schedule.partition.blocks(), schedule.lanes));
        while let Progress::Waiting(from) = machine.advance(schedule, &mut words)? {
            machine.receive(schedule, &mut words, (from, 0), ())?;
        }
    }
    let mut text = String::new();
    let mut headed = None;
    for ((round, rank), clauses) in lines {
        if headed.replace(round) != Some(round) {
            let _ = match round {
                round if round > rounds => writeln!(text, "at the end"),
                round => writeln!(text, "round {round}"),
            };
        }
        let _ = writeln!(text, "  {rank}: {}", clauses.join("; "));
    }
    Ok(text)
}

/// The reader that puts each step of one program in words.
struct Words<'a> {
    program: &'a Program,
    /// By round and rank.
    lines: &'a mut BTreeMap<(u64, Rank), Vec<String>>,
    /// What the present step does to one block after the other, before and after their names.
    joined: Option<(&'static str, Slots, String)>,
}

impl Words<'_> {
    /// In the round in which a step begins.
    fn say(&mut self, at: usize, clause: String) {
        self.say_in(self.program.facts()[at].began, clause);
    }

    fn say_in(&mut self, round: u64, clause: String) {
        self.lines.entry((round, self.program.schedule().rank)).or_default().push(clause);
    }

    /// In the same words as the blocks before.
    fn join(&mut self, before: &'static str, block: Block, after: String) {
        let slots = match self.joined.take() {
            Some((_, slots, _)) => Slots { count: slots.count + 1, ..slots },
            None => Slots::one(block),
        };
        self.joined = Some((before, slots, after));
    }

    fn blocks(&self, slots: Slots) -> String {
        blocks(self.program.schedule(), slots)
    }

    fn rule(&self, slots: Slots, rule: &Rule) -> String {
        let all = self.program.schedule().partition.blocks();
        rule.in_words(slots.blocks(all), &self.blocks(slots), grouped)
    }
}

/// How values are rounded, if they are.
fn rounded(coding: Coding) -> String {
    if coding == Coding::Exact { String::new() } else { format!(", as {coding}") }
}

/// Words leave nothing to be chosen.
type NoWork = Result<Vec<Infallible>, Fault>;

impl Reader for Words<'_> {
    type Held = ();
    type Message = ();
    type Work = Infallible;
    type Error = Fault;

    fn keep(&mut self, _: &mut Store<()>, at: usize, slots: Slots, rule: &Rule, coding: Coding) -> NoWork {
        self.say(at, self.rule(slots, rule) + &rounded(coding));
        Ok(Vec::new())
    }

    fn propose(&mut self, _: &mut Store<()>, at: usize, slots: Slots, rule: &Rule) -> NoWork {
        self.say(at, format!("proposes what it would keep: {}", self.rule(slots, rule)));
        Ok(Vec::new())
    }

    fn align(&mut self, _: &mut Store<()>, at: usize, slots: Slots, coding: Coding) -> Result<(), Fault> {
        self.say(at, format!("keeps what was proposed of {}{}", self.blocks(slots), rounded(coding)));
        Ok(())
    }

    fn sum(&mut self, _: &mut Store<()>, _: usize, block: Block) -> Result<(), Fault> {
        self.join("adds up all lanes of", block, String::new());
        Ok(())
    }

    fn split(&mut self, held: &mut Store<()>, _: usize, block: Block) -> Result<(), Fault> {
        self.join("cuts", block, format!(" into {} pieces", held.lanes()));
        Ok(())
    }

    fn annotate(&mut self, _: &mut Store<()>, at: usize, slots: Slots, note: Note) -> Result<(), Fault> {
        let what = match note {
            Note::Seen => "how many entries it chose from",
            Note::Cut(_) => "where it would cut its own selection",
        };
        self.say(at, format!("notes on {} {what}", self.blocks(slots)));
        Ok(())
    }

    fn send(&mut self, _: &mut Store<()>, at: usize, send: &Send, _: u64) -> Result<(), Fault> {
        let verb = if send.after == After::Drop { "sends" } else { "copies" };
        self.say(at, format!("{verb} {} to {}", self.blocks(send.slots), send.to));
        Ok(())
    }

    fn receive(&mut self, _: &mut Store<()>, at: Arrival<'_>, (): ()) -> Result<bool, Fault> {
        let receive = at.receive;
        let verb = if receive.how == How::Add { "adds" } else { "places" };
        let clause = format!("{verb} {} from {}", self.blocks(receive.slots), receive.from);
        self.say_in(self.program.facts()[at.step].ended, clause);
        Ok(true)
    }

    fn passed(&mut self, at: usize, _: u64, _: u64) {
        if let Some((before, slots, after)) = self.joined.take() {
            let blocks = range_of_blocks(self.program.schedule(), slots);
            self.say(at, format!("{before} {blocks}{after}"));
        }
    }
}

/// A range of blocks and lanes, taken round the circle.
fn blocks(schedule: &Schedule, slots: Slots) -> String {
    let lanes = match slots.lanes {
        _ if schedule.lanes == 1 => String::new(),
        Lanes { first, count, relative: true } => format!(" in lanes {first}+{count} less the block"),
        Lanes { first, count: 1, .. } => format!(" in lane {first}"),
        Lanes { first, count, .. } if first + count <= schedule.lanes => {
            format!(" in lanes {first}–{}", first + count - 1)
        }
        Lanes { first, count, .. } => format!(" in {count} lanes from {first} on"),
    };
    range_of_blocks(schedule, slots) + &lanes
}

fn range_of_blocks(schedule: &Schedule, slots: Slots) -> String {
    let all = schedule.partition.blocks() as u32;
    let (first, last) = (slots.first.0, slots.first.0 + slots.count - 1);
    let range = |from, to| if from == to { format!("{from}") } else { format!("{from}–{to}") };
    match slots.count {
        1 if all == 1 => "everything".into(),
        1 => format!("block {first}"),
        count if count == all => format!("all {all} blocks"),
        _ if last < all => format!("blocks {}", range(first, last)),
        _ => format!("blocks {}, {}", range(first, all - 1), range(0, last - all)),
    }
}

/// A method's cost beside that of a dense ring, and what both take on links of this latency and bandwidth.
pub fn costs(method: &str, costs: [Cost; 2], (latency, bandwidth): (Duration, Rate)) -> String {
    let row = |name: &str, [ours, ring]: [String; 2], ratio: &str| {
        format!("{name:34}{ours:>18}{ring:>18}{ratio:>10}\n")
    };
    let compared = |name: &str, [ours, ring]: [f64; 2], words: [String; 2]| {
        let ratio = if ring > 0.0 { format!("{:.4}", ours / ring) } else { "–".into() };
        row(name, words, &ratio)
    };
    let counted = |name: &str, count: fn(&Cost) -> u64| {
        let counts = costs.each_ref().map(count);
        compared(name, counts.map(|count| count as f64), counts.map(grouped))
    };
    let formula = |c: Cost| format!("{}α + {}β", c.messages.max(c.rounds), grouped(c.words_critical));
    let times = costs.map(|cost| cost.time(latency, bandwidth.bytes_per_second()));
    let (seconds, words) = (times.map(|time| time.as_secs_f64()), times.map(|time| format!("{time:.2?}")));
    [
        row("", [method.into(), "dense ring".into()], "ratio"),
        counted("rounds", |cost| cost.rounds),
        counted("messages of the busiest rank", |cost| cost.messages),
        counted("words it receives", |cost| cost.words_received),
        counted("words on the critical path", |cost| cost.words_critical),
        counted("bytes the busiest rank receives", |cost| 4 * cost.words_received),
        row("time", costs.map(formula), "–"),
        compared(&format!("at {latency:?} and {bandwidth}"), seconds, words),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_algorithms::Method;

    #[test]
    fn ranges_go_round_the_circle() {
        let schedule = Method::spardl().schedule(Rank(0), 8, 100).unwrap();
        let text = |first, count| blocks(&schedule, Slots::cyclic(first, count, 8));
        assert_eq!(text(3, 1), "block 3");
        assert_eq!(text(3, 4), "blocks 3–6");
        assert_eq!(text(6, 4), "blocks 6–7, 0–1");
        assert_eq!(text(7, 2), "blocks 7, 0");
        assert_eq!(text(4, 4), "blocks 4–7");
        assert_eq!(text(0, 8), "all 8 blocks");
    }
}
