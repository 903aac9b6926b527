//! Any bytes from one rank to all: what a process group's broadcast and all-gather are made of.
//!
//! A few go as notes. More go as a sum to which all ranks but one add zeros: six bytes are a whole number below 2⁴⁸, which a
//! float64 holds exactly, and a method that delivers every entry that is not zero sends no more than there is.

use std::collections::HashMap;

use gleaner::algorithms::Reduction;
use gleaner::{Error, Method, Reducer, Session};

/// As many bytes of all ranks together still go as notes.
const FEW: usize = 1 << 16;

/// Bytes in a number.
const WORD: usize = 6;

/// A reducer of at most this many numbers is kept for the next time.
const KEPT: usize = 1 << 16;

/// Carries bytes, with a reducer for each length that is not great.
#[derive(Default)]
pub struct Carrier(HashMap<usize, Reducer<f64>>);

impl Carrier {
    /// Gives every rank the bytes of rank `root`, of which all have as many.
    ///
    /// # Errors
    /// Ranks with another number of bytes; a job that has failed.
    pub fn broadcast(&mut self, session: &Session, bytes: &[u8], root: usize) -> Result<Vec<u8>, Error> {
        let is_root = session.rank() == root;
        if bytes.len() <= FEW {
            let notes = session.all_gather(if is_root { bytes } else { &[] })?;
            let note = notes.into_iter().nth(root).unwrap_or_default();
            return expect(session, root, bytes.len(), note);
        }
        let own = if is_root { pack(bytes) } else { vec![0.0; bytes.len().div_ceil(WORD)] };
        let words = self.sum(session, &own)?;
        Ok(unpack(&words, bytes.len()))
    }

    /// Gives every rank the bytes of all ranks, of which all have as many, one after the other.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_gather(&mut self, session: &Session, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let workers = session.world_size();
        if bytes.len() * workers <= FEW {
            let notes = session.all_gather(bytes)?.into_iter().enumerate();
            let notes: Result<Vec<Vec<u8>>, Error> =
                notes.map(|(rank, note)| expect(session, rank, bytes.len(), note)).collect();
            return Ok(notes?.concat());
        }
        let each = bytes.len().div_ceil(WORD);
        let mut own = vec![0.0; each * workers];
        own[session.rank() * each..][..each].copy_from_slice(&pack(bytes));
        let words = self.sum(session, &own)?;
        Ok(words.chunks_exact(each).flat_map(|words| unpack(words, bytes.len())).collect())
    }

    fn sum(&mut self, session: &Session, own: &[f64]) -> Result<Vec<f64>, Error> {
        let n = own.len();
        let mut reducer = match self.0.remove(&n) {
            Some(reducer) => reducer,
            None => {
                let method = Method::named("topka")?.density(1.0);
                session.reducer_of("bytes", n, method, Reduction::<f64>::Sum)?
            }
        };
        let update = reducer.start(own)?.wait()?;
        let mut words = vec![0.0; n];
        update.add_to("bytes", &mut words, session.world_size() as f64)?;
        if n <= KEPT {
            self.0.insert(n, reducer);
        }
        Ok(words)
    }
}

/// Refuses a note of another length than all ranks have.
fn expect(session: &Session, rank: usize, expected: usize, note: Vec<u8>) -> Result<Vec<u8>, Error> {
    if note.len() == expected {
        return Ok(note);
    }
    let found = note.len();
    Err(session.give_up(&format_args!(
        "rank {rank} gave {found} bytes where this one has {expected}; tensors of a collective have the same shape and type on all ranks"
    )))
}

fn pack(bytes: &[u8]) -> Vec<f64> {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        // Below 2⁴⁸, so exact.
        u64::from_le_bytes(word) as f64
    };
    bytes.chunks(WORD).map(word).collect()
}

fn unpack(words: &[f64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        words.iter().flat_map(|&word| (word as u64).to_le_bytes().into_iter().take(WORD)).collect();
    bytes.truncate(len);
    bytes
}
