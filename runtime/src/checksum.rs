//! A checksum that a safetensors file carries over all of itself: a bit that changed on a disk is found when the file is read.
//!
//! The header's metadata hold it as `checksum`: XXH3 of 128 bits, as 32 hexadecimal digits, over the whole file with zeros in
//! their place. It finds accidents; a process that may write the file can also write its checksum.

use std::collections::HashMap;
use std::ops::Range;

use twox_hash::XxHash3_128;

/// The name among the metadata.
const KEY: &str = "checksum";

/// What stands before the digits in the header. JSON escapes the quotes of any text that contains it.
const MARK: &[u8] = b"\"checksum\":\"";

/// What stands there while the checksum is computed.
const ZEROS: &[u8; 32] = b"00000000000000000000000000000000";

/// A file that is not what was written.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// It has no checksum, or no valid header.
    #[error("expected a checksum in its header, found none")]
    Missing,
    /// It has changed since it was written.
    #[error("its checksum is {found}, of what it holds it would be {expected}")]
    Differs {
        /// Of what the file holds.
        expected: String,
        /// In its header.
        found: String,
    },
}

gleaner_transport::debug_as_sentence!(ChecksumError);

/// Makes room for the checksum among the metadata of a file that is about to be put together.
pub fn reserve(metadata: &mut HashMap<String, String>) {
    metadata.insert(KEY.to_owned(), String::from_utf8_lossy(ZEROS).into_owned());
}

/// Writes the checksum into the room that was [reserved](reserve) for it.
///
/// # Errors
/// No room.
pub fn seal(file: &mut [u8]) -> Result<(), ChecksumError> {
    let place = place(file).ok_or(ChecksumError::Missing)?;
    let digits = digits(file, &place);
    file[place].copy_from_slice(digits.as_bytes());
    Ok(())
}

/// Makes sure that a file is what was [sealed](seal), bit by bit.
///
/// # Errors
/// A file that has no checksum or another.
pub fn verify(file: &[u8]) -> Result<(), ChecksumError> {
    let place = place(file).ok_or(ChecksumError::Missing)?;
    let (expected, found) = (digits(file, &place), &file[place]);
    if found == expected.as_bytes() {
        return Ok(());
    }
    Err(ChecksumError::Differs { expected, found: found.escape_ascii().to_string() })
}

/// Where the digits are. Only the header is searched: its length comes first, in eight bytes.
fn place(file: &[u8]) -> Option<Range<usize>> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header = rest.get(..length)?;
    let start = 8 + header.windows(MARK.len()).position(|bytes| bytes == MARK)? + MARK.len();
    let place = start..start + ZEROS.len();
    (place.end <= 8 + length).then_some(place)
}

fn digits(file: &[u8], place: &Range<usize>) -> String {
    let mut hash = XxHash3_128::new();
    hash.write(&file[..place.start]);
    hash.write(ZEROS);
    hash.write(&file[place.end..]);
    format!("{:032x}", hash.finish_128())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As safetensors lay it out: the header's length, the header, data.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    fn with_room() -> Vec<u8> {
        let zeros = String::from_utf8_lossy(ZEROS);
        // A text that contains the mark, which JSON escapes, comes first.
        file(
            &format!(
                r#"{{"__metadata__":{{"a":"\"checksum\":\"0\"","checksum":"{zeros}"}},"checksum":{{}}}}"#
            ),
            &[7; 100],
        )
    }

    #[test]
    fn every_bit_counts() {
        let mut sealed = with_room();
        assert!(matches!(verify(&sealed), Err(ChecksumError::Differs { .. })));
        seal(&mut sealed).unwrap();
        verify(&sealed).unwrap();
        for bit in 0..sealed.len() * 8 {
            sealed[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&sealed).is_err(), "bit {bit}");
            sealed[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..sealed.len() {
            assert!(verify(&sealed[..length]).is_err(), "cut to {length}");
        }
        sealed.push(0);
        assert!(verify(&sealed).is_err(), "something was added");
    }

    #[test]
    fn it_is_the_hash_of_the_file_with_zeros_in_its_place() {
        let (plain, mut sealed) = (with_room(), with_room());
        seal(&mut sealed).unwrap();
        let hash = format!("{:032x}", XxHash3_128::oneshot(&plain));
        assert!(sealed.windows(32).any(|digits| digits == hash.as_bytes()));
        assert_eq!(sealed.iter().zip(&plain).filter(|(a, b)| a != b).count(), {
            hash.bytes().filter(|digit| *digit != b'0').count()
        });
    }

    #[test]
    fn a_file_without_room_is_refused() {
        for header in ["", "{}", r#"{"checksum":"12"}"#] {
            assert_eq!(seal(&mut file(header, &[0; 64])), Err(ChecksumError::Missing), "{header}");
            assert_eq!(verify(&file(header, &[0; 64])), Err(ChecksumError::Missing), "{header}");
        }
        assert_eq!(verify(&u64::MAX.to_le_bytes()), Err(ChecksumError::Missing));
    }
}
