//! Accumulating and selecting on a device, beside its bare memory: `cargo bench -p gleaner-cuda --bench device`.
//!
//! A step adds a gradient of n entries to the residual and selects the exact top 1%, with the threshold that the step before
//! predicts. It reads the gradient and the residual and writes the residual: 12 n bytes, whose rate is compared with that of a copy on
//! the device in the same run. Times are by the device's events; the device is busy with something else while a step is put into its
//! stream, as it is in a backward pass. Medians.
//!
//! Options: `--n ENTRIES,ENTRIES` (14728266, 100000000 and 1000000000 as far as they fit), `--steps STEPS` (20, after 8 that do not
//! count), `--kernels` (each kernel by itself), `--peers FILE` (lines of JSON by benches/peers.py and benches/cub.cu, to be compared
//! with), `--json` (a line of JSON instead of the table), `--device NUMBER`, `--emulation LIBRARY` (the kernels compiled for the CPU,
//! to try this program).

mod report;
mod workload;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use gleaner_algorithms::device::Device;
use gleaner_cuda::{Cuda, Emulation, Offload};

use report::{Kernel, Row, peers};
use workload::Workload;

/// The parameters of VGG-16 for CIFAR, as elsewhere; and what larger models have.
const SIZES: [usize; 3] = [14_728_266, 100_000_000, 1_000_000_000];

/// Steps before the first that counts: residuals reach their usual size, and buffers have been used once.
const WARM_UP: usize = 8;

/// Of what else is repeated, the first that do not count.
const UNCOUNTED: usize = 2;

/// Steps that are compared with the host's.
const COMPARED: usize = 3;

/// Entries up to which they are.
const COMPARABLE: usize = 20_000_000;

/// Launches of next to nothing, for their floor.
const LAUNCHES: u32 = 1000;

struct Options {
    arguments: Vec<String>,
}

impl Options {
    fn has(&self, name: &str) -> bool {
        self.arguments.iter().any(|argument| argument == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let place = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(place + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: usize) -> usize {
        self.value(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options { arguments: std::env::args().collect() };
    let opened = match options.value("--emulation") {
        // SAFETY: it is what the user says it is.
        Some(library) => Cuda::emulated(unsafe { Emulation::load(Path::new(library))? }.memory(8 << 30))?,
        None => match Cuda::open(options.number("--device", 0) as u32) {
            Ok(device) => device,
            Err(error) => {
                println!("SKIPPED: {error}");
                return Ok(());
            }
        },
    };
    let sizes = match options.value("--n") {
        Some(sizes) => sizes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?,
        None => SIZES.to_vec(),
    };
    let floor = opened.launch_time(LAUNCHES)?;
    let mut rows = Vec::new();
    for n in sizes {
        match measure(&opened, n, &options) {
            Ok(row) => rows.push(row),
            Err(error) => eprintln!("{n} entries: {error}"),
        }
    }
    let peers = options.value("--peers").map(peers).transpose()?.unwrap_or_default();
    match options.has("--json") {
        true => println!("{}", report::json(&opened.name(), floor, &rows, &peers)),
        false => print!("{}", report::table(&opened.name(), floor, &rows, &peers)),
    }
    Ok(())
}

fn measure(device: &Cuda, n: usize, options: &Options) -> Result<Row, Box<dyn Error>> {
    let steps = options.number("--steps", 20).max(1);
    let k = n.div_ceil(100);
    let busy = !options.has("--emulation");
    let equal = match n <= COMPARABLE {
        true => Some(Workload::new(device, n, k, false)?.equals_the_host(COMPARED)?),
        false => None,
    };
    let mut work = Workload::new(device, n, k, busy)?;
    let repeat =
        |what: &mut dyn FnMut() -> Result<Duration, Box<dyn Error>>| -> Result<Duration, Box<dyn Error>> {
            Ok(median((0..steps + UNCOUNTED).map(|_| what()).skip(UNCOUNTED).collect::<Result<_, _>>()?))
        };
    let copy = repeat(&mut || Ok(work.copy()?))?;
    let (mut device_times, mut commits, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut predicted, mut entries) = (0, Default::default());
    for number in 0..WARM_UP + steps {
        let step = work.step()?;
        if number >= WARM_UP {
            predicted += usize::from(step.predicted);
            device_times.push(step.device);
            commits.push(step.commit);
        }
        entries = step.entries;
    }
    for _ in 0..steps {
        let step = work.step_from_idle()?;
        waits.push(step.host);
    }
    let kernels = kernels(device, &mut work, steps)?;
    let search = repeat(&mut || Ok(work.search()?))?;
    let accumulate = repeat(&mut || Ok(work.accumulate()?))?;
    let encoded = repeat(&mut || work.encode())?;
    let mut merges = Vec::new();
    let decoded = repeat(&mut || {
        let (decoded, merged) = work.on_the_host(&entries)?;
        merges.push(merged);
        Ok(decoded)
    })?;
    let added = work.merge(&entries)?;
    let bag = 8 * k;
    let mut bare_in = Vec::new();
    let bag_in = repeat(&mut || {
        let (whole, bare) = work.bag_in(&entries)?;
        bare_in.push(bare);
        Ok(whole)
    })?;
    let bare_out = repeat(&mut || Ok(work.bare_out(bag)?))?;
    Ok(Row {
        n,
        k,
        copy,
        copied: work.copied(),
        accumulate,
        step: median(device_times),
        predicted: (predicted, steps),
        commit: median(commits),
        from_idle: median(waits),
        search,
        bag_out: kernels
            .iter()
            .find(|kernel| kernel.name.contains("selection to the host"))
            .map(|kernel| kernel.each),
        bare_out,
        encoded,
        encoded_chosen: work.measured(Offload::EncodeChosen, k),
        encoded_given: work.measured(Offload::Encode, k),
        decoded,
        merged: median(merges.split_off(UNCOUNTED)),
        added,
        bag_in,
        bare_in: median(bare_in),
        kernels: if options.has("--kernels") { kernels } else { Vec::new() },
        equal,
    })
}

/// What each kernel and each copy of a step takes by itself.
fn kernels(device: &Cuda, work: &mut Workload, steps: usize) -> Result<Vec<Kernel>, Box<dyn Error>> {
    let mut kernels: Vec<(String, usize, Vec<Duration>)> = Vec::new();
    for _ in 0..steps {
        device.start_trace();
        work.step()?;
        for (name, took) in device.end_trace()? {
            match kernels.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, _, times)) => times.push(took),
                None => kernels.push((name, 0, vec![took])),
            }
        }
    }
    let summed = |(name, _, times): (String, usize, Vec<Duration>)| {
        let count = times.len().div_ceil(steps);
        Kernel { name, count, each: median(times) }
    };
    Ok(kernels.into_iter().map(summed).collect())
}

fn median(times: Vec<Duration>) -> Duration {
    Duration::from_secs_f64(gleaner_statistics::median(times.iter().map(Duration::as_secs_f64)))
}
