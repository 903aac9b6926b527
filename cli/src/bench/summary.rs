//! The result of the steps of one method.

use gleaner_statistics::Spread;
use serde::{Deserialize, Serialize};

use super::Entrant;
use super::measure::Floor;
use crate::choice::{Refusal, Stated, stated};

/// What one rank measured in one step.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// From handing over the gradient to holding the committed update.
    pub seconds: f64,
    /// Of them, accumulating, choosing entries and preparing messages.
    pub select: f64,
    /// Of them, waiting for messages.
    pub exchange: f64,
    /// Of them, taking received entries in and committing residuals.
    pub merge: f64,
    pub bytes: f64,
}

/// What all ranks measured in one step.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The largest over the ranks, field by field.
    pub largest: Sample,
    /// All fields of the rank that took longest.
    pub slowest: Sample,
    /// Non-zero entries of the update.
    pub delivered: usize,
    /// The share of the gradients' squared L2 norm at these entries.
    pub l2_share: f64,
}

/// The report on one method. The field names are documented in `docs/` and stay as they are.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    pub method: String,
    pub options: Stated,
    pub workers: usize,
    pub params: usize,
    pub k: usize,
    pub steps: u32,
    pub seconds: f64,
    pub seconds_p25: f64,
    pub seconds_p75: f64,
    /// Of each measured step the slowest rank's time, in order.
    pub seconds_steps: Vec<f64>,
    /// The least that a step could take, where the rate of the links was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_floor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_floor_in_place: Option<f64>,
    pub seconds_select: f64,
    pub seconds_select_p25: f64,
    pub seconds_select_p75: f64,
    pub seconds_exchange: f64,
    pub seconds_exchange_p25: f64,
    pub seconds_exchange_p75: f64,
    pub seconds_merge: f64,
    pub seconds_merge_p25: f64,
    pub seconds_merge_p75: f64,
    pub slowest_select: f64,
    pub slowest_exchange: f64,
    pub slowest_merge: f64,
    pub bytes_per_step: u64,
    pub dense_bytes_per_step: u64,
    pub rounds: u64,
    pub entries_per_step: usize,
    pub l2_share: f64,
    /// Over all ranks, a step.
    pub lost: f64,
    pub digest: String,
    /// Of the method `auto` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub methods: Vec<Summary>,
    pub refused: Vec<Refusal>,
}

/// What the method `auto` has chosen: the method that is taken, and whether for good. The field names are documented in `docs/` and stay as they are.
#[derive(Clone, Debug, Serialize)]
pub struct AutoReport {
    decided: bool,
    #[serde(flatten)]
    taken: Tried,
    tried: Vec<Tried>,
}

/// A method with its forecast, and the median of its steps if it was tried, both in seconds.
#[derive(Clone, Debug, Serialize)]
struct Tried {
    method: &'static str,
    options: Stated,
    seconds_expected: f64,
    seconds_measured: Option<f64>,
}

impl From<&gleaner_runtime::AutoChoice> for AutoReport {
    fn from(chosen: &gleaner_runtime::AutoChoice) -> Self {
        let of = |tried: &gleaner_runtime::Tried| Tried {
            method: tried.forecast.method.collective().name(),
            options: stated(&tried.forecast.method),
            seconds_expected: tried.forecast.seconds,
            seconds_measured: tried.measured.map(|median| median.as_secs_f64()),
        };
        Self {
            decided: chosen.decided,
            taken: of(&chosen.taken),
            tried: chosen.tried.iter().map(of).collect(),
        }
    }
}

impl Record {
    pub fn of(samples: &[Sample], delivered: usize, l2_share: f64) -> Self {
        let largest = samples.iter().fold(Sample::default(), |a, b| Sample {
            seconds: a.seconds.max(b.seconds),
            select: a.select.max(b.select),
            exchange: a.exchange.max(b.exchange),
            merge: a.merge.max(b.merge),
            bytes: a.bytes.max(b.bytes),
        });
        let slowest = samples.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Self { largest, slowest: slowest.copied().unwrap_or_default(), delivered, l2_share }
    }
}

