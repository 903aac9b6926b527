//! An interface that this process holds: what the kernel sends over it is read here, and what is written here it receives.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{IntegerSetter, Updater, ioctl};

/// What is said of every packet before its first byte: `struct virtio_net_hdr`.
pub(super) const HEAD: usize = 10;

/// The longest that is read: a frame whose IP packet has 64 KiB.
pub(super) const MOST: usize = HEAD + 14 + 65_536;

/// `TUNSETIFF`: takes a `struct ifreq` with a name and flags.
const SET_INTERFACE: u32 = 0x4004_54ca;

/// `TUNSETOFFLOAD`: takes flags.
const SET_OFFLOAD: u32 = 0x4004_54d0;

/// `IFF_TAP`, `IFF_NO_PI` and `IFF_VNET_HDR`: Ethernet frames, with what is said before each.
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;

/// `TUN_F_CSUM`, `TUN_F_TSO4` and `TUN_F_TSO6`: checksums are left out, and TCP hands over many segments as one packet.
const OFFLOADS: usize = 0x01 | 0x02 | 0x04;

/// `TUN_F_USO4` and `TUN_F_USO6`: so does UDP with datagrams, from Linux 6.2 on. Otherwise they come one by one.
const UDP_OFFLOADS: usize = 0x20 | 0x40;

#[derive(Debug)]
pub(super) struct Tap(File);

impl Tap {
    /// Holds an interface of this thread's network namespace, which is there already.
    pub(super) fn hold(interface: &str) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        let mut request = [0; 40];
        request[..interface.len()].copy_from_slice(interface.as_bytes());
        request[16..18].copy_from_slice(&FLAGS.to_ne_bytes());
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which has 40 bytes: a name that ends with a zero, since names of
        // interfaces here are short, and flags.
        unsafe { ioctl(&file, Updater::<SET_INTERFACE, [u8; 40]>::new(&mut request)) }?;
        let offload = |flags: usize| {
            // SAFETY: TUNSETOFFLOAD takes flags in place of a pointer.
            unsafe { ioctl(&file, IntegerSetter::<SET_OFFLOAD>::new_usize(flags)) }
        };
        offload(OFFLOADS | UDP_OFFLOADS).or_else(|_| offload(OFFLOADS))?;
        rustix::io::ioctl_fionbio(&file, true)?;
        Ok(Self(file))
    }

    /// The next packet with what is said of it, if one is there.
    pub(super) fn read(&self, room: &mut [u8; MOST]) -> io::Result<usize> {
        (&self.0).read(room)
    }

    /// Has the kernel receive one. While the interface is down it is gone, as from a cable that is pulled.
    pub(super) fn write(&self, packet: &[u8]) {
        let _ = (&self.0).write(packet);
    }

    /// Waits until a packet is there, or so long.
    pub(super) fn wait(&self, limit: Option<std::time::Duration>) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // Its outcome does not matter: the next read has it.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], limit.as_ref());
    }
}
