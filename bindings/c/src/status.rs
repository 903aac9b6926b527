//! What a call returns: a code, and for each thread the sentence of its last error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use gleaner::Error;

/// How a call ended. Whatever is not GLEANER_OK has a sentence, which gleaner_error gives.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gleaner_status {
    /// As it should.
    GLEANER_OK = 0,
    /// An argument is null, no UTF-8, or of another length than is expected.
    GLEANER_ARGUMENT = 1,
    /// Rank, world size, rendezvous or secret are missing or contradict each other.
    GLEANER_CONFIG = 2,
    /// The workers did not come together.
    GLEANER_JOIN = 3,
    /// The job has failed: a worker died, fell silent, left or violated the protocol. The session is of no further use.
    GLEANER_FAILED = 4,
    /// A name, a length or an order of calls that does not fit the parameters.
    GLEANER_LAYOUT = 5,
    /// An invalid method, or an invalid option of one or of the optimiser.
    GLEANER_METHOD = 6,
    /// A checkpoint that cannot be written, or from which this job cannot go on.
    GLEANER_CHECKPOINT = 7,
    /// The operating system refused something, or whatever else went wrong.
    GLEANER_OTHER = 8,
    /// The library has a fault; standard error says more.
    GLEANER_PANIC = 9,
}

use gleaner_status::*;

/// Why a call did not do what it was asked.
pub(crate) struct Refused {
    status: gleaner_status,
    sentence: String,
}

impl Refused {
    pub(crate) fn new(status: gleaner_status, sentence: impl ToString) -> Self {
        Self { status, sentence: sentence.to_string() }
    }

    /// An invalid argument.
    pub(crate) fn argument(sentence: impl ToString) -> Self {
        Self::new(GLEANER_ARGUMENT, sentence)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Config(_) => GLEANER_CONFIG,
            Error::Join(_) => GLEANER_JOIN,
            Error::Failed(_) => GLEANER_FAILED,
            Error::Layout(_) => GLEANER_LAYOUT,
            Error::Method(_) | Error::Schedule(_) | Error::Routine(_) | Error::Reduction(_) => GLEANER_METHOD,
            Error::Checkpoint(_) => GLEANER_CHECKPOINT,
            _ => GLEANER_OTHER,
        };
        Self::new(status, error)
    }
}

thread_local! {
    static SENTENCE: RefCell<CString> = RefCell::default();
}

/// Keeps the sentence of an error for its thread.
fn remember(sentence: String) {
    // A zero byte would end it.
    let sentence = CString::new(sentence.replace('\0', "?")).unwrap_or_default();
    // A thread that ends has none any more.
    let _ = SENTENCE.try_with(|last| *last.borrow_mut() = sentence);
}

/// The sentence of this thread's last error: what was expected, what was found, and what to do. Empty if there was none.
/// It is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_error() -> *const c_char {
    // The string's memory stays where it is until another one takes its place.
    SENTENCE.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Does what a call asks, and says how it ended.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Refused>) -> gleaner_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => GLEANER_OK,
        Ok(Err(Refused { status, sentence })) => {
            remember(sentence);
            status
        }
        Err(_) => {
            remember("the library has a fault; standard error says where".into());
            GLEANER_PANIC
        }
    }
}

/// Where a result goes. What was there is not dropped: it may never have been written.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// Writes the result.
    pub(crate) fn put(self, value: T) {
        // SAFETY: the caller of `room` has promised that there is room for a value that no other code uses during the call.
        unsafe { self.0.write(value) }
    }
}

/// Where a result goes.
///
/// # Safety
/// It is null, or there is room for a value that no other code uses during the call.
pub(crate) unsafe fn room<T>(pointer: *mut T, what: &str) -> Result<Room<T>, Refused> {
    NonNull::new(pointer).map(Room).ok_or_else(|| null(what))
}

/// A text.
///
/// # Safety
/// It is null, or a string that ends with a zero byte and that no other code changes during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Refused> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller promises it.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|error| Refused::argument(format!("{what} is no UTF-8: {error}")))
}

/// Values.
///
/// # Safety
/// There are so many from there on, which no other code changes during the call; it may be null where there are none.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Refused> {
    check(pointer, count, what)?;
    // SAFETY: not null and aligned; the caller promises the rest.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer, count) } })
}

/// Values that are written to.
///
/// # Safety
/// There are so many from there on, which no other code uses during the call; it may be null where there are none.
pub(crate) unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [T], Refused> {
    check(pointer, count, what)?;
    // SAFETY: not null and aligned; the caller promises the rest.
    Ok(if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(pointer, count) } })
}

fn check<T>(pointer: *const T, count: usize, what: &str) -> Result<(), Refused> {
    if count > 0 && pointer.is_null() {
        return Err(null(what));
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if !fits || !pointer.is_aligned() {
        return Err(Refused::argument(format!("{what} cannot be {count} values at {pointer:p}")));
    }
    Ok(())
}

pub(crate) fn null(what: &str) -> Refused {
    Refused::argument(format!("{what} is null; expected a valid pointer"))
}
