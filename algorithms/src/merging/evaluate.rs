//! What a grouping takes: the one evaluator. OMGS-SGD, equations 2 and 5 to 9, with merged layers as in equations 13 to 15, and with the
//! latency of each group, which the paper has within t_c: while a group waits for its rounds, the next one is exchanged.

use std::ops::Range;

use super::pass::time;
use super::{Costs, GroupCost, Grouping, MergingError, Pass};

/// Where selection runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the thread, or the stream, of the backward pass, which waits for it: OMGS-SGD, equation 6.
    InBackward,
    /// Beside the backward pass, which goes on; one group is selected from at a time.
    Beside,
}

/// What is to be merged, and what groups cost.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The layers with their times.
    pub pass: &'a Pass,
    /// What groups of them cost.
    pub costs: &'a dyn Costs,
    /// Where selection runs.
    pub place: Placement,
}

/// From when to when, in seconds after the step began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it begins.
    pub begin: f64,
    /// When it ends.
    pub end: f64,
}

/// When what happens to one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTimes {
    /// Its layers, in the order in which backpropagation finishes them.
    pub layers: Range<usize>,
    /// How many entries they have together.
    pub entries: usize,
    /// Backpropagation of its layers: from τ_b of the first, equation 6.
    pub compute: Span,
    /// Selection: from τ_s, equation 7.
    pub select: Span,
    /// The exchange, as long as it keeps that of the next group waiting: from τ_c, equation 8.
    pub exchange: Span,
    /// When its update is there, in seconds after the step began: after the exchange, and its [latency](GroupCost::latency).
    pub done: f64,
}

/// What a grouping takes. The iteration is the forward pass, the backward pass, the [stall](Self::selecting) and the
/// [non-overlapped](Self::non_overlapped) time, one after the other (equation 5).
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The groups, in the order in which they are exchanged.
    pub groups: Vec<GroupTimes>,
    /// How long the step takes until the last update is there, in seconds: t_iter, equation 17.
    pub iteration: f64,
    /// By how much the last selection ends after the backward pass alone would, in seconds: the sum of all t_s where selection
    /// runs in the backward pass.
    pub selecting: f64,
    /// By how much the last update comes after the last selection, in seconds: t_c^no. Equation 9, with its last two terms both
    /// subtracted: τ_c(1) + t_c(1) − (τ_s(1) + t_s(1)).
    pub non_overlapped: f64,
}

impl Timeline {
    /// For how long at least one group is under way, each from this time until its update is there, in seconds. The times do not
    /// decrease from group to group.
    pub fn under_way(&self, from: impl Fn(&GroupTimes) -> f64) -> f64 {
        let (mut seconds, mut until) = (0.0, 0.0_f64);
        for group in &self.groups {
            seconds += (group.done - until.max(from(group))).max(0.0);
            until = until.max(group.done);
        }
        seconds
    }
}

/// Where a worker stands between two groups. Both times are in seconds, and what comes later never comes earlier because one
/// of them is larger: this is what [`Optimal`](super::Optimal) relies on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reached {
    /// Where selection runs in the backward pass, how long it has stalled it; beside it, when selection is done.
    pub busy: f64,
    /// When the next group can be exchanged.
    pub exchanged: f64,
}

impl Problem<'_> {
    /// What a group of the layers from one on and before another costs.
    pub(super) fn cost(&self, from: usize, to: usize) -> Result<GroupCost, MergingError> {
        let entries = self.pass.entries(from, to);
        let cost = self.costs.of(entries)?;
        time(cost.select, || format!("the selection from {entries} entries"))?;
        time(cost.exchange, || format!("the exchange of {entries} entries"))?;
        time(cost.latency, || format!("the latency of {entries} entries"))?;
        Ok(cost)
    }

    /// When selection is done from a group of this cost whose layers end here, and where the worker stands after its exchange.
    pub(super) fn advance(&self, reached: Reached, end: usize, cost: GroupCost) -> (f64, Reached) {
        let end = self.pass.end(end);
        let (selected, busy) = match self.place {
            Placement::InBackward => (end + (reached.busy + cost.select), reached.busy + cost.select),
            Placement::Beside => {
                let selected = end.max(reached.busy) + cost.select;
                (selected, selected)
            }
        };
        (selected, Reached { busy, exchanged: selected.max(reached.exchanged) + cost.exchange })
    }
}

