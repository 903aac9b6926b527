//! Descriptors that the launcher hands on to a worker: each is taken over once, and goes no further.

use std::collections::BTreeSet;
use std::fs::{self, FileType};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::environment::ConfigError;

/// Names the descriptor from which a worker reads the job's secret: a pipe.
pub(crate) const SECRET: &str = "GLEANER_SECRET_FD";

/// Names the descriptor at which rank 0 listens: a socket that is bound to the rendezvous.
pub(crate) const LISTENER: &str = "GLEANER_LISTENER_FD";

/// Which were taken over by this process.
static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes over the descriptor with that number, which such a variable says and which must be of that kind. What this process
/// starts from then on does not inherit it.
///
/// # Errors
/// One that was taken over before, is not open, or is something else.
pub(crate) fn take(
    name: &'static str,
    number: &str,
    is_it: fn(&FileType) -> bool,
) -> Result<OwnedFd, ConfigError> {
    let refused = |why| ConfigError::Descriptor { name, number: number.to_owned(), why };
    let descriptor: RawFd = match number.trim().parse() {
        Ok(descriptor @ 3..) => descriptor,
        _ => return Err(refused("is no number above 2")),
    };
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.contains(&descriptor) {
        return Err(refused("was taken before: a process joins the job of its launcher once"));
    }
    match fs::metadata(format!("/dev/fd/{descriptor}")).map(|metadata| metadata.file_type()) {
        Err(_) => {
            Err(refused("is not open: whatever stands between the launcher and this program must hand it on"))
        }
        Ok(kind) if !is_it(&kind) => Err(refused("is something else than the launcher handed on")),
        Ok(_) => {
            taken.insert(descriptor);
            // SAFETY: it is open and of the right kind, as was just seen; the launcher opened it for this process, in which
            // no other code knows of it; and it is taken over once.
            let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
            // It cannot fail for one that is open.
            let _ = fcntl_setfd(&owned, FdFlags::CLOEXEC);
            Ok(owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileTypeExt;
    use std::process::Command;

    use rustix::io::fcntl_dupfd_cloexec;

    use super::*;

    #[test]
    fn what_is_started_after_it_was_taken_does_not_inherit_it() {
        type IsIt = fn(&FileType) -> bool;
        let (pipe, _writer) = std::io::pipe().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kinds: [(_, OwnedFd, IsIt); 2] =
            [(SECRET, pipe.into(), FileType::is_fifo), (LISTENER, listener.into(), FileType::is_socket)];
        for ((name, opened, is_it), least) in kinds.into_iter().zip([900, 950]) {
            // A number that nothing else in this process has had: each is taken over once.
            let handed_on = fcntl_dupfd_cloexec(&opened, least).unwrap();
            fcntl_setfd(&handed_on, FdFlags::empty()).unwrap();
            let number = handed_on.as_raw_fd().to_string();
            let inherits = || {
                let mut child = Command::new("sh");
                child.args(["-c", "test -e /dev/fd/$0", &number]).status().unwrap().success()
            };
            assert!(inherits(), "{name}");
            std::mem::forget(handed_on);
            let taken = take(name, &number, is_it).unwrap();
            assert_eq!(taken.as_raw_fd().to_string(), number);
            assert!(!inherits(), "{name}");
        }
    }
}
