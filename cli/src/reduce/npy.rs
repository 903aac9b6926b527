//! Vectors in `.npy` files, read and written a piece at a time.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, WriterBuilder};

/// Values that are read at once.
const PIECE: usize = 1 << 18;

/// NumPy itself writes no longer headers without being asked to.
const LONGEST_HEADER: usize = 10_000;

/// Brackets inside brackets in a header: a dictionary, a shape, and what record types add to them.
const DEEPEST_HEADER: usize = 8;

/// A file that is no vector of 32-bit floats.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is no regular file; expected a .npy file", path.display())]
    NoFile { path: PathBuf },
    #[error("{} is no .npy file: it does not start with \\x93NUMPY; write it with numpy.save", path.display())]
    Magic { path: PathBuf },
    #[error("the header of {} is damaged ({reason}); write the file again with numpy.save", path.display())]
    Header { path: PathBuf, reason: String },
    #[error(
        "{} holds {found}; expected 32-bit floats ('<f4'): convert it with numpy.save(path, array.astype(numpy.float32))",
        path.display()
    )]
    Type { path: PathBuf, found: String },
    #[error(
        "{} is in Fortran order; expected C order: convert it with numpy.save(path, numpy.ascontiguousarray(array))",
        path.display()
    )]
    Fortran { path: PathBuf },
    #[error(
        "{} has {found} bytes of values, but its header announces {expected}: it is {fault}; write it again",
        path.display(),
        fault = if u128::from(*found) < *expected { "truncated" } else { "damaged" }
    )]
    Length { path: PathBuf, expected: u128, found: u64 },
    #[error("{} holds no entries; expected at least one", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{} holds {value} at entry {entry}, the first of {count} that are NaN or infinite; expected finite numbers",
        path.display()
    )]
    NotFinite { path: PathBuf, entry: usize, value: f32, count: usize },
}

/// A vector in a file whose header has been read and found to fit the file.
#[derive(Debug)]
pub struct Vector {
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
    pub fn values(&self) -> Result<Vec<f32>, NpyError> {
        let mut values = Vec::with_capacity(self.len);
        self.pieces::<NpyError>(|_, piece| {
            values.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(values)
    }

    /// Reads the header of a file and compares it with the length of the file.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let path = path.to_path_buf();
        let failed = |source| NpyError::Read { path: path.clone(), source };
        let mut file = File::open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(NpyError::NoFile { path });
        }
        let (header, start) = read_header(&mut file, &path)?;
        let big_endian = floats(&header.dtype())
            .ok_or_else(|| NpyError::Type { path: path.clone(), found: describe(&header.dtype()) })?;
        if header.order() == Order::Fortran && header.shape().len() > 1 {
            return Err(NpyError::Fortran { path });
        }
        // A product of 64-bit numbers may leave 64 bits; a header that claims so much is wrong anyway.
        let shape = header.shape().to_vec();
        let expected = shape.iter().fold(4u128, |bytes, &d| bytes.saturating_mul(d.into()));
        let found = metadata.len().saturating_sub(start);
        if expected != u128::from(found) {
            return Err(NpyError::Length { path, expected, found });
        }
        if found == 0 {
            return Err(NpyError::Empty { path });
        }
        Ok(Self { path, shape, len: (found / 4) as usize, big_endian, start })
    }

    /// Hands the values on a piece at a time, as (position of the first of them, values).
    pub fn pieces<E: From<NpyError>>(
        &self,
        mut take: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |source| NpyError::Read { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(failed)?;
        file.seek(io::SeekFrom::Start(self.start)).map_err(failed)?;
        let mut bytes = vec![0; 4 * PIECE.min(self.len)];
        let mut values = Vec::with_capacity(PIECE.min(self.len));
        let (mut wrong, mut count) = (None, 0);
        for first in (0..self.len).step_by(PIECE) {
            let bytes = &mut bytes[..4 * PIECE.min(self.len - first)];
            file.read_exact(bytes).map_err(failed)?;
            let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
            values.clear();
            if self.big_endian {
                values.extend(words.map(f32::from_be_bytes));
            } else {
                values.extend(words.map(f32::from_le_bytes));
            }
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                wrong.get_or_insert((first + i, values[i]));
                count += values.iter().filter(|v| !v.is_finite()).count();
            }
            if wrong.is_none() {
                take(first, &values)?;
            }
        }
        match wrong {
            Some((entry, value)) => {
                Err(NpyError::NotFinite { path: self.path.clone(), entry, value, count }.into())
            }
            None => Ok(()),
        }
    }
}

/// The header, and how many bytes it takes.
fn read_header(file: &mut File, path: &Path) -> Result<(NpyHeader, u64), NpyError> {
    let mut bytes = Vec::new();
    file.take(LONGEST_HEADER as u64)
        .read_to_end(&mut bytes)
        .map_err(|source| NpyError::Read { path: path.into(), source })?;
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err(NpyError::Magic { path: path.into() });
    }
    // The parser takes time that is exponential in the depth.
    if depth(&bytes) > DEEPEST_HEADER {
        let reason = format!("its brackets are more than {DEEPEST_HEADER} deep");
        return Err(NpyError::Header { path: path.into(), reason });
    }
    let mut cursor = Cursor::new(&bytes);
    let header = NpyHeader::from_reader(&mut cursor).map_err(|e| NpyError::Header {
        path: path.into(),
        reason: match e.kind() {
            io::ErrorKind::UnexpectedEof => format!("it ends early or is longer than {LONGEST_HEADER} bytes"),
            // The parser draws the place over several lines.
            _ => {
                let reason = e.to_string();
                reason.split("-->").next().unwrap_or(&reason).trim_end_matches([':', ' ', '\n']).into()
            }
        },
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
