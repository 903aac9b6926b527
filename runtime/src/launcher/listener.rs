//! The socket at which rank 0 will listen, bound by the launcher and handed on by inheritance.

use std::io;
use std::net::ToSocketAddrs;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::{Domain, SockRef, Socket, Type};

/// The numbers that a shell can close and has no use for itself.
const NUMBERS: RangeInclusive<i32> = 5..=9;

/// See the module. It does not listen yet: a worker that comes too early is refused, and tries again.
pub(super) struct Listener(OwnedFd);

impl Listener {
    /// Binds it. None where the port is free, and there is no number for it: this process has many open files.
    ///
    /// # Errors
    /// A port that is in use, an address that is not here, and a lack of descriptors.
    pub(super) fn bind(host: &str, port: u16) -> io::Result<Option<Listener>> {
        let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&address.into())?;
        let mut descriptor = OwnedFd::from(socket);
        let mut low = Vec::new();
        while descriptor.as_raw_fd() < *NUMBERS.start() {
            let higher = descriptor.try_clone()?;
            low.push(std::mem::replace(&mut descriptor, higher));
        }
        Ok(NUMBERS.contains(&descriptor.as_raw_fd()).then_some(Listener(descriptor)))
    }

    /// The number of its descriptor, here and wherever it is inherited.
    pub(super) fn number(&self) -> String {
        self.0.as_raw_fd().to_string()
    }

    /// Lets what is started meanwhile inherit it, and closes it here.
    pub(super) fn hand_on<T>(self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        SockRef::from(&self.0).set_cloexec(false)?;
        start()
    }
}
