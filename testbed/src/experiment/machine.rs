//! Where an experiment runs, and from which sources.

use std::fs;
use std::process::Command;

use crate::record::Machine;

/// This machine, as the kernel tells of it.
pub fn here() -> Machine {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name));
        line.map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let kibibytes =
        field("/proc/meminfo", "MemTotal").split(' ').next().and_then(|number| number.parse::<u64>().ok());
    let setting =
        |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned();
    Machine {
        processor: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory: kibibytes.unwrap_or(0) * 1024,
        kernel: setting("kernel/osrelease"),
        congestion: setting("net/ipv4/tcp_congestion_control"),
    }
}

/// The commit of the checkout around the current directory, with `-dirty` behind it where files differ; none outside one.
pub fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let differs = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if differs { commit + "-dirty" } else { commit })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_memory_processors_and_a_kernel() {
        let here = super::here();
        assert!(here.memory > 1 << 20 && here.cores > 0, "{here:?}");
        assert!(!here.kernel.is_empty() && !here.congestion.is_empty(), "{here:?}");
    }
}
