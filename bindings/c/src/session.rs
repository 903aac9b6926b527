//! A worker's membership in a job.

use std::collections::HashMap;
use std::ffi::c_char;

use gleaner::{Reducer, Session};

use crate::method::gleaner_method;
use crate::status::{Refused, call, gleaner_status, handle, room, slice_mut, text};

/// A worker's membership in a job.
pub struct gleaner_session {
    // Before the session: a reducer that is dropped while it is there says so to its peers.
    reducers: HashMap<String, Reducer>,
    pub(crate) session: Session,
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
        let joined = gleaner_session { reducers: HashMap::new(), session: Session::join()? };
        room.put(Box::into_raw(Box::new(joined)));
        Ok(())
    })
}

/// This worker's number, from 0 to world size - 1, and the number of workers.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_place(
    session: *mut gleaner_session,
    rank: *mut u32,
    world_size: *mut u32,
) -> gleaner_status {
    call(|| {
        // SAFETY: the caller promises it.
        let (joined, rank, world_size) = unsafe {
            (
                handle(session, "the session")?,
                room(rank, "where the rank goes")?,
                room(world_size, "where the world size goes")?,
            )
        };
        rank.put(joined.session.rank() as u32);
        world_size.put(joined.session.world_size() as u32);
        Ok(())
    })
}

/// Waits until all ranks are here.
///
/// # Safety
/// The session is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_barrier(session: *mut gleaner_session) -> gleaner_status {
    call(|| {
        // SAFETY: the caller promises it.
        let session = unsafe { handle(session, "the session")? };
        Ok(session.session.barrier()?)
    })
}

/// Replaces values by their mean over all ranks: the same bits everywhere. A sparse method keeps what it did not deliver
/// for the next call with this name. All ranks call it with the same name, method and number of values; the method counts in
/// the first call with a name.
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
        // SAFETY: the caller promises it.
        let (joined, method, name, values) = unsafe {
            (
                handle(session, "the session")?,
                handle(method, "the method")?,
                text(name, "the name")?,
                slice_mut(values, count, "the values")?,
            )
        };
        if !joined.reducers.contains_key(name) {
            let reducer = joined.session.reducer(name, count, method.0.clone())?;
            joined.reducers.insert(name.to_owned(), reducer);
        }
        let Some(reducer) = joined.reducers.get_mut(name) else { return Ok(()) };
        let update = reducer.start(values)?.wait()?;
        Ok(update.copy_to(name, values).map_err(gleaner::Error::from)?)
    })
}

/// Ends the job on all ranks, whose calls fail with this rank and the reason. Leave the session after it.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_abort(
    session: *mut gleaner_session,
    reason: *const c_char,
) -> gleaner_status {
    call(|| {
        // SAFETY: the caller promises it.
        let (session, reason) = unsafe { (handle(session, "the session")?, text(reason, "the reason")?) };
        // What it returns is what the caller knows.
        let _ = session.session.give_up(&reason);
        Ok::<(), Refused>(())
    })
}

/// Leaves the job, once the others have what they need of this rank, and frees the session; nothing for null. Gradients of
/// the session that are not freed yet keep this rank in the job until they are.
///
/// # Safety
/// It is null or a session that was not left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_leave(session: *mut gleaner_session) {
    if !session.is_null() {
        // Whatever went wrong has been told to all ranks.
        let _ = call(|| {
            // SAFETY: the caller promises it, and all sessions come out of a box.
            drop(unsafe { Box::from_raw(session) });
            Ok(())
        });
    }
}
