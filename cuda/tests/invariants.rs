//! Workers whose residuals lie on a device, in one job with workers in main memory: all have the same update, and each the
//! residual that it would have in main memory, bit by bit.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;

use gleaner_algorithms::bag::{Bag, Coding, Entries};
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::device::Device;
use gleaner_algorithms::residual::{Collection, Residual};
use gleaner_algorithms::schedule::lockstep;
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Layers, Method};
use gleaner_cuda::Cuda;
use gleaner_statistics::random;

const WORKERS: usize = 4;
const LAYERS: [usize; 5] = [1700, 3, 64, 1025, 1208];
const STEPS: u64 = 6;

fn layers() -> Layers {
    Layers::of(LAYERS)
}

fn n() -> usize {
    LAYERS.iter().sum()
}

/// Many small values and few large ones; ties, zeros and denormals among them.
fn gradient(rank: usize, step: u64) -> Vec<f32> {
    let noise = |i: usize| random::symmetric(random::at(step << 40 ^ (rank as u64) << 52, i as u64));
    let value = |i: usize| match i % 97 {
        0 => 0.0,
        1 => 1e-41 * noise(i),
        2 => 0.25f32.copysign(noise(i)),
        _ => noise(i).powi(5) + 0.25 * noise(i % 512).powi(3),
    };
    (0..n()).map(value).collect()
}

/// All of a job's workers, of which the odd ranks are on a device if there is one.
fn workers(method: &Method, device: Option<&Arc<Cuda>>) -> Ensemble {
    let mut ensemble = Ensemble::new(method.clone(), WORKERS as u32, layers()).unwrap();
    let Some(device) = device else { return ensemble };
    for rank in (1..WORKERS).step_by(2) {
        let schedule = ensemble.prepared().nth(rank).unwrap().program.schedule().clone();
        let device: Arc<dyn Device> = device.clone();
        ensemble.residuals[rank] =
            Residual::on(device, schedule.partition.clone(), schedule.quotas()).unwrap();
    }
    ensemble
}

/// The result of a step on every rank: the update, what is lost, and the residual afterwards.
type Bits = Vec<(Vec<Vec<(u32, u32)>>, Vec<Vec<(u32, u32)>>, Vec<u32>)>;

fn entries(entries: &Entries) -> Vec<(u32, u32)> {
    entries.iter().map(|(i, v)| (i, v.to_bits())).collect()
}

fn bag(bag: &Bag) -> Vec<(u32, u32)> {
    bag.iter().map(|(i, v)| (i, v.to_bits())).collect()
}

/// A step whose gradients come layer by layer, the last first.
fn step(ensemble: &mut Ensemble, collection: Collection, number: u64) -> Bits {
    let mut executions = Vec::new();
    for rank in 0..WORKERS {
        let gradient = gradient(rank, number);
        let mut end = n();
        for len in LAYERS.iter().rev() {
            ensemble.residuals[rank].accumulate(end - len, &gradient[end - len..end]).unwrap();
            end -= len;
        }
        executions.push(ensemble.begin(rank).unwrap());
    }
    assert!(executions.iter().all(|execution| execution.check().unwrap().is_none()));
    let committed = ensemble.commit(lockstep(executions).unwrap(), collection).unwrap();
    let residuals = ensemble.residuals.iter().map(|residual| residual.read(0..n()).unwrap());
    let all = committed.iter().zip(residuals).map(|(committed, residual)| {
        let lost = committed.lost.iter().map(entries).collect();
        (committed.update.iter().map(bag).collect(), lost, residual.iter().map(|v| v.to_bits()).collect())
    });
    all.collect()
}

fn same_on_device(method: Method) {
    let collection = method.collection();
    devices::on_each(|device| {
        let mut here = workers(&method, None);
        let mut there = workers(&method, Some(device));
        for number in 0..STEPS {
            let expected = step(&mut here, collection, number);
            let found = step(&mut there, collection, number);
            for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
                let title = format!("{} on {}, step {number}, rank {rank}", method.title(), device.name());
                assert!(expected.0 == found.0, "another update: {title}");
                assert!(expected.1 == found.1, "something else was lost: {title}");
                assert!(expected.2 == found.2, "another residual: {title}");
            }
        }
    });
}

#[test]
fn every_method_gives_the_same_on_a_device() {
    Method::all().for_each(|method| same_on_device(method.density(0.02)));
}

#[test]
fn so_does_every_selector() {
    for selector in Selector::NAMED.into_iter().chain([Selector::Threshold(0.3)]) {
        same_on_device(Method::named("topka").unwrap().selector(selector).density(0.02));
    }
}

#[test]
fn so_do_teams_codings_and_collections() {
    let spardl = || Method::spardl().density(0.03);
    same_on_device(spardl().with("teams", "2").unwrap());
    for coding in [Coding::Bf16, Coding::F16, Coding::Qsgd4] {
        same_on_device(spardl().coding(coding));
    }
    for collection in [Collection::Partial, Collection::Local] {
        same_on_device(spardl().residual(collection));
    }
    same_on_device(Method::spardl().density(1.0));
    same_on_device(Method::spardl().k(1));
}
