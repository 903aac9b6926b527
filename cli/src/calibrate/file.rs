//! A calibration as it is stored: what was measured where, the lines fitted to it, and by how much they miss.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::merging::{Affine, Line, Misfit};
use gleaner_testbed::record::Machine;
use gleaner_units::Rate;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::CommandError;

/// The version of the format that this program writes.
const VERSION: u32 = 5;

/// Two rates that differ by less than this share are of one network: headers take some of what a link carries.
const SAME_RATE: f64 = 0.25;

/// Two latencies are of one network if neither is more than so many times the other: a probe on busy cores takes longer.
const SAME_LATENCY: f64 = 2.0;

/// A line, and by how much it misses what was measured, as shares of that.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// What any group costs, in seconds.
    pub seconds_fixed: f64,
    /// What each entry of the gradient costs besides, in seconds.
    pub seconds_per_entry: f64,
    /// The root of the mean square of the relative errors.
    pub rms: f64,
    /// The largest relative error.
    pub most: f64,
}

/// What was measured with a gradient of so many entries: medians of the slowest rank, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub entries: usize,
    pub seconds_select: f64,
    /// From when the exchange begins until the update is there.
    pub seconds_exchange: f64,
    /// The exchange of all entries, over a ring.
    pub seconds_dense: f64,
    /// What the cost model forecasts for selection and exchange together.
    pub seconds_expected: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    version: u32,
    /// The method, with its density.
    pub method: String,
    pub workers: u32,
    /// Rank 0's machine.
    pub machine: Machine,
    /// What carried the links: tcp, quic or verbs.
    pub transport: String,
    /// How long a round of small messages takes, in seconds: by the probe.
    pub seconds_latency: f64,
    /// What a worker receives in a second while it sends as much, in bits: by the probe.
    pub bandwidth_bits_per_second: f64,
    /// a + γ n: to select.
    pub select: Fit,
    /// γ of γ n log2 n, OMGS-SGD's equation 10 with ρ in it, and by how much that misses.
    pub growth: Fit,
    /// α + β n: to exchange what was selected.
    pub exchange: Fit,
    /// α + β n of a dense exchange over a ring.
    pub dense: Fit,
    /// What was measured, by size of the gradient.
    pub sizes: Vec<Size>,
}

impl Fit {
    pub fn new(line: Line, misfit: Misfit) -> Self {
        let Line { fixed, per_entry } = line;
        Self { seconds_fixed: fixed, seconds_per_entry: per_entry, rms: misfit.rms, most: misfit.most }
    }

    pub fn line(&self) -> Line {
        Line { fixed: self.seconds_fixed, per_entry: self.seconds_per_entry }
    }
}

impl Calibration {
    /// What was measured, and the lines through it. None where times are no lines: fewer than two sizes, or a time of 0.
    pub fn of(
        method: &Method,
        workers: u32,
        machine: Machine,
        transport: String,
        (seconds_latency, bytes_per_second): (f64, f64),
        sizes: Vec<Size>,
    ) -> Option<Self> {
        let places =
            |of: fn(&Size) -> f64| sizes.iter().map(|s| (s.entries as f64, of(s))).collect::<Vec<_>>();
        let fit = |of| {
            let places = places(of);
            let line = Line::fit(&places)?;
            Some(Fit::new(line, Misfit::of(&places, |n| line.fixed + line.per_entry * n)))
        };
        let selections = places(|s| s.seconds_select);
        let gamma = gleaner_algorithms::merging::fit_growth(&selections)?;
        let misfit = Misfit::of(&selections, |n| gamma * gleaner_algorithms::merging::growth(n));
        Some(Self {
            version: VERSION,
            method: method.to_string(),
            workers,
            machine,
            transport,
            seconds_latency,
            bandwidth_bits_per_second: 8.0 * bytes_per_second,
            select: fit(|s| s.seconds_select)?,
            growth: Fit::new(Line { fixed: 0.0, per_entry: gamma }, misfit),
            exchange: fit(|s| s.seconds_exchange)?,
            dense: fit(|s| s.seconds_dense)?,
            sizes,
        })
    }

