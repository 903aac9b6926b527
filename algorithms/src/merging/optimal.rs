//! The least iteration time that any grouping has, exactly.
//!
//! A worker that has finished i layers in some groups stands at two times: when the thread that selects is free, and when the
//! next group can be exchanged. The rest of the step depends on the groups so far through these two alone, and neither being later makes
//! anything earlier: [`advance`](Problem::advance) is sums and maxima. So of two ways to finish i layers, one that is no later in
//! both may be taken instead of the other, and what is left, for each i, is a Pareto frontier. Group by group, all frontiers
//! follow from those before; the last one's least time is the minimum, if no exchange has a latency.
//!
//! With latencies an update of an earlier group may be the last to come. So ways with a group whose update comes no sooner than
//! some grouping's last are left out, and any way that is left is a better grouping than that one, which takes its place until none is left.
//!
//! Nothing is assumed of the cost functions, not even that they grow. Sums and maxima of floating-point numbers are monotone
//! with their rounding, and [`evaluate`](super::evaluate) takes the same steps in the same order, so that the minimum is exact to
//! the last bit.
//!
//! What cannot lead to the optimum is left out. Frontiers that are rounded down to a few pairs say what can be reached at the least.
//! From the end, rounded down likewise, [`Bounds`] say what the rest of a step takes at the least. A grouping that is good says what
//! the optimum takes at the most: at first one of those of other strategies; then the one to which a few points of each frontier lead, with its
//! cuts moved one by one, or that which follows the bounds. All three together leave a narrowed range, in which the same is done again with more
//! pairs, until nothing has to be rounded. What is left out is larger than that grouping's time by more than rounding of numbers could
//! explain, or an update of it comes no sooner than that grouping's last, so that nothing is lost. It ends when no way is left, or none takes
//! less than that grouping does, also by what was rounded down: then it is the optimum, whatever the frontiers would be.
//!
//! L²/2 groups are tried from every point of a frontier. Where selection costs a + b·d and runs in the backward pass, the time
//! that it has taken follows from the number of groups so far, so a frontier of i layers has at most i points, up to rounding,
//! and without latencies the whole takes at most L³/2 steps. Beside the backward pass the time follows from the layers of the first group since
//! selection last waited, and the number of groups since: at most about L³/6 points; far fewer in practice. For other costs, such as
//! γ ρ d log d, no such bound is known. From the end a pair's second time is the sum of all exchanges, if none has a latency: where these cost α + β·d, it follows from
//! the number of groups, whatever selection costs, so that bounds need at most as many pairs as there are layers.

use super::bounds::{Bounds, Table};
use super::evaluate::Reached;
use super::frontier::Frontier;
use super::{GroupCost, Grouping, LayerWise, MergingError, Omgs, Problem, Strategy, Threshold, evaluate};

/// How many points of each frontier are kept at most to find a good grouping.
const NARROW: usize = 32;

/// By how many times more pairs frontiers are rounded down to, each time. Bounds have the square of as many.
const WIDER: usize = 8;

/// How often all cuts are moved at most.
const SWEEPS: usize = 2;

/// By how many layers a cut is moved at most.
const FAR: usize = 4;

/// The exact minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimal;

/// The best grouping, and what finding it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// A grouping with the least iteration time.
    pub grouping: Grouping,
    /// That time, in seconds: what [`evaluate`](super::evaluate) gives for the grouping, to the last bit.
    pub iteration: f64,
    /// How many points the largest frontier had when the optimum was sure, without those that could be left out.
    pub largest_frontier: usize,
}

/// The ways to finish this many layers that none other is better than: how busy, when exchanged, and behind which layer the last
/// group begins and after which point of the frontier there.
type Ways = Frontier<(usize, usize)>;

