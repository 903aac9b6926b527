//! Memory that the adapter reads and writes, and what it belongs to.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::LEASES;
use super::device::Device;
use super::error::VerbsError;
use super::sys::{Mr, Pd};
use crate::{Lease, MAX_PAYLOAD};

/// Pages are what is registered.
const PAGE: usize = 4096;

/// A protection domain. Each link has its own: a queue pair can only be used to reach memory of its own domain, so a peer that
/// guesses the key of another's ring cannot write there.
pub(super) struct Domain {
    pub(super) pd: NonNull<Pd>,
    pub(super) device: Arc<Device>,
}

// SAFETY: functions of libibverbs may be called from any thread; the pointer is passed to them and not followed.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open as long as the device is there.
        let pd = NonNull::new(unsafe { (device.functions.ibv_alloc_pd)(device.context.as_ptr()) });
        let refused =
            || VerbsError::Refused { what: "a protection domain", source: io::Error::last_os_error() };
        Ok(Arc::new(Self { pd: pd.ok_or_else(refused)?, device: Arc::clone(device) }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold the domain, so none is left.
        unsafe { (self.device.functions.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Registered memory, zero at first. It is reached by pointers alone: a reference would promise that nothing else writes, and the
/// adapter may.
pub(super) struct Region {
    memory: NonNull<u8>,
    layout: Layout,
    mr: NonNull<Mr>,
    domain: Arc<Domain>,
}

// SAFETY: it owns its memory, and its pointers are bound to no thread.
unsafe impl Send for Region {}
// SAFETY: what reads and writes through a shared one is unsafe, and says who else may do so at the same time.
unsafe impl Sync for Region {}

impl Region {
    /// `access` says what the adapter may do, besides reading for this worker's own sends.
    pub(super) fn new(domain: &Arc<Domain>, length: usize, access: i32) -> Result<Self, VerbsError> {
        let refused = |source| VerbsError::Memory { needed: length >> 10, limit: limit(), source };
        let layout = Layout::from_size_align(length.next_multiple_of(PAGE), PAGE);
        let layout = layout.map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: no length here is zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: the memory was just allocated, has that length, and is given back after it is no longer registered.
        let mr = NonNull::new(unsafe {
            (domain.device.functions.ibv_reg_mr)(
                domain.pd.as_ptr(),
                memory.as_ptr().cast(),
                layout.size(),
                access,
            )
        });
        let Some(mr) = mr else {
            let error = io::Error::last_os_error();
            // SAFETY: it was allocated with that layout, and the adapter does not know it.
            unsafe { dealloc(memory.as_ptr(), layout) };
            return Err(refused(error));
        };
        Ok(Self { memory, layout, mr, domain: Arc::clone(domain) })
    }

    /// Where the byte `at` lies.
    pub(super) fn at(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.layout.size(), "expected a place in {} bytes and found {at}", self.layout.size());
        // SAFETY: it lies in the allocation, or right behind it.
        unsafe { self.memory.add(at) }
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered as long as it is there.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// Nothing else, the adapter included, reads or writes there meanwhile.
    pub(super) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at);
        assert!(at + bytes.len() <= self.layout.size(), "expected room for what is written");
        // SAFETY: there is room, as was just seen, and the caller promises that nothing else uses it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out. A peer that breaks the rules may write its ring meanwhile: then the copy is some mixture, which is
    /// looked at only once it is here, where no peer can reach it.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at);
        assert!(at + to.len() <= self.layout.size(), "expected as much as is read");
        // SAFETY: the bytes lie in the allocation and have all been initialised; the adapter's writes are no accesses of this
        // program; no other thread writes, since regions that the adapter fills are written by it alone.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// The same into new memory, which is not written twice.
    pub(super) fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        let (from, mut to) = (self.at(at), Vec::<u8>::with_capacity(length));
        assert!(at + length <= self.layout.size(), "expected as much as is read");
        // SAFETY: as above; there is room for so many, and they are all written before they count.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), length);
            to.set_len(length);
        }
        to
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        let (start, from) = (self.memory.as_ptr().addr(), bytes.as_ptr().addr());
        from >= start && from + bytes.len() <= start + self.layout.size()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the queue pair that was given its address is destroyed before; then nothing uses it, and it was allocated with
        // that layout.
        unsafe {
            (self.domain.device.functions.ibv_dereg_mr)(self.mr.as_ptr());
            dealloc(self.memory.as_ptr(), self.layout);
        }
    }
}

/// How much may be locked, in words.
fn limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes >> 10),
        None => "not set for this user, so what refuses may be a limit of the container, or a lack of memory"
            .to_owned(),
    }
}

/// Buffers that a link lends to those who send.
pub(super) struct Pool {
    domain: Arc<Domain>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those that are not lent, and how many there are in all.
    free: Vec<Arc<Region>>,
    all: Vec<Arc<Region>>,
    /// Whether no more can be had.
    is_full: bool,
}

impl Pool {
    pub(super) fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Self { domain: Arc::clone(domain), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a buffer, or memory of the process where all are lent or no more can be registered.
    pub(super) fn lease(self: &Arc<Self>, length: usize) -> Lease {
        match self.take() {
            Some(region) if length <= MAX_PAYLOAD => {
                Lease::of(Lent { region, length, pool: Arc::clone(self) })
            }
            _ => Lease::heap(length),
        }
    }

    fn take(&self) -> Option<Arc<Region>> {
        let mut state = self.state();
        if let Some(region) = state.free.pop() {
            return Some(region);
        }
        if state.is_full || state.all.len() == LEASES {
            return None;
        }
        // The adapter reads it for sends, and nothing else.
        match Region::new(&self.domain, MAX_PAYLOAD, 0) {
            Ok(region) => {
                let region = Arc::new(region);
                state.all.push(Arc::clone(&region));
                Some(region)
            }
            Err(_) => {
                state.is_full = true;
                None
            }
        }
    }

    /// The key by which the adapter may read these bytes, if they lie in a buffer of this pool.
    pub(super) fn key_of(&self, bytes: &[u8]) -> Option<u32> {
        let state = self.state();
        state.all.iter().find(|region| region.holds(bytes)).map(|region| region.lkey())
    }
}

/// A buffer that is lent, the only way to it until it is given back.
struct Lent {
    region: Arc<Region>,
    length: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer is lent only once, the adapter only reads it, and it is initialised.
        unsafe { std::slice::from_raw_parts(self.region.at(0).as_ptr(), self.length) }
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is lent only once; the adapter reads what is frozen, and a frozen lease gives no such reference.
        unsafe { std::slice::from_raw_parts_mut(self.region.at(0).as_ptr(), self.length) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.state().free.push(Arc::clone(&self.region));
    }
}
