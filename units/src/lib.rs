//! Counts, shares, durations and rates as people write them: `14_728_266` or `25.6M`, `1%`, `50us`, `1gbit`.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;
use std::time::Duration;

/// Longer durations are refused: sums of them must not overflow.
const LONGEST: f64 = 1e9;

/// Units of a duration, in seconds.
const DURATIONS: &[(&str, f64)] =
    &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("μs", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// Units of a limit, in seconds. A delay has no minutes: `1m` for `1ms` would be a slip that goes unnoticed.
const LIMITS: &[(&str, f64)] = &[("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Units of a rate, in bits per second.
const RATES: &[(&str, f64)] = &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("tbit", 1e12)];

/// Thousands, millions and billions, as counts of parameters have them.
const COUNTS: &[(&str, f64)] = &[("k", 1e3), ("M", 1e6), ("B", 1e9)];

/// Whole numbers above are not exact as floating-point numbers.
const EXACT: f64 = (1u64 << 53) as f64;

/// A quantity that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a whole number.
    #[error("'{0}' is no count; expected a whole number such as 14_728_266, 25.6M or 1e6")]
    Count(String),
    /// A whole number outside of what is possible.
    #[error("{found} is not possible here; expected a whole number {expected}")]
    Outside {
        /// The number.
        found: u64,
        /// What was expected: from where to where.
        expected: String,
    },
    /// Not a number.
    #[error("'{0}' is no number; expected one such as 0.1 or 1e-3")]
    Number(String),
    /// Not a share.
    #[error("'{0}' is no share; expected a number such as 0.01, or a percentage such as 1%")]
    Share(String),
    /// Not a duration.
    #[error("'{0}' is no time; expected a number and a unit (ns, us, ms or s), such as 50us")]
    Duration(String),
    /// Too long to compute with.
    #[error("'{0}' is too long; expected at most a billion seconds")]
    Long(String),
    /// Not a limit of time.
    #[error("'{0}' is no time; expected a number above 0 and a unit (s, m or h), such as 90s or 10m")]
    Limit(String),
    /// Not a rate.
    #[error(
        "'{0}' is no bandwidth; expected a number above 0 and a unit (bit, kbit, mbit, gbit or tbit, each per second), such as 1gbit or 2.5Gbit/s"
    )]
    Rate(String),
}

/// A number of bits per second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate {
    bits_per_second: f64,
}

impl Rate {
    /// What carries this many bytes in a second, as it was measured: to the next tenth of a Mbit/s, at least one.
    pub fn measured(bytes_per_second: f64) -> Self {
        const STEP: f64 = 1e5;
        Self { bits_per_second: (8.0 * bytes_per_second / STEP).round().max(1.0) * STEP }
    }

    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.bits_per_second / 8.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second;
        let (unit, size) =
            RATES.iter().rev().find(|(_, size)| bits >= *size).copied().unwrap_or(("bit", 1.0));
        let unit = match unit {
            "mbit" => "Mbit",
            "gbit" => "Gbit",
            "tbit" => "Tbit",
            small => small,
        };
        write!(f, "{} {unit}/s", bits / size)
    }
}

/// Reads a count: with or without underscores between its digits, with k, M or B behind it (`25.6M`), or with an exponent (`1e6`).
pub fn count(text: &str) -> Result<usize, QuantityError> {
    whole(text).and_then(|count| usize::try_from(count).map_err(|_| QuantityError::Count(text.into())))
}

/// Reads a count of 64 bits.
fn whole(text: &str) -> Result<u64, QuantityError> {
    let no_count = || QuantityError::Count(text.into());
    let begins_with_digit = text.starts_with(|c: char| c.is_ascii_digit());
    if !begins_with_digit || text.ends_with('_') {
        return Err(no_count());
    }
    let digits = text.replace('_', "");
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return digits.parse().map_err(|_| no_count());
    }
    let unit = COUNTS.iter().find_map(|(name, size)| Some((digits.strip_suffix(name)?, *size)));
    let (number, size) = unit.unwrap_or((&digits, 1.0));
    let value = number.parse::<f64>().map_err(|_| no_count())? * size;
    // 25.6 times a million is a whole number but for rounding.
    let near = value.round();
    let is_whole = (value - near).abs() <= 1e-9 * near.max(1.0) && near < EXACT;
    if is_whole { Ok(near as u64) } else { Err(no_count()) }
}

