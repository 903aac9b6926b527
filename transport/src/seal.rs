//! Encryption and authentication of a stream of bytes, for transports that have none of their own.
//!
//! A stream is cut into records of at most [`MOST`] bytes: the length u32, little-endian, the bytes encrypted with AES-256-GCM,
//! and the tag of 16 bytes, which authenticates the length too. The nonce is the record's number in its direction, so a record
//! that is changed, repeated, left out or put elsewhere does not open. Each direction has a key of its own, which seals one
//! stream and no other.
//!
//! An end of the stream is not authenticated here: what ends without a leave message in a record has been cut.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Bytes in a key.
pub const KEY: usize = 32;
/// The most bytes that one record holds.
pub const MOST: usize = 64 << 10;
/// Bytes before those of a record.
pub const HEAD: usize = 4;
/// Bytes behind those of a record.
pub const TAG: usize = 16;

/// A record that does not open.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is longer than any may be.
    #[error("a record of {0} bytes is longer than the {MOST} bytes it may have")]
    TooLong(u32),
    /// It was changed, repeated, or others before it were left out.
    #[error("a record was not sealed by the peer, or not as the next one: packets are changed on the way")]
    Broken,
}

crate::debug_as_sentence!(SealError);

/// A key and the number of the next record.
struct Cipher {
    key: LessSafeKey,
    next: u64,
}

impl Cipher {
    fn new(key: &[u8; KEY]) -> Self {
        // A key of the right length is never refused.
        #[expect(clippy::expect_used)]
        let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256-GCM takes keys of 32 bytes");
        Self { key: LessSafeKey::new(key), next: 0 }
    }

    /// 2^64 records are never reached.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals what one side sends.
pub struct Sealer(Cipher);

/// Opens what the other side sealed.
pub struct Opener(Cipher);

impl Sealer {
    /// With a key that seals nothing else.
    pub fn new(key: &[u8; KEY]) -> Self {
        Self(Cipher::new(key))
    }

    /// Makes a record, in place, of what stands in `buffer` from `at` on: [`HEAD`] bytes of any value and then at most
    /// [`MOST`] bytes.
    ///
    /// # Errors
    /// More bytes than that.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, at: usize) -> Result<(), SealError> {
        let length = (buffer.len() - at - HEAD) as u32;
        if length as usize > MOST {
            return Err(SealError::TooLong(length));
        }
        let (head, bytes) = buffer[at..].split_at_mut(HEAD);
        head.copy_from_slice(&length.to_le_bytes());
        let nonce = self.0.nonce();
        let sealed = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(head), bytes);
        buffer.extend_from_slice(sealed.map_err(|_| SealError::Broken)?.as_ref());
        Ok(())
    }
}

impl Opener {
    /// With a key that opens nothing else.
    pub fn new(key: &[u8; KEY]) -> Self {
        Self(Cipher::new(key))
    }

    /// How many bytes a record has that begins with these, head and tag included.
    ///
    /// # Errors
    /// More than any may have.
    pub fn length(head: [u8; HEAD]) -> Result<usize, SealError> {
        let length = u32::from_le_bytes(head);
        if length as usize > MOST {
            Err(SealError::TooLong(length))
        } else {
            Ok(HEAD + length as usize + TAG)
        }
    }

    /// Opens a whole record in place, and says how many bytes it held: they stand behind the head.
    ///
    /// # Errors
    /// A record that is not the next one of the peer. Nothing is to be read after it.
    pub fn open(&mut self, record: &mut [u8]) -> Result<usize, SealError> {
        let (head, sealed) = record.split_at_mut(HEAD);
        let nonce = self.0.nonce();
        let opened = self.0.key.open_in_place(nonce, Aad::from(&*head), sealed);
        opened.map(|bytes| bytes.len()).map_err(|_| SealError::Broken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: [[u8; KEY]; 2] = [[7; KEY], [8; KEY]];

    fn record(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
        let mut record = [&[0; HEAD], bytes].concat();
        sealer.seal(&mut record, 0).unwrap();
        record
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_what_is_changed_does_not(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..5),
            bit in any::<usize>(),
        ) {
            let (mut sealer, mut opener) = (Sealer::new(&KEYS[0]), Opener::new(&KEYS[0]));
            for piece in &pieces {
                let mut sealed = record(&mut sealer, piece);
                prop_assert_eq!(Opener::length([sealed[0], sealed[1], sealed[2], sealed[3]]), Ok(sealed.len()));
                let length = opener.open(&mut sealed).unwrap();
                prop_assert_eq!(&sealed[HEAD..HEAD + length], &piece[..]);
            }
            let mut changed = record(&mut Sealer::new(&KEYS[0]), &pieces[0]);
            let bit = bit % (8 * changed.len());
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Opener::new(&KEYS[0]).open(&mut changed), Err(SealError::Broken));
        }
    }

    #[test]
    fn a_record_opens_once_in_its_turn_with_its_key() {
        let mut sealer = Sealer::new(&KEYS[0]);
        let (first, second) = (record(&mut sealer, b"first"), record(&mut sealer, b"second"));
        let mut opener = Opener::new(&KEYS[0]);
        assert_eq!(opener.open(&mut first.clone()), Ok(5));
        assert_eq!(opener.open(&mut first.clone()), Err(SealError::Broken), "repeated");
        assert_eq!(
            Opener::new(&KEYS[0]).open(&mut second.clone()),
            Err(SealError::Broken),
            "the first is left out"
        );
        assert_eq!(Opener::new(&KEYS[1]).open(&mut first.clone()), Err(SealError::Broken), "another key");
    }

    #[test]
    fn too_long_a_record_is_refused() {
        let mut long = vec![0; HEAD + MOST + 1];
        let length = MOST as u32 + 1;
        assert_eq!(Sealer::new(&KEYS[0]).seal(&mut long, 0), Err(SealError::TooLong(length)));
        assert_eq!(Opener::length(length.to_le_bytes()), Err(SealError::TooLong(length)));
    }
}
