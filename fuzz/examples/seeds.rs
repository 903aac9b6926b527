//! Writes a few inputs for each target to `fuzz/corpus`, which the fuzzer starts from: `cargo run --manifest-path
//! fuzz/Cargo.toml --example seeds`.

use std::path::Path;
use std::{fs, io};

use gleaner_algorithms::bag::wire::{Body, encode};
use gleaner_algorithms::bag::{Coding, Entries};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let write = |target: &str, name: &str, bytes: &[u8]| -> io::Result<()> {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    for coding in Coding::ALL {
        for (name, indices, len) in index_sets() {
            let entries: Entries =
                indices.iter().map(|&i| (i, (f64::from(i) * 0.7).sin() as f32 + 1.5)).collect();
            let (rounded, entries, _) = coding.round(&entries, len as usize, 1);
            let count = entries.len() as u16;
            let stream = encode(&[Body::Sparse { entries, len: len as usize, rounded }]).concat();
            let form = stream[0];
            let target =
                ["dense", "raw", "packed", "bitmap", "elias_fano", "rice", "full"][usize::from(form)];
            let quantised = rounded.shift() > 0;
            let header = if form == 5 || quantised && form != 6 { 12 } else { 8 };
            let number = Coding::ALL.iter().position(|c| *c == coding).unwrap_or(0) as u8;
            let mut body = vec![stream[1], number, rounded.shift().wrapping_sub(9), 255];
            body.extend(len.to_le_bytes());
            body.extend(count.to_le_bytes());
            body.extend(&stream[header.min(stream.len())..]);
            write(target, &format!("{name}-{coding}"), &body)?;
            if let Ok(len) = u16::try_from(len) {
                let mut slot = vec![1, 255];
                slot.extend(len.to_le_bytes());
                slot.extend(count.to_le_bytes());
                slot.extend(&stream);
                write("decoder", &format!("{name}-{coding}"), &slot)?;
            }
        }
        let mut values: Vec<f32> = (0..700).map(|i| (i as f32 * 0.7).sin()).collect();
        let rounded = coding.round_dense(&mut values, &mut [0.0; 700], 1);
        let stream = encode(&[Body::Dense { values: values.into(), rounded }]).concat();
        write("decoder", &format!("dense-{coding}"), &[&[1, 255, 0xbc, 2, 0xbc, 2], &stream[..]].concat())?;
        let number = Coding::ALL.iter().position(|c| *c == coding).unwrap_or(0) as u8;
        let body = [&[0, number, 0, 255, 0xbc, 2, 0, 0, 0xbc, 2], &stream[8..]].concat();
        write("dense", &format!("dense-{coding}"), &body)?;
        // The indices that the target has: two in three.
        let indices: Vec<u32> = (0..40).map(|i| i / 2 * 3 + i % 2).collect();
        let mut values: Vec<f32> = indices.iter().map(|&i| (i as f32 * 0.7).sin()).collect();
        let rounded = coding.round_at(&indices, &mut values, &mut [0.0; 40], 60, 1);
        let stream = encode(&[Body::Aligned { indices: indices.into(), values, len: 60, rounded }]).concat();
        let header = if rounded.shift() > 0 { 12 } else { 8 };
        let start = [0, number, rounded.shift().wrapping_sub(9), 255, 60, 0, 0, 0, 40, 0];
        write("aligned", &coding.to_string(), &[&start, &stream[header..]].concat())?;
        let trip: Vec<u8> = (0..60u8).flat_map(|i| [i, 0, 0, 0, 0x80 + i, 0x3f]).collect();
        write(
            "round_trip",
            &coding.to_string(),
            &[&[number, number, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8], &trip[..]].concat(),
        )?;
    }
    Ok(())
}

/// Index sets of which each is smallest in another form, and the lengths of their blocks.
fn index_sets() -> Vec<(&'static str, Vec<u32>, u32)> {
    vec![
        ("one", vec![1 << 20], 1 << 21),
        ("even", (0..50).map(|i| 40 * i + i * i % 32).collect(), 4000),
        ("half", (0..400).filter(|i| i * i % 7 < 3).collect(), 400),
        ("mixed", (0..100).map(|i| i * i * i % 9000 / 100 + 90 * i).collect(), 9100),
        ("few", vec![3, 70, 100], 130),
        ("geometric", (0..20).map(|i| (1 << i) + i).collect(), 1 << 20),
        ("nearly all", (0..600).filter(|i| i % 150 > 0).collect(), 600),
    ]
}
