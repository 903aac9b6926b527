//! LIBSVM files, plain, gzip or zstd, read line by line with bounded memory.
//!
//! Of a plain file every worker reads a range of its bytes, from the first line that begins in the range to the last. A compressed
//! file, and what is no regular file, every worker reads whole, and keeps every P-th sample.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Samples;
use super::line::{self, Fault};
use crate::error::RegressError;

/// Which samples of a file are this worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The worker, from 0.
    pub rank: usize,
    /// How many workers share the file.
    pub of: usize,
}

impl Part {
    /// All samples.
    pub const WHOLE: Part = Part { rank: 0, of: 1 };
}

/// How samples are sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Each worker has samples that follow each other.
    InPieces,
    /// Each worker has every P-th sample.
    InTurn,
}

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Bytes of a line, at most: a sample of some ten million entries.
const LONGEST: usize = if cfg!(test) { 1 << 12 } else { 1 << 28 };

/// Reads this worker's samples of a file, and the highest index of them, counted from 1.
///
/// # Errors
/// A file that cannot be read, or a line that is no sample or has an index above `most`.
pub fn read(path: impl AsRef<Path>, part: Part, most: u32) -> Result<(Samples, u32, Sharding), RegressError> {
    let mut samples = Samples::default();
    let mut highest = 0;
    let sharding = each_line(path.as_ref(), part, |line| {
        highest = line::parse(line, most, &mut samples)?.max(highest);
        Ok(())
    })?;
    Ok((samples, highest, sharding))
}

/// Calls `visit` with each sample of a worker's, of which one at a time is in memory.
///
/// # Errors
/// As [`read`].
pub fn each_sample(
    path: impl AsRef<Path>,
    part: Part,
    most: u32,
    mut visit: impl FnMut(super::Row<'_>),
) -> Result<Sharding, RegressError> {
    let mut one = Samples::default();
    each_line(path.as_ref(), part, |line| {
        one.clear();
        line::parse(line, most, &mut one)?;
        visit(one.row(0));
        Ok(())
    })
}

fn each_line(
    path: &Path,
    part: Part,
    mut visit: impl FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<Sharding, RegressError> {
    let unreadable = |source| RegressError::Read { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() && part.of > 1 {
        return Err(RegressError::Data {
            data: path.display().to_string(),
            expected: "a regular file for several workers, since each reads it again".into(),
            found: "a pipe, a device or a directory".into(),
            advice: "write the data to a file first, or take one worker",
        });
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let packing = Packing::of(reader.fill_buf().map_err(unreadable)?);
    let mut lines = match packing {
        Packing::Plain if about.is_file() => {
            let (from, to) = range(about.len(), part);
            Lines::within(reader, from, to).map_err(unreadable)?
        }
        Packing::Plain => Lines::all(Box::new(reader)),
        Packing::Gzip => Lines::all(Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(reader)))),
        Packing::Zstd => Lines::all(Box::new(BufReader::with_capacity(BUFFER, Frames::new(reader)))),
    };
    let is_piece = lines.end.is_some();
    let mut number = 0;
    while let Some(line) = lines.next().map_err(unreadable)? {
        if !line::has_sample(line) && line.len() < LONGEST {
            continue;
        }
        let is_ours = is_piece || number % part.of == part.rank;
        number += 1;
        if !is_ours {
            continue;
        }
        let fits = if line.len() < LONGEST { visit(line) } else { Err(too_long()) };
        if let Err(Fault { column, expected, found }) = fits {
            let before = if is_piece { lines_before(path, lines.start).map_err(unreadable)? } else { 0 };
            let line = before + lines.read;
            return Err(RegressError::Line { path: path.to_owned(), line, column, expected, found });
        }
    }
    Ok(if is_piece { Sharding::InPieces } else { Sharding::InTurn })
}

fn too_long() -> Fault {
    Fault { column: LONGEST, expected: "the end of a line before that".into(), found: "a longer one".into() }
}

/// How a file is compressed, by its first bytes.
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// The bytes in which this worker's lines begin.
fn range(length: u64, part: Part) -> (u64, u64) {
    let at = |rank: usize| (u128::from(length) * rank as u128 / part.of as u128) as u64;
    (at(part.rank), at(part.rank + 1))
}

/// How many lines there are before a byte of a file.
fn lines_before(path: &Path, byte: u64) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(BUFFER, File::open(path)?).take(byte);
    let mut lines = 0;
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let length = bytes.len();
        reader.consume(length);
    }
}

/// Lines, one at a time.
struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// Lines read by now.
    read: u64,
    /// The byte at which the first line begins.
    start: u64,
    /// The byte at which the next line begins.
    at: u64,
    /// No line begins here or behind.
    end: Option<u64>,
}

impl Lines {
    fn all(reader: Box<dyn BufRead>) -> Self {
        Self { reader, line: Vec::new(), read: 0, start: 0, at: 0, end: None }
    }

    /// The lines that begin from the first byte on and before the second.
    fn within(mut reader: BufReader<File>, from: u64, to: u64) -> io::Result<Self> {
        let mut at = from.saturating_sub(1);
        reader.seek(SeekFrom::Start(at))?;
        if from > 0 {
            // A line that begins before belongs to another worker, unless it ends just here.
            at += reader.skip_until(b'\n')? as u64;
        }
        Ok(Self { start: at, at, end: Some(to), ..Self::all(Box::new(reader)) })
    }

