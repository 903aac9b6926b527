//! Dense all-reduces of other libraries, measured beside ours: in the same namespaces, in turns, by the same clock.
//!
//! Each job is barrier, clock, all-reduce, maximum over the ranks; its bytes are those that the hosts' interfaces counted.
//! Open MPI and MPICH run by their own `mpirun`, which is started on the first host and reaches the others by an agent;
//! Gloo runs through PyTorch, under our launcher. So does its DDP, whose iterations stand beside those of `gleaner train`.

mod kit;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::experiment::{Case, Job, Plan, Seats, Wanted};
use crate::record::SEED;
use gleaner_units::{self as units, QuantityError};

pub use kit::{Kit, KitError, Missing};
pub use table::{Pairs, Row, rows};

/// A comparison that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A rate that cannot be read.
    #[error(transparent)]
    Rate(#[from] QuantityError),
    /// More entries than MPI counts, or none.
    #[error(
        "{params} entries cannot be compared; expected from 1 to {MOST}, since MPI counts the entries of an all-reduce by a 32-bit number"
    )]
    Params {
        /// How many were asked for.
        params: usize,
    },
}

/// MPI takes the number of entries as an `int`.
const MOST: usize = i32::MAX as usize;

/// Iterations of a model, instead of all-reduces: ours trains it, and PyTorch's DDP has layers of its sizes and an emulated compute.
#[derive(Clone, Debug)]
pub struct Iteration {
    /// What the passes take, as `gleaner train --layer-times` writes it: a path from the root.
    pub layers: PathBuf,
    /// The options of `gleaner train`, by their names in experiments.
    pub train: Vec<(String, String)>,
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Request {
    /// Emulated hosts, with a worker on each.
    pub hosts: u32,
    /// What their links carry in each direction, as written.
    pub bandwidth: String,
    /// Entries of float32.
    pub params: usize,
    /// The density at which SparDL runs.
    pub density: f64,
    /// Steps that are measured.
    pub steps: u32,
    /// Steps before them.
    pub warmup: u32,
    /// How often everybody has a turn.
    pub turns: u32,
    /// How long a turn of one of them may take.
    pub limit: Duration,
    /// Iterations, if not all-reduces.
    pub iteration: Option<Iteration>,
    /// Whom to measure, by the names of [`NAMES`]; all if it is empty.
    pub only: Vec<String>,
}

/// Other libraries whose all-reduces are measured.
pub const PEERS: [&str; 3] = ["open-mpi", "mpich", "gloo"];

/// Whom there is to measure.
pub const NAMES: [&str; 6] = ["spardl", "ring", "open-mpi", "mpich", "gloo", "ddp"];

impl Request {
    /// Refuses what cannot be compared.
    ///
    /// # Errors
    /// A rate that cannot be read; more entries than MPI counts.
    pub fn check(&self) -> Result<(), RequestError> {
        units::rate(&self.bandwidth)?;
        if (1..=MOST).contains(&self.params) {
            Ok(())
        } else {
            Err(RequestError::Params { params: self.params })
        }
    }

    /// The jobs of a request that was [checked](Request::check): ours, and those of the peers that are installed.
    pub fn plan(&self, gleaner: &Path, kit: &Kit) -> Plan {
        let of = |ours: &dyn Fn(&str, Option<f64>) -> Job| {
            vec![ours("spardl", Some(self.density)), ours("ring", None)]
        };
        let mut jobs;
        if let Some(iteration) = &self.iteration {
            jobs = of(&|method, density| self.trained(gleaner, iteration, method, density));
            jobs.extend(kit.iteration(&Case(self.case("peer", "ddp")), &iteration.layers, self.typed()));
        } else {
            jobs = of(&|method, density| self.ours(gleaner, method, density));
            let theirs = |name: &&str| kit.all_reduce(&Case(self.case("peer", name)), self.typed());
            jobs.extend(PEERS.iter().filter_map(theirs));
        }
        jobs.retain(|job| self.only.is_empty() || job.cases.iter().any(|case| self.asks_for(case)));
        let text = json!({
            "hosts": self.hosts, "bandwidth": self.bandwidth, "params": self.params, "density": self.density,
            "steps": self.steps, "warmup": self.warmup, "turns": self.turns, "only": self.only,
            "layers": self.iteration.as_ref().map(|iteration| &iteration.layers),
            "train": self.iteration.as_ref().map(|iteration| &iteration.train),
        });
        Plan {
            name: "peers".into(),
            jobs,
            search: None,
            turns: self.turns,
            limit: Some(self.limit),
            network: Wanted::Uniform { hosts: self.hosts },
            chaos: Vec::new(),
            texts: vec![("peers.json".into(), format!("{text}\n"))],
        }
    }

