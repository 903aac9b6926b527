//! The kernel modules that the machine needs, in the order in which they can be inserted.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::MachineError;

/// What is inserted; what these depend on is found in the modules themselves.
const WANTED: &[&str] = &[
    // Files and output.
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    // Wires to other machines.
    "virtio_net",
    // Networks: links, and what shapes them.
    "veth",
    "bridge",
    "dummy",
    "ifb",
    "tun",
    "sch_netem",
    "sch_tbf",
    "sch_htb",
    "sch_ingress",
    "cls_u32",
    "cls_matchall",
    "act_mirred",
    "act_police",
    // Soft-RoCE. It asks for the checksum by name when it starts, so no dependency tells of it.
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
];

/// What a kernel was fetched for: one that was fetched for something else is fetched anew.
pub(super) fn wanted() -> String {
    WANTED.join("\n")
}

/// Newer kernels have it built in, without a name of its own.
const MAY_BE_MISSING: &str = "crc32_generic";

/// The modules of an unpacked kernel package that the machine needs, each after what it depends on: name and content.
pub(super) fn in_order(package: &Path) -> Result<Vec<(String, Vec<u8>)>, MachineError> {
    let mut files = HashMap::new();
    let mut built_in = Vec::new();
    collect(package, &mut files, &mut built_in)?;
    let mut order = Order { files, built_in, done: Vec::new() };
    for name in WANTED {
        order.insert(name)?;
    }
    Ok(order.done)
}

struct Order {
    files: HashMap<String, PathBuf>,
    built_in: Vec<String>,
    done: Vec<(String, Vec<u8>)>,
}

impl Order {
    /// Puts a module behind all that it depends on. Modules do not depend on each other in circles.
    fn insert(&mut self, name: &str) -> Result<(), MachineError> {
        if self.built_in.iter().any(|other| other == name) || self.done.iter().any(|(other, _)| other == name)
        {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            return if name == MAY_BE_MISSING { Ok(()) } else { Err(MachineError::Module(name.into())) };
        };
        let content = content(path)?;
        for dependency in dependencies(&content) {
            self.insert(&dependency)?;
        }
        self.done.push((name.into(), content));
        Ok(())
    }
}

/// All modules below a folder by name, and the names of those that are built in.
fn collect(
    folder: &Path,
    files: &mut HashMap<String, PathBuf>,
    built_in: &mut Vec<String>,
) -> Result<(), MachineError> {
    let system = |e| MachineError::file(folder, e);
    for entry in fs::read_dir(folder).map_err(system)? {
        let entry = entry.map_err(system)?;
        let path = entry.path();
        if entry.file_type().map_err(system)?.is_dir() {
            collect(&path, files, built_in)?;
        } else if let Some(name) = path.file_name().and_then(module_name) {
            files.insert(name, path);
        } else if path.ends_with("modules.builtin") {
            let list = fs::read_to_string(&path).map_err(|e| MachineError::file(&path, e))?;
            built_in.extend(list.lines().filter_map(|line| module_name(Path::new(line).file_name()?)));
        }
    }
    Ok(())
}

/// The name of a module by its file, which may be compressed; hyphens and underscores are the same.
fn module_name(file: &OsStr) -> Option<String> {
    let (name, ending) = file.to_str()?.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"].contains(&ending).then(|| name.replace('-', "_"))
}

/// A file as the kernel takes it: unpacked if its name says that it is packed, as modules are since Debian 13.
pub(super) fn content(path: &Path) -> Result<Vec<u8>, MachineError> {
    let program = match path.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(|e| MachineError::file(path, e)),
    };
    super::packages::output(Command::new(program).arg("-dc").arg(path))
}

/// The modules that a module needs, as it says itself: `depends=a,b` among the texts of its section `.modinfo`.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    let list = module.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(KEY)).unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(modules: &[(&str, &str)], built_in: &str) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let kernel = place.path().join("lib/modules/6/kernel");
        fs::create_dir_all(&kernel).unwrap();
        for (name, depends) in modules {
            let content = format!("\x7fELF\0license=GPL\0depends={depends}\0retpoline=Y\0name={name}\0");
            fs::write(kernel.join(format!("{name}.ko")), content).unwrap();
        }
        fs::write(place.path().join("lib/modules/6/modules.builtin"), built_in).unwrap();
        place
    }

    #[test]
    fn each_comes_after_what_it_needs_and_once() {
        let mut modules: Vec<(&str, &str)> = WANTED.iter().map(|name| (*name, "")).collect();
        modules.retain(|(name, _)| !["9p", "9pnet_virtio", "sch_tbf", "crc32_generic"].contains(name));
        modules.extend([
            ("9p", "9pnet,fs-cache"),
            ("9pnet_virtio", "9pnet"),
            ("9pnet", ""),
            ("fs-cache", "netfs"),
        ]);
        modules.extend([("netfs", ""), ("unneeded", "")]);
        let place = package(&modules, "kernel/net/sched/sch_tbf.ko\n");
        let order: Vec<String> = in_order(place.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        let position = |name: &str| order.iter().position(|other| other == name).unwrap();
        for (before, after) in
            [("9pnet", "9p"), ("fs_cache", "9p"), ("netfs", "fs_cache"), ("9pnet", "9pnet_virtio")]
        {
            assert!(position(before) < position(after), "{order:?}");
        }
        let mut once = order.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), order.len());
        // Two are not there: one is built in, one may be missing. Three joined as dependencies.
        assert_eq!(order.len(), WANTED.len() - 2 + 3, "{order:?}");
    }

    #[test]
    fn a_missing_one_is_named() {
        let modules: Vec<(&str, &str)> =
            WANTED.iter().filter(|name| **name != "sch_netem").map(|name| (*name, "")).collect();
        let place = package(&modules, "");
        let sentence = in_order(place.path()).unwrap_err().to_string();
        assert!(sentence.contains("sch_netem"), "{sentence}");
    }
}