    /// From a file.
    ///
    /// # Errors
    /// A file that is not there, or is no calibration of this version with costs that are finite and at least 0.
    pub fn read(path: &Path) -> Result<Self, CommandError> {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| format!("the calibration cannot be read from {shown}: {error}"))?;
        let wrong = |what: String| {
            let expected = "expected what gleaner calibrate --out wrote";
            CommandError::from(format!("{shown} is no calibration: {what}; {expected}"))
        };
        let any: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let version = &any["version"];
        if *version != VERSION {
            return Err(wrong(format!("it has version {version}, and this program reads {VERSION}")));
        }
        let calibration: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let Self { select, growth, exchange, dense, .. } = &calibration;
        let fits = [select, growth, exchange, dense].map(|fit| [fit.seconds_fixed, fit.seconds_per_entry]);
        let costs = fits.as_flattened().iter().chain([&calibration.seconds_latency]);
        if let Some(number) = costs.into_iter().find(|number| Duration::try_from_secs_f64(**number).is_err())
        {
            return Err(wrong(format!("a cost in it is {number} s")));
        }
        let rate = calibration.bandwidth_bits_per_second;
        if !rate.is_finite() || rate <= 0.0 {
            return Err(wrong(format!("its links carry {rate} bits in a second")));
        }
        Ok(calibration)
    }

    /// Refuses what was measured on another machine or network, or with another method or number of workers.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn check(
        &self,
        path: &Path,
        method: &Method,
        workers: Option<u32>,
        (rate, latency): (Option<Rate>, Option<Duration>),
    ) -> Result<(), CommandError> {
        let other = |what, found: String, wanted: String| {
            let differs =
                format!("it was measured with {found}, and {wanted} is planned for; calibrate again there");
            Err(format!("{} is of another {what}: {differs}", path.display()).into())
        };
        let method = method.to_string();
        if self.method != method {
            return other("method", self.method.clone(), method);
        }
        if let Some(workers) = workers.filter(|&workers| workers != self.workers) {
            return other("number of workers", self.workers.to_string(), workers.to_string());
        }
        let here = gleaner_testbed::experiment::this_machine();
        let machine = |machine: &Machine| format!("{} cores of {}", machine.cores, machine.processor);
        if machine(&self.machine) != machine(&here) {
            return other("machine", machine(&self.machine), machine(&here));
        }
        if let Some(rate) = rate {
            let asked = 8.0 * rate.bytes_per_second();
            if (self.bandwidth_bits_per_second / asked - 1.0).abs() > SAME_RATE {
                let found = format!("{:.1} Mbit/s a link", self.bandwidth_bits_per_second * 1e-6);
                return other("network", found, format!("{:.1} Mbit/s", asked * 1e-6));
            }
        }
        if let Some(latency) = latency {
            let asked = latency.as_secs_f64();
            if self.seconds_latency > SAME_LATENCY * asked || asked > SAME_LATENCY * self.seconds_latency {
                let words = |seconds: f64| format!("a latency of {:.0} µs", 1e6 * seconds);
                return other("network", words(self.seconds_latency), words(asked));
            }
        }
        Ok(())
    }

    /// α and β of the links, by the probe: the latency of a message, and what a link carries in each direction.
    pub fn network(&self) -> (Duration, Rate) {
        let bytes_per_second = self.bandwidth_bits_per_second / 8.0;
        (Duration::from_secs_f64(self.seconds_latency), Rate::measured(bytes_per_second))
    }

    /// What groups cost with its method.
    pub fn costs(&self) -> Affine {
        Affine { select: self.select.line(), exchange: self.exchange.line() }
    }

    /// What groups cost where all entries are exchanged, over a ring.
    pub fn dense(&self) -> Affine {
        Affine { select: Line::default(), exchange: self.dense.line() }
    }
}
