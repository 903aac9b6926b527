//! Writes the seed corpus, `fuzz/seeds`, which the fuzzer starts from: a few inputs of less than 200 bytes for each target.
//! They are kept with the sources; a change to what the targets read needs them written again: `cargo run --manifest-path
//! fuzz/Cargo.toml --example seeds`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use gleaner_algorithms::bag::wire::{Body, encode};
use gleaner_algorithms::bag::{Coding, Entries, Rounded};
use gleaner_algorithms::residual::Correction;
use gleaner_algorithms::{Element, Method};
use gleaner_runtime::{Layout, Session};
use gleaner_transport::tcp::fuzzing as tcp;
use half::{bf16, f16};

/// What no seed is longer than.
const MOST: usize = 200;

/// The targets of the forms, by their numbers on the wire.
const FORMS: [&str; 7] = ["dense", "raw", "packed", "bitmap", "elias_fano", "rice", "full"];

struct Seeds(PathBuf);

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let seeds = Seeds(folder);
    for coding in Coding::ALL {
        // What the forms of indices look like does not depend on the coding: two codings have all of them.
        let some = if matches!(coding, Coding::Exact | Coding::Qsgd4) { usize::MAX } else { 2 };
        for (name, indices, len) in index_sets().into_iter().take(some) {
            let (rounded, entries, _) = coding.round(&entries::<f32>(&indices), len as usize, 1);
            seeds.block(
                0,
                &format!("{name}-{coding}"),
                Body::Sparse { entries, len: len as usize, rounded },
            )?;
        }
        let mut values: Vec<f32> = (0..30).map(|i| (i as f32 * 0.7).sin()).collect();
        let rounded = coding.round_dense(&mut values, &mut [0.0; 30], 1);
        seeds.block(0, &format!("dense-{coding}"), Body::Dense { values: values.into(), rounded })?;
        seeds.round_trip(0, &coding.to_string(), coding)?;
        seeds.aligned(coding)?;
    }
    seeds.of_type::<f64>(1)?;
    seeds.of_workers()?;
    seeds.of_files()?;
    seeds.of_type::<bf16>(2)?;
    seeds.of_type::<f16>(3)
}

fn entries<T: Element>(indices: &[u32]) -> Entries<T> {
    indices.iter().map(|&i| (i, T::from_f64((f64::from(i) * 0.7).sin() + 1.5))).collect()
}

