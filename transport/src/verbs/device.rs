//! Which adapter, port and address a worker uses.

use std::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::VerbsError;
use super::library::library;
use super::sys::{
    self, Context, Functions, GID_TYPE_IB, GID_TYPE_ROCE_V2, GidEntry, LINK_LAYER_ETHERNET, PORT_ACTIVE,
    PortAttr,
};
use crate::VerbsDevice;

/// An open device, and the port of it that is used.
pub(super) struct Device {
    pub(super) functions: &'static Functions,
    pub(super) context: NonNull<Context>,
    pub(super) name: String,
    pub(super) port: Port,
    pub(super) class: Class,
}

/// What the fabric asks for: each worker's own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Class {
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    /// The place of the partition key in the port's list.
    pub(super) partition: u16,
}

/// What others need to know of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) lid: u16,
    pub(super) is_ethernet: bool,
    /// The largest packet, as the numbers of the header: 1 for 256 bytes, and twice as much for each more.
    pub(super) mtu: u32,
}

// SAFETY: all functions of libibverbs may be called from any thread, with the same context from several at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what was made of it holds this device, so nothing of it is left.
        unsafe { (self.functions.ibv_close_device)(self.context.as_ptr()) };
    }
}

impl Device {
    /// Opens the one that is asked for, or the first that can be used: the list is in the order of the system, and its ports in
    /// that of their numbers.
    pub(super) fn open(selection: Option<&VerbsDevice>) -> Result<Arc<Self>, VerbsError> {
        let functions = library()?;
        let list = List::new(functions)?;
        let names: Vec<String> = list.devices().map(|device| list.name(device)).collect();
        let is_asked = |name: &String| selection.is_none_or(|selection| selection.name == *name);
        if let Some(selection) = selection
            && !names.iter().any(is_asked)
        {
            return Err(VerbsError::Unknown { name: selection.name.clone(), found: names.join(", ") });
        }
        let mut errors = Vec::new();
        for (device, name) in list.devices().zip(&names).filter(|(_, name)| is_asked(name)) {
            match Self::of(functions, device, name, selection) {
                Ok(device) => return Ok(Arc::new(device)),
                Err(error) => errors.push(error),
            }
        }
        match errors.len() {
            1 => Err(errors.remove(0)),
            _ => {
                let reasons: Vec<_> = errors.iter().map(VerbsError::to_string).collect();
                Err(VerbsError::None { reasons: reasons.join("; ") })
            }
        }
    }

    fn of(
        functions: &'static Functions,
        device: *mut sys::Device,
        name: &str,
        selection: Option<&VerbsDevice>,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the device is of the list, which is not freed yet.
        let context = NonNull::new(unsafe { (functions.ibv_open_device)(device) });
        let open = |source| VerbsError::Open { name: name.to_owned(), source };
        let context = context.ok_or_else(|| {
            let source = io::Error::last_os_error();
            open(forbidden().unwrap_or(source))
        })?;
        let port = Port { number: 0, gid: [0; 16], gid_index: 0, lid: 0, is_ethernet: false, mtu: 0 };
        let class = selection.map_or_else(Class::default, |selection| Class {
            traffic_class: selection.traffic_class,
            service_level: selection.service_level,
            partition: selection.partition,
        });
        let mut device = Self { functions, context, name: name.to_owned(), port, class };
        let gid = selection.and_then(|selection| selection.gid);
        if let Some(port) = selection.and_then(|selection| selection.port) {
            device.port = device.port(port, gid)?;
            return Ok(device);
        }
        let mut first = None;
        for number in 1..=u8::MAX {
            match device.port(number, gid) {
                Ok(port) => {
                    device.port = port;
                    return Ok(device);
                }
                Err(VerbsError::NoPort { .. }) if number > 1 => break,
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| open(io::ErrorKind::NotFound.into())))
    }

    fn port(&self, number: u8, index: Option<u32>) -> Result<Port, VerbsError> {
        let name = || self.name.clone();
        let mut attributes = PortAttr::default();
        // SAFETY: the context is open, and the attributes have the layout of the header.
        let refused =
            unsafe { (self.functions.ibv_query_port)(self.context.as_ptr(), number, &raw mut attributes) };
        if refused != 0 {
            let source = io::Error::from_raw_os_error(refused);
            return Err(VerbsError::NoPort { name: name(), port: number, source });
        }
        if attributes.state != PORT_ACTIVE {
            let state = match attributes.state {
                1 => "down",
                2 | 3 => "not configured yet",
                _ => "not active",
            };
            return Err(VerbsError::Down { name: name(), port: number, state });
        }
        if self.class.partition >= attributes.pkey_tbl_len {
            let (index, length) = (self.class.partition, attributes.pkey_tbl_len);
            return Err(VerbsError::NoPartition { name: name(), port: number, index, length });
        }
        let gids: Vec<GidEntry> =
            (0..attributes.gid_tbl_len as u32).filter_map(|index| self.gid(number, index)).collect();
        let chosen = match index {
            Some(index) => gids.iter().find(|gid| gid.gid_index == index),
            None => choose(&gids),
        };
        let chosen = chosen.ok_or_else(|| VerbsError::NoGid { name: name(), port: number, index })?;
        Ok(Port {
            number,
            gid: chosen.gid.0,
            gid_index: chosen.gid_index,
            lid: attributes.lid,
            is_ethernet: attributes.link_layer == LINK_LAYER_ETHERNET,
            mtu: attributes.active_mtu,
        })
    }

