//! What a machine's processors take, as a profile that can be kept in a file.

use serde::{Deserialize, Serialize};

use super::trace::{Handled, KINDS};

/// A machine's speeds. As JSON, the fields have these names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What was measured where, in words.
    pub about: String,
    /// Nanoseconds per entry that is added to a residual.
    pub accumulate: f64,
    /// Nanoseconds per sparse entry that a selection looks at.
    pub choose: f64,
    /// Nanoseconds per sparse entry encoded.
    pub encode: f64,
    /// Nanoseconds per sparse entry decoded or merged with.
    pub merge: f64,
    /// Nanoseconds per dense value added, copied or looked at.
    pub dense: f64,
    /// Nanoseconds per sparse entry committed.
    pub commit: f64,
    /// Nanoseconds per dense value committed to a residual.
    pub settle: f64,
    /// Microseconds of a processor per message, on each of its two sides.
    pub message: f64,
    /// Nanoseconds of a processor per byte, on each of its two sides.
    pub byte: f64,
    /// Microseconds from a message's arrival until whoever waits for it runs.
    pub wake: f64,
    /// The share of a link's rate that is payload.
    pub goodput: f64,
}

/// How many numbers a machine has.
pub const NUMBERS: usize = KINDS.len() + 4;

impl Default for Machine {
    /// Two cores of an Intel Xeon with AVX-512 that six workers share: fitted to the steps in the book's table of all methods
    /// at 1 and 10 Gbit/s, n = 14,728,266, density 1%.
    fn default() -> Self {
        let about =
            "two cores of an Intel Xeon with AVX-512, fitted to the book's table of all methods".to_owned();
        Self::of(about, [1.034, 6.839, 1.955, 1.485, 0.8955, 20.44, 8.988, 6.602, 0.4811, 24.66, 0.8278])
    }
}

impl Machine {
    /// All numbers, in the order of the fields.
    pub fn numbers(&self) -> [f64; NUMBERS] {
        [
            self.accumulate,
            self.choose,
            self.encode,
            self.merge,
            self.dense,
            self.commit,
            self.settle,
            self.message,
            self.byte,
            self.wake,
            self.goodput,
        ]
    }

    /// From what [`numbers`](Self::numbers) gave.
    pub fn of(about: String, numbers: [f64; NUMBERS]) -> Self {
        let [accumulate, choose, encode, merge, dense, commit, settle, message, byte, wake, goodput] =
            numbers;
        Self { about, accumulate, choose, encode, merge, dense, commit, settle, message, byte, wake, goodput }
    }

    /// Seconds of a processor that handles these entries.
    pub fn work(&self, handled: &Handled) -> f64 {
        let prices = self.numbers();
        handled.iter().zip(prices).map(|(&count, price)| f64::from(count) * price * 1e-9).sum()
    }

    /// Seconds of a processor for one side of a message.
    pub fn side(&self, bytes: f64) -> f64 {
        self.message * 1e-6 + bytes * self.byte * 1e-9
    }

    /// A machine that does everything in no time, on links that carry nothing but payload.
    pub fn infinite() -> Self {
        let mut numbers = [0.0; NUMBERS];
        numbers[NUMBERS - 1] = 1.0;
        Self::of("a machine that takes no time".into(), numbers)
    }
}
