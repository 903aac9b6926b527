//! Options for parameter servers, of the commands that start workers.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gleaner_runtime::{OnFailure, Roles};
use gleaner_units as units;

/// How many servers a job has beside its workers, and what a failed worker means for it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Servers {
    /// How many parameter servers to start besides the workers, as processes of their own, which have the last ranks [default: 0]
    #[arg(long, value_name = "S", value_parser = units::within::<u32>(0..=1024))]
    pub servers: Option<u32>,

    /// Let the servers live in the processes of the first workers instead of their own
    #[arg(long, requires = "servers")]
    pub colocate: bool,

    /// What a failed worker means for the job: `stop` ends it, `continue` lets the others go on as far as parameter servers have
    /// all that they need. Without rank 0 or a server the job ends
    #[arg(long, value_name = "WHAT", env = "GLEANER_ON_FAILURE", default_value = "stop", value_parser = failing())]
    pub on_failure: OnFailure,
}

impl Servers {
    /// The same for a session.
    pub fn roles(&self) -> Roles {
        Roles { servers: self.servers.unwrap_or(0), colocated: self.colocate, on_failure: self.on_failure }
    }

    /// How many processes there are for so many workers.
    pub fn processes(&self, workers: u32) -> u32 {
        workers + if self.colocate { 0 } else { self.servers.unwrap_or(0) }
    }
}

fn failing() -> impl TypedValueParser<Value = OnFailure> {
    let words = PossibleValuesParser::new(["stop", "continue"]);
    words.map(|word| if word == "stop" { OnFailure::Stop } else { OnFailure::Continue })
}
