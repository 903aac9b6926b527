//! A worker's membership in a job.

use std::collections::HashMap;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use gleaner::{Method, Reducer, Session};

use crate::handles::{Handles, lock};
use crate::method::{METHODS, gleaner_method, refused};
use crate::status::{Refused, call, gleaner_status, room, slice_mut, text};

/// A worker's membership in a job.
pub struct gleaner_session {
    // Before the session: a reducer that is dropped while it is there says so to its peers.
    reducers: Mutex<HashMap<String, Arc<Mutex<Option<Named>>>>>,
    pub(crate) session: Session,
}

/// The reducer of one name of gleaner_all_reduce. None until all ranks have agreed on it, or where they have not.
struct Named {
    method: String,
    reducer: Reducer,
}

pub(crate) static SESSIONS: Handles<gleaner_session> =
    Handles::new("the session", "gleaner_join", "gleaner_leave");

impl gleaner_session {
    /// The mean of values under a name. Calls with other names go on meanwhile, also while the ranks agree on a new one.
    fn reduce(&self, name: &str, values: &mut [f32], method: &Method) -> Result<(), Refused> {
        let named = lock(&self.reducers).entry(name.to_owned()).or_default().clone();
        let mut named = lock(&named);
        let asked = method.to_string();
        let Named { method: known, reducer } = match &mut *named {
            Some(named) => named,
            new => {
                let reducer = self.session.reducer(name, values.len(), method.clone())?;
                new.insert(Named { method: asked.clone(), reducer })
            }
        };
        if *known != asked {
            return Err(refused(format!(
                "'{name}' is reduced by {known}, and found {asked}; expected the method of the first call, or another name"
            )));
        }
        let update = reducer.start(values)?.wait()?;
        Ok(update.copy_to(name, values).map_err(gleaner::Error::from)?)
    }
}

/// While it lives, SIGPIPE is blocked in this thread and in those that are started, for good: a write to a peer that is gone is an error
/// there. By itself the signal ends a program in C, where Rust's ignore it.
struct NoPipeSignal(libc::sigset_t);

impl NoPipeSignal {
    fn new() -> Self {
        let [mut blocked, mut before] = [MaybeUninit::uninit(); 2];
        // SAFETY: each set is written before it is read.
        unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            libc::sigaddset(blocked.as_mut_ptr(), libc::SIGPIPE);
            libc::sigemptyset(before.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for NoPipeSignal {
    fn drop(&mut self) {
        // SAFETY: the set is one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null_mut()) };
    }
}

/// Joins the job that the environment describes: as started by `gleaner launch`, torchrun, Slurm or Open MPI. Without any
/// of them the job is this one worker. Leave it with gleaner_leave.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_join(session: *mut *mut gleaner_session) -> gleaner_status {
    call(|| {
        // SAFETY: the caller promises it.
        let room = unsafe { room(session, "where the session goes")? };
        let _blocked = NoPipeSignal::new();
        let joined = gleaner_session { reducers: Mutex::default(), session: Session::join()? };
        room.put(SESSIONS.put(joined));
        Ok(())
    })
}

/// This worker's number, from 0 to world size - 1, and the number of workers.
///
/// # Safety
/// The pointers to numbers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_place(
    session: *mut gleaner_session,
    rank: *mut u32,
    world_size: *mut u32,
) -> gleaner_status {
    call(|| {
        let joined = SESSIONS.get(session)?;
        // SAFETY: the caller promises it.
        let (rank, world_size) =
            unsafe { (room(rank, "where the rank goes")?, room(world_size, "where the world size goes")?) };
        rank.put(joined.session.rank() as u32);
        world_size.put(joined.session.world_size() as u32);
        Ok(())
    })
}

/// Waits until all ranks are here.
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_barrier(session: *mut gleaner_session) -> gleaner_status {
    call(|| Ok(SESSIONS.get(session)?.session.barrier()?))
}

/// Replaces values by their mean over all ranks: the same bits everywhere. A sparse method keeps what it did not deliver
/// for the next call with this name. All ranks call it with the same name, method and number of values, which are those of the
/// first call with that name; and names that are new come in the same order on all ranks. A name keeps memory until
/// gleaner_leave, so few should do.
///
/// # Safety
/// The pointers are null or valid, and there are `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_all_reduce(
    session: *mut gleaner_session,
    method: *mut gleaner_method,
    name: *const c_char,
    values: *mut f32,
    count: usize,
) -> gleaner_status {
    call(|| {
        let (joined, method) = (SESSIONS.get(session)?, METHODS.get(method)?);
        // SAFETY: the caller promises it.
        let (name, values) = unsafe { (text(name, "the name")?, slice_mut(values, count, "the values")?) };
        let method = lock(&method.0).clone();
        joined.reduce(name, values, &method)
    })
}

/// Ends the job on all ranks, whose calls fail with this rank and the reason. Another thread may call it while this one waits.
/// Leave the session after it.
///
/// # Safety
/// The reason is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_abort(
    session: *mut gleaner_session,
    reason: *const c_char,
) -> gleaner_status {
    call(|| {
        let joined = SESSIONS.get(session)?;
        // SAFETY: the caller promises it.
        let reason = unsafe { text(reason, "the reason")? };
        // What it returns is what the caller knows.
        let _ = joined.session.give_up(&reason);
        Ok(())
    })
}

/// Leaves the job, once the others have what they need of this rank, and frees the session; nothing for null. Gradients of
/// the session that are not freed yet keep this rank in the job until they are.
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_leave(session: *mut gleaner_session) {
    // What went wrong has been reported to all ranks.
    let _ = call(|| {
        SESSIONS.free(session);
        Ok(())
    });
}
