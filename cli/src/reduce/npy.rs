//! Vectors in `.npy` files, read and written a piece at a time.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use gleaner_algorithms::Rank;
use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, WriterBuilder};

use crate::report::CommandError;

/// Values that are read at once.
const PIECE: usize = 1 << 18;

/// NumPy itself writes no longer headers without being asked to.
const LONGEST_HEADER: usize = 10_000;

/// Brackets inside brackets in a header: a dictionary, a shape, and what record types add to them.
const DEEPEST_HEADER: usize = 8;

/// A vector of 32-bit floats in a file whose header has been read and found to fit the file.
#[derive(Debug)]
pub struct Vector {
    /// Whose it is: what is wrong with the file is said of this rank.
    rank: Rank,
    pub path: PathBuf,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// How many values it has.
    pub len: usize,
    big_endian: bool,
    /// Where the values start in the file.
    start: u64,
}

impl Vector {
    pub fn values(&self) -> Result<Vec<f32>, CommandError> {
        let mut values = Vec::with_capacity(self.len);
        self.pieces(|_, piece| {
            values.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(values)
    }

    /// Reads the header of a rank's file and compares it with the length of the file.
    pub fn open(rank: usize, path: &Path) -> Result<Self, CommandError> {
        let rank = Rank(rank as u32);
        Self::read(rank, path).map_err(|reason| of_rank(rank, reason))
    }

    fn read(rank: Rank, path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let mut file = File::open(path).map_err(|error| unread(path, error))?;
        let metadata = file.metadata().map_err(|error| unread(path, error))?;
        if !metadata.is_file() {
            return Err(format!("{shown} is no regular file; expected a .npy file"));
        }
        let (header, start) = read_header(&mut file, path)?;
        let big_endian = floats(&header.dtype()).ok_or_else(|| {
            let found = describe(&header.dtype());
            let advice = "convert it with numpy.save(path, array.astype(numpy.float32))";
            format!("{shown} holds {found}; expected 32-bit floats ('<f4'): {advice}")
        })?;
        if header.order() == Order::Fortran && header.shape().len() > 1 {
            let advice = "convert it with numpy.save(path, numpy.ascontiguousarray(array))";
            return Err(format!("{shown} is in Fortran order; expected C order: {advice}"));
        }
        // A product of 64-bit numbers may leave 64 bits; a header that claims so much is wrong anyway.
        let shape = header.shape().to_vec();
        let expected = shape.iter().fold(4u128, |bytes, &d| bytes.saturating_mul(d.into()));
        let found = metadata.len().saturating_sub(start);
        if expected != u128::from(found) {
            let fault = if u128::from(found) < expected { "truncated" } else { "damaged" };
            return Err(format!(
                "{shown} has {found} bytes of values, but its header announces {expected}: it is {fault}; write it again"
            ));
        }
        if found == 0 {
            return Err(format!("{shown} holds no entries; expected at least one"));
        }
        Ok(Self { rank, path: path.into(), shape, len: (found / 4) as usize, big_endian, start })
    }

    /// Hands the values on a piece at a time, as (position of the first of them, values).
    pub fn pieces(
        &self,
        mut take: impl FnMut(usize, &[f32]) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let failed = |error| of_rank(self.rank, unread(&self.path, error));
        let mut file = File::open(&self.path).map_err(failed)?;
        file.seek(io::SeekFrom::Start(self.start)).map_err(failed)?;
        let mut bytes = vec![0; 4 * PIECE.min(self.len)];
        let mut values = Vec::with_capacity(PIECE.min(self.len));
        let (mut wrong, mut count) = (None, 0);
        for first in (0..self.len).step_by(PIECE) {
            let bytes = &mut bytes[..4 * PIECE.min(self.len - first)];
            file.read_exact(bytes).map_err(failed)?;
            let words = bytes.as_chunks::<4>().0.iter();
            values.clear();
            if self.big_endian {
                values.extend(words.map(|word| f32::from_be_bytes(*word)));
            } else {
                values.extend(words.map(|word| f32::from_le_bytes(*word)));
            }
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                wrong.get_or_insert((first + i, values[i]));
                count += values.iter().filter(|v| !v.is_finite()).count();
            }
            if wrong.is_none() {
                take(first, &values)?;
            }
        }
        let Some((entry, value)) = wrong else { return Ok(()) };
        let found = format!("{value} at entry {entry}, the first of {count} that are NaN or infinite");
        Err(of_rank(self.rank, format!("{} holds {found}; expected finite numbers", self.path.display())))
    }
}

/// What is said of a file of a rank.
fn of_rank(rank: Rank, reason: String) -> CommandError {
    format!("{rank}: {reason}").into()
}

fn unread(path: &Path, error: io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

/// The header, and how many bytes it takes.
fn read_header(file: &mut File, path: &Path) -> Result<(NpyHeader, u64), String> {
    let (mut bytes, shown) = (Vec::new(), path.display());
    file.take(LONGEST_HEADER as u64).read_to_end(&mut bytes).map_err(|error| unread(path, error))?;
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err(format!(
            "{shown} is no .npy file: it does not start with \\x93NUMPY; write it with numpy.save"
        ));
    }
    let damaged = |reason: &str| {
        format!("the header of {shown} is damaged ({reason}); write the file again with numpy.save")
    };
    // The parser takes time that is exponential in the depth.
    if depth(&bytes) > DEEPEST_HEADER {
        return Err(damaged(&format!("its brackets are more than {DEEPEST_HEADER} deep")));
    }
    let mut cursor = Cursor::new(&bytes);
    let header = NpyHeader::from_reader(&mut cursor).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            damaged(&format!("it ends early or is longer than {LONGEST_HEADER} bytes"))
        }
        // The parser draws the place over several lines.
        _ => {
            let reason = error.to_string();
            damaged(reason.split("-->").next().unwrap_or(&reason).trim_end_matches([':', ' ', '\n']))
        }
    })?;
    Ok((header, cursor.position()))
}

/// How deep the brackets of the header are that these bytes start with.
fn depth(bytes: &[u8]) -> usize {
    let start = if bytes.get(6) == Some(&1) { 10 } else { 12 };
    let length =
        bytes.get(8..start).unwrap_or_default().iter().rev().fold(0, |l, &b| (l << 8) | usize::from(b));
    let header = bytes.get(start..bytes.len().min(start + length)).unwrap_or_default();
    let (mut open, mut deepest) = (0usize, 0);
    for byte in header {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Whether 32-bit floats are big-endian; None for any other type.
fn floats(dtype: &DType) -> Option<bool> {
    match dtype {
        DType::Plain(plain) if plain.type_char() == TypeChar::Float && plain.size_field() == 4 => {
            Some(plain.endianness() == Endianness::Big)
        }
        _ => None,
    }
}

fn describe(dtype: &DType) -> String {
    match dtype {
        DType::Plain(plain) => {
            let bits = 8 * plain.size_field();
            let name = match plain.type_char() {
                TypeChar::Float => format!("float{bits} "),
                TypeChar::Int => format!("int{bits} "),
                TypeChar::Uint => format!("uint{bits} "),
                TypeChar::Complex => format!("complex{bits} "),
                _ => String::new(),
            };
            format!("{name}('{plain}')")
        }
        other => format!("records {}", other.descr()),
    }
}

pub fn write(to: &mut impl Write, shape: &[u64], values: impl Iterator<Item = f32>) -> io::Result<()> {
    let options = npyz::WriteOptions::<f32>::new().default_dtype();
    let mut file = options.shape(shape).writer(to).begin_nd()?;
    file.extend(values)?;
    file.finish()
}
