//! What the rest of a step takes at the least, for leaving out what cannot be the optimum.

use super::evaluate::Reached;
use super::frontier::Frontier;
use super::{GroupCost, MergingError, Placement, Problem};

/// By how much more than some grouping takes a way must take at the least before it is left out, as a share: far more than what
/// rounding makes of thousands of sums, so that no optimum is left out for it.
const SLACK: f64 = 1e-9;

/// The costs of all groups that there can be.
pub(super) struct Table {
    layers: usize,
    costs: Vec<GroupCost>,
}

impl Table {
    /// L (L + 1)/2 of them.
    pub fn of(problem: &Problem<'_>) -> Result<Self, MergingError> {
        let layers = problem.pass.layers().len();
        let groups = (0..layers).flat_map(|from| (from + 1..=layers).map(move |to| (from, to)));
        let costs = groups.map(|(from, to)| problem.cost(from, to)).collect::<Result<_, _>>()?;
        Ok(Self { layers, costs })
    }

    /// Of the layers from one on and before another.
    pub fn cost(&self, from: usize, to: usize) -> GroupCost {
        self.costs[from * self.layers - from * from.saturating_sub(1) / 2 + to - from - 1]
    }
}

/// What the rest of a step takes at the least, after each number of layers that are finished.
///
/// With the rest in given groups, the end is max(busy + p, exchanged + q): q is the longest way through some exchanges and the latency of
/// the last of them, and p that through some selections and then such exchanges from the last of them on. Such pairs follow from those of fewer layers like the
/// points of [`Optimal`](super::Optimal), from the end. Pairs are left out to which nothing can come in time, and those of each frontier are
/// rounded down to a few.
pub(super) struct Bounds {
    rest: Vec<Frontier<()>>,
    /// When all ends, as if backpropagation alone were waited for; beside it p leaves that out.
    release: Vec<f64>,
    /// What some grouping takes, and a little more.
    most: f64,
}

impl Bounds {
    /// From what some grouping takes, and frontiers that bound from below what can be reached after each number of layers. Of so many
    /// pairs each, in as many times L² steps.
    pub fn of<T: Copy>(
        problem: &Problem<'_>,
        table: &Table,
        (most, reached): (f64, &[Frontier<T>]),
        width: usize,
    ) -> Self {
        let layers = problem.pass.layers().len();
        let most = most * (1.0 + SLACK);
        let mut release = vec![0.0f64; layers + 1];
        let mut exchange = vec![0.0f64; layers + 1];
        let mut rest = vec![Frontier::new(); layers + 1];
        rest[layers].insert(&mut 0, (f64::NEG_INFINITY, 0.0, ()), || false);
        for from in (0..layers).rev() {
            let (mut frontier, mut times) = (Frontier::new(), [f64::INFINITY; 2]);
            for to in from + 1..=layers {
                let (cost, end) = (table.cost(from, to), problem.pass.end(to));
                let exchanges = |q: f64| cost.exchange + cost.latency.max(q);
                let all = exchanges(exchange[to]);
                times[0] = times[0].min(all);
                times[1] = times[1].min(release[to].max(end + cost.select + all));
                // In the backward pass, the busy time is a stall, to which what is computed adds.
                let computed = if problem.place == Placement::InBackward { end } else { 0.0 };
                let longest = |&(p, q, ()): &(f64, f64, ())| cost.select + p.max(computed + exchanges(q));
                // While the way through this group is the longest, shorter exchanges are better in both.
                let points = rest[to].points();
                let turn = points.partition_point(|&(p, q, ())| p < computed + exchanges(q));
                let shorter =
                    turn > 0 && points.get(turn).is_some_and(|at| longest(at) <= longest(&points[turn - 1]));
                let first = if shorter { turn } else { turn.saturating_sub(1) };
                // No pair through this group is shorter in either than that.
                let (Some(shortest), Some(last)) = (points.get(first), points.last()) else { continue };
                if reached[from].least(longest(shortest).min(longest(last)), exchanges(last.1)) > most {
                    continue;
                }
                let mut place = 0;
                for point in &points[first..] {
                    let (p, q) = (longest(point), exchanges(point.1));
                    frontier.insert(&mut place, (p, q, ()), || reached[from].least(p, q) > most);
                }
            }
            [exchange[from], release[from]] = times;
            frontier.lower(width);
            rest[from] = frontier;
        }
        Self { rest, release, most }
    }

    /// A grouping has turned out to take no longer than this.
    pub fn lower(&mut self, most: f64) {
        self.most = self.most.min(most * (1.0 + SLACK));
    }

    /// What a worker that stands here after this many layers needs at the least until the end of the step.
    fn least(&self, Reached { busy, exchanged }: Reached, layers: usize) -> f64 {
        self.rest[layers].least(busy, exchanged).max(self.release[layers])
    }

    /// Behind how many layers the groups end that are each the best by these bounds, one after the other; nothing if all was left out.
    pub fn follow(&self, problem: &Problem<'_>, table: &Table) -> Option<Vec<usize>> {
        let layers = problem.pass.layers().len();
        let (mut stands, mut ends, mut at) = (Reached::default(), Vec::new(), 0);
        while at < layers {
            let next = |to| {
                let cost = table.cost(at, to);
                let reached = problem.advance(stands, to, cost).1;
                (self.least(reached, to).max(reached.exchanged + cost.latency), to, reached)
            };
            let best = (at + 1..=layers).map(next).min_by(|one, other| one.0.total_cmp(&other.0));
            let (least, to, reached) = best?;
            if least == f64::INFINITY {
                return None;
            }
            ends.push(to);
            (at, stands) = (to, reached);
        }
        Some(ends)
    }

    /// Whether a worker that stands here after this many layers ends later than some grouping would have, whatever it does: by so
    /// much later that it is not for rounding.
    pub fn exceed(&self, reached: Reached, layers: usize) -> bool {
        self.least(reached, layers) > self.most
    }
}
