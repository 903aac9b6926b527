//! Putting the machine together and running it.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::qemu::arguments;
use super::supervise::{SILENCE, supervise};
use super::{Ended, Machine, MachineError, program, quote, script};

/// The scripts of the machine: what fetches its parts, and its first and second steps.
const SCRIPTS: [(&str, &str); 3] = [
    ("fetch.sh", include_str!("fetch.sh")),
    ("first.sh", include_str!("first.sh")),
    ("second.sh", include_str!("second.sh")),
];
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
