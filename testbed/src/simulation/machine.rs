//! What a machine's processors take, as a profile that can be kept in a file.

use std::time::Duration;

use gleaner_algorithms::forecast::{self, Speed};
use serde::{Deserialize, Serialize};

use super::trace::{KINDS, Work};

/// How many numbers a machine has.
pub const NUMBERS: usize = KINDS + 6;

/// Makes the type from its numbers, each with what it is by default.
macro_rules! machine {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A machine's speeds. As JSON, the fields have these names.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Machine {
            /// What was measured where, in words.
            pub about: String,
            $($(#[$doc])* pub $name: f64,)*
        }

        impl Default for Machine {
            /// Two cores of an Intel Xeon with AVX-512 that all workers share: fitted to 114 steps of all methods among 2 to 8
            /// workers, n = 14,728,266, density 1%, 1 Gbit/s.
            fn default() -> Self {
                let about = "two cores of an Intel Xeon with AVX-512, fitted to 114 steps of all methods among 2 to 8 workers";
                Self { about: about.to_owned(), $($name: $number,)* }
            }
        }

        impl Machine {
            fn fields(&mut self) -> [&mut f64; NUMBERS] {
                [$(&mut self.$name,)*]
            }
        }
    };
}

machine! {
    /// Nanoseconds per entry that is added to a residual.
    accumulate = 0.927,
    /// Nanoseconds per entry that is chosen from one block of a worker's own accumulator.
    choose = 12.68,
    /// Nanoseconds per entry that is chosen by a rule that looks at several blocks together.
    pool = 27.21,
    /// Nanoseconds per entry of a bag that a selection looks at, and per index that is sampled at random or agreed on.
    sift = 6.75,
    /// Nanoseconds per sparse entry encoded.
    encode = 8.183,
    /// Nanoseconds per sparse entry decoded or merged with.
    merge = 1.838,
    /// Nanoseconds per dense value added, copied or looked at.
    dense = 1.035,
    /// Nanoseconds per entry of a worker's own choice that its residual gives up.
    clear = 16.32,
    /// Nanoseconds per other sparse entry committed.
    commit = 8.686,
    /// Nanoseconds per dense value committed to a residual.
    commit_dense = 5.941,
    /// Slow-down by contention: by how much longer profiled work takes where several workers share the cores.
    contention = 1.068,
    /// Microseconds of a processor per message, on each of its two sides.
    message = 38.04,
    /// Nanoseconds of a processor per byte, on each of its two sides.
    byte = 0.4129,
    /// Wake-up latency: microseconds from a message's arrival until the worker that waits for it runs, where workers share cores and none is idle.
    wakeup = 615.4,
    /// Time slice of the scheduler: microseconds that a worker computes before the next one does, where they share cores.
    quantum = 3417.0,
    /// The share of a link's rate that is payload.
    goodput = 0.925,
}

impl Machine {
    /// All numbers, in the order of the fields.
    pub fn numbers(&self) -> [f64; NUMBERS] {
        let mut copy = Self { about: String::new(), ..*self };
        copy.fields().map(|number| *number)
    }

    /// From what [`numbers`](Self::numbers) gave.
    pub fn of(about: String, numbers: [f64; NUMBERS]) -> Self {
        let mut machine = Self { about, ..Self::default() };
        machine.fields().into_iter().zip(numbers).for_each(|(field, number)| *field = number);
        machine
    }

    /// Seconds of a processor that does this.
    pub fn work(&self, work: &Work) -> f64 {
        match work {
            Work::Handled(handled) => {
                let prices = self.numbers();
                handled.iter().zip(prices).map(|(&count, price)| f64::from(count) * price * 1e-9).sum()
            }
            Work::Took(seconds) => f64::from(*seconds),
        }
    }

    /// Seconds of a processor for one side of a message.
    pub fn side(&self, bytes: f64) -> f64 {
        self.message * 1e-6 + bytes * self.byte * 1e-9
    }

    /// The closed form's prices of the same work, for workers with cores of their own: what is chosen leaves the residual and is encoded,
    /// what comes is decoded, merged with what is there, and committed, and both sides of a message are on the critical path.
    pub fn speed(&self) -> Speed {
        Speed {
            select: self.accumulate,
            encode: self.choose + self.clear + self.encode,
            merge: 2.0 * self.merge + self.commit,
            add: self.dense + self.commit_dense,
            message: 2e3 * self.message,
        }
    }

    /// The closed form's network: links of such a rate and latency, with the processors' part of each byte on both of its sides.
    pub fn forecast(&self, rate: f64, latency: Duration) -> forecast::Network {
        let byte = 1.0 / (self.goodput * rate) + 2e-9 * self.byte;
        forecast::Network { latency, bytes_per_second: 1.0 / byte }
    }
}
