//! How long an iteration takes, with which method and merging: groups of layers by the evaluator, what they cost by the simulation.

use gleaner_algorithms::Method;
use gleaner_algorithms::merging::{
    Costs, GroupCost, MergingError, Optimal, Placement, Predicted, Problem, evaluate, named,
};
use gleaner_testbed::simulation::{self, Machine, Network, Steps, calibration};
use gleaner_units::grouped;
use serde::Serialize;

use super::{Simulate, bench_gradient};
use crate::choice::Refusal;
use crate::merge_plan::layers::Layers;
use crate::merge_plan::table::lengths;
use crate::report::{self, CommandError, json, ms};

/// The smallest group that is simulated; smaller ones cost as much.
const SMALLEST: usize = 1024;

/// By how many times each size that is simulated is larger than the one before.
const STEP: usize = 4;

/// Costs of groups as the simulation has them at some sizes, by increasing numbers of entries; on a line between two of them.
struct Simulated(Vec<(usize, GroupCost)>);

impl Simulated {
    /// The steps of gradients of several sizes, up to n entries. While a group waits for the latency of its rounds the next one is exchanged; what
    /// processors and links do, they do for one group after the other.
    fn of(
        simulate: &Simulate,
        method: &Method,
        (network, machine): (&Network, &Machine),
        n: usize,
    ) -> Result<Self, CommandError> {
        let workers = network.hosts.len() as u32;
        let mut sizes: Vec<usize> = std::iter::successors(Some(n), |size| Some(size / STEP))
            .take_while(|&size| size > SMALLEST)
            .collect();
        sizes.push(SMALLEST.min(n));
        let cost = |size: usize| {
            let workload = simulate.workload(method, network, size, Steps::default())?;
            let (traces, network) =
                simulation::traces_on(network, method, (workers, size), workload, &bench_gradient)
                    .map_err(report::refused)?;
            let replayed = calibration::median(&traces, machine, &network, false);
            let slowest = replayed.slowest();
            let alone = slowest.seconds - slowest.select;
            let rounds = traces.first().map_or(0, |trace| trace.rounds);
            let latency = alone.min(rounds as f64 * simulate.latency().as_secs_f64());
            Ok((size, GroupCost { select: slowest.select, exchange: alone - latency, latency }))
        };
        Ok(Self(sizes.into_iter().rev().map(cost).collect::<Result<_, CommandError>>()?))
    }
}

impl Costs for Simulated {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        let Self(points) = self;
        let next = points.partition_point(|(size, _)| *size < entries).min(points.len() - 1);
        let (size, cost) = points[next];
        let Some((before, less)) = next.checked_sub(1).map(|before| points[before]) else {
            return Ok(cost);
        };
        let share = (entries as f64 - before as f64) / (size as f64 - before as f64);
        let between = |less: f64, more: f64| less + share * (more - less);
        Ok(GroupCost {
            select: between(less.select, cost.select),
            exchange: between(less.exchange, cost.exchange),
            latency: between(less.latency, cost.latency),
        })
    }
}

/// The iteration of one method. The names are those of the JSON object; times are in seconds.
#[derive(Debug, Serialize)]
struct Row {
    method: String,
    /// Behind how many layers each group of the optimum ends.
    ends: Vec<usize>,
    /// Merged as the optimum is.
    seconds_iteration: f64,
    seconds_exposed: f64,
    /// All layers at once, and each by itself.
    seconds_single: f64,
    seconds_layer_wise: f64,
    /// Merged as the optimum is of the closed form's costs, by these: what gleaner merge-plan says of the same machine and links.
    seconds_expected: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Iterations<'a> {
    model: &'a str,
    workers: u32,
    params: usize,
    seconds_forward: f64,
    seconds_backward: f64,
    methods: Vec<Row>,
    refused: Vec<Refusal>,
}

/// Predicts an iteration with each method, and says which merging it takes.
pub fn run(simulate: &Simulate) -> Result<String, CommandError> {
    let Some(workers) = simulate.workers else { return Err("expected --workers".into()) };
    let layers = simulate.given_layers()?;
    let (machine, network) = (super::machine(simulate.machine.as_deref())?, simulate.network(workers)?);
    let n = layers.entries();
    let (mut rows, refused) = simulate.each(|method| {
        let costs = Simulated::of(simulate, &method, (&network, &machine), n)?;
        let model = simulate.model(&machine, &method, workers, n);
        let predicted = model.as_ref().map(|model| Predicted { model, method: &method, workers });
        Ok(row(method.label(), &layers, &costs, predicted.as_ref())?)
    })?;
    rows.sort_by(|a, b| a.seconds_iteration.total_cmp(&b.seconds_iteration));
    let iterations = Iterations {
        model: &layers.model,
        workers,
        params: n,
        seconds_forward: layers.pass.forward(),
        seconds_backward: layers.pass.backward(),
        methods: rows,
        refused,
    };
    if simulate.json {
        return Ok(json(&iterations));
    }
    Ok(table(&iterations, &layers, simulate))
}

fn row(
    method: String,
    layers: &Layers,
    costs: &Simulated,
    predicted: Option<&Predicted<'_>>,
) -> Result<Row, MergingError> {
    let problem = Problem { pass: &layers.pass, costs, place: Placement::Beside };
    let takes =
        |name: &str| Ok::<_, MergingError>(evaluate(&problem, &named(name)?.group(&problem)?)?.iteration);
    let optimal = evaluate(&problem, &Optimal::solve(&problem)?.grouping)?;
    let forecast = predicted
        .map(|costs| Optimal::solve(&Problem { pass: &layers.pass, costs, place: Placement::Beside }))
        .transpose()?
        .map(|solution| solution.iteration);
    Ok(Row {
        method,
        ends: optimal.groups.iter().map(|group| group.layers.end).collect(),
        seconds_iteration: optimal.iteration,
        seconds_exposed: optimal.non_overlapped,
        seconds_single: takes("single")?,
        seconds_layer_wise: takes("layer-wise")?,
        seconds_expected: forecast,
    })
}

fn table(iterations: &Iterations<'_>, layers: &Layers, simulate: &Simulate) -> String {
    let header = ["method", "groups", "iteration", "exposed", "all at once", "layer-wise"];
    let has_forecast = iterations.methods.iter().any(|row| row.seconds_expected.is_some());
    let header = header.into_iter().chain(has_forecast.then_some("expected"));
    let rows = iterations.methods.iter().map(|row| {
        let times = [row.seconds_iteration, row.seconds_exposed, row.seconds_single, row.seconds_layer_wise];
        let mut cells = vec![row.method.clone(), row.ends.len().to_string()];
        cells.extend(times.map(ms));
        cells.extend(has_forecast.then(|| row.seconds_expected.map_or_else(String::new, ms)));
        cells
    });
    let Iterations { model, workers, .. } = iterations;
    let (count, entries) = (layers.list.len(), grouped(iterations.params as u64));
    let [forward, backward] = [iterations.seconds_forward, iterations.seconds_backward].map(ms);
    let mut text = format!(
        "{model}: {count} layers, {entries} entries; forward {forward} ms, backward {backward} ms, {}\n{workers} workers with {}; \
         predicted ms\n\n{}{}",
        layers.share,
        simulate.links(),
        report::table(header, rows),
        Refusal::all(&iterations.refused)
    );
    if let Some(best) = iterations.methods.first() {
        text += &format!(
            "\n{} is the fastest, with {} layers merged, from the last of the network to the first.\n",
            best.method,
            lengths(&best.ends)
        );
    }
    text
}