    fn asks_for(&self, case: &Case) -> bool {
        self.only.iter().any(|name| case.0.get("method").is_some_and(|method| method == name))
    }

    fn case(&self, command: &str, method: &str) -> BTreeMap<String, Value> {
        let entries = [
            ("command", json!(command)),
            ("method", json!(method)),
            ("seed", json!(SEED)),
            ("workers", json!(self.hosts)),
            ("bandwidth", json!(self.bandwidth)),
            ("params", json!(self.params)),
            ("steps", json!(self.steps)),
            ("warmup", json!(self.warmup)),
        ];
        entries.map(|(key, value)| (key.to_owned(), value)).into()
    }

    fn ours(&self, gleaner: &Path, method: &str, density: Option<f64>) -> Job {
        let mut case = self.case("bench", method);
        case.extend(density.map(|density| ("density".to_owned(), json!(density))));
        let case = Case(case);
        let mut program: Vec<OsString> = vec![gleaner.into()];
        program.extend(["bench", "--json", "--method", method].map(OsString::from));
        program.extend(case.words().into_iter().map(OsString::from));
        // As the others: none of them encrypts.
        let env = vec![("GLEANER_PLAIN".into(), "1".into())];
        Job { cases: vec![case], program, env, seats: Seats::Workers, again: None }
    }

    /// Training, of which the second half of the steps counts: as many as are measured of the peer.
    fn trained(&self, gleaner: &Path, iteration: &Iteration, method: &str, density: Option<f64>) -> Job {
        let mut case = self.case("train", method);
        let steps = json!(2 * self.steps);
        case.remove("params");
        case.remove("warmup");
        case.extend([("steps".to_owned(), steps.clone()), ("evaluate_every".to_owned(), steps)]);
        case.extend(density.map(|density| ("density".to_owned(), json!(density))));
        case.extend(iteration.train.iter().map(|(name, value)| (name.clone(), json!(value))));
        let case = Case(case);
        let mut program: Vec<OsString> = vec![gleaner.into()];
        program.extend(["train", "--json", "--method", method].map(OsString::from));
        program.extend(case.words().into_iter().map(OsString::from));
        let env = vec![("GLEANER_PLAIN".into(), "1".into())];
        Job { cases: vec![case], program, env, seats: Seats::Workers, again: Some(self.typed()) }
    }

    /// What asks for all of it: the peers' programs are made for a run and go with it.
    fn typed(&self) -> Vec<String> {
        let numbers = [
            ("--hosts", self.hosts.to_string()),
            ("--bandwidth", self.bandwidth.clone()),
            ("--params", self.params.to_string()),
            ("--density", self.density.to_string()),
            ("--steps", self.steps.to_string()),
            ("--warmup", self.warmup.to_string()),
            ("--turns", self.turns.to_string()),
            ("--limit", format!("{}s", self.limit.as_secs_f64())),
        ];
        // The layers say how many entries there are.
        let layers = self.iteration.iter().flat_map(|Iteration { layers, train }| {
            let options: Vec<String> = train.iter().map(|(name, value)| format!("{name}={value}")).collect();
            [("--layers", layers.display().to_string()), ("--train", options.join(","))]
        });
        let is_told = |option: &str| option != "--params" || self.iteration.is_none();
        let only = (!self.only.is_empty()).then(|| ("--only", self.only.join(",")));
        let options = numbers.into_iter().filter(|(option, _)| is_told(option)).chain(layers).chain(only);
        let options = options.flat_map(|(option, value)| [option.to_owned(), value]);
        ["gleaner", "testbed", "peers"].map(String::from).into_iter().chain(options).collect()
    }
}
