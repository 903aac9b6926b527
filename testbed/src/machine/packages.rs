//! What the machine is made of: Debian's kernel, a static busybox, and the programs that this machine lacks. They are
//! packages, fetched by name once and kept in the user's cache. Nothing is installed.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{MachineError, kernel, modules};

/// The package that depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";
/// Its programs make the first steps inside the machine.
const BUSYBOX: &str = "busybox-static";
/// What is to be found inside, on this machine or in a package: the package and one of its files, without folder if it
/// is a program.
const TOOLS: &[(&str, &str)] = &[
    ("iproute2", "rdma"),
    ("iputils-ping", "ping"),
    ("iperf3", "iperf3"),
    ("ibverbs-utils", "ibv_rc_pingpong"),
    ("ibverbs-providers", "etc/libibverbs.d/rxe.driver"),
    ("perftest", "ib_write_bw"),
];
/// Where programs are.
const PROGRAMS: &[&str] = &["usr/bin", "usr/sbin", "bin", "sbin"];
/// Folders that may be links to those below `usr`, while packages still name them without it.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];
/// Names of folders that are not complete yet begin with this.
const HALF: &str = "half-";

/// What a machine is started from.
#[derive(Debug)]
pub(super) struct Parts {
    /// The folder of the kernel: `linux`, `busybox`, `modules` with a file `order`, and `wanted`, which names the modules that
    /// these were fetched for.
    pub(super) kernel: PathBuf,
    /// What the packages hold that this machine lacks, as a tree from the root.
    pub(super) tools: PathBuf,
}

/// Gives what is in the cache; what is not there is fetched first, and `progress` is told about it.
///
/// Two at once wait for each other. What was fetched by half is fetched again.
pub(super) fn parts(progress: &dyn Fn(&str)) -> Result<Parts, MachineError> {
    let cache = cache()?;
    fs::create_dir_all(&cache).map_err(|e| MachineError::file(&cache, e))?;
    let path = cache.join("lock");
    let lock = File::create(&path).map_err(|e| MachineError::file(&path, e))?;
    lock.lock().map_err(|e| MachineError::file(&path, e))?;

    let parts = Parts { kernel: cache.join("kernel"), tools: cache.join("tools") };
    if parts.complete() {
        return Ok(parts);
    }
    remove_halves(&cache)?;
    // The lists of packages may be old or not there, and only root may renew them. So there is a second try with own ones.
    if parts.fetch(&Apt { lists: None }, &cache, progress).is_err() {
        progress("fetching the lists of packages");
        let lists = half(&cache)?;
        let apt = Apt { lists: Some(lists.path().to_owned()) };
        apt.update()?;
        parts.fetch(&apt, &cache, progress)?;
    }
    Ok(parts)
}

impl Parts {
    fn complete(&self) -> bool {
        self.has_kernel() && self.has_tools()
    }

    fn has_kernel(&self) -> bool {
        fs::read_to_string(self.kernel.join("wanted")).is_ok_and(|wanted| wanted == modules::wanted())
    }

    fn has_tools(&self) -> bool {
        self.tools.is_dir()
            && TOOLS.iter().all(|(_, file)| is_below(Path::new("/"), file) || is_below(&self.tools, file))
    }

    fn fetch(&self, apt: &Apt, cache: &Path, progress: &dyn Fn(&str)) -> Result<(), MachineError> {
        if !self.has_kernel() {
            fetch_kernel(apt, cache, &self.kernel, progress)?;
        }
        if !self.has_tools() {
            fetch_tools(apt, cache, &self.tools, progress)?;
        }
        Ok(())
    }
}

/// Whether a tree has a file, which is a program if it is named without its folder.
fn is_below(root: &Path, file: &str) -> bool {
    match file.contains('/') {
        true => root.join(file).exists(),
        false => PROGRAMS.iter().any(|folder| root.join(folder).join(file).exists()),
    }
}

/// The folder of the cache, one for each release, since programs and libraries belong together.
fn cache() -> Result<PathBuf, MachineError> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches =
        set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).ok_or(MachineError::NoCache)?;
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = system.lines().find_map(|line| line.strip_prefix("VERSION_ID=")).unwrap_or("unknown");
    Ok(caches.join("gleaner").join(format!("machine-{}", release.trim_matches('"'))))
}