    /// Of a line that has as many bytes as may be, or more, the first of them.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if self.end.is_some_and(|end| self.at >= end) {
            return Ok(None);
        }
        self.line.clear();
        let length = (&mut self.reader).take(LONGEST as u64).read_until(b'\n', &mut self.line)?;
        self.at += length as u64;
        self.read += 1;
        Ok((length > 0).then_some(&self.line))
    }
}

/// All frames of a zstd file, one after another; those that are to be skipped are.
struct Frames<R: BufRead> {
    reader: R,
    frame: FrameDecoder,
}

impl<R: BufRead> Frames<R> {
    fn new(reader: R) -> Self {
        Self { reader, frame: FrameDecoder::new() }
    }

    /// Makes sure that the frame is what was compressed, and begins the next one; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        if let (Some(stored), Some(found)) =
            (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum())
            && stored != found
        {
            return Err(io::Error::other("its checksum is not that of what it holds"));
        }
        while !self.reader.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.reader) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.reader).take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.frame.can_collect() == 0 {
            if !self.frame.is_finished() {
                let blocks = BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.reader, blocks).map_err(io::Error::other)?;
            } else if !self.begin()? {
                return Ok(0);
            }
        }
        self.frame.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    /// Lines of different lengths, with comments and empty ones between; the label is the number of the sample.
    fn text(samples: usize) -> String {
        let line = |i: usize| {
            let entries: String = (0..i % 7).map(|j| format!(" {}:{}", j * 3 + 1, i)).collect();
            let between = ["", "# nothing\n", "\n", " \n"][i % 4];
            format!("{between}{i}{entries}\n")
        };
        (0..samples).map(line).collect()
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn pieces_of_a_file_are_all_of_it() {
        let text = text(50);
        for text in [&text[..], text.trim_end()] {
            let file = file(text.as_bytes());
            let (whole, highest, _) = read(file.path(), Part::WHOLE, u32::MAX).unwrap();
            assert_eq!((whole.len(), highest), (50, 16));
            for of in 1..80 {
                let mut labels = Vec::new();
                for rank in 0..of {
                    let (piece, _, sharding) = read(file.path(), Part { rank, of }, u32::MAX).unwrap();
                    assert_eq!(sharding, Sharding::InPieces);
                    labels.extend_from_slice(piece.labels());
                }
                assert_eq!(labels, whole.labels(), "{of} pieces");
            }
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_named_by_its_number_in_the_file() {
        for (long, comment) in [(" 1:1".repeat(LONGEST), ""), (" ".repeat(LONGEST), "# ")] {
            let file = file(format!("{}{comment}1{long}\n", text(2000)).as_bytes());
            let before = text(2000).lines().count() as u64;
            let found = read(file.path(), Part { rank: 1, of: 2 }, u32::MAX);
            let Err(RegressError::Line { line, column, .. }) = found else { panic!("{found:?}") };
            assert_eq!((line, column), (before + 1, LONGEST));
        }
    }

    #[test]
    fn samples_of_a_compressed_file_are_distributed_in_turn() {
        let (first, second) = (text(30), text(50).replacen(&text(30), "", 1));
        // Two members of gzip, and two frames of zstd around one that is to be skipped.
        let skipped = [&[0x52, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"12345"].concat();
        for bytes in [
            [gzip(&first), gzip(&second)].concat(),
            [zstd(&first), skipped.clone(), zstd(&second)].concat(),
            [skipped, zstd(&first), zstd(&second)].concat(),
        ] {
            let file = file(&bytes);
            for of in 1..5 {
                for rank in 0..of {
                    let (samples, _, sharding) = read(file.path(), Part { rank, of }, u32::MAX).unwrap();
                    let expected: Vec<f32> = (rank..50).step_by(of).map(|i| i as f32).collect();
                    assert_eq!((samples.labels(), sharding), (&expected[..], Sharding::InTurn));
                }
            }
        }
    }

    #[test]
    fn a_fault_is_reported_with_its_line_in_the_file() {
        let text = text(40).replace("\n33 ", "\n33 1:x ");
        let line = 1 + text.lines().position(|line| line.contains('x')).unwrap();
        let expected =
            format!("line {line}, column 6: expected a value that is a finite number, found \"x\"");
        for bytes in [text.clone().into_bytes(), gzip(&text), zstd(&text)] {
            let file = file(&bytes);
            for of in 1..5 {
                let read = |rank| read(file.path(), Part { rank, of }, u32::MAX).err();
                let errors: Vec<String> = (0..of).filter_map(read).map(|e| e.to_string()).collect();
                assert!(errors.len() == 1 && errors[0].contains(&expected), "{errors:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_off_or_damaged_is_refused() {
        let text = text(5000);
        for bytes in [gzip(&text), zstd(&text)] {
            for length in [9, 40, bytes.len() / 2, bytes.len() - 1] {
                let cut = file(&bytes[..length]);
                let error = read(cut.path(), Part::WHOLE, u32::MAX).unwrap_err().to_string();
                assert!(error.contains("could not be read"), "{length}: {error}");
            }
        }
        let none = read("/none/of/this", Part::WHOLE, u32::MAX).unwrap_err().to_string();
        assert!(none.contains("/none/of/this: could not be read"), "{none}");
    }
}
