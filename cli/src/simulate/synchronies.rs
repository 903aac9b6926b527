//! What synchronies over parameter servers make of a model's layers.

use gleaner_algorithms::synchrony::{self, SYNCHRONIES, Synchrony};
use gleaner_testbed::simulation::servers::{Served, served};
use gleaner_units::grouped;
use serde::Serialize;

use super::{Simulate, expect_ranks};
use crate::report::{self, CommandError, counted, json, ms};

/// Steps that are simulated; the second half counts.
const STEPS: u64 = 64;

/// What of a frame is payload: 1448 of 1538 bytes on the wire.
const GOODPUT: f64 = 1448.0 / 1538.0;

/// One synchrony. The names are those of the JSON object; times are in seconds.
#[derive(Debug, Serialize)]
struct Row {
    synchrony: String,
    seconds_step: f64,
    seconds_batch_synchronisation: f64,
    /// Samples in a second where a batch is given, else passes.
    throughput: f64,
    background_share: f64,
    background_bound: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Synchronies<'a> {
    model: &'a str,
    params: usize,
    workers: u32,
    servers: usize,
    seconds_pass: f64,
    batch: Option<u32>,
    synchronies: Vec<Row>,
}

pub fn run(simulate: &Simulate) -> Result<String, CommandError> {
    let (Some(workers), Some(names)) = (simulate.workers, &simulate.synchrony) else {
        return Err("expected --workers and --synchrony".into());
    };
    let Some(pass) = simulate.compute.map(|pass| pass.as_secs_f64()).filter(|pass| *pass > 0.0) else {
        return Err(report::refused(
            "expected --compute, which says what the passes take, beside --synchrony",
        ));
    };
    let layers = simulate.given_layers()?;
    let mut passes = vec![pass; workers as usize];
    expect_ranks(&simulate.slow, passes.len()).map_err(report::refused)?;
    for &(rank, factor) in &simulate.slow {
        passes[rank as usize] *= factor;
    }
    let job = Served {
        layers: layers.list.iter().map(|layer| layer.entries).collect(),
        passes,
        rate: simulate.bandwidth.bytes_per_second() * GOODPUT * (1.0 - simulate.loss.share()),
        latency: simulate.latency().as_secs_f64(),
        servers: simulate.servers as usize,
        steps: STEPS,
        seed: simulate.seed,
    };
    let mut rows = Vec::new();
    for synchrony in chosen(names).map_err(report::refused)? {
        let course = served(&job, &*synchrony)?;
        rows.push(Row {
            synchrony: synchrony.name(),
            seconds_step: course.step,
            seconds_batch_synchronisation: course.synchronising,
            throughput: course.rate * f64::from(simulate.batch.unwrap_or(1)),
            background_share: course.background,
            background_bound: course.most,
        });
    }
    let predicted = Synchronies {
        model: &layers.model,
        params: layers.entries(),
        workers,
        servers: job.servers,
        seconds_pass: pass,
        batch: simulate.batch,
        synchronies: rows,
    };
    Ok(if simulate.json { json(&predicted) } else { table(&predicted, simulate) })
}

/// Those of a list of names; of all, OSP at its bound, since no loss falls here.
fn chosen(names: &str) -> Result<Vec<Box<dyn Synchrony>>, CommandError> {
    let named = |name: &str| {
        let synchrony = synchrony::named(name).map_err(|error| format!("--synchrony: {error}"))?;
        match synchrony.local() {
            None => Ok(synchrony),
            Some(_) => Err(format!(
                "--synchrony: {name} exchanges once in many steps, and what these take is no matter of servers; choose another one"
            )
            .into()),
        }
    };
    if names == "all" {
        let all = SYNCHRONIES.iter().map(|synchrony| synchrony()).filter(|one| one.local().is_none());
        return all
            .map(|one| if one.osp().is_some() { named("osp/budget=bound") } else { Ok(one) })
            .collect();
    }
    // Commas also stand between the options of one.
    let mut list: Vec<String> = Vec::new();
    for part in names.split(',') {
        match list.last_mut().filter(|_| part.split('/').next().unwrap_or_default().contains('=')) {
            Some(last) => *last += &format!(",{part}"),
            None => list.push(part.into()),
        }
    }
    list.iter().map(|name| named(name)).collect()
}

fn table(predicted: &Synchronies<'_>, simulate: &Simulate) -> String {
    let unit = if predicted.batch.is_some() { "samples/s" } else { "passes/s" };
    let headings = ["synchrony", "step", "synchronising", unit, "in the background", "times the first"];
    let first = predicted.synchronies.first().map_or(1.0, |row| row.throughput);
    let rows = predicted.synchronies.iter().map(|row| {
        let mut cells = vec![row.synchrony.clone()];
        cells.extend([row.seconds_step, row.seconds_batch_synchronisation].map(ms));
        cells.extend([format!("{:.1}", row.throughput), format!("{:.0}%", 100.0 * row.background_share)]);
        cells.push(format!("{:.2}", row.throughput / first));
        cells
    });
    let (model, pass, entries) =
        (predicted.model, ms(predicted.seconds_pass), grouped(predicted.params as u64));
    let workers = counted(predicted.workers as usize, "worker");
    let servers = counted(predicted.servers, "server");
    let Simulate { bandwidth, link_latency, .. } = simulate;
    format!(
        "{model}: {entries} entries; passes of {pass} ms\n{workers} and {servers}, links of {bandwidth} and {link_latency:?}; predicted ms\n\n{}",
        report::table(headings, rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_their_options() {
        let names = |text: &str| {
            let all = chosen(text).map_err(|reason| reason.to_string())?;
            Ok::<_, String>(all.iter().map(|one| one.name()).collect::<Vec<_>>())
        };
        assert_eq!(names("all").unwrap(), ["bsp", "asp", "ssp/3", "dssp/3-15", "r2sp", "osp/budget=bound"]);
        assert_eq!(
            names("bsp,osp/lgp=off,budget=0.5,ssp/1").unwrap(),
            ["bsp", "osp/lgp=off,budget=0.5", "ssp/1"]
        );
        assert!(names("local/8").unwrap_err().contains("choose another one"));
        assert!(names("bsp,bulk").unwrap_err().contains("--synchrony: "));
    }
}
