//! How fast bags become bytes and bags again, and how many bytes: `cargo bench -p gleaner-algorithms --bench codec`.
//!
//! One core; all implementations take turns within each round; medians over the rounds. Encoding includes the choice of the form,
//! decoding every check. The first rows have random positions; the last ones are such that other forms are smallest.
//!
//! Options: `--rounds ROUNDS` and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::bag::wire::{Body, Decoder, Expected, Part, encode};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};
use gleaner_statistics::{median, random};

/// Rounds before the first that counts.
const WARM_UP: usize = 3;

/// The forms by their numbers on the wire.
const FORMS: [&str; 7] = ["dense", "raw", "packed", "bitmap", "Elias-Fano", "Rice", "full"];

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
    println!("+ bits: what an entry takes beside its value: index, scale and header");
    println!(
        "{:34} {:10} {:>9} {:>10} {:>10} {:>10} {:>12} {:>9}",
        "", "form", "entries", "encode M/s", "decode M/s", "both M/s", "bytes/entry", "+ bits"
    );
    rows.iter().for_each(Row::print);
}

/// One bag, and the times of its rounds.
struct Row {
    name: String,
    body: Body,
    entries: usize,
    len: usize,
    /// The form on the wire.
    form: &'static str,
    bytes: usize,
    /// What the values take of them.
    values: usize,
    encoding: Vec<f64>,
    decoding: Vec<f64>,
}

/// All that is measured: a sixth of the 14.7 million entries of VGG-16 at three densities in every coding; many entries; and
/// the forms that are smallest elsewhere.
fn rows() -> Vec<Row> {
    let block = 14_728_266 / 6;
    let mut rows = Vec::new();
    for (density, one_in) in [("1%", 100), ("0.1%", 1000), ("10%", 10)] {
        for coding in Coding::ALL {
            rows.push(Row::new(format!("{density}, {coding}"), scattered(block, one_in), block, coding));
        }
    }
    let mut exact = |name: &str, entries: Entries, len| {
        rows.push(Row::new(name.into(), entries, len, Coding::Exact));
    };
    exact("0.1% of 100 million, exact", scattered(100_000_000, 1000), 100_000_000);
    let every = |step: u32| -> Entries {
        (0..24_547u32).map(|i| (i * step + hash(i.into()) as u32 % step, value(i))).collect()
    };
    let range = |first: u32, len: u32| -> Entries { (0..len).map(|i| (first + i, value(i))).collect() };
    exact("one far away", range(1 << 31, 1), u32::MAX as usize);
    exact("one in each 100", every(100), block);
    exact("a range", range(0, 24_547), block);
    exact("one in two", scattered(49_152, 2), 49_152);
    exact("gaps that 64 divides", tied(), tied().indices[899] as usize + 1);
    exact("one in two, then none", scattered(49_152, 2), block);
    exact("all but a few", scattered(49_152, 1), 49_152);
    rows
}

/// Gaps that 64 divides, so that Rice and Elias-Fano take equally many words.
fn tied() -> Entries {
    let mut next = 0;
    (0..900u32)
        .map(|i| {
            next += 64 * hash(i.into()).trailing_zeros() + 1;
            (next - 1, value(i))
        })
        .collect()
}

impl Row {
    fn new(name: String, entries: Entries, len: usize, coding: Coding) -> Row {
        let (rounded, entries, _) = coding.round(&entries, len, 1);
        let (count, values) = (entries.len(), entries.len() * coding.bits() as usize / 8);
        let body = Body::Sparse { entries, len, rounded };
        let form = FORMS[usize::from(encode(std::slice::from_ref(&body))[0][0])];
        let (encoding, decoding) = (Vec::new(), Vec::new());
        Row { name, body, entries: count, len, form, bytes: 0, values, encoding, decoding }
    }

    /// Encodes and decodes.
    fn round(&mut self) {
        let start = Instant::now();
        let payloads = black_box(encode(black_box(std::slice::from_ref(&self.body))));
        self.encoding.push(start.elapsed().as_secs_f64());
        self.bytes = payloads.iter().map(|payload| payload.len()).sum();

        let expected = vec![Expected::bag(self.len as u32, self.entries as u32)];
        let mut found = (Entries::default(), Rounded::EXACT);
        let start = Instant::now();
        let mut decoder = Decoder::new(expected);
        for payload in payloads {
            let read = decoder.feed(payload, |_, part| {
                if let Part::Sparse { entries, rounded, .. } = part {
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
        let (encoding, decoding) =
            (median(self.encoding.iter().copied()), median(self.decoding.iter().copied()));
        [encoding, decoding, encoding + decoding].map(|seconds| self.entries as f64 / seconds / 1e6)
    }

    fn print(&self) {
        let [encode, decode, both] = self.rates();
        let count = self.entries as f64;
        let index = 8.0 * (self.bytes - self.values) as f64 / count;
        println!(
            "{:34} {:10} {:>9} {encode:>10.0} {decode:>10.0} {both:>10.0} {:>12.3} {index:>9.2}",
            self.name,
            self.form,
            self.entries,
            self.bytes as f64 / count
        );
    }

    fn json(&self) -> String {
        let [encode, decode, both] = self.rates();
        let Row { name, form, entries, bytes, .. } = self;
        format!(
            r#"{{"name":"{name}","form":"{form}","entries":{entries},"bytes":{bytes},"encode":{encode:.1},"decode":{decode:.1},"both":{both:.1}}}"#
        )
    }
}

/// About one position in this many below `len`, each by itself, with values that are nearly normal.
fn scattered(len: usize, one_in: u64) -> Entries {
    (0..len as u32)
        .filter(|&i| if one_in == 1 { i % 1000 > 0 } else { hash(i.into()).is_multiple_of(one_in) })
        .map(|i| (i, value(i)))
        .collect()
}

fn value(index: u32) -> f32 {
    random::normal(random::at(1, index.into()))
}

/// Random bits, of which each index has its own.
fn hash(index: u64) -> u64 {
    random::at(0, index)
}