impl Optimal {
    /// The best grouping of all 2^(L − 1).
    ///
    /// # Errors
    /// Costs that cannot be evaluated, are negative or not finite.
    pub fn solve(problem: &Problem<'_>) -> Result<Solution, MergingError> {
        let table = Table::of(problem)?;
        let (lower, mut is_exact) = frontiers(problem, &table, None, |ways| ways.lower(1));
        let mut best = Incumbent::first(problem, &table)?;
        let (mut floor, mut largest) = (least(&lower), 1);
        let (mut bounds, mut width) = (Bounds::of(problem, &table, (best.takes, &lower), 1), 1);
        while floor < best.takes {
            width = if is_exact { width.max(WIDER) } else { width * WIDER };
            let lower;
            (lower, is_exact) =
                frontiers(problem, &table, Some((&bounds, best.takes)), |ways| ways.lower(width));
            floor = least(&lower);
            largest = lower.iter().map(|ways| ways.points().len()).max().unwrap_or(0);
            if let Some(ends) = last(&lower).filter(|_| is_exact) {
                best.or(problem, &table, ends);
                if floor < best.takes {
                    let ends = moved(problem, &table, best.ends.clone(), floor);
                    best.or(problem, &table, ends);
                }
                bounds.lower(best.takes);
                continue;
            }
            if floor >= best.takes {
                break;
            }
            let seek = Some((&bounds, best.takes));
            let narrow = frontiers(problem, &table, seek, |ways| ways.thin(width.min(NARROW))).0;
            // Few points may all turn out to be none of a good grouping.
            if let Some(ends) = last(&narrow) {
                best.or(problem, &table, moved(problem, &table, ends, floor));
            }
            bounds = Bounds::of(problem, &table, (best.takes, &lower), width * width);
            if let Some(ends) = bounds.follow(problem, &table) {
                best.or(problem, &table, ends);
            }
            bounds.lower(best.takes);
        }
        let grouping = Grouping::new(best.ends, problem.pass.layers().len())?;
        let iteration = evaluate(problem, &grouping)?.iteration;
        Ok(Solution { grouping, iteration, largest_frontier: largest })
    }
}

/// The best of the groupings that were tried, as branch and bound calls it.
struct Incumbent {
    /// Behind how many layers its groups end.
    ends: Vec<usize>,
    /// How long its iteration takes.
    takes: f64,
}

impl Incumbent {
    /// Of the groupings of other strategies: OMGS-SGD's, each layer by itself, and groups of at least this many entries.
    fn first(problem: &Problem<'_>, table: &Table) -> Result<Self, MergingError> {
        let layers = problem.pass.layers().len();
        let mut best = Self { ends: vec![layers], takes: takes(problem, table, &[layers]) };
        for strategy in [&Omgs::READ as &dyn Strategy, &LayerWise] {
            best.or(problem, table, strategy.group(problem)?.ends().to_vec());
        }
        let mut entries = problem.pass.entries(0, layers) / 2;
        for _ in 0..layers.ilog2() {
            best.or(problem, table, Threshold { entries: entries.max(1) }.group(problem)?.ends().to_vec());
            entries /= 2;
        }
        Ok(best)
    }

    /// Or this one, if it is better.
    fn or(&mut self, problem: &Problem<'_>, table: &Table, ends: Vec<usize>) {
        let takes = takes(problem, table, &ends);
        if takes < self.takes {
            *self = Self { ends, takes };
        }
    }
}

/// What the last frontier says that an iteration takes at the least; infinite where all has been left out.
fn least(frontiers: &[Ways]) -> f64 {
    frontiers.last().and_then(|ways| ways.points().last()).map_or(f64::INFINITY, |point| point.1)
}

/// How long an iteration takes with groups that end behind this many layers.
fn takes(problem: &Problem<'_>, table: &Table, ends: &[usize]) -> f64 {
    let (mut reached, mut begin, mut done) = (Reached::default(), 0, 0.0_f64);
    for &end in ends {
        let cost = table.cost(begin, end);
        reached = problem.advance(reached, end, cost).1;
        (begin, done) = (end, done.max(reached.exchanged + cost.latency));
    }
    done
}

