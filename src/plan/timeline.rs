//! When things happen: the latency round of every exchange and every message of checked schedules.

use std::collections::{HashMap, VecDeque};

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{How, Proof, Schedule, Slots, Step};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// What is sent.
    pub slots: Slots,
    /// What becomes of it.
    pub how: How,
    /// The sender's round, from 1 on.
    pub round: u64,
    /// Words that the schedule allows it, at most.
    pub words: u64,
}

/// When a step starts and ends, as rounds from 1 on. An exchange with a worker that is late starts in one
/// round and ends in another; a selection belongs to the round that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The round in which its sends leave.
    pub starts: u64,
    /// The round in which its receives are complete.
    pub ends: u64,
}

/// The messages and steps of all workers in time.
#[derive(Debug)]
pub struct Timeline {
    /// All messages, in the order in which they are received.
    pub flights: Vec<Flight>,
    /// By rank, for each of its steps.
    pub spans: Vec<Vec<Span>>,
}

#[derive(Clone, Copy, Default)]
struct Worker {
    /// The present step, and how many of its receives have come; None before its sends have left.
    step: usize,
    received: Option<usize>,
    /// The last round that it finished, and the one that the present exchange has reached.
    finished: u64,
    round: u64,
}

impl Timeline {
    /// Follows the messages of schedules that the checker has accepted.
    pub fn of(schedules: &[Schedule], proof: &Proof) -> Self {
        let mut timeline = Self {
            flights: Vec::new(),
            spans: schedules.iter().map(|s| vec![Span::default(); s.steps.len()]).collect(),
        };
        let mut workers = vec![Worker::default(); schedules.len()];
        let mut under_way: HashMap<(Rank, Rank), VecDeque<u64>> = HashMap::new();
        let mut progress = true;
        while std::mem::take(&mut progress) {
            for (schedule, worker) in schedules.iter().zip(&mut workers) {
                while timeline.step(schedule, proof, worker, &mut under_way) {
                    progress = true;
                }
            }
        }
        timeline
    }

    /// Runs the present step of a worker; says whether it is done.
    fn step(
        &mut self,
        schedule: &Schedule,
        proof: &Proof,
        worker: &mut Worker,
        under_way: &mut HashMap<(Rank, Rank), VecDeque<u64>>,
    ) -> bool {
        let (rank, step) = (schedule.rank, worker.step);
        let next = worker.finished + 1;
        match schedule.steps.get(step) {
            None => return false,
            Some(
                Step::Keep { .. }
                | Step::Propose { .. }
                | Step::Align { .. }
                | Step::Sum { .. }
                | Step::Split { .. }
                | Step::Annotate { .. },
            ) => {
                self.spans[rank.index()][step] = Span { starts: next, ends: next };
            }
            Some(Step::Exchange { sends, receives }) => {
                let received = worker.received.unwrap_or_else(|| {
                    worker.round = next;
                    for send in sends {
                        under_way.entry((rank, send.to)).or_default().push_back(next);
                    }
                    0
                });
                for (r, receive) in receives.iter().enumerate().skip(received) {
                    worker.received = Some(r);
                    let sent = under_way.get_mut(&(receive.from, rank)).and_then(VecDeque::pop_front);
                    let Some(round) = sent else { return false };
                    worker.round = worker.round.max(round);
                    self.flights.push(Flight {
                        from: receive.from,
                        to: rank,
                        slots: receive.slots,
                        how: receive.how,
                        round,
                        words: proof.ranks[rank.index()].words[&step][r],
                    });
                }
                self.spans[rank.index()][step] = Span { starts: next, ends: worker.round };
                (worker.received, worker.finished) = (None, worker.round);
            }
        }
        worker.step += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_algorithms::Method;
    use gleaner_algorithms::schedule::check;

    /// The checker counts rounds by itself: both must agree, and so must the words that it gives to all messages with its sum, for every method and any P.
    #[test]
    fn it_agrees_with_the_checker() {
        for listed in Method::all() {
            for workers in 1..20 {
                let method = listed.clone().density(0.1);
                let schedules = method.schedules(workers, 1000).unwrap();
                let proof = check(&schedules).unwrap();
                let timeline = Timeline::of(&schedules, &proof);
                let ends = schedules.iter().zip(&timeline.spans).flat_map(|(schedule, spans)| {
                    let steps = schedule.steps.iter().zip(spans);
                    steps.filter(|(s, _)| matches!(s, Step::Exchange { .. })).map(|(_, span)| span.ends)
                });
                assert_eq!(ends.max().unwrap_or(0), proof.cost.rounds);
                let received = |rank: u32| {
                    timeline.flights.iter().filter(move |f| f.to == Rank(rank)).map(|f| f.words).sum::<u64>()
                };
                assert_eq!((0..workers).map(received).max(), Some(proof.cost.words_received));
            }
        }
    }
}
