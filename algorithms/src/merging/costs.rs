//! What a group costs: t_s, to select from it, and t_c, to exchange what was selected.

use super::MergingError;
use crate::Method;
use crate::forecast::Model;

/// What one group costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupCost {
    /// To select from its gradient and to encode, in seconds: t_s of OMGS-SGD's Table II; 0 where all is exchanged.
    pub select: f64,
    /// How long its exchange keeps that of the next group waiting, in seconds. With [`latency`](Self::latency) it is t_c of OMGS-SGD's
    /// Table II, the time from when the exchange begins until the update is there.
    pub exchange: f64,
    /// How much later its update is there, in seconds, while the next group is exchanged: the latency of its rounds. 0 in
    /// OMGS-SGD's model, in which one exchange begins when the one before has ended.
    pub latency: f64,
}

impl GroupCost {
    /// Of an exchange that holds the links and then merges for so long, in seconds, and has this latency besides. While one group is
    /// merged the links carry the next one, so groups follow each other as fast as the slower of the two allows: exactly so if all groups are
    /// alike, and nearly if not.
    pub fn pipelined(select: f64, links: f64, merge: f64, latency: f64) -> Self {
        Self { select, exchange: links.max(merge), latency: latency + links.min(merge) }
    }

    /// t_c of OMGS-SGD's Table II, in seconds: what the exchange takes if no other is under way.
    pub fn alone(&self) -> f64 {
        self.exchange + self.latency
    }
}

/// What groups cost, by their number of entries.
pub trait Costs {
    /// What a group of this many entries costs; at least one. Times are finite and at least 0.
    ///
    /// # Errors
    /// Where the costs of this many entries are not known.
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError>;
}

/// A cost that grows with every entry by as much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// What any group costs, in seconds: α, of an exchange.
    pub fixed: f64,
    /// What each entry costs besides, in seconds: β, of an exchange, or γ, of a selection.
    pub per_entry: f64,
}

/// Both costs affine in the entries: what `gleaner testbed report` fits to measurements. Selection at 0 is a dense exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Affine {
    /// Selection.
    pub select: Line,
    /// The exchange.
    pub exchange: Line,
}

/// The cost functions of OMGS-SGD as they are printed: equations 10 and 11, with d the entries of the group in both, as in
/// Algorithm 1, lines 15 to 18.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Selection takes γ ρ d log2 d, in seconds; the paper does not say which logarithm, its code takes this one.
    pub gamma: f64,
    /// The density, ρ.
    pub density: f64,
    /// What any exchange takes, in seconds.
    pub alpha: f64,
    /// What each entry of the gradient, selected or not, adds to an exchange, in seconds.
    pub beta: f64,
}

/// What this project's [`Model`] forecasts for a method among this many workers, [pipelined](GroupCost::pipelined).
#[derive(Clone, Copy, Debug)]
pub struct Predicted<'a> {
    /// Of the network and the processor.
    pub model: &'a Model,
    /// With its density, which holds for each group by itself.
    pub method: &'a Method,
    /// How many workers there are, P.
    pub workers: u32,
}

impl Line {
    /// What this many entries cost, in seconds.
    pub fn at(&self, entries: usize) -> f64 {
        self.fixed + self.per_entry * entries as f64
    }
}

impl Costs for Affine {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        Ok(GroupCost {
            select: self.select.at(entries),
            exchange: self.exchange.at(entries),
            ..GroupCost::default()
        })
    }
}

impl Published {
    /// The paper's 16 nodes with P102-100 GPUs at 1 Gbit/s, at this density. γ is printed (§V-B: 2.2 · 10⁻¹⁰) for a time
    /// without ρ, as its Fig. 2a and its code have it, so that γ ρ is 2.19 · 10⁻¹⁰ s here for every ρ. α and β are not
    /// printed; these are the constants of the authors' code, which exchanges indices and values of k = ρ d entries one
    /// after the other: 2 (11 ms + 17 ns · 4 · 16 · ρ d).
    pub fn cluster(density: f64) -> Self {
        let beta = 2.0 * 1.7e-8 * 4.0 * 16.0 * density;
        Self { gamma: 2.188_969_57e-10 / density, density, alpha: 2.0 * 1.1e-2, beta }
    }
}

impl Costs for Published {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        let d = entries as f64;
        // The limit at no entries, where the logarithm is infinite.
        let log = if entries == 0 { 0.0 } else { libm::log2(d) };
        let (select, exchange) = (self.gamma * self.density * d * log, self.alpha + self.beta * d);
        Ok(GroupCost { select, exchange, ..GroupCost::default() })
    }
}

impl Costs for Predicted<'_> {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        let forecast = self.model.forecast(self.method.clone(), self.workers, entries)?;
        let links = forecast.exchange - forecast.latency;
        Ok(GroupCost::pipelined(forecast.select, links, forecast.merge, forecast.latency))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::forecast::{Network, Speed};

    /// Equations 10 and 11, written out; a million entries at the published γ take what Fig. 2a shows, some milliseconds.
    #[test]
    fn published_costs_are_the_printed_formulas() {
        let costs = Published { gamma: 2e-10, density: 0.001, alpha: 0.5, beta: 3e-9 };
        let cost = costs.of(1 << 20).unwrap();
        assert_eq!(cost.select, 2e-10 * 0.001 * 1_048_576.0 * 20.0);
        assert_eq!(cost.exchange, 0.5 + 3e-9 * 1_048_576.0);
        assert_eq!(costs.of(1).unwrap().select, 0.0);
        let select = Published::cluster(0.001).of(1_000_000).unwrap().select;
        assert!((0.0043..0.0044).contains(&select), "{select}");
        assert_eq!(
            Published::cluster(0.005).of(1000).unwrap().select,
            Published::cluster(0.001).of(1000).unwrap().select
        );
    }

    /// The forecast of a step of the whole gradient, and no second account of it.
    #[test]
    fn predicted_costs_are_the_forecast() {
        let network = Network { latency: Duration::from_micros(200), bytes_per_second: 1.25e8 };
        let speed = Speed { select: 0.8, encode: 10.0, merge: 20.0, add: 1.5, message: 4000.0 };
        let method = Method::spardl().density(0.01);
        let model = Model::new(network, speed, &method, 1_000_000).unwrap();
        let forecast = model.forecast(method.clone(), 8, 30_000).unwrap();
        let cost = Predicted { model: &model, method: &method, workers: 8 }.of(30_000).unwrap();
        assert!((cost.select + cost.alone() - forecast.seconds).abs() < 1e-12);
        assert_eq!(cost.select, forecast.select);
        assert!((forecast.latency - forecast.rounds as f64 * 200e-6).abs() < 1e-12);
        let (links, merge) = (forecast.exchange - forecast.latency, forecast.merge);
        assert_eq!(cost, GroupCost::pipelined(forecast.select, links, merge, forecast.latency));
        for (links, merge) in [(3.0, 1.0), (1.0, 3.0)] {
            let cost = GroupCost::pipelined(5.0, links, merge, 0.5);
            assert_eq!(cost, GroupCost { select: 5.0, exchange: 3.0, latency: 1.5 });
        }
        let error =
            Predicted { model: &model, method: &Method::spardl().k(50), workers: 8 }.of(30).unwrap_err();
        assert!(error.to_string().contains("k is 50"), "{error}");
    }
}
