//! Selectors: which entries of its own gradient a worker sends. One file each, to be read beside the paper that it names.
//!
//! A method whose first step is a selection from all of a worker's gradient takes any of them in place of the exact top-k.
//! Whatever is not chosen waits in the residual, so a bad choice costs time and never mass. Equal gradients, k, state and
//! seed give equal choices, on every machine. Of zeros none is ever chosen.
//!
//! | selector | entries | passes over the gradient besides the one that accumulates |
//! |---|---|---|
//! | [`top`](Selector::Top) | k | none; one where the prediction failed |
//! | [`layers`], [`blocks`], [`bucketed`] | fixed, near k | one |
//! | [`random`] | k, fewer only where entries are zero | none |
//! | [`threshold`] | any | none |
//! | [`sampled`] | at most k | none once there is a prediction |
//! | [`gaussian`] | any, aimed at k | one, and one for each guess that was too high |
//! | [`sidco`] | any, aimed at k | one for each stage, and one where the prediction failed |

pub mod blocks;
pub mod bucketed;
pub mod clt_k;
pub mod exdyna;
pub mod gaussian;
pub mod layers;
mod moments;
pub mod random;
pub mod sampled;
pub mod sidco;
mod source;
pub mod threshold;

use std::fmt;
use std::str::FromStr;

use gleaner_units as units;
pub(crate) use source::Source;

use crate::bag::Entries;
use crate::device::DeviceError;
use crate::schedule::Candidates;
use crate::{Element, Layers, select};
use sidco::Fit;

/// How a worker chooses from its own gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Selector {
    /// The k largest of all, exactly.
    #[default]
    Top,
    /// The largest of each layer.
    Layers,
    /// The largest of each of this many blocks of equal lengths.
    Blocks(u32),
    /// The largest of each run of this many consecutive entries.
    Bucketed(u32),
    /// k sampled at random, by each worker for itself.
    Random,
    /// All of at least this magnitude.
    Threshold(f64),
    /// Those above a threshold that is read off a sample, k at most.
    Sampled,
    /// Those above a threshold that suits a normal distribution.
    Gaussian,
    /// Those above a threshold that suits a heavier tail, fitted in stages.
    Sidco(Fit),
}

/// A selector that there is not.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum SelectorError {
    /// No such name.
    #[error(
        "there is no selector '{name}'{}; choose one of {}",
        crate::sentence::did_you_mean(name, &Selector::bare_names()),
        Selector::names().join(", ")
    )]
    Unknown {
        /// The name given.
        name: String,
    },
    /// A number where none belongs.
    #[error("the selector {name} takes no number, and '{value}' was given; write {name} alone")]
    Bare {
        /// Its name.
        name: String,
        /// What was given.
        value: String,
    },
    /// No count, or none that there can be.
    #[error(
        "'{value}' is no number of {what} for the selector {name}; expected a whole number from 1 to 4294967295, such as {name}={example}"
    )]
    Count {
        /// Its name.
        name: &'static str,
        /// Of what.
        what: &'static str,
        /// What was given.
        value: String,
        /// A number that will do.
        example: u32,
    },
    /// No threshold, or none that there can be.
    #[error(
        "'{value}' is no threshold; expected a magnitude above 0 that every chosen entry reaches, such as threshold=0.01"
    )]
    Threshold {
        /// What was given.
        value: String,
    },
}

crate::sentence::debug_as_sentence!(SelectorError);

/// Entries of a bucket where no number is given (SparCML, §6).
const BUCKET: u32 = 512;
/// Blocks where no number is given.
const BLOCKS: u32 = 16;

impl Selector {
    /// One of each, with the numbers that stand where none is given; a threshold has none.
    pub const NAMED: [Self; 10] = [
        Self::Top,
        Self::Layers,
        Self::Blocks(BLOCKS),
        Self::Bucketed(BUCKET),
        Self::Random,
        Self::Sampled,
        Self::Gaussian,
        Self::Sidco(Fit::Exponential),
        Self::Sidco(Fit::Gamma),
        Self::Sidco(Fit::Pareto),
    ];

