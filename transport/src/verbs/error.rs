//! Why a worker cannot use verbs. Each sentence says what to do.

use std::io;

/// What verbs need, and what is missing of it.
#[derive(thiserror::Error)]
pub enum VerbsError {
    /// The library is not installed.
    #[error(
        "libibverbs.so.1 could not be loaded: {reason}; install rdma-core's libibverbs1 and ibverbs-providers (Debian's names), or \
         choose another transport"
    )]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// The library lacks a function.
    #[error(
        "libibverbs.so.1 is too old: it has no function {function}; expected that of rdma-core 30 or newer"
    )]
    OldLibrary {
        /// Its name.
        function: &'static str,
    },
    /// There is no device.
    #[error("no RDMA device is here: {reason}")]
    NoDevice {
        /// What is missing, and what to do.
        reason: String,
    },
    /// No device has the name that was given.
    #[error("there is no verbs device {name}; found {found}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// Those that are here.
        found: String,
    },
    /// A device cannot be opened.
    #[error(
        "the verbs device {name} cannot be opened: {source}; this user must be able to read and write /dev/infiniband/uverbs*, which \
         a container has to be given (docker run --device=/dev/infiniband --ulimit memlock=-1)"
    )]
    Open {
        /// Its name.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A port that does not exist.
    #[error("the verbs device {name} has no port {port}: {source}; expected one that `ibv_devinfo` shows")]
    NoPort {
        /// The device.
        name: String,
        /// The port that was asked for.
        port: u8,
        /// What the operating system said.
        source: io::Error,
    },
    /// A port that carries nothing.
    #[error(
        "port {port} of the verbs device {name} is {state}; expected an active one: check its cable and its interface \
         (`ip link`), and on InfiniBand that a subnet manager runs (`ibstat`)"
    )]
    Down {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// A port without an address that can be used.
    #[error(
        "port {port} of the verbs device {name} has no usable GID{}; expected a RoCE v2 or InfiniBand one: give its interface an IP \
         address, and see /sys/class/infiniband/{name}/ports/{port}/gids", index.map(|index| format!(" {index}")).unwrap_or_default()
    )]
    NoGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Which was asked for.
        index: Option<u32>,
    },
    /// A partition key that the port has not.
    #[error(
        "port {port} of the verbs device {name} has no partition key {index}; expected a place in its list of {length}, which \
         /sys/class/infiniband/{name}/ports/{port}/pkeys shows"
    )]
    NoPartition {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Which was asked for.
        index: u16,
        /// How many there are.
        length: u16,
    },
    /// None of several can be used.
    #[error("none of the verbs devices here can be used: {reasons}")]
    None {
        /// Why not, of each.
        reasons: String,
    },
    /// Memory cannot be registered.
    #[error(
        "{needed} KiB of memory could not be registered with the verbs device: {source}; the limit on locked memory is {limit}, and \
         each link needs {} KiB: raise it (`ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of a \
         service, --ulimit memlock=-1 of a container)", super::LINK_MEMORY >> 10
    )]
    Memory {
        /// How much, in KiB.
        needed: usize,
        /// The limit, in words.
        limit: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The device refuses an object.
    #[error("the verbs device refuses {what}: {source}; too many links may use it (`rdma resource`)")]
    Refused {
        /// What it refuses.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// Links would have to be encrypted.
    #[error(
        "links over verbs are not encrypted: start the job with --plain (GLEANER_PLAIN=1) if the network is trusted, or choose another \
         transport"
    )]
    Sealed,
}

crate::debug_as_sentence!(VerbsError);
