//! Whether what the operating system says about a connection is this host's doing.

use std::io;

use tokio::task::JoinError;

/// Why a connection was not made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The peer's host answers, and nothing listens there: it ended.
    Gone,
    /// This host lacks what it takes.
    Here,
    /// A route, a host or a firewall, which may come back.
    Passes,
}

impl Cause {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Gone,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::Here,
            _ if is_scarce(error) => Self::Here,
            _ => Self::Passes,
        }
    }
}

/// Whether this host lacks descriptors or memory, whatever was asked of it.
pub(super) fn is_scarce(error: &io::Error) -> bool {
    /// Linux's numbers of what has no kind: too many open files, in the process and on the host; no buffer space.
    const SCARCE: [i32; 3] = [24, 23, 105];
    error.kind() == io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|number| SCARCE.contains(&number))
}

/// What the panic said that ended a task, if one did.
pub(crate) fn panicked<T>(ended: Result<T, JoinError>) -> Option<String> {
    let panic = ended.err()?.try_into_panic().ok()?;
    let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
    Some(said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_host_lacks_is_distinguished_from_what_others_do() {
        // Of Linux: EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL; EHOSTUNREACH, ENETUNREACH, ETIMEDOUT; ECONNREFUSED.
        for (numbers, cause) in [
            (&[24, 23, 105, 12, 99][..], Cause::Here),
            (&[113, 101, 110], Cause::Passes),
            (&[111], Cause::Gone),
        ] {
            for number in numbers {
                let error = io::Error::from_raw_os_error(*number);
                assert_eq!(Cause::of(&error), cause, "{error}");
                // An address that is taken or of another host is no lack where a port is opened.
                assert_eq!(is_scarce(&error), cause == Cause::Here && *number != 99, "{error}");
            }
        }
    }
}
