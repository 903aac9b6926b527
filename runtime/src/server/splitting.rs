//! How much may go to the background in the next step, as one server knows it from what workers report and from how fast their gradients come.
//!
//! Every worker takes the least that any server says, so the result is the same for all.

use std::time::{Duration, Instant};

use gleaner_algorithms::synchrony::osp::{self, Budget, Cluster, Link, Osp, Tuning};
use gleaner_statistics::median;

use super::control::Head;
use crate::roles::RoleMap;

/// Steps that are measured before U_max is taken from the first epoch on.
const MEASURED: u64 = 4;

/// A push of fewer bytes says nothing of a rate.
const TELLING: u64 = 64 << 10;

/// See the module.
pub(super) struct Splitting {
    osp: Osp,
    role_map: RoleMap,
    /// Entries of all units.
    model: usize,
    /// Steps of an epoch.
    epoch: u64,
    tuning: Tuning,
    /// The entries whose exchange takes no longer than a pass.
    allowed: usize,
    /// Of this epoch: the sum of the losses of its samples, the samples, and what the passes of each worker took, in seconds.
    loss: f64,
    samples: f64,
    passes: Vec<Vec<f64>>,
    /// The highest rates so far, in bytes per second: of all that came at a time, and of what came from each worker.
    rate: f64,
    rates: Vec<f64>,
}

/// A push that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) worker: u32,
    pub(super) bytes: u64,
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

impl Splitting {
    pub(super) fn new(osp: Osp, role_map: RoleMap, model: usize, epoch: u64) -> Self {
        let workers = role_map.workers as usize;
        Self {
            osp,
            role_map,
            model,
            epoch: epoch.max(1),
            tuning: Tuning::default(),
            allowed: 0,
            loss: 0.0,
            samples: 0.0,
            passes: vec![Vec::new(); workers],
            rate: 0.0,
            rates: vec![0.0; workers],
        }
    }

    /// A worker reports its pass.
    pub(super) fn heard(&mut self, worker: u32, head: &Head) {
        self.loss += f64::from(head.loss) * head.samples as f64;
        self.samples += head.samples as f64;
        self.passes[worker as usize].push(head.computing.as_secs_f64());
    }

    /// Pushes have come that are applied together.
    pub(super) fn came(&mut self, pushes: &[Arrived]) {
        let rate = |bytes: u64, began: Instant, ended: Instant| {
            let seconds = ended.duration_since(began).as_secs_f64().max(1e-9);
            if bytes < TELLING { 0.0 } else { bytes as f64 / seconds }
        };
        for &Arrived { worker, bytes, began, ended } in pushes {
            let known = &mut self.rates[worker as usize];
            *known = known.max(rate(bytes, began, ended));
        }
        let (began, ended) = (pushes.iter().map(|p| p.began).min(), pushes.iter().map(|p| p.ended).max());
        if let Some((began, ended)) = began.zip(ended) {
            self.rate = self.rate.max(rate(pushes.iter().map(|push| push.bytes).sum(), began, ended));
        }
    }

    /// S(G^u) and U_max for a step, in entries, when all workers have reported the step before.
    pub(super) fn budget(&mut self, step: u64) -> [u64; 2] {
        let (ends, is_first) = (step.is_multiple_of(self.epoch), step == MEASURED);
        if ends || is_first && self.osp.budget == Budget::Bound {
            // All wait for the slowest, so what travels may take as long as its pass.
            let pass = self.passes.iter().map(|passes| median(passes.iter().copied())).fold(0.0, f64::max);
            self.allowed = self.allowed(Duration::try_from_secs_f64(pass).unwrap_or_default());
            self.passes.iter_mut().for_each(Vec::clear);
        }
        if ends {
            self.tuning.record(self.loss / self.samples);
            (self.loss, self.samples) = (0.0, 0.0);
        }
        let budget = self.osp.entries(self.model, self.allowed, &self.tuning);
        let most = match self.osp.budget {
            Budget::Share(_) => budget,
            Budget::Tuned | Budget::Bound => self.osp.most(self.model, self.allowed),
        };
        [budget as u64, most as u64]
    }

    /// The most entries that are pushed and pulled within a pass: equation 5 for these servers. What is lost on the links is in their rates,
    /// as these were measured. A server measures only its own share of a worker's link.
    fn allowed(&self, pass: Duration) -> usize {
        let servers = self.role_map.roles.servers as usize;
        // Of a link that was never busy long enough nothing is known, and it does not decide.
        let link =
            |rate: f64| Link { bytes_per_second: if rate > 0.0 { rate } else { f64::INFINITY }, loss: 0.0 };
        let cluster = Cluster {
            workers: self.rates.iter().map(|rate| link(rate * servers as f64)).collect(),
            servers: vec![link(self.rate); servers],
            colocated: self.role_map.roles.colocated,
            in_turn: true,
            latency: Duration::ZERO,
        };
        osp::most(self.model, pass, |entries| cluster.seconds(4.0 * entries as f64))
    }
}

#[cfg(test)]
mod tests {
    use gleaner_algorithms::synchrony::Stage;

    use super::*;
    use crate::roles::Roles;

    /// Two workers and one server, whose links take 1 MB/s, and passes of 2 s: 1 MB is pushed by both in 2 s, and takes 2 s back.
    #[test]
    fn what_is_given_and_measured_bounds_the_background() {
        let role_map = RoleMap::new(3, Roles { servers: 1, ..Roles::default() }).unwrap();
        let osp = Osp { budget: Budget::Tuned, ..Osp::default() };
        let mut splitting = Splitting::new(osp, role_map, 1_000_000, 10);
        let began = Instant::now();
        let arrived = |worker| {
            let ended = began + Duration::from_secs(2);
            Arrived { worker, bytes: 1_000_000, began, ended }
        };
        for step in 0..20 {
            for worker in 0..2 {
                let computing = Duration::from_millis(if worker == 0 { 500 } else { 2000 });
                let loss = if step < 10 { 2.0 } else { 0.5 };
                let (stage, units, rate, samples) = (Stage::Routine, Vec::new(), 0.1, 8);
                splitting.heard(worker, &Head { step, stage, units, rate, samples, loss, computing });
            }
            splitting.came(&[arrived(0), arrived(1)]);
            let [budget, most] = splitting.budget(step + 1);
            // In 2 s both push 4n bytes and pull as many: 2 · 2 · 4n = 2 s · 1 MB/s.
            let expected = match step + 1 {
                ..10 => [0, 0],
                10..20 => [0, 125_000],
                _ => [93_750, 125_000],
            };
            assert_eq!([budget, most], expected, "step {}", step + 1);
        }
    }
}