/// Takes the kernel, its modules and busybox out of their packages.
fn fetch_kernel(apt: &Apt, cache: &Path, place: &Path, progress: &dyn Fn(&str)) -> Result<(), MachineError> {
    let depends = apt.run("apt-cache", &["depends", KERNEL], cache)?;
    let newest = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let newest = newest.ok_or_else(|| MachineError::NoKernel(KERNEL.into()))?;
    let (half, unpacked) = (half(cache)?, half(cache)?);
    let packages = [format!("linux-image-{newest}"), BUSYBOX.to_owned()];
    apt.unpack(&packages, unpacked.path(), progress)?;

    let read = |path: &Path| fs::read(path).map_err(|e| MachineError::file(path, e));
    let write = |name: &str, content: &[u8]| {
        let path = half.path().join(name);
        fs::write(&path, content).map_err(|e| MachineError::file(&path, e))
    };
    let vmlinuz = read(&unpacked.path().join(format!("boot/vmlinuz-{newest}")))?;
    write("linux", &kernel::unpacked(&vmlinuz, half.path())?.unwrap_or(vmlinuz))?;
    // Where it is depends on the release.
    let [old, new] = ["bin/busybox", "usr/bin/busybox"].map(|name| unpacked.path().join(name));
    write("busybox", &read(if old.exists() { &old } else { &new })?)?;

    let folder = half.path().join("modules");
    fs::create_dir(&folder).map_err(|e| MachineError::file(&folder, e))?;
    let mut order = String::new();
    for (name, content) in modules::in_order(unpacked.path())? {
        write(&format!("modules/{name}"), &content)?;
        order.push_str(&format!("{name}\n"));
    }
    write("modules/order", order.as_bytes())?;
    write("wanted", modules::wanted().as_bytes())?;
    complete(half, place)
}

/// Unpacks the programs that this machine lacks, and what these need and it lacks, too.
fn fetch_tools(apt: &Apt, cache: &Path, place: &Path, progress: &dyn Fn(&str)) -> Result<(), MachineError> {
    let wanted = TOOLS.iter().map(|(package, _)| *package);
    let simulation: Vec<&str> =
        ["install", "--simulate", "--no-install-recommends"].into_iter().chain(wanted).collect();
    let steps = apt.run("apt-get", &simulation, cache)?;
    let lacking: Vec<String> = steps
        .lines()
        .filter_map(|line| Some(line.strip_prefix("Inst ")?.split(' ').next()?.to_owned()))
        .collect();
    let half = half(cache)?;
    for name in MERGED {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            let link = half.path().join(name);
            let target = target.strip_prefix("/").unwrap_or(&target);
            fs::create_dir_all(half.path().join(target))
                .and_then(|()| std::os::unix::fs::symlink(target, &link))
                .map_err(|e| MachineError::file(&link, e))?;
        }
    }
    if !lacking.is_empty() {
        apt.unpack(&lacking, half.path(), progress)?;
    }
    complete(half, place)
}

/// A folder in the cache that is removed unless it becomes complete.
fn half(cache: &Path) -> Result<TempDir, MachineError> {
    tempfile::Builder::new().prefix(HALF).tempdir_in(cache).map_err(|e| MachineError::file(cache, e))
}

/// Gives a folder its name now that all of it is there. An older one of that name goes.
fn complete(half: TempDir, place: &Path) -> Result<(), MachineError> {
    if place.exists() {
        fs::remove_dir_all(place).map_err(|e| MachineError::file(place, e))?;
    }
    fs::rename(half.keep(), place).map_err(|e| MachineError::file(place, e))
}

/// Removes what an interrupted run left.
fn remove_halves(cache: &Path) -> Result<(), MachineError> {
    let system = |e| MachineError::file(cache, e);
    for entry in fs::read_dir(cache).map_err(system)? {
        let entry = entry.map_err(system)?;
        if entry.file_name().to_string_lossy().starts_with(HALF) {
            fs::remove_dir_all(entry.path()).map_err(system)?;
        }
    }
    Ok(())
}

/// Debian's package tools, with the system's lists of packages or with own ones.
struct Apt {
    lists: Option<PathBuf>,
}

