//! Putting the machine together and running it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use super::archive::Archive;
use super::packages::{self, Parts};
use super::qemu::arguments;
use super::supervise::supervise;
use super::{Ended, Machine, MachineError, program, quote, script};

/// Runs a command in the machine and passes on, byte by byte, what it prints. It reads nothing from its standard input.
///
/// What the machine is made of is fetched if it is not in the cache. `progress` is told what is done, and None once the
/// command runs. After Ctrl-C, SIGTERM or SIGHUP, at an error, and even if this process is killed, the machine ends.
pub fn run(machine: &Machine, progress: impl Fn(Option<&str>)) -> Result<Ended, MachineError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(MachineError::Processor);
    }
    let qemu = program("qemu-system-x86_64", "qemu-system-x86")?;
    let setpriv = program("setpriv", "util-linux")?;
    let share = share(&machine.share)?;
    let parts = packages::parts(&|doing| progress(Some(doing)))?;
    progress(Some("starting the machine"));

    let place = tempfile::Builder::new().prefix("gleaner-machine-").tempdir();
    let place = place.map_err(|e| MachineError::file(&env::temp_dir(), e))?;
    let end = Files { machine, share: &share, parts: &parts, place: &place }.write()?;
    let mut command = Command::new(setpriv);
    // Whatever happens to this process, the kernel ends qemu with it.
    command.args(["--pdeathsig", "KILL", "--"]).arg(qemu);
    command.args(arguments(machine, &share, &parts, place.path()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C is for this process, which then ends qemu.
    command.process_group(0);

    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MachineError::Talk)?;
    let ended =
        runtime.block_on(supervise(command, machine.timeout, machine.verbose, place, &end, &progress));
    // Output that nobody takes must not hold up the end.
    runtime.shutdown_background();
    ended
}

/// The shared folder, without links in its path.
fn share(folder: &Path) -> Result<PathBuf, MachineError> {
    let share = fs::canonicalize(folder).map_err(|e| MachineError::file(folder, e))?;
    let can_be_shared = share.is_dir() && share.parent().is_some();
    if can_be_shared { Ok(share) } else { Err(MachineError::Share(share)) }
}

/// What the machine starts from.
struct Files<'a> {
    machine: &'a Machine,
    share: &'a Path,
    parts: &'a Parts,
    place: &'a TempDir,
}

impl Files<'_> {
    /// Writes the first file system and gives the bytes that end the output. The command cannot know them by chance.
    fn write(&self) -> Result<String, MachineError> {
        let read = |path: PathBuf| fs::read(&path).map_err(|e| MachineError::file(&path, e));
        let end = unguessable()?;
        let here = env::current_dir().map_err(|e| MachineError::file(Path::new("."), e))?;
        let gleaner = env::current_exe().and_then(fs::canonicalize);
        let gleaner = gleaner.map_err(|e| MachineError::file(Path::new("/proc/self/exe"), e))?;

        let mut settings = Vec::new();
        let values =
            [("GLEANER", gleaner.as_os_str()), ("SHARE", self.share.as_os_str()), ("END", OsStr::new(&end))];
        for (name, value) in values {
            settings.extend_from_slice(format!("{name}=").as_bytes());
            quote(&mut settings, value);
            settings.push(b'\n');
        }
        let mut archive = Archive::new();
        for folder in ["bin", "proc", "sys", "dev", "modules"] {
            archive.folder(folder);
        }
        archive.file("bin/busybox", &read(self.parts.kernel.join("busybox"))?);
        let order = read(self.parts.kernel.join("modules/order"))?;
        for name in String::from_utf8_lossy(&order).lines() {
            let path = format!("modules/{name}");
            archive.file(&path, &read(self.parts.kernel.join(&path))?);
        }
        archive.file("modules/order", &order);
        archive.file("init", include_bytes!("first.sh"));
        archive.file("second.sh", include_bytes!("second.sh"));
        archive.file("settings", &settings);
        archive.file("command", &script(&self.machine.command, &here));
        let path = self.place.path().join("files");
        fs::write(&path, archive.finish()).map_err(|e| MachineError::file(&path, e))?;
        Ok(end)
    }
}

/// 32 random digits, from the kernel.
fn unguessable() -> Result<String, MachineError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let uuid = fs::read_to_string(path).map_err(|e| MachineError::file(path, e))?;
    Ok(uuid.trim().replace('-', ""))
}
