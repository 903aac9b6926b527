//! How fast bags become bytes and bags again, and how many bytes: `cargo bench -p gleaner-algorithms --bench codec`.
//!
//! One core; all rivals take turns within each round; medians over the rounds. Encoding includes the choice of the form,
//! decoding every check. The indices are random positions, unless the row is named after a form that suits others better:
//! then they are such that this form is chosen.
//!
//! Options: `--rounds ROUNDS` and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::bag::wire::{Body, Decoder, Expected, Part, encode};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};

/// Rounds before the first that counts.
const WARM_UP: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == "--rounds");
    let rounds = place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(51);
    let json = arguments.iter().any(|argument| argument == "--json");

    let mut rows = rows();
    for round in 0..WARM_UP + rounds {
        for row in &mut rows {
            row.round();
            if round < WARM_UP {
                row.encoding.clear();
                row.decoding.clear();
            }
        }
    }
    if json {
        let rows: Vec<String> = rows.iter().map(Row::json).collect();
        println!(r#"{{"rows":[{}]}}"#, rows.join(","));
        return;
    }
    println!(
        "{:34} {:>9} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "", "entries", "encode M/s", "decode M/s", "both M/s", "bytes/entry", "bits/index"
    );
    rows.iter().for_each(Row::print);
}

/// One bag, and the times of its rounds.
struct Row {
    name: String,
    body: Body,
    entries: usize,
    len: usize,
    bytes: usize,
    /// What all bodies of this coding take for their values, in bytes.
    values: usize,
    encoding: Vec<f64>,
    decoding: Vec<f64>,
}

/// All that is measured.
fn rows() -> Vec<Row> {
    let n = 14_728_266;
    let block = n / 6;
    let mut rows = vec![
        Row::new("1%, a block of six".into(), scattered(block, 100), block, Coding::Exact),
        Row::new("0.1%, 100k entries".into(), scattered(100_000_000, 1000), 100_000_000, Coding::Exact),
        Row::new("10%, a block of six".into(), scattered(block, 10), block, Coding::Exact),
    ];
    for (density, one_in) in [("1%", 100), ("0.1%", 1000), ("10%", 10)] {
        for coding in Coding::ALL {
            rows.push(Row::new(format!("{density}, {coding}"), scattered(block, one_in), block, coding));
        }
    }
    let every = |step: u32| -> Entries {
        (0..24_547u32).map(|i| (i * step + hash(i.into()) as u32 % step, value(i))).collect()
    };
    let range = |first: u32, len: u32| -> Entries { (0..len).map(|i| (first + i, value(i))).collect() };
    let mut form = |name: &str, entries: Entries, len| {
        rows.push(Row::new(format!("form {name}"), entries, len, Coding::Exact));
    };
    form("raw: 1 entry", range(1 << 31, 1), u32::MAX as usize);
    form("packed: one in each 100", every(100), block);
    form("packed: a range", range(0, 24_547), block);
    form("bitmap: every second", scattered(49_152, 2), 49_152);
    form("rice: every second, then none", scattered(49_152, 2), block);
    form("full: all but a few", scattered(49_152, 1), 49_152);
    rows
}

impl Row {
    fn new(name: String, entries: Entries, len: usize, coding: Coding) -> Row {
        let (rounded, entries, _) = coding.round(&entries, len, 1);
        let (count, values) = (entries.len(), entries.len() * coding.bits() as usize / 8);
        let body = Body::Sparse { entries, len, rounded };
        Row { name, body, entries: count, len, bytes: 0, values, encoding: Vec::new(), decoding: Vec::new() }
    }

    /// Encodes and decodes.
    fn round(&mut self) {
        let start = Instant::now();
        let payloads = black_box(encode(black_box(std::slice::from_ref(&self.body))));
        self.encoding.push(start.elapsed().as_secs_f64());
        self.bytes = payloads.iter().map(|payload| payload.len()).sum();

        let expected = vec![Expected { len: self.len as u32, bound: self.entries as u32 }];
        let mut found = (Entries::default(), Rounded::EXACT);
        let start = Instant::now();
        let mut decoder = Decoder::new(expected);
        for payload in payloads {
            let read = decoder.feed(payload, |_, part| {
                if let Part::Sparse { entries, rounded } = part {
                    found = (entries, rounded);
                }
            });
            assert_eq!(read, Ok(()));
        }
        let found = black_box(found);
        self.decoding.push(start.elapsed().as_secs_f64());
        let Body::Sparse { entries, rounded, .. } = &self.body else { unreachable!("all rows are sparse") };
        assert!(found.0 == *entries && found.1 == *rounded, "{}: other entries came back", self.name);
    }

    fn rates(&self) -> [f64; 3] {
        let (encoding, decoding) = (median(&self.encoding), median(&self.decoding));
        [encoding, decoding, encoding + decoding].map(|seconds| self.entries as f64 / seconds / 1e6)
    }

    fn print(&self) {
        let [encode, decode, both] = self.rates();
        let count = self.entries as f64;
        let index = 8.0 * (self.bytes - self.values) as f64 / count;
        println!(
            "{:34} {:>9} {encode:>10.0} {decode:>10.0} {both:>10.0} {:>12.3} {index:>12.2}",
            self.name,
            self.entries,
            self.bytes as f64 / count
        );
    }

    fn json(&self) -> String {
        let [encode, decode, both] = self.rates();
        let Row { name, entries, bytes, .. } = self;
        format!(
            r#"{{"name":"{name}","entries":{entries},"bytes":{bytes},"encode":{encode:.1},"decode":{decode:.1},"both":{both:.1}}}"#
        )
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// About one in so many positions below `len`, each by itself, with values that are nearly normal.
fn scattered(len: usize, one_in: u64) -> Entries {
    (0..len as u32)
        .filter(|&i| if one_in == 1 { i % 1000 > 0 } else { hash(i.into()).is_multiple_of(one_in) })
        .map(|i| (i, value(i)))
        .collect()
}

/// A sum of four uniform numbers, never zero.
fn value(index: u32) -> f32 {
    let bits = hash(u64::from(index) << 32);
    let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
    (sum as f32 - 131_070.5) / 37_837.0
}

/// Bits that look random.
fn hash(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0x5851_f42d_4c95_7f2d);
    bits ^ (bits >> 29)
}
