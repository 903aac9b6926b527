//! What decoders and the reader of checkpoints make of any bytes, for the fuzz targets. Nothing here is for use.

use std::path::Path;

use bytes::Bytes;
use gleaner_transport::Tag;

use crate::failure::Failure;
use crate::server::control::{Answer, Ask};
use crate::silence::Silence;
use crate::steps::Word;
use crate::tag::Topic;
use crate::{checkpoint, checksum, notes, report};

/// One decoder of what workers send to each other, or to the launcher, by the first byte; the others are for it. What can be read can
/// be written and read again.
pub fn decode(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => {
            let Some(tag) = bytes.first_chunk().map(|tag| Tag(u64::from_le_bytes(*tag))) else { return };
            if let Some(topic) = Topic::of(tag) {
                assert_eq!(topic.tag(), tag);
            }
        }
        1 => {
            if let Some(word) = Word::decode(bytes) {
                assert_eq!(word.encode(), bytes);
            }
        }
        2 => {
            let Some((workers, bytes)) = bytes.split_first() else { return };
            if let Some(silence) = Silence::decode(bytes, u32::from(*workers)) {
                assert_eq!(silence.encode(), bytes);
                assert!(silence.at != silence.from && silence.at.max(silence.from) < u32::from(*workers));
            }
        }
        3 => {
            if let Some((heads, rest)) = notes::read_heads(bytes) {
                assert!(heads.len() <= 255 && rest.len() < bytes.len());
            }
        }
        4 => {
            let answer = notes::read_answer(Bytes::copy_from_slice(bytes));
            assert!(answer.notes.values().map(Bytes::len).sum::<usize>() <= bytes.len());
        }
        5 => {
            if let Ok(failure) = serde_json::from_slice::<Failure>(bytes) {
                let again = serde_json::to_vec(&failure).expect("a failure can be written");
                assert_eq!(serde_json::from_slice::<Failure>(&again).expect("and read"), failure);
            }
        }
        6 => drop(report::parse(bytes)),
        7 => {
            let Some((units, bytes)) = bytes.split_first() else { return };
            if let Some(ask) = Ask::decode(bytes, (*units).into()) {
                let again = ask.encode();
                assert_eq!(Ask::decode(&again, (*units).into()).expect("and read").encode(), again);
            }
        }
        _ => {
            let Some((units, bytes)) = bytes.split_first() else { return };
            if let Some(answer) = Answer::decode(bytes, (*units).into()) {
                let again = answer.encode();
                assert_eq!(Answer::decode(&again, (*units).into()).expect("and read").encode(), again);
            }
        }
    }
}

/// The reader of checkpoints. Where the first byte is odd, the file gets the checksum that it should have, so that what lies
/// behind it is reached too. What can be read can be written and read again.
pub fn residual_file(bytes: &[u8]) {
    let Some((flag, bytes)) = bytes.split_first() else { return };
    let (path, mut file) = (Path::new("fuzzed"), bytes.to_vec());
    if flag % 2 == 1 {
        let _ = checksum::seal(&mut file);
    }
    if let Ok(state) = checkpoint::read(path, &file) {
        let again = checkpoint::write(path, &state).expect("what was read can be written");
        let again = checkpoint::read(path, &again).expect("and read");
        // As they are printed, since a trainer's own values may be NaN.
        assert_eq!(format!("{again:?}"), format!("{state:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn seeds_of_checkpoints_are_read_and_with_another_last_byte_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/residual_file");
        let seeds: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!seeds.is_empty());
        for path in seeds {
            let mut file = fs::read(&path).unwrap().split_off(1);
            checksum::seal(&mut file).unwrap();
            checkpoint::read(&path, &file).unwrap();
            *file.last_mut().unwrap() ^= 1;
            assert!(checkpoint::read(&path, &file).is_err(), "{}", path.display());
        }
    }
}