    fn gid(&self, port: u8, index: u32) -> Option<GidEntry> {
        let mut entry = GidEntry::default();
        // SAFETY: the context is open, and the entry has the size that is given.
        let refused = unsafe {
            (self.functions._ibv_query_gid_ex)(
                self.context.as_ptr(),
                port.into(),
                index,
                &raw mut entry,
                0,
                size_of::<GidEntry>(),
            )
        };
        (refused == 0 && entry.gid.0 != [0; 16]).then_some(entry)
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        format!("{} over port {} of {}", Ipv6Addr::from(self.port.gid), self.port.number, self.name)
    }
}

/// The first of RoCE v2 that is a mapped IPv4 address, or else the first of RoCE v2, or else the first of InfiniBand.
fn choose(gids: &[GidEntry]) -> Option<&GidEntry> {
    let is_mapped = |gid: &&GidEntry| Ipv6Addr::from(gid.gid.0).to_ipv4_mapped().is_some();
    let of = |kind| gids.iter().filter(move |gid| gid.gid_type == kind);
    of(GID_TYPE_ROCE_V2)
        .find(is_mapped)
        .or_else(|| of(GID_TYPE_ROCE_V2).next())
        .or_else(|| of(GID_TYPE_IB).next())
}

/// The devices that are here.
struct List {
    functions: &'static Functions,
    first: NonNull<*mut sys::Device>,
    count: usize,
}

impl List {
    fn new(functions: &'static Functions) -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: it writes the number.
        let first = NonNull::new(unsafe { (functions.ibv_get_device_list)(&raw mut count) });
        let first = first.ok_or_else(|| missing(Some(io::Error::last_os_error())))?;
        let list = Self { functions, first, count: usize::try_from(count).unwrap_or_default() };
        if list.count == 0 { Err(missing(None)) } else { Ok(list) }
    }

    fn devices(&self) -> impl Iterator<Item = *mut sys::Device> {
        // SAFETY: the list has this many entries until it is freed.
        (0..self.count).map(|index| unsafe { *self.first.as_ptr().add(index) })
    }

    fn name(&self, device: *mut sys::Device) -> String {
        // SAFETY: the device is of the list, and its name ends with a zero.
        let name = unsafe { CStr::from_ptr((self.functions.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: devices that were opened stay open.
        unsafe { (self.functions.ibv_free_device_list)(self.first.as_ptr()) };
    }
}

/// What the system says of the files behind devices, if it is that this user may not use one: the library looks for other ways then, and
/// reports that it finds none.
fn forbidden() -> Option<io::Error> {
    let files = fs::read_dir("/dev/infiniband").ok()?.flatten().map(|entry| entry.path());
    let mut errors = files.filter_map(|path| fs::File::options().read(true).write(true).open(path).err());
    errors.find(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// What is missing where the library finds no device.
fn missing(error: Option<io::Error>) -> VerbsError {
    // Beside devices there may be a file with the version of the kernel's interface.
    let has = |folder: &str, kind: &str| {
        let is_one = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(kind);
        fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_one))
    };
    let reason = if has("/sys/class/infiniband_verbs", "uverbs") {
        "the kernel has one, but libibverbs finds no driver for it: install ibverbs-providers (Debian's name), and see that \
         /dev/infiniband is there"
            .to_owned()
    } else if has("/sys/class/infiniband", "") {
        "the kernel has one, but its module ib_uverbs is not loaded: `modprobe ib_uverbs` as root".to_owned()
    } else {
        let said = error.map(|error| format!(" ({error})")).unwrap_or_default();
        format!(
            "/sys/class/infiniband is empty{said}; load the adapter's kernel module, such as mlx5_ib, or make a software device as \
             root: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`"
        )
    };
    VerbsError::NoDevice { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(kind: u32, index: u32, address: &str) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry { gid: sys::Gid(address.octets()), gid_type: kind, gid_index: index, ..GidEntry::default() }
    }

    #[test]
    fn a_gid_is_chosen_by_the_rule() {
        let chosen = |gids: &[GidEntry]| choose(gids).map(|gid| gid.gid_index);
        let (ib, v1, v2) = (GID_TYPE_IB, 1, GID_TYPE_ROCE_V2);
        let mut gids = vec![
            gid(v1, 0, "fe80::1"),
            gid(v2, 1, "fe80::1"),
            gid(v1, 2, "::ffff:10.0.0.1"),
            gid(v2, 3, "::ffff:10.0.0.1"),
        ];
        assert_eq!(chosen(&gids), Some(3), "RoCE v2 and IPv4");
        gids.pop();
        assert_eq!(chosen(&gids), Some(1), "RoCE v2");
        gids.remove(1);
        assert_eq!(chosen(&gids), None, "RoCE v1 alone");
        assert_eq!(chosen(&[gid(ib, 0, "fe80::2"), gid(ib, 1, "fd00::2")]), Some(0));
    }

    /// Wherever this runs: there is a device, or it is said what is missing.
    #[test]
    fn without_a_device_a_sentence_says_what_to_do() {
        match Device::open(None) {
            Ok(device) => assert!(device.place().contains(&device.name)),
            Err(error) => {
                let sentence = error.to_string();
                let todo = ["install", "modprobe", "/dev/infiniband", "ip link", "IP address"];
                assert!(todo.iter().any(|word| sentence.contains(word)), "{sentence}");
            }
        }
    }
}