impl Seeds {
    fn write(&self, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() >= MOST { Ok(()) } else { self.put(target, name, bytes) }
    }

    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name.replace(' ', "-")), bytes)
    }

    /// What workers say to each other besides bags, by the first byte of their targets.
    fn of_workers(&self) -> io::Result<()> {
        let hello = tcp::claims_of_a_member();
        let card = [&[1u8][..], &[0; 10], &[0xff, 0xff, 192, 0, 2, 1, 9, 0]].concat();
        let cards = [&19u16.to_le_bytes()[..], &card].concat();
        let wire: [(u8, &str, Vec<u8>); 10] = [
            (0, "hello", hello.to_vec()),
            (1, "challenge", vec![3, 0, 0, 0, 1, 0, 0, 0]),
            (2, "admission", [&[2, 0, 0, 0, 2, 0, 0, 0][..], b"no"].concat()),
            (3, "card", [&card[..], b"brought"].concat()),
            (4, "outcome", [&[0; 4], &cards[..]].concat()),
            (5, "asked", vec![1, 0, 0, 0, 2, 0, 0, 0]),
            (6, "cards", cards),
            (7, "header", vec![0; 16]),
            (8, "message", (0..40).collect()),
            (9, "record", [&[20, 0][..], &[7; 40]].concat()),
        ];
        for (kind, name, bytes) in wire {
            self.write("wire", name, &[&[kind], &bytes[..]].concat())?;
        }
        let member = |rest: &[u8]| [&hello[..], rest].concat();
        let handshakes: [(u8, &str, Vec<u8>); 6] = [
            (0, "member", member(&[0])),
            (0, "member-without-proof", member(&[1; 60])),
            (1, "admission", [&[2, 0, 0, 0, 2, 0, 0, 0][..], b"no"].concat()),
            (2, "unauthenticated-answers", vec![5; 56]),
            (3, "recorded-hello", tcp::hello()),
            (3, "another-program", b"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n".to_vec()),
        ];
        for (kind, name, bytes) in handshakes {
            self.write("handshake", name, &[&[kind], &bytes[..]].concat())?;
        }
        let head = [&[1][..], &[0; 4], &[3], &[9; 32]].concat();
        let failure = br#"{"rank":1,"step":5,"reason":"it died"}"#;
        let runtime: [(u8, &str, Vec<u8>); 10] = [
            (0, "tag", vec![1, 0, 0, 0, 0, 0, 0, 0xc0]),
            (1, "cancelled", vec![5, 1, 2, 0, 0, 0]),
            (1, "ask", vec![0, 0]),
            (2, "silence", vec![4, 1, 0, 0, 0, 2, 0, 0, 0]),
            (3, "heads", [&head[..], b"notes"].concat()),
            (4, "answer", vec![1, 0, 0, 0, 0, 2, 0, 0, 0, 7, 8, 1, 0, 0, 0, 0, 0, 0, 0]),
            (5, "failure", failure.to_vec()),
            (7, "push", [&[9, 2][..], &[5; 8], &[0], &[0; 24], &[0xff, 1]].concat()),
            (8, "split", [&[1, 4][..], &[5; 8], &[0; 16], &[0; 8]].concat()),
            (6, "event", [&br#"{"kind":"failed","body":"#[..], failure, b"}"].concat()),
        ];
        for (kind, name, bytes) in runtime {
            self.write("runtime", name, &[&[kind], &bytes[..]].concat())?;
        }
        Ok(())
    }

    /// Files of checkpoints, with a checksum that is made right behind a first byte of 1. They are longer than other seeds.
    fn of_files(&self) -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("gleaner-seeds-{}", std::process::id()));
        for (name, method) in [
            ("spardl", Method::spardl().k(1)),
            ("oktopk", Method::named("oktopk").map_err(io::Error::other)?),
        ] {
            let saved = || -> Result<(), gleaner_runtime::Error> {
                let session = Session::join()?;
                let layout = Layout::new().parameter("w", 3).group().parameter("b", 2);
                let correction = Correction { momentum: 0.5, ..Correction::default() };
                let mut gradients = session.gradients(&layout, method.corrected(correction))?;
                gradients.ready("w", &[0.5, -2.0, 0.25])?;
                gradients.ready("b", &[1.0, 3.0])?;
                gradients.wait()?;
                gradients.save_with(&path, &[("w", &[0.5, -0.0, 1.0])], &[("seed", "3".into())])
            };
            saved().map_err(io::Error::other)?;
            self.put("residual_file", name, &[&[1], &fs::read(&path)?[..]].concat())?;
        }
        fs::remove_file(path)
    }

    /// What the types have that are never rounded.
    fn of_type<T: Element>(&self, kind: u8) -> io::Result<()> {
        for (name, indices, len) in index_sets() {
            let body =
                Body::Sparse { entries: entries::<T>(&indices), len: len as usize, rounded: Rounded::EXACT };
            self.block(kind, &format!("{name}-{}", T::NAME), body)?;
        }
        let values: Vec<T> = entries(&(0..15).collect::<Vec<u32>>()).values;
        let body = Body::Dense { values: values.into(), rounded: Rounded::EXACT };
        self.block(kind, &format!("dense-{}", T::NAME), body)?;
        self.round_trip(kind, T::NAME, Coding::Exact)
    }

    /// A block for its form's target, and as a slot of its own for the decoder's.
    fn block<T: Element>(&self, kind: u8, name: &str, body: Body<T>) -> io::Result<()> {
        let (len, rounded) = match &body {
            Body::Sparse { len, rounded, .. } => (*len as u32, *rounded),
            Body::Dense { values, rounded } => (values.len() as u32, *rounded),
            Body::Proposal { .. } | Body::Aligned { .. } | Body::Encoded(_) => return Ok(()),
        };
        let stream = encode(&[body]).concat();
        let (form, count) = (stream[0], [stream[4], stream[5]]);
        let has_length = form == 5 || rounded.shift() > 0 && !matches!(form, 0 | 6);
        let mut alone = vec![kind, stream[1], stream[2], rounded.shift().wrapping_sub(9), 255];
        alone.extend(len.to_le_bytes());
        alone.extend(count);
        alone.extend(&stream[if has_length { 12 } else { 8 }.min(stream.len())..]);
        self.write(FORMS[usize::from(form)], name, &alone)?;
        let Ok(len) = u16::try_from(len) else { return Ok(()) };
        let slot = [&[kind, 1, 255][..], &len.to_le_bytes(), &count, &stream].concat();
        self.write("decoder", name, &slot)
    }

    /// Values at the indices that the target has: two in three.
    fn aligned(&self, coding: Coding) -> io::Result<()> {
        let indices: Vec<u32> = (0..40).map(|i| i / 2 * 3 + i % 2).collect();
        let mut values: Vec<f32> = entries(&indices).values;
        let rounded = coding.round_at(&indices, &mut values, &mut [0.0; 40], 60, 1);
        let stream = encode(&[Body::Aligned { indices: indices.into(), values, len: 60, rounded }]).concat();
        let mut alone = vec![0, stream[1], stream[2], rounded.shift().wrapping_sub(9), 255];
        alone.extend(60u32.to_le_bytes());
        alone.extend([stream[4], stream[5]]);
        alone.extend(&stream[if rounded.shift() > 0 { 12 } else { 8 }..]);
        self.write("aligned", &coding.to_string(), &alone)
    }

    fn round_trip(&self, kind: u8, name: &str, coding: Coding) -> io::Result<()> {
        let number = Coding::ALL.iter().position(|c| *c == coding).unwrap_or(0) as u8;
        let trip: Vec<u8> = (0..25u8).flat_map(|i| [i, 0, 0x80 + i, 0x3f, 0x80 + i, 0x3f]).collect();
        let bytes = [&[kind, number, number | kind, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8], &trip[..]].concat();
        self.write("round_trip", name, &bytes)
    }
}

/// Index sets of which each is smallest in another form, and the lengths of their blocks.
fn index_sets() -> Vec<(&'static str, Vec<u32>, u32)> {
    vec![
        ("one", vec![1 << 20], 1 << 21),
        ("even", (0..12).map(|i| 40 * i + i * i % 32).collect(), 900),
        ("half", (0..60).filter(|i| i * i % 7 < 3).collect(), 60),
        ("mixed", (0..24).map(|i| i * i * i % 9000 / 100 + 90 * i).collect(), 2300),
        ("few", vec![3, 70, 100], 130),
        ("word", vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 25, 31], 32),
        ("far", vec![10, 70, 150, 190, 260, 330, 370, 460, 500, 560, 640, 1990], 2000),
        ("geometric", (0..19).map(|i| (1 << i) + i).collect(), 1 << 20),
        ("nearly all", (0..40).filter(|i| i % 15 > 0).collect(), 40),
    ]
}