/// What this grouping takes.
///
/// # Errors
/// A grouping of another number of layers; costs that cannot be evaluated, are negative or not finite.
pub fn evaluate(problem: &Problem<'_>, grouping: &Grouping) -> Result<Timeline, MergingError> {
    let layers = problem.pass.layers().len();
    if grouping.layers() != layers {
        return Err(MergingError::Ends { ends: grouping.ends().to_vec(), layers });
    }
    let (mut reached, mut last, mut iteration) = (Reached::default(), 0.0, 0.0_f64);
    let mut groups = Vec::with_capacity(grouping.groups());
    for layers in grouping.ranges() {
        let cost = problem.cost(layers.start, layers.end)?;
        let (selected, next) = problem.advance(reached, layers.end, cost);
        let stall = if problem.place == Placement::InBackward { reached.busy } else { 0.0 };
        let compute =
            Span { begin: problem.pass.end(layers.start) + stall, end: problem.pass.end(layers.end) + stall };
        let from =
            if problem.place == Placement::InBackward { compute.end } else { compute.end.max(reached.busy) };
        groups.push(GroupTimes {
            entries: problem.pass.entries(layers.start, layers.end),
            compute,
            select: Span { begin: from, end: selected },
            exchange: Span { begin: selected.max(reached.exchanged), end: next.exchanged },
            done: next.exchanged + cost.latency,
            layers,
        });
        (reached, last, iteration) = (next, selected, iteration.max(next.exchanged + cost.latency));
    }
    let iteration = time(iteration, || "an iteration".into())?;
    let selecting = last - problem.pass.end(layers);
    Ok(Timeline { groups, iteration, selecting, non_overlapped: iteration - last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merging::{Affine, Layer, Line};

    const COSTS: Affine =
        Affine { select: Line { fixed: 1.0, per_entry: 1.0 }, exchange: Line { fixed: 4.0, per_entry: 2.0 } };

    fn times(place: Placement, ends: &[usize]) -> Timeline {
        let layers = [(3.0, 2), (1.0, 1), (8.0, 1)].map(|(backward, entries)| Layer { backward, entries });
        let pass = Pass::new(10.0, layers.to_vec()).unwrap();
        let problem = Problem { pass: &pass, costs: &COSTS, place };
        evaluate(&problem, &Grouping::new(ends.to_vec(), 3).unwrap()).unwrap()
    }

    /// Worked out on paper.
    #[test]
    fn a_timeline_by_hand() {
        let spans = |timeline: &Timeline| -> Vec<[f64; 6]> {
            let of = |g: &GroupTimes| {
                [
                    g.compute.begin,
                    g.compute.end,
                    g.select.begin,
                    g.select.end,
                    g.exchange.begin,
                    g.exchange.end,
                ]
            };
            timeline.groups.iter().map(of).collect()
        };
        let paper = times(Placement::InBackward, &[1, 2, 3]);
        let rows = [
            [10.0, 13.0, 13.0, 16.0, 16.0, 24.0],
            [16.0, 17.0, 17.0, 19.0, 24.0, 30.0],
            [19.0, 27.0, 27.0, 29.0, 30.0, 36.0],
        ];
        assert_eq!(spans(&paper), rows);
        assert_eq!((paper.iteration, paper.selecting, paper.non_overlapped), (36.0, 7.0, 7.0));
        let ours = times(Placement::Beside, &[1, 2, 3]);
        let rows = [
            [10.0, 13.0, 13.0, 16.0, 16.0, 24.0],
            [13.0, 14.0, 16.0, 18.0, 24.0, 30.0],
            [14.0, 22.0, 22.0, 24.0, 30.0, 36.0],
        ];
        assert_eq!(spans(&ours), rows);
        assert_eq!((ours.iteration, ours.selecting, ours.non_overlapped), (36.0, 2.0, 12.0));
        let merged = times(Placement::Beside, &[2, 3]);
        assert_eq!(
            spans(&merged),
            [[10.0, 14.0, 14.0, 18.0, 18.0, 28.0], [14.0, 22.0, 22.0, 24.0, 28.0, 34.0]]
        );
        assert_eq!(merged.groups[0].entries, 3);
        let whole = times(Placement::InBackward, &[3]);
        assert_eq!(whole.iteration, 10.0 + 12.0 + 5.0 + 12.0);
    }

    /// Of two groups the first has the latency of a large one, and its update comes last.
    #[test]
    fn an_earlier_update_may_be_the_last() {
        struct Late;
        impl Costs for Late {
            fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
                Ok(GroupCost { select: 1.0, exchange: 2.0, latency: 10.0 * (entries - 1) as f64 })
            }
        }
        let layers = [(3.0, 2), (1.0, 1)].map(|(backward, entries)| Layer { backward, entries });
        let pass = Pass::new(10.0, layers.to_vec()).unwrap();
        let problem = Problem { pass: &pass, costs: &Late, place: Placement::Beside };
        let timeline = evaluate(&problem, &Grouping::new(vec![1, 2], 2).unwrap()).unwrap();
        let done: Vec<f64> = timeline.groups.iter().map(|group| group.done).collect();
        assert_eq!(done, [13.0 + 1.0 + 2.0 + 10.0, 15.0 + 3.0]);
        assert_eq!((timeline.iteration, timeline.non_overlapped), (26.0, 11.0));
        assert_eq!(timeline.under_way(|group| group.compute.end), 26.0 - 13.0);
        assert_eq!(timeline.under_way(|group| group.exchange.begin), 26.0 - 14.0);
    }

    #[test]
    fn costs_and_groupings_that_cannot_be() {
        let pass = Pass::new(0.0, vec![Layer { backward: 1.0, entries: 5 }]).unwrap();
        let costs = Affine { select: Line { fixed: -1.0, per_entry: 0.0 }, ..COSTS };
        let problem = Problem { pass: &pass, costs: &costs, place: Placement::Beside };
        let one = Grouping::new(vec![1], 1).unwrap();
        let error = evaluate(&problem, &one).unwrap_err().to_string();
        assert!(error.contains("the selection from 5 entries takes -1 s"), "{error}");
        let two = Grouping::new(vec![1, 2], 2).unwrap();
        assert!(evaluate(&problem, &two).unwrap_err().to_string().contains("there are 1 layers"));
    }
}