/// Reads a count within bounds, as a value parser of options.
pub fn within<T: TryFrom<u64>>(
    bounds: impl RangeBounds<u64> + Clone,
) -> impl Fn(&str) -> Result<T, QuantityError> + Clone {
    move |text| {
        let found = whole(text)?;
        if !bounds.contains(&found) {
            return Err(QuantityError::Outside { found, expected: said(&bounds) });
        }
        T::try_from(found).map_err(|_| {
            let expected = format!("{} that fits into {} bits", said(&bounds), 8 * size_of::<T>());
            QuantityError::Outside { found, expected }
        })
    }
}

/// Bounds in words.
fn said(bounds: &impl RangeBounds<u64>) -> String {
    let from = match bounds.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(from) => from + 1,
        Bound::Unbounded => 0,
    };
    match bounds.end_bound() {
        Bound::Included(to) => format!("from {from} to {to}"),
        Bound::Excluded(to) => format!("from {from} to {}", to.saturating_sub(1)),
        Bound::Unbounded => format!("from {from} on"),
    }
}

/// Reads a number: `0.1`, `1e-3`, `1%` or `1k`. Its range is for the caller to check.
pub fn number<T: FromStr>(text: &str) -> Result<T, QuantityError> {
    let scaled = || scaled(text)?.to_string().parse().ok();
    text.parse().ok().or_else(scaled).ok_or_else(|| QuantityError::Number(text.into()))
}

/// A number with a unit of [`COUNTS`] or a percent sign.
fn scaled(text: &str) -> Option<f64> {
    let digits = text.replace('_', "");
    if digits.ends_with('%') {
        return share(&digits).ok();
    }
    let unit = COUNTS.iter().find_map(|(name, size)| Some((digits.strip_suffix(name)?, *size)));
    let (number, size) = unit.unwrap_or((&digits, 1.0));
    Some(number.parse::<f64>().ok()? * size)
}

/// Reads a share: a number (`0.01`) or a percentage (`1%`). Its range is for the caller to check.
pub fn share(text: &str) -> Result<f64, QuantityError> {
    let no_share = || QuantityError::Share(text.into());
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent.trim_end(), 100.0));
    let share: f64 = number.replace('_', "").parse().map_err(|_| no_share())?;
    Ok(share / of)
}

/// Reads a share as a number of 32 bits.
pub fn single_share(text: &str) -> Result<f32, QuantityError> {
    share(text).map(|share| share as f32)
}

/// Reads a duration.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let seconds = measure(text, DURATIONS).ok_or_else(|| QuantityError::Duration(text.into()))?;
    if seconds > LONGEST {
        return Err(QuantityError::Long(text.into()));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Reads how long something may take at the most.
pub fn limit(text: &str) -> Result<Duration, QuantityError> {
    match measure(text, LIMITS).map(Duration::try_from_secs_f64) {
        Some(Ok(limit)) if limit.is_zero() => Err(QuantityError::Limit(text.into())),
        Some(Ok(limit)) if limit.as_secs_f64() <= LONGEST => Ok(limit),
        Some(_) => Err(QuantityError::Long(text.into())),
        None => Err(QuantityError::Limit(text.into())),
    }
}

/// Reads a rate; capitals and `/s` make no difference.
pub fn rate(text: &str) -> Result<Rate, QuantityError> {
    let lower = text.to_lowercase();
    let bits = lower.strip_suffix("/s").unwrap_or(&lower);
    match measure(bits, RATES) {
        Some(bits_per_second) if bits_per_second >= 1.0 => Ok(Rate { bits_per_second }),
        _ => Err(QuantityError::Rate(text.into())),
    }
}

/// Reads a quantity of any kind, so as to sort by it: a number or a share, a duration or a limit in seconds, or a rate in bytes per second;
/// none from other text.
pub fn size(text: &str) -> Option<f64> {
    let plain = number(text).ok().filter(|number: &f64| number.is_finite());
    let time = || duration(text).or_else(|_| limit(text)).ok().map(|time| time.as_secs_f64());
    plain.or_else(time).or_else(|| rate(text).ok().map(Rate::bytes_per_second))
}

/// A decimal number and a unit, with or without a space between them.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number = |end: &usize| text.get(..*end)?.replace('_', "").parse::<f64>().ok().filter(|_| begins);
    let (end, number) = (1..=text.len()).rev().find_map(|end| Some((end, number(&end)?)))?;
    let unit = text[end..].trim_start();
    let &(_, size) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number * size).filter(|product| product.is_finite())
}

