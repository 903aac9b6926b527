//! Random passes and costs, from a seed that is printed where something fails.

use gleaner_algorithms::merging::{Affine, Costs, GroupCost, Layer, Line, MergingError, Pass, Published};
use gleaner_statistics::random::Generator;

/// Numbers from a seed.
#[derive(Clone, Copy)]
pub struct Random(Generator);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Generator::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        self.0.unit()
    }

    /// Between two numbers above 0, evenly in their logarithms.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }

    /// A number of things below another.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Which cost functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// No selection, α + β d: a dense exchange.
    Dense,
    /// Both costs affine.
    Affine,
    /// Both affine and in whole numbers, so that no sum is rounded.
    Whole,
    /// The paper's: γ ρ d log2 d and α + β d.
    Published,
    /// Both grow with the square root of the entries, and in jumps.
    Jumps,
    /// Affine, with a latency that is affine too.
    Late,
}

pub const FAMILIES: [Family; 6] =
    [Family::Dense, Family::Affine, Family::Whole, Family::Published, Family::Jumps, Family::Late];

/// Affine, and an affine latency.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    affine: Affine,
    latency: Line,
}

impl Costs for Late {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        Ok(GroupCost { latency: self.latency.at(entries), ..self.affine.of(entries)? })
    }
}

/// Monotone, and neither convex nor concave.
#[derive(Clone, Copy, Debug)]
pub struct Jumps {
    select: f64,
    exchange: f64,
    packet: usize,
}

impl Costs for Jumps {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        let packets = entries.div_ceil(self.packet) as f64;
        let (select, exchange) = (self.select * (entries as f64).sqrt(), self.exchange * packets);
        Ok(GroupCost { select, exchange, ..GroupCost::default() })
    }
}

/// A pass of this many layers, and costs of a family. The exchange of all layers takes from a tenth of the backward pass to
/// ten times as long, half of the layers are small, and start-ups are from a thousandth of the backward pass to all of it.
pub fn instance(
    random: &mut Random,
    layers: usize,
    family: Family,
) -> Result<(Pass, Box<dyn Costs>), MergingError> {
    let whole = family == Family::Whole;
    let layer = |random: &mut Random| {
        let most = if random.below(2) == 0 { 1e3 } else { 1e7 };
        let (backward, entries) = (random.between(1e-4, 1e-1), random.between(1.0, most) as usize);
        match whole {
            // Whole milliseconds, a few of them none, and whole entries.
            true => Layer { backward: (random.below(20) as f64).floor(), entries: 1 + random.below(30) },
            false => Layer { backward, entries: entries.max(1) },
        }
    };
    let forward = if whole { random.below(10) as f64 } else { random.between(1e-3, 1.0) };
    let pass = Pass::new(forward, (0..layers).map(|_| layer(random)).collect())?;
    let entries: usize = pass.layers().iter().map(|layer| layer.entries).sum();
    let (backward, d) = (pass.backward(), entries as f64);
    let mut line = |low: f64, high: f64| match whole {
        true => Line { fixed: random.below(12) as f64, per_entry: random.below(3) as f64 },
        false => Line {
            fixed: backward * random.between(1e-3, 1.0),
            per_entry: backward * random.between(low, high) / d,
        },
    };
    let (mut select, exchange) = (line(0.01, 1.0), line(0.1, 10.0));
    let costs: Box<dyn Costs> = match family {
        Family::Dense => Box::new(Affine { select: Line::default(), exchange }),
        Family::Affine | Family::Whole => {
            select.fixed = if whole { select.fixed } else { select.fixed * 0.1 };
            Box::new(Affine { select, exchange })
        }
        Family::Late => {
            select.fixed *= 0.1;
            let exchange = Line { fixed: exchange.fixed * 0.1, ..exchange };
            Box::new(Late { affine: Affine { select, exchange }, latency: line(0.1, 10.0) })
        }
        Family::Published => Box::new(Published {
            gamma: select.per_entry / d.max(2.0).log2() / 0.001,
            density: 0.001,
            alpha: exchange.fixed,
            beta: exchange.per_entry,
        }),
        Family::Jumps => Box::new(Jumps {
            select: select.per_entry * d.sqrt(),
            exchange: exchange.per_entry * d / 8.0,
            packet: (entries / 8).max(1),
        }),
    };
    Ok((pass, costs))
}