impl Summary {
    /// What the records of all measured steps say, of so many workers with gradients of so many entries.
    pub fn of(
        entrant: &Entrant,
        records: &[Record],
        floor: Option<&Floor>,
        (workers, params): (usize, usize),
    ) -> Self {
        // Zeros without values.
        let of = |field: fn(&Record) -> f64| {
            let values: Vec<f64> = records.iter().map(field).collect();
            Spread::quartiles(&values).unwrap_or(Spread::exact(0.0))
        };
        let (seconds, select) = (of(|r| r.largest.seconds), of(|r| r.largest.select));
        let (exchange, merge) = (of(|r| r.largest.exchange), of(|r| r.largest.merge));
        // The parts of one rank add up, medians do not: so sums over the steps stand in proportion.
        let sum = |field: fn(&Record) -> f64| records.iter().map(field).sum::<f64>();
        let whole = sum(|r| r.slowest.seconds);
        let part = |field: fn(&Record) -> f64| {
            if whole > 0.0 { seconds.value * sum(field) / whole } else { 0.0 }
        };
        let bytes_per_step = of(|r| r.largest.bytes).value as u64;
        let least = floor.map(|floor| floor.seconds(bytes_per_step as f64));
        let (seconds_floor, seconds_floor_in_place) = least.unzip();
        Summary {
            method: entrant.method.label(),
            options: stated(&entrant.method),
            workers,
            params,
            k: entrant.k,
            steps: records.len() as u32,
            seconds: seconds.value,
            seconds_p25: seconds.low,
            seconds_p75: seconds.high,
            seconds_steps: records.iter().map(|r| r.largest.seconds).collect(),
            seconds_floor,
            seconds_floor_in_place,
            seconds_select: select.value,
            seconds_select_p25: select.low,
            seconds_select_p75: select.high,
            seconds_exchange: exchange.value,
            seconds_exchange_p25: exchange.low,
            seconds_exchange_p75: exchange.high,
            seconds_merge: merge.value,
            seconds_merge_p25: merge.low,
            seconds_merge_p75: merge.high,
            slowest_select: part(|r| r.slowest.select),
            slowest_exchange: part(|r| r.slowest.exchange),
            slowest_merge: part(|r| r.slowest.merge),
            bytes_per_step,
            dense_bytes_per_step: (8.0 * params as f64 * (workers - 1) as f64 / workers as f64) as u64,
            entries_per_step: of(|r| r.delivered as f64).value as usize,
            l2_share: of(|r| r.l2_share).value,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use gleaner_algorithms::Method;

    use super::*;

    #[test]
    fn the_slowest_rank_is_taken_whole_and_the_largest_field_by_field() {
        let sample = |seconds, select, exchange| Sample { seconds, select, exchange, ..Sample::default() };
        // Rank 0 selects long, rank 1 waits for it.
        let samples = [sample(10.0, 9.0, 1.0), sample(9.0, 1.0, 8.0)];
        let record = Record::of(&samples, 5, 0.5);
        assert_eq!((record.largest.select, record.largest.exchange), (9.0, 8.0));
        assert_eq!((record.slowest.select, record.slowest.exchange), (9.0, 1.0));

        let entrant = Entrant { method: Method::ring(), k: 10 };
        let summary = Summary::of(&entrant, &[record; 3], None, (2, 10));
        assert_eq!(summary.seconds_steps, [10.0; 3]);
        assert_eq!((summary.seconds, summary.seconds_select, summary.seconds_exchange), (10.0, 9.0, 8.0));
        assert_eq!(
            (summary.slowest_select, summary.slowest_exchange, summary.slowest_merge),
            (9.0, 1.0, 0.0)
        );
    }
}
