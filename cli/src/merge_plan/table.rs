//! A plan as a table and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use gleaner_algorithms::merging::{MergingError, Optimal, Problem, STRATEGIES, Strategy, Timeline, evaluate};
use gleaner_units::grouped;
use serde::Serialize;

use super::SelectIn;
use super::layers::NamedLayer;
use crate::report::{ms, table};

/// What a strategy makes of the layers. The names are those of the JSON object; times are in seconds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub strategy: &'static str,
    pub groups: usize,
    /// Behind how many layers each group ends.
    pub ends: Vec<usize>,
    pub seconds_iteration: f64,
    /// By how much selection ends after the backward pass alone would.
    pub seconds_selecting: f64,
    pub seconds_exposed: f64,
    /// The share of the time in which something is exchanged before the end of the last selection.
    pub hidden_share: f64,
    /// The iteration, divided by that of `optimal`.
    pub ratio: f64,
}

impl Row {
    /// Of a timeline, where the optimum takes so long.
    pub fn of(strategy: &'static str, timeline: &Timeline, optimum: f64) -> Self {
        let exchange = timeline.under_way(|group| group.exchange.begin);
        Self {
            strategy,
            groups: timeline.groups.len(),
            ends: timeline.groups.iter().map(|group| group.layers.end).collect(),
            seconds_iteration: timeline.iteration,
            seconds_selecting: timeline.selecting,
            seconds_exposed: timeline.non_overlapped,
            hidden_share: if exchange > 0.0 { 1.0 - timeline.non_overlapped / exchange } else { 0.0 },
            ratio: timeline.iteration / optimum.max(f64::MIN_POSITIVE),
        }
    }

    pub fn all(problem: &Problem<'_>) -> Result<Vec<Self>, MergingError> {
        let timeline = |strategy: &dyn Strategy| evaluate(problem, &strategy.group(problem)?);
        let optimum = timeline(&Optimal)?.iteration;
        STRATEGIES
            .iter()
            .map(|strategy| {
                let strategy = strategy();
                Ok(Self::of(strategy.name(), &timeline(&*strategy)?, optimum))
            })
            .collect()
    }
}

/// Everything that is reported. The names are those of the JSON object; times are in seconds.
#[derive(Debug, Serialize)]
pub struct Plan<'a> {
    pub model: &'a str,
    pub layers: &'a [NamedLayer],
    /// Where the layers' times come from.
    pub times: &'static str,
    pub seconds_forward: f64,
    pub seconds_backward: f64,
    pub method: String,
    #[serde(skip)]
    pub label: String,
    pub workers: u32,
    pub select_in: SelectIn,
    /// Where costs come from.
    pub costs: &'a str,
    pub largest_frontier: usize,
    pub strategies: Vec<Row>,
    /// Every layer by itself, dense, over a ring.
    pub dense: Row,
}

impl Plan<'_> {
    pub fn table(&self, picture: Option<&Path>) -> String {
        let headings = ["strategy", "groups", "iteration", "selection", "exposed", "hidden", "/ optimal"];
        let row = |(name, row): (&str, &Row)| {
            let times = [row.seconds_iteration, row.seconds_selecting, row.seconds_exposed].map(ms);
            let mut cells = vec![name.to_owned(), row.groups.to_string()];
            cells.extend(times);
            cells.extend([format!("{:.0}%", 100.0 * row.hidden_share), format!("{:.3}", row.ratio)]);
            cells
        };
        let strategies = self.strategies.iter().map(|row| (row.strategy, row));
        let rows = strategies.chain([("layer-wise, dense (P-SGD)", &self.dense)]).map(row);
        let Self { model, layers, times, label, workers, costs, .. } = self;
        let entries = grouped(layers.iter().map(|layer| layer.entries as u64).sum());
        let [forward, backward] = [self.seconds_forward, self.seconds_backward].map(ms);
        let place = match self.select_in {
            SelectIn::Backward => "in",
            SelectIn::Beside => "beside",
        };
        let mut text = format!(
            "{model}: {} layers, {entries} entries; forward {forward} ms, backward {backward} ms, {times}\n{label} among {workers} workers, \
             {costs}, selection {place} the backward pass; times in ms\n\n{}",
            layers.len(),
            table(headings, rows)
        );
        if let Some(optimal) = self.strategies.iter().find(|row| row.strategy == Optimal.name()) {
            let _ = write!(
                text,
                "\noptimal merges {} layers, from the last of the network to the first; largest frontier {}\n",
                lengths(&optimal.ends),
                self.largest_frontier
            );
        }
        if let Some(picture) = picture {
            let _ = writeln!(text, "\nThe picture is in {}.", picture.display());
        }
        text
    }
}

/// How many layers each group has, those of equal length in a row together: `3 × 1 + 4 + 2 × 5`.
pub fn lengths(ends: &[usize]) -> String {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let lengths: Vec<usize> = starts.zip(ends).map(|(from, to)| to - from).collect();
    let runs = lengths.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].to_string(),
        times => format!("{times} × {}", run[0]),
    });
    runs.collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn lengths_of_groups_are_shown_in_runs() {
        assert_eq!(super::lengths(&[1, 2, 3, 7, 12, 17]), "3 × 1 + 4 + 2 × 5");
        assert_eq!(super::lengths(&[9]), "9");
    }
}