impl Apt {
    /// Runs a program of apt in a folder and gives what it prints.
    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String, MachineError> {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").current_dir(folder).args(arguments);
        if let Some(lists) = &self.lists {
            for (option, value) in
                [("Dir::State::lists", lists.join("lists")), ("Dir::Cache", lists.join("cache"))]
            {
                command.arg("-o").arg(format!("{option}={}", value.display()));
            }
        }
        output(&mut command).map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Renews its own lists.
    fn update(&self) -> Result<(), MachineError> {
        let Some(lists) = &self.lists else { return Ok(()) };
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = lists.join(folder);
            fs::create_dir_all(&folder).map_err(|e| MachineError::file(&folder, e))?;
        }
        self.run("apt-get", &["update"], lists).map(drop)
    }

    /// Fetches packages, which apt checks against the signed lists, and unpacks them into a folder.
    fn unpack(&self, packages: &[String], place: &Path, progress: &dyn Fn(&str)) -> Result<(), MachineError> {
        let folder = tempfile::tempdir_in(place).map_err(|e| MachineError::file(place, e))?;
        progress(&format!("fetching {}", packages.join(", ")));
        let names = packages.iter().map(String::as_str);
        let arguments: Vec<&str> = ["download"].into_iter().chain(names).collect();
        self.run("apt-get", &arguments, folder.path())?;
        progress(&format!("unpacking {}", packages.join(", ")));
        let system = |e| MachineError::file(folder.path(), e);
        for entry in fs::read_dir(folder.path()).map_err(system)? {
            unpack(&entry.map_err(system)?.path(), place)?;
        }
        Ok(())
    }
}

/// Unpacks one package. By tar, since `dpkg-deb -x` replaces links to folders by folders.
fn unpack(package: &Path, place: &Path) -> Result<(), MachineError> {
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| MachineError::Program("dpkg-deb".into(), e))?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(place);
    tar.stdin(reader.stdout.take().map_or(Stdio::null(), Stdio::from));
    let unpacked = output(&mut tar);
    let read = reader.wait().map_err(|e| MachineError::Program("dpkg-deb".into(), e))?;
    unpacked?;
    match read.success() {
        true => Ok(()),
        false => Err(MachineError::Failed {
            command: format!("dpkg-deb {}", package.display()),
            said: read.to_string(),
        }),
    }
}

/// What a program prints; an error with its last words if it fails.
pub(super) fn output(command: &mut Command) -> Result<Vec<u8>, MachineError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| MachineError::Program(name.clone(), e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("W:")).collect();
    let said = said[said.len().saturating_sub(5)..].join("\n");
    let first = command.get_args().next().unwrap_or_default().to_string_lossy().into_owned();
    Err(MachineError::Failed { command: format!("{name} {first}"), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs no package server: one file of a package is missing from the tree, then all are there.
    #[test]
    fn tools_are_found_here_or_in_the_tree() {
        let place = tempfile::tempdir().unwrap();
        let parts = Parts { kernel: place.path().join("kernel"), tools: place.path().join("tools") };
        assert!(!parts.has_tools());
        for (_, file) in TOOLS {
            let path =
                parts.tools.join(if file.contains('/') { (*file).into() } else { format!("usr/bin/{file}") });
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
        }
        assert!(parts.has_tools());
        assert!(!parts.complete());
        fs::create_dir(&parts.kernel).unwrap();
        fs::write(parts.kernel.join("wanted"), "veth").unwrap();
        assert!(!parts.complete(), "it was fetched for less");
        fs::write(parts.kernel.join("wanted"), modules::wanted()).unwrap();
        assert!(parts.complete());
    }

    #[test]
    fn halves_are_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("half-abc/deep")).unwrap();
        fs::create_dir(place.path().join("kernel")).unwrap();
        remove_halves(place.path()).unwrap();
        assert!(place.path().join("kernel").is_dir());
        assert!(!place.path().join("half-abc").exists());
    }

    #[test]
    fn a_failure_tells_the_last_words() {
        let error =
            output(Command::new("sh").args(["-c", "echo 'W: noise' >&2; echo 'E: full' >&2; exit 3"]));
        let sentence = error.unwrap_err().to_string();
        assert!(sentence.contains("E: full") && !sentence.contains("noise"), "{sentence}");
    }
}
