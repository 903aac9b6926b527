//! A worker's membership in a job.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_char;
use std::sync::{Arc, Mutex};

use gleaner::{Method, Reducer, Session};

use crate::handles::{Handles, lock};
use crate::method::{METHODS, gleaner_method, refused};
use crate::status::{Refused, call, gleaner_status, room, slice_mut, text};

/// A worker's membership in a job.
pub struct gleaner_session {
    // Before the session: a reducer that is dropped while it is there says so to its peers.
    reducers: Mutex<HashMap<String, Arc<Named>>>,
    pub(crate) session: Session,
}

/// What one name of gleaner_all_reduce stands for.
struct Named {
    method: String,
    reducer: Mutex<Reducer>,
}

pub(crate) static SESSIONS: Handles<gleaner_session> =
    Handles::new("the session", "gleaner_join", "gleaner_leave");

impl gleaner_session {
    fn named(&self, name: &str, count: usize, method: &Method) -> Result<Arc<Named>, Refused> {
        let asked = method.to_string();
        match lock(&self.reducers).entry(name.to_owned()) {
            Entry::Occupied(known) if known.get().method != asked => Err(refused(format!(
                "'{name}' is reduced by {}, and found {asked}; expected the method of the first call, or another name",
                known.get().method
            ))),
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(new) => {
                let reducer = Mutex::new(self.session.reducer(name, count, method.clone())?);
                Ok(new.insert(Arc::new(Named { method: asked, reducer })).clone())
            }
        }
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
/// first call with that name.
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
        let named = joined.named(name, count, &method)?;
        let update = lock(&named.reducer).start(values)?.wait()?;
        Ok(update.copy_to(name, values).map_err(gleaner::Error::from)?)
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
    // Whatever went wrong has been told to all ranks.
    let _ = call(|| {
        SESSIONS.free(session);
        Ok(())
    });
}
