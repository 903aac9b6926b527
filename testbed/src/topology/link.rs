//! What a link does to packets, in each of its directions.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use gleaner_units::{self as units, QuantityError, Rate};

/// Slower than this, one frame would take seconds.
const LEAST_RATE: &str = "8kbit";

/// Faster than this, twenty milliseconds of bytes no longer fit the kernel's counters.
const MOST_RATE: &str = "1tbit";

/// Longer delays are refused: no packet waits a minute.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The share of packets that are lost, from 0 to below 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Loss(f64);

impl Loss {
    /// The share.
    pub fn share(self) -> f64 {
        self.0
    }
}

impl FromStr for Loss {
    type Err = String;

    /// Reads a percentage (`0.1%`) or a share (`0.001`).
    fn from_str(text: &str) -> Result<Self, String> {
        let begins_with_digit = text.starts_with(|c: char| c.is_ascii_digit());
        match units::share(text) {
            Ok(share) if begins_with_digit && (0.0..1.0).contains(&share) => Ok(Self(share)),
            _ => Err(format!(
                "'{text}' is no loss; expected a share of the packets below 1, such as 0.1% or 0.001"
            )),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A share, since a percentage would have to be rounded.
        write!(f, "{}", self.0)
    }
}

/// What one direction of a link does to packets. Without anything, they pass as fast as the machine can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Part")]
pub struct Shape {
    /// Bits per second on the wire, Ethernet headers included; none is no limit.
    #[serde(rename = "bandwidth", skip_serializing_if = "Option::is_none", serialize_with = "rate_text")]
    pub rate: Option<Rate>,
    /// What every packet waits.
    #[serde(rename = "latency", serialize_with = "time_text")]
    pub delay: Duration,
    /// By how much that varies, up and down, evenly.
    #[serde(serialize_with = "time_text")]
    pub jitter: Duration,
    /// How many packets are lost.
    #[serde(serialize_with = "loss_text")]
    pub loss: Loss,
}

impl From<Part> for Shape {
    fn from(part: Part) -> Self {
        part.over(Self::default())
    }
}

impl Shape {
    /// This shape, with the properties for whose names there is a text: `bandwidth`, `link_latency`, `jitter` and `loss`.
    ///
    /// # Errors
    /// A text that is no such quantity.
    pub fn with<'a>(mut self, text: impl Fn(&str) -> Option<&'a str>) -> Result<Self, String> {
        let said = |error: QuantityError| error.to_string();
        if let Some(bandwidth) = text("bandwidth") {
            self.rate = Some(units::rate(bandwidth).map_err(said)?);
        }
        if let Some(latency) = text("link_latency") {
            self.delay = units::duration(latency).map_err(said)?;
        }
        if let Some(jitter) = text("jitter") {
            self.jitter = units::duration(jitter).map_err(said)?;
        }
        if let Some(loss) = text("loss") {
            self.loss = loss.parse()?;
        }
        Ok(self)
    }

    /// Refuses what cannot be emulated.
    pub fn check(&self) -> Result<(), String> {
        let Self { rate, delay, jitter, .. } = *self;
        if let Some(rate) = rate {
            let possible = |text| units::rate(text).map_or(0.0, Rate::bytes_per_second);
            if !(possible(LEAST_RATE)..=possible(MOST_RATE)).contains(&rate.bytes_per_second()) {
                return Err(format!(
                    "a bandwidth of {rate} cannot be emulated; expected {LEAST_RATE} to {MOST_RATE}"
                ));
            }
        }
        if delay + jitter > LONGEST_DELAY {
            let expected = "expected at most a minute, jitter included";
            return Err(format!("a latency of {:?} cannot be emulated; {expected}", delay + jitter));
        }
        if jitter > delay {
            let expected = "expected at most the latency";
            return Err(format!("the jitter {jitter:?} is larger than the latency {delay:?}; {expected}"));
        }
        Ok(())
    }

    /// Whether it takes more than a limit of the rate.
    pub fn delays_or_loses(&self) -> bool {
        *self != Self { rate: self.rate, ..Self::default() }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate}")?,
            None => write!(f, "no limit")?,
        }
        if !self.delay.is_zero() {
            write!(f, ", {:?}", self.delay)?;
        }
        if !self.jitter.is_zero() {
            write!(f, " ± {:?}", self.jitter)?;
        }
        if self.loss.share() > 0.0 {
            write!(f, ", {:.4}% lost", 100.0 * self.loss.share())?;
        }
        Ok(())
    }
}

/// A link: `up` is from the host (or the switch) towards the core of the network, `down` the other way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// Towards the core.
    pub up: Shape,
    /// From the core.
    pub down: Shape,
}

impl Link {
    /// The same in both directions.
    pub fn both(shape: Shape) -> Self {
        Self { up: shape, down: shape }
    }

    /// Its two directions.
    pub fn directions(&self) -> [&Shape; 2] {
        [&self.up, &self.down]
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.up == self.down {
            true => write!(f, "{}", self.up),
            false => write!(f, "up {}; down {}", self.up, self.down),
        }
    }
}

/// A shape as a file gives it: what it does not say comes from elsewhere.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Part {
    #[serde(rename = "bandwidth", deserialize_with = "rate")]
    rate: Option<Rate>,
    #[serde(rename = "latency", deserialize_with = "time")]
    delay: Option<Duration>,
    #[serde(deserialize_with = "time")]
    jitter: Option<Duration>,
    #[serde(deserialize_with = "loss")]
    loss: Option<Loss>,
}

impl Part {
    fn over(&self, below: Shape) -> Shape {
        Shape {
            rate: self.rate.or(below.rate),
            delay: self.delay.unwrap_or(below.delay),
            jitter: self.jitter.unwrap_or(below.jitter),
            loss: self.loss.unwrap_or(below.loss),
        }
    }
}

/// A link as a file gives it: for both directions, and for one of them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Parts {
    // Not flattened: serde could not refuse unknown fields then.
    #[serde(rename = "bandwidth", deserialize_with = "rate")]
    rate: Option<Rate>,
    #[serde(rename = "latency", deserialize_with = "time")]
    delay: Option<Duration>,
    #[serde(deserialize_with = "time")]
    jitter: Option<Duration>,
    #[serde(deserialize_with = "loss")]
    loss: Option<Loss>,
    up: Part,
    down: Part,
}

impl Parts {
    /// This link, and what it does not say from another one.
    pub(super) fn over(&self, below: Link) -> Link {
        let both = Part { rate: self.rate, delay: self.delay, jitter: self.jitter, loss: self.loss };
        Link { up: self.up.over(both.over(below.up)), down: self.down.over(both.over(below.down)) }
    }
}

/// A number as text, or as a bare number where that can be meant.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a share such as 0.001, or text such as \"0.1%\"")]
enum Number {
    Bare(f64),
    Text(String),
}

fn loss<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Loss>, D::Error> {
    let text = match Number::deserialize(from)? {
        Number::Bare(share) => share.to_string(),
        Number::Text(text) => text,
    };
    text.parse::<Loss>().map(Some).map_err(de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    units::duration(&String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    units::rate(&String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

fn rate_text<S: Serializer>(rate: &Option<Rate>, to: S) -> Result<S::Ok, S::Error> {
    rate.map(|rate| rate.to_string()).serialize(to)
}

fn time_text<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    format!("{}ns", time.as_nanos()).serialize(to)
}

fn loss_text<S: Serializer>(loss: &Loss, to: S) -> Result<S::Ok, S::Error> {
    loss.to_string().serialize(to)
}
