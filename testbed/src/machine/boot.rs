//! Putting the machine together and running it.

use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use super::supervise::{SILENCE, supervise};
use super::{Ended, Machine, MachineError, program, quote, script};

/// The scripts of the machine: what fetches its parts, and its first and second steps.
const SCRIPTS: [(&str, &str); 3] = [
    ("fetch.sh", include_str!("fetch.sh")),
    ("first.sh", include_str!("first.sh")),
    ("second.sh", include_str!("second.sh")),
];

/// The ways out of the machine: standard output, standard error, and how far the command is.
pub(super) const PORTS: [&str; 3] = ["out", "err", "status"];
/// How many of the last lines of the steps are shown when what the machine is made of cannot be fetched.
const SHOWN: usize = 5;

/// Runs a command in the machine and passes on, byte by byte, what it prints. It reads nothing from its standard input.
///
/// What the machine is made of is fetched if it is not in the cache. `progress` gets what is done, and None once the
/// command runs. After Ctrl-C, SIGTERM or SIGHUP, at an error, and even if this process is killed, the machine ends.
pub fn run(machine: &Machine, progress: impl Fn(Option<&str>)) -> Result<Ended, MachineError> {
    if cfg!(not(target_arch = "x86_64")) {
        let one = "the emulated machine has one and runs this machine's programs";
        return Err(MachineError::Other(format!("this machine has no x86-64 processor; {one}")));
    }
    let qemu = program("qemu-system-x86_64", "qemu-system-x86")?;
    let setpriv = program("setpriv", "util-linux")?;
    let share = share(&machine.share)?;
    let cache = cache()?;
    fetch(&cache, &|doing| progress(Some(doing)))?;
    progress(Some("starting the machine"));

    let place = tempfile::Builder::new().prefix("gleaner-machine-").tempdir();
    let place = place.map_err(|e| MachineError::file(&env::temp_dir(), e))?;
    let end = write(machine, &share, place.path())?;
    let mut command = tokio::process::Command::new(setpriv);
    // Whatever happens to this process, the kernel ends qemu with it.
    command.args(["--pdeathsig", "KILL", "--"]).arg(qemu);
    command.args(arguments(machine, &share, &cache, place.path()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C is for this process, which then ends qemu.
    command.process_group(0);

    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MachineError::talk)?;
    let ended = runtime.block_on(supervise(
        command,
        machine.timeout,
        machine.verbose,
        SILENCE,
        place,
        &end,
        &progress,
    ));
    // Output that is not read must not hold up the end.
    runtime.shutdown_background();
    ended
}

/// The shared folder, without links in its path.
fn share(folder: &Path) -> Result<PathBuf, MachineError> {
    let share = fs::canonicalize(folder).map_err(|e| MachineError::file(folder, e))?;
    let can_be_shared = share.is_dir() && share.parent().is_some();
    if can_be_shared {
        return Ok(share);
    }
    let expected = "expected a folder below /, which the command may write; name another one with --share";
    Err(MachineError::Other(format!("cannot share {}; {expected}", share.display())))
}

/// The folder of the cache, one for each release, since programs and libraries belong together. It is made.
fn cache() -> Result<PathBuf, MachineError> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).ok_or_else(|| {
        let none = "neither XDG_CACHE_HOME nor HOME names a folder; set one, since the kernel is kept there";
        MachineError::Other(none.to_owned())
    })?;
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = system.lines().find_map(|line| line.strip_prefix("VERSION_ID=")).unwrap_or("unknown");
    let cache = caches.join("gleaner").join(format!("machine-{}", release.trim_matches('"')));
    fs::create_dir_all(&cache).map_err(|e| MachineError::file(&cache, e))?;
    Ok(cache)
}

/// Fetches what is not in the cache; `progress` gets each step.
fn fetch(cache: &Path, progress: &dyn Fn(&str)) -> Result<(), MachineError> {
    let scripts = tempfile::tempdir().map_err(|e| MachineError::file(&env::temp_dir(), e))?;
    let mut hasher = DefaultHasher::new();
    for (name, script) in SCRIPTS {
        script.hash(&mut hasher);
        put(&scripts.path().join(name), script.as_bytes())?;
    }
    let failed = |error| MachineError::program("/bin/sh", error);
    let errors = scripts.path().join("errors");
    let file = fs::File::create(&errors).map_err(|e| MachineError::file(&errors, e))?;
    let mut shell = Command::new("/bin/sh");
    shell.arg(scripts.path().join("fetch.sh")).arg(cache).arg(format!("{:x}", hasher.finish()));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut shell = shell.spawn().map_err(failed)?;
    if let Some(steps) = shell.stdout.take() {
        for line in BufReader::new(steps).lines() {
            progress(&line.map_err(failed)?);
        }
    }
    if shell.wait().map_err(failed)?.success() {
        return Ok(());
    }
    let said = fs::read(&errors).map_err(|e| MachineError::file(&errors, e))?;
    let said = String::from_utf8_lossy(&said);
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("W:")).collect();
    let last = said[said.len().saturating_sub(SHOWN)..].join("\n");
    Err(MachineError::Other(format!(
        "the kernel, a Debian package, cannot be fetched by apt-get; is this a Debian with a package server within reach? \
         The last lines of the steps:\n{last}"
    )))
}

/// Writes what the first steps read, settings for a shell and the command as a script, and gives the bytes that end the output. The
/// command cannot know them by chance.
fn write(machine: &Machine, share: &Path, place: &Path) -> Result<String, MachineError> {
    let uuid = Path::new("/proc/sys/kernel/random/uuid");
    let end = fs::read_to_string(uuid).map_err(|e| MachineError::file(uuid, e))?.trim().to_owned();
    let here = env::current_dir().map_err(|e| MachineError::file(Path::new("."), e))?;
    let gleaner = env::current_exe().and_then(fs::canonicalize);
    let gleaner = gleaner.map_err(|e| MachineError::file(Path::new("/proc/self/exe"), e))?;
    let mut settings = format!("END={end}\nGLEANER=").into_bytes();
    quote(&mut settings, gleaner.as_os_str());
    settings.extend_from_slice(b"\nSHARE=");
    quote(&mut settings, share.as_os_str());
    settings.push(b'\n');
    put(&place.join("settings"), &settings)?;
    put(&place.join("command"), &script(&machine.command, &here))?;
    Ok(end)
}

fn put(path: &Path, content: &[u8]) -> Result<(), MachineError> {
    fs::write(path, content).map_err(|e| MachineError::file(path, e))
}

/// The arguments of qemu. `cache` has what the machine is made of; `place` has its settings, its command and the sockets behind the
/// ports.
fn arguments(machine: &Machine, share: &Path, cache: &Path, place: &Path) -> Vec<OsString> {
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
