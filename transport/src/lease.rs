//! Memory that a link lends to those who send.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// Memory for one payload, lent by the link that it was [asked of](crate::Link::lease): registered with a network card, pinned, or
/// shared with another process for example. It is written and then [frozen](Self::freeze) into the payload of a message. The memory
/// goes back when the last [`Bytes`] of it is dropped, or the lease if it was not frozen.
///
/// ```
/// use gleaner_transport::Lease;
///
/// let mut lease = Lease::heap(3);
/// lease.copy_from_slice(b"abc");
/// assert_eq!(lease.freeze(), "abc");
/// ```
pub struct Lease(Memory);

enum Memory {
    Heap(Vec<u8>),
    Lent(Lent),
}

/// What a network lends.
trait Lend: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> Lend for T {}

struct Lent(Box<dyn Lend>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl Lease {
    /// This many bytes of the process's own memory.
    pub fn heap(length: usize) -> Self {
        Self(Memory::Heap(vec![0; length]))
    }

    /// Memory of a network, which is given back when it is dropped: all of it is the payload.
    pub fn of(memory: impl AsRef<[u8]> + AsMut<[u8]> + Send + 'static) -> Self {
        Self(Memory::Lent(Lent(Box::new(memory))))
    }

    /// What was written, as a payload. Nothing is copied.
    pub fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Heap(bytes) => bytes.into(),
            Memory::Lent(lent) => Bytes::from_owner(lent),
        }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Lent(lent) => lent.as_ref(),
        }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Lent(lent) => (*lent.0).as_mut(),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.len())
    }
}