/// Improves groups, given as the layers behind which they end, while removing a cut, adding one, or moving one by some layers makes the
/// iteration shorter, and it takes longer than any can; a few times through all cuts.
fn moved(problem: &Problem<'_>, table: &Table, mut ends: Vec<usize>, floor: f64) -> Vec<usize> {
    let layers = problem.pass.layers().len();
    let mut least = takes(problem, table, &ends);
    for _ in 0..SWEEPS {
        let before = least;
        for cut in 1..layers {
            for to in std::iter::once(0).chain(cut.saturating_sub(FAR).max(1)..(cut + FAR).min(layers)) {
                let mut other = ends.clone();
                for toggled in [cut, to].into_iter().filter(|&toggled| toggled > 0) {
                    match other.binary_search(&toggled) {
                        Ok(place) => drop(other.remove(place)),
                        Err(place) => other.insert(place, toggled),
                    }
                }
                let found = takes(problem, table, &other);
                if found < least {
                    (least, ends) = (found, other);
                }
            }
        }
        if least <= floor || least >= before {
            break;
        }
    }
    ends
}

/// The frontier of each number of layers, without what the bounds leave out, and ways whose updates come no sooner than the last of some grouping,
/// each made smaller as soon as it is complete; and whether none had to be. In the last one updates stand for exchanges.
fn frontiers(
    problem: &Problem<'_>,
    table: &Table,
    bounds: Option<(&Bounds, f64)>,
    shrink: impl Fn(&mut Ways) -> bool,
) -> (Vec<Ways>, bool) {
    let mut is_exact = true;
    let layers = problem.pass.layers().len();
    let exceed = |reached: Reached, end, cost: GroupCost| {
        bounds.is_some_and(|(bounds, most)| {
            reached.exchanged + cost.latency >= most || bounds.exceed(reached, end)
        })
    };
    let mut start = Ways::new();
    start.insert(&mut 0, (0.0, 0.0, (0, 0)), || false);
    let mut frontiers = vec![start];
    for end in 1..=layers {
        let mut frontier = Ways::new();
        for (begin, before) in frontiers.iter().enumerate() {
            let before = before.points();
            let (Some(first), Some(last)) = (before.first(), before.last()) else { continue };
            let cost = table.cost(begin, end);
            // No later in both than what follows from any of the points.
            let (_, corner) = problem.advance(Reached { busy: first.0, exchanged: last.1 }, end, cost);
            if exceed(corner, end, cost) {
                continue;
            }
            let mut place = 0;
            for (index, &(busy, exchanged, _)) in before.iter().enumerate() {
                let (selected, reached) = problem.advance(Reached { busy, exchanged }, end, cost);
                let later = if end == layers { cost.latency } else { 0.0 };
                let point = (reached.busy, reached.exchanged + later, (begin, index));
                frontier.insert(&mut place, point, || exceed(reached, end, cost));
                // All further points are busier, and here the exchange waits for selection already.
                if exchanged <= selected {
                    break;
                }
            }
        }
        is_exact &= !shrink(&mut frontier);
        frontiers.push(frontier);
    }
    (frontiers, is_exact)
}

/// Behind how many layers the groups end that lead to the point of the last frontier with the least exchange time, if there is any.
fn last(frontiers: &[Ways]) -> Option<Vec<usize>> {
    let mut at = (frontiers.len() - 1, frontiers.last()?.points().len().checked_sub(1)?);
    let mut ends = Vec::new();
    while at.0 > 0 {
        ends.push(at.0);
        at = frontiers[at.0].points()[at.1].2;
    }
    ends.reverse();
    Some(ends)
}

impl Strategy for Optimal {
    fn name(&self) -> &'static str {
        "optimal"
    }

    fn summary(&self) -> &'static str {
        "the least iteration time of all groupings, exactly, by a dynamic programme over Pareto frontiers"
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        Ok(Self::solve(problem)?.grouping)
    }
}
