//! The arguments of qemu.

use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::Machine;

/// The ways out of the machine: standard output, standard error, and how far the command is.
pub(super) const PORTS: [&str; 3] = ["out", "err", "status"];

/// The arguments of qemu. `cache` has what the machine is made of; `place` has its settings, its command and the sockets behind the
/// ports.
pub(super) fn arguments(machine: &Machine, share: &Path, cache: &Path, place: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    let mut add = |words: &[&OsStr]| all.extend(words.iter().map(OsString::from));
    let text = OsStr::new;
    // By software: the kernel's own acceleration is not to be had in every container, and hangs in some.
    add(&["-accel", "tcg,thread=multi", "-cpu", "max", "-no-reboot", "-nodefaults", "-display", "none"]
        .map(text));
    add(&["-nic", "none", "-m", &machine.memory.to_string(), "-smp", &machine.cpus.to_string()].map(text));
    add(&[text("-kernel"), cache.join("linux").as_os_str()]);
    add(&[text("-initrd"), cache.join("files").as_os_str()]);
    // A panic ends the machine. The check of the timer can fail when the emulation is slow.
    // What the kernel says is shown when the machine hangs.
    let kernel = "console=ttyS0 panic=-1 no_timer_check mitigations=off loglevel=7";
    add(&["-append", kernel, "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
        .map(text));
    add(&["-device", "virtio-serial-pci"].map(text));
    for port in PORTS {
        add(&[text("-chardev"), &with_path(&format!("socket,id={port},path="), &place.join(port), "")]);
        add(&["-device", &format!("virtserialport,chardev={port},name={port}")].map(text));
    }
    for (number, wire) in machine.wires.iter().enumerate() {
        let ours = with_path(&format!("dgram,id=wire{number},local.type=unix,local.path="), &wire.ours, "");
        let theirs = with_path(",remote.type=unix,remote.path=", &wire.theirs, "");
        add(&[text("-netdev"), &[ours, theirs].join(text(""))]);
        let address = address(&wire.ours);
        add(&["-device", &format!("virtio-net-pci,netdev=wire{number},mac={address}")].map(text));
    }
    let read_only = ",readonly=on";
    let tools = cache.join("tools");
    let trees = [
        ("host", Path::new("/"), read_only),
        ("tools", &tools, read_only),
        ("start", place, read_only),
        ("share", share, ""),
    ];
    for (tag, path, access) in trees {
        let rest = format!(",security_model=none,multidevs=remap{access}");
        add(&[text("-fsdev"), &with_path(&format!("local,id={tag},path="), path, &rest)]);
        add(&["-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")].map(text));
    }
    all
}

/// The address of an interface. It follows from where its frames come in, so that no two that are wired have the same.
fn address(socket: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    socket.hash(&mut hasher);
    let [first, second, third, fourth, ..] = hasher.finish().to_le_bytes();
    // Of those that are not given out, and for one machine alone.
    format!("02:00:{first:02x}:{second:02x}:{third:02x}:{fourth:02x}")
}

/// An option that holds a path. Commas part options, so qemu wants those of the path twice.
fn with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut option = before.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        option.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    }
    option.extend_from_slice(after.as_bytes());
    OsString::from_vec(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_addresses_of_their_own() {
        let [one, two] = ["/a/1", "/a/2"].map(|path| address(Path::new(path)));
        assert!(one != two && one.len() == 17 && one == address(Path::new("/a/1")), "{one} {two}");
    }

    #[test]
    fn commas_of_paths_are_doubled() {
        assert_eq!(with_path("path=", Path::new("/a,b/c"), ",readonly=on"), "path=/a,,b/c,readonly=on");
    }
}
