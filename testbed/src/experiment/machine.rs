//! Where an experiment runs, and from which sources.

use std::fs;
use std::process::Command;

use crate::record::Machine;

/// This machine, as the kernel describes it.
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

/// What the processors have done so far, in units that are the same for both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processors {
    busy: u64,
    all: u64,
}

impl Processors {
    /// Since this machine was started; nothing where the kernel does not say.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // What guests use is counted as what users do, too.
        let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, waiting, ref others @ ..] = times[..] else { return Self::default() };
        let busy = user + nice + system + others.iter().sum::<u64>();
        Self { busy, all: busy + idle + waiting }
    }

    /// The share of all processors' time in which they were busy since an earlier look; none if no time has passed.
    pub fn busy_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.busy.saturating_sub(before.busy) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Processors;

    /// One of them at least is busy while this spins, for thirty of the kernel's ticks on each of them.
    #[test]
    fn processors_are_as_busy_as_they_are_kept() {
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let (before, began) = (Processors::now(), Instant::now());
        while Processors::now().all < before.all + 30 * cores as u64 {
            assert!(began.elapsed() < Duration::from_secs(60), "the kernel counts no ticks");
        }
        let busy = Processors::now().busy_since(before).unwrap();
        assert!((0.5 / cores..=1.0).contains(&busy), "{busy} of {cores}");
        assert_eq!(before.busy_since(before), None);
    }

    #[test]
    fn this_machine_has_memory_processors_and_a_kernel() {
        let here = super::here();
        assert!(here.memory > 1 << 20 && here.cores > 0, "{here:?}");
        assert!(!here.kernel.is_empty() && !here.congestion.is_empty(), "{here:?}");
    }
}
