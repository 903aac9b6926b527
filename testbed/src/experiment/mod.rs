//! Experiments as files: a matrix of cases, measured in turns on an emulated network, and stored as they were measured.
//!
//! A [file](Experiment::read) says what is fixed, what varies, and what goes wrong on purpose. Its cases become jobs of
//! workers, which are run one after the other, several times, each time in another order. Every case of every turn leaves
//! one [`Record`](crate::record::Record), written before the next job begins, so that nothing measured is lost.

mod case;
mod chaos;
mod file;
mod injector;
mod interrupt;
mod job;
mod machine;
mod options;
mod place;
mod run;
mod search;
mod slow;
mod store;
pub(crate) mod worker;

use std::path::PathBuf;
use std::time::Duration;

pub use case::{Case, Pattern};
pub use chaos::{Act, Event, Properties, When};
pub use interrupt::Interrupt;
pub(crate) use interrupt::signals;
pub use job::{Job, Seats};
pub use machine::{commit as this_commit, here as this_machine};
pub(crate) use options::{LINK, OF_THE_METHOD, PROGRAM, words};
pub use options::{Workload, plain};
pub use run::{Options, Plan, Progress, Tally};
pub use search::{Search, UNKNOWN};
pub use store::Store;

/// An experiment, read and checked.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The name of its file, without what follows the dot.
    pub name: String,
    /// What it is called.
    pub title: String,
    /// What it is for.
    pub description: String,
    /// How often every job is run.
    pub turns: u32,
    /// How long a job may take; without end, if none.
    pub limit: Option<Duration>,
    /// Where the workers run.
    pub network: Wanted,
    /// Jobs, each with the cases that are measured in it: they differ in the method only.
    pub jobs: Vec<Vec<Case>>,
    /// How a value is found that is not known before.
    pub search: Option<Search>,
    /// What goes wrong on purpose.
    pub chaos: Vec<Event>,
    /// The files that say all this, by the names under which copies are kept with what was measured.
    pub texts: Vec<(String, String)>,
}

/// Where an experiment's workers run.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// On this machine, over the loopback.
    Loopback,
    /// On so many emulated hosts, whose links are as each case says.
    Uniform(u32),
    /// On the hosts of a topology file.
    Topology(PathBuf),
}