    /// The name on the command line, without a number.
    pub fn name(self) -> &'static str {
        match self {
            Selector::Top => "top",
            Selector::Layers => "layers",
            Selector::Blocks(_) => "blocks",
            Selector::Bucketed(_) => "bucketed",
            Selector::Random => "random",
            Selector::Threshold(_) => "threshold",
            Selector::Sampled => "sampled",
            Selector::Gaussian => "gaussian",
            Selector::Sidco(Fit::Exponential) => "sidco-exp",
            Selector::Sidco(Fit::Gamma) => "sidco-gamma",
            Selector::Sidco(Fit::Pareto) => "sidco-gp",
        }
    }

    /// All names, as the command line takes them.
    pub fn names() -> Vec<String> {
        let one = |selector: &Selector| match selector {
            Selector::Blocks(_) | Selector::Bucketed(_) => selector.to_string(),
            _ => selector.name().to_owned(),
        };
        Self::NAMED.iter().map(one).chain(["threshold=MAGNITUDE".to_owned()]).collect()
    }

    /// All names without numbers, with commas between them.
    fn bare_names() -> String {
        Self::NAMED.iter().map(|selector| selector.name()).chain(["threshold"]).collect::<Vec<_>>().join(", ")
    }

    /// Refuses numbers that it cannot have.
    ///
    /// # Errors
    /// Blocks or buckets of none, a threshold that is not a positive number.
    pub fn check(self) -> Result<(), SelectorError> {
        let (name, value) = (self.name(), "0".to_owned());
        match self {
            Selector::Blocks(0) => Err(SelectorError::Count { name, what: "blocks", value, example: BLOCKS }),
            Selector::Bucketed(0) => {
                Err(SelectorError::Count { name, what: "entries in a bucket", value, example: BUCKET })
            }
            Selector::Threshold(at) if !(at > 0.0 && at.is_finite()) => {
                Err(SelectorError::Threshold { value: at.to_string() })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match self {
            Selector::Blocks(number) | Selector::Bucketed(number) => write!(f, "={number}"),
            Selector::Threshold(at) => write!(f, "={at}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if name == "threshold" {
            let value = value.unwrap_or_default();
            let refused = |_| SelectorError::Threshold { value: value.to_owned() };
            let selector = Selector::Threshold(units::number(value).map_err(refused)?);
            return selector.check().map(|()| selector);
        }
        let found = Self::NAMED.into_iter().find(|selector| selector.name() == name);
        let selector = found.ok_or_else(|| SelectorError::Unknown { name: name.to_owned() })?;
        let Some(value) = value else { return Ok(selector) };
        let counted = |what, example| {
            let name = selector.name();
            let refused = |_| SelectorError::Count { name, what, value: value.to_owned(), example };
            units::within::<u32>(1..)(value).map_err(refused)
        };
        match selector {
            Selector::Blocks(example) => Ok(Selector::Blocks(counted("blocks", example)?)),
            Selector::Bucketed(example) => Ok(Selector::Bucketed(counted("entries in a bucket", example)?)),
            _ => Err(SelectorError::Bare { name: name.to_owned(), value: value.to_owned() }),
        }
    }
}

/// A selector for gradients of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Which.
    pub selector: Selector,
    /// How many entries are asked for, at most n. Of 0 none is chosen, by any selector.
    pub k: usize,
    /// What the gradient is made of.
    pub layers: Layers,
}

/// What was chosen of one gradient.
#[derive(Clone, Debug, Default)]
pub struct Chosen<T: Element = f32> {
    /// The entries, indexed in the flat gradient.
    pub entries: Entries<T>,
    /// The magnitude that all of them reach, if it was by one; 0 lets all non-zero entries pass.
    pub threshold: Option<T>,
    /// From which magnitude on to collect candidates for the next step, for one pass less there.
    pub collect: Option<T>,
}

impl<T: Element> Chosen<T> {
    fn of(entries: Entries<T>) -> Self {
        Self { entries, threshold: None, collect: None }
    }

    /// Chosen by a threshold that will be another one in the next step, but not by much.
    fn by(entries: Entries<T>, threshold: T) -> Self {
        let collect = T::from_f64(NEXT * threshold.to_f64());
        Self { entries, threshold: Some(threshold), collect: (collect > T::ZERO).then_some(collect) }
    }
}

/// Candidates for the next step are collected from this share of the present threshold on.
const NEXT: f64 = 0.8;

impl Selection {
    /// How many entries are chosen where there are enough that are not zero; None if that depends on the gradient.
    pub fn count(&self) -> Option<usize> {
        let n = self.layers.entries();
        match self.selector {
            Selector::Top | Selector::Random => Some(self.k),
            Selector::Layers => Some(layers::count(self.layers.ranges(), self.k, n)),
            Selector::Blocks(number) => Some(layers::count(blocks::ranges(n, number), self.k, n)),
            Selector::Bucketed(bucket) => Some(bucketed::count(n, bucket, self.k)),
            Selector::Threshold(_) | Selector::Sampled | Selector::Gaussian | Selector::Sidco(_) => None,
        }
    }

    /// How many entries are chosen at most: what buffers are made for.
    pub fn most(&self) -> usize {
        match (self.count(), self.selector) {
            (_, _) if self.k == 0 => 0,
            (Some(count), _) => count,
            (None, Selector::Sampled) => self.k,
            (None, _) => self.layers.entries(),
        }
    }

    /// What it knows before the first step: numbers of this worker alone.
    pub fn memory(&self) -> Vec<f64> {
        match self.selector {
            Selector::Sidco(_) => sidco::MEMORY.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Learns from a step in which this many entries were chosen.
    pub fn learn(&self, memory: &mut [f64], chosen: usize) {
        if let Selector::Sidco(_) = self.selector {
            sidco::learn(memory, chosen, self.k, self.layers.entries());
        }
    }

    /// Chooses from a gradient of n values, none of them NaN or infinite. `candidates` are the entries that were collected
    /// on the way, if any were; `seed` is another one in each step, and read only by random selectors.
    pub fn choose<T: Element>(
        &self,
        values: &[T],
        candidates: &Candidates<T>,
        memory: &[f64],
        seed: u64,
    ) -> Chosen<T> {
        // Values in main memory are there.
        self.choose_from(&Source::of(values, candidates), memory, seed).unwrap_or_default()
    }

    /// The same, of a gradient that may lie on a device. Where a selector needs all values, they are copied from there.
    pub(crate) fn choose_from<T: Element>(
        &self,
        source: &Source<'_, T>,
        memory: &[f64],
        seed: u64,
    ) -> Result<Chosen<T>, DeviceError> {
        let (k, n) = (self.k, source.len());
        if k == 0 {
            return Ok(Chosen::default());
        }
        Ok(match self.selector {
            Selector::Top => Chosen::of(select::top_k_dense(source.values()?, k)),
            Selector::Layers => Chosen::of(layers::choose(source.values()?, self.layers.ranges(), k)),
            Selector::Blocks(number) => {
                Chosen::of(layers::choose(source.values()?, blocks::ranges(n, number), k))
            }
            Selector::Bucketed(bucket) => Chosen::of(bucketed::choose(source.values()?, bucket, k)),
            Selector::Random => Chosen::of(random::choose(source.values()?, k, seed)),
            Selector::Threshold(at) => threshold::choose(source, at)?,
            Selector::Sampled => sampled::choose(source, k)?,
            Selector::Gaussian => gaussian::choose(source, k)?,
            Selector::Sidco(fit) => sidco::choose(source, k, fit, memory)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for selector in Selector::NAMED.into_iter().chain([Selector::Threshold(0.25), Selector::Bucketed(7)])
        {
            assert_eq!(selector.to_string().parse(), Ok(selector));
        }
        assert_eq!("bucketed".parse(), Ok(Selector::Bucketed(512)));
        assert_eq!("blocks=1k".parse(), Ok(Selector::Blocks(1000)));
        assert_eq!("bucketed=1e3".parse(), Ok(Selector::Bucketed(1000)));
        for (text, part) in [
            ("", "there is no selector '';"),
            ("guassian", "there is no selector 'guassian' (did you mean gaussian?); choose one of top, "),
            ("treshold=0.1", "(did you mean threshold?)"),
            ("topk", "sidco-gp, threshold=MAGNITUDE"),
            ("top=3", "write top alone"),
            ("bucketed=0", "such as bucketed=512"),
            ("blocks=", "such as blocks=16"),
            ("blocks=5B", "from 1 to 4294967295, such as blocks=16"),
            ("threshold", "'' is no threshold"),
            ("threshold=0", "'0' is no threshold"),
            ("threshold=nan", "is no threshold"),
            ("threshold=inf", "is no threshold"),
        ] {
            let sentence = text.parse::<Selector>().unwrap_err().to_string();
            assert!(sentence.contains(part), "{text}: {sentence}");
        }
    }
}