/// Writes a count with an underscore before every three digits.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

/// Writes a number with this many significant digits and without an exponent.
pub fn written(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "–".into() };
    }
    let size = value.abs().log10().floor() as i32;
    let decimals = (digits - 1 - size).clamp(0, 12) as usize;
    if decimals == 0 && value >= 10_000.0 {
        grouped(value.round() as u64)
    } else {
        format!("{value:.decimals$}")
    }
}

/// Writes a number with so many digits behind the point, and commas between thousands.
pub fn fixed(number: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", number.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let whole = whole.parse::<u64>().map_or(whole.to_owned(), |count| grouped(count).replace('_', ","));
    let is_negative = number < 0.0 && text.contains(|c: char| c.is_ascii_digit() && c != '0');
    format!("{}{whole}{rest}", if is_negative { "−" } else { "" })
}

/// Writes a number on an axis: with four digits, and without zeros at its end.
pub fn tick(value: f64) -> String {
    let text = written(value, 4);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Writes a number of bytes in the unit that suits it, in powers of a thousand.
pub fn bytes(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{c:.0} B"),
        c if c < 1e6 => format!("{:.1} kB", c / 1e3),
        c if c < 1e9 => format!("{:.2} MB", c / 1e6),
        c => format!("{:.2} GB", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count("14728266"), Ok(14_728_266));
        assert_eq!(count("14_728_266"), Ok(14_728_266));
        for (text, expected) in [
            ("25.6M", 25_600_000),
            ("1e6", 1_000_000),
            ("1.5k", 1500),
            ("7B", 7_000_000_000),
            ("2.5e3", 2500),
        ] {
            assert_eq!(count(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "_1",
            "1_",
            "-1",
            "+1",
            "1.5",
            "0.0001k",
            "1e-3",
            "1e99",
            "5K",
            "5 M",
            "M",
            "1ee6",
            "99999999999999999999999",
        ] {
            assert_eq!(count(text), Err(QuantityError::Count(text.into())));
        }
        let bounded = within::<u32>(1..=1024);
        assert_eq!(bounded("1k"), Ok(1000));
        for (found, text) in [(0, "0"), (1025, "1025")] {
            let expected = "from 1 to 1024".to_owned();
            assert_eq!(bounded(text), Err(QuantityError::Outside { found, expected }));
        }
        let sentence = within::<u32>(1..)("0").unwrap_err().to_string();
        assert_eq!(sentence, "0 is not possible here; expected a whole number from 1 on");
        let sentence = within::<u8>(..)("256").unwrap_err().to_string();
        assert_eq!(
            sentence,
            "256 is not possible here; expected a whole number from 0 on that fits into 8 bits"
        );
        assert!(within::<u64>(0..)("many").is_err());
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(14_728_266), "14_728_266");
        assert_eq!(grouped(100_000), "100_000");
    }

    #[test]
    fn shares() {
        for (text, expected) in
            [("0.01", 0.01), ("1%", 0.01), ("0.1 %", 0.001), ("1e-3", 0.001), ("-1", -1.0), ("1_000", 1e3)]
        {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for text in ["", "%", "1%%", "a tenth", "0,1"] {
            assert_eq!(share(text), Err(QuantityError::Share(text.into())));
        }
    }

    #[test]
    fn numbers() {
        assert_eq!((number("0.1"), number("1e-3"), number("-2")), (Ok(0.1_f32), Ok(1e-3_f64), Ok(-2.0_f32)));
        assert_eq!(
            (number("1%"), number("1k"), number("2.5M"), number("1_000")),
            (Ok(0.01_f32), Ok(1e3_f64), Ok(2.5e6_f64), Ok(1e3_f32))
        );
        // As a share to the last bit.
        assert_eq!(number::<f64>("7%").ok(), share("7%").ok());
        for text in ["", "%", "k", "1kk", "1 k", "0,1"] {
            assert_eq!(number::<f32>(text), Err(QuantityError::Number(text.into())));
        }
        assert_eq!(single_share("90%"), Ok(0.9));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("50 µs"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("20ns"), Ok(Duration::from_nanos(20)));
        assert_eq!(duration("1e-3 s"), Ok(Duration::from_millis(1)));
        for text in ["", "50", "us", "-1s", "infs", "nans", "1h", "1.2.3s", "50us50us"] {
            assert_eq!(duration(text), Err(QuantityError::Duration(text.into())));
        }
        assert_eq!(duration("1000000001s"), Err(QuantityError::Long("1000000001s".into())));
        // In the words of the options.
        let sentence = duration("soon").unwrap_err().to_string();
        assert!(sentence.starts_with("'soon' is no time; expected a number and a unit"), "{sentence}");
    }

    #[test]
    fn limits() {
        assert_eq!(limit("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(limit("90 s"), Ok(Duration::from_secs(90)));
        assert_eq!(limit("0.5h"), Ok(Duration::from_secs(1800)));
        for text in ["", "10", "m", "0m", "-1s", "10ms", "10min", "1d", "infs"] {
            assert_eq!(limit(text), Err(QuantityError::Limit(text.into())));
        }
        for text in ["1000000h", "99999999999999999999999h"] {
            assert_eq!(limit(text), Err(QuantityError::Long(text.into())));
        }
    }

    #[test]
    fn rates() {
        for text in [
            "1gbit",
            "1Gbit/s",
            "1 gbit/s",
            "1000mbit",
            "1e3mbit",
            "0.001tbit",
            "1_000_000kbit",
            "1000000000bit",
        ] {
            assert_eq!(rate(text).map(Rate::bytes_per_second), Ok(125e6), "{text}");
        }
        for text in ["", "1", "gbit", "0gbit", "-1gbit", "1gbps", "1GB/s", "infgbit", "1gbit/h"] {
            assert_eq!(rate(text), Err(QuantityError::Rate(text.into())));
        }
        let sentence = rate("fast").unwrap_err().to_string();
        assert!(sentence.starts_with("'fast' is no bandwidth; expected a number above 0"), "{sentence}");
        assert_eq!(rate("1000mbit").unwrap().to_string(), "1 Gbit/s");
        assert_eq!(rate("2500kbit").unwrap().to_string(), "2.5 Mbit/s");
    }

    #[test]
    fn sizes_are_of_any_unit() {
        for (text, expected) in [
            ("0.01", 0.01),
            ("14_728_266", 14_728_266.0),
            ("1%", 0.01),
            ("50us", 50e-6),
            ("1.5 ms", 1.5e-3),
            ("10m", 600.0),
            ("1 Gbit/s", 125e6),
        ] {
            assert_eq!(size(text), Some(expected), "{text}");
        }
        for text in ["", "many", "inf", "nan", "spardl", "1 apple"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn digits_behind_the_point_are_fixed() {
        assert_eq!((fixed(1.25, 2).as_str(), fixed(5_000.0, 0).as_str()), ("1.25", "5,000"));
        assert_eq!((fixed(-1_234_567.0, 1).as_str(), fixed(-0.04, 1).as_str()), ("−1,234,567.0", "0.0"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(written(123.456, 4), "123.5");
        assert_eq!(written(0.001_234_56, 3), "0.00123");
        assert_eq!(written(14_728_266.0, 4), "14_728_266");
        assert_eq!((tick(0.5).as_str(), tick(100.0).as_str()), ("0.5", "100"));
    }
}
