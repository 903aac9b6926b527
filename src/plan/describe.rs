//! A schedule in words, and its cost in a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::{After, Cost, How, Lanes, Note, Rule, Schedule, Slots, Step};
use gleaner_algorithms::{Block, Rank};

use super::timeline::Timeline;
use gleaner_testbed::quantity::grouped;

/// What some ranks do, round by round.
pub fn program(schedules: &[Schedule], timeline: &Timeline, ranks: &[Rank], rounds: u64) -> String {
    let mut lines: BTreeMap<(u64, Rank), Vec<String>> = BTreeMap::new();
    for &rank in ranks {
        let schedule = &schedules[rank.index()];
        for (step, span) in schedule.steps.iter().zip(&timeline.spans[rank.index()]) {
            let mut say = |round, clause| lines.entry((round, rank)).or_default().push(clause);
            match step {
                Step::Keep { slots, rule, coding } => {
                    let rounded = match coding {
                        Coding::Exact => String::new(),
                        coding => format!(", as {coding}"),
                    };
                    say(span.starts, keeps(schedule, *slots, rule) + &rounded);
                }
                Step::Sum { slots } => {
                    say(span.starts, format!("adds up all lanes of {}", blocks(schedule, *slots)));
                }
                Step::Split { slots } => {
                    let cut = format!("cuts {} into {} pieces", blocks(schedule, *slots), schedule.lanes);
                    say(span.starts, cut);
                }
                Step::Annotate { slots, note } => {
                    let what = match note {
                        Note::Seen => "how many entries it chose from",
                        Note::Cut(_) => "where it would cut its own selection",
                    };
                    say(span.starts, format!("notes on {} {what}", blocks(schedule, *slots)));
                }
                Step::Propose { slots, rule } => {
                    say(
                        span.starts,
                        format!("proposes what it would keep: {}", keeps(schedule, *slots, rule)),
                    );
                }
                Step::Align { slots, coding } => {
                    let rounded = match coding {
                        Coding::Exact => String::new(),
                        coding => format!(", as {coding}"),
                    };
                    let blocks = blocks(schedule, *slots);
                    say(span.starts, format!("keeps what was proposed of {blocks}{rounded}"));
                }
                Step::Exchange { sends, receives } => {
                    for send in sends {
                        let verb = if send.after == After::Drop { "sends" } else { "copies" };
                        say(span.starts, format!("{verb} {} to {}", blocks(schedule, send.slots), send.to));
                    }
                    for receive in receives {
                        let verb = if receive.how == How::Add { "adds" } else { "places" };
                        let blocks = blocks(schedule, receive.slots);
                        say(span.ends, format!("{verb} {blocks} from {}", receive.from));
                    }
                }
            }
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
    text
}

fn keeps(schedule: &Schedule, slots: Slots, rule: &Rule) -> String {
    let joint = || blocks(schedule, slots);
    let k = match rule {
        Rule::Top(k) => k,
        Rule::TopOf { most, .. } => {
            let most = slots.blocks(schedule.partition.blocks()).map(|b| most[b.index()]).max();
            return format!("keeps the top h, at most {}, of {}", most.unwrap_or(0), joint());
        }
        Rule::Jointly(k) => return format!("keeps the top {} of {}", grouped(*k as u64), joint()),
        Rule::Above { most, .. } => {
            return format!(
                "keeps what reaches a threshold, at most {}, of {}",
                grouped(*most as u64),
                joint()
            );
        }
        Rule::By(selection) => {
            let (selector, most) = (selection.selector, grouped(selection.most() as u64));
            return format!("keeps what the selector {selector} chooses, at most {most}, of {}", joint());
        }
        Rule::Random(k) => {
            let k: u64 = slots.blocks(schedule.partition.blocks()).map(|b| u64::from(k[b.index()])).sum();
            return format!("keeps {} drawn by lot of {}", grouped(k), joint());
        }
        Rule::Every => return format!("rounds {}", joint()),
        Rule::Dense => return format!("makes {} dense", joint()),
    };
    let of = || slots.blocks(schedule.partition.blocks()).map(|b| u64::from(k[b.index()]));
    let (fewest, most) = (of().min().unwrap_or(0), of().max().unwrap_or(0));
    let each = if slots.count == 1 { "" } else { "each of " };
    let blocks = blocks(schedule, slots);
    if fewest == most {
        format!("keeps the top {} of {each}{blocks}", grouped(most))
    } else {
        format!("keeps the top {} or {} of {each}{blocks}", grouped(fewest), grouped(most))
    }
}

/// A range of blocks and lanes, taken round the circle.
fn blocks(schedule: &Schedule, slots: Slots) -> String {
    let lanes = match slots.lanes {
        _ if schedule.lanes == 1 => String::new(),
        Lanes { first, count: 1 } => format!(" in lane {first}"),
        Lanes { first, count } if first + count <= schedule.lanes => {
            format!(" in lanes {first}–{}", first + count - 1)
        }
        Lanes { first, count } => format!(" in {count} lanes from {first} on"),
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

/// Whether every rank does what rank 0 does, with all ranks and blocks moved on by its own number.
pub fn same_but_shifted(schedules: &[Schedule]) -> bool {
    let first = &schedules[0];
    schedules.iter().all(|schedule| {
        let (r, workers) = (schedule.rank.0, schedule.workers);
        let blocks = first.partition.blocks() as u32;
        let rank = |rank: Rank| Rank((rank.0 + r) % workers);
        let slots = |s: Slots| Slots { first: Block((s.first.0 + r) % blocks), ..s };
        let same = |(step, zero): (&Step, &Step)| match (step, zero) {
            (Step::Keep { slots: here, .. }, Step::Keep { slots: zero, .. }) => *here == slots(*zero),
            (
                Step::Exchange { sends, receives },
                Step::Exchange { sends: zero_sends, receives: zero_receives },
            ) => {
                sends
                    .iter()
                    .map(|s| (s.to, s.slots, s.after))
                    .eq(zero_sends.iter().map(|s| (rank(s.to), slots(s.slots), s.after)))
                    && receives
                        .iter()
                        .map(|s| (s.from, s.slots, s.how))
                        .eq(zero_receives.iter().map(|s| (rank(s.from), slots(s.slots), s.how)))
            }
            _ => false,
        };
        schedule.steps.len() == first.steps.len() && schedule.steps.iter().zip(&first.steps).all(same)
    })
}

/// A method's name, its cost and its time.
pub type Column<'a> = (&'a str, Cost, Duration);

/// The cost beside a dense ring's.
pub fn costs(ours: &Column<'_>, ring: &Column<'_>, link: &str) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:34}{:>18}{:>18}{:>10}", "", ours.0, ring.0, "ratio");
    let mut row = |name: &str, cell: fn(&Column<'_>) -> (f64, String)| {
        let ((ours, ours_text), (ring, ring_text)) = (cell(ours), cell(ring));
        let ratio = if ring > 0.0 { format!("{:.4}", ours / ring) } else { "–".into() };
        let _ = writeln!(text, "{name:34}{ours_text:>18}{ring_text:>18}{ratio:>10}");
    };
    fn count(count: u64) -> (f64, String) {
        (count as f64, grouped(count))
    }
    row("rounds", |c| count(c.1.rounds));
    row("messages of the busiest rank", |c| count(c.1.messages));
    row("words it receives", |c| count(c.1.words_received));
    row("words on the critical path", |c| count(c.1.words_critical));
    row("bytes the busiest rank receives", |c| count(4 * c.1.words_received));
    fn formula((_, cost, _): &Column<'_>) -> (f64, String) {
        let terms = format!("{}α + {}β", cost.messages.max(cost.rounds), grouped(cost.words_critical));
        (0.0, terms)
    }
    row("time", formula);
    row(&format!("at {link}"), |c| (c.2.as_secs_f64(), format!("{:.2?}", c.2)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_algorithms::Method;

    #[test]
    fn it_knows_which_programs_are_shifted() {
        for (name, workers, shifted) in [
            ("spardl", 6, true),
            ("ring", 5, true),
            ("rabenseifner", 4, false),
            ("recursive-doubling", 2, true),
        ] {
            let schedules = Method::named(name).unwrap().schedules(workers, 100).unwrap();
            assert_eq!(same_but_shifted(&schedules), shifted, "{name}");
        }
    }

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
