//! Gradients on a device and a residual that they are added to, step by step, as a session does it.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use gleaner_algorithms::bag::wire::{Body, Decoder, Expected, Part, encode};
use gleaner_algorithms::bag::{Entries, Rounded};
use gleaner_algorithms::device::{Device, DeviceError, DeviceSlice, DeviceValues, Format, Given, Order};
use gleaner_algorithms::select::{self, predict_threshold, top_k_dense};
use gleaner_cuda::{Cuda, Memory, Moment, Offload, OffloadTimes};
use gleaner_statistics::random::Generator;

/// Random numbers that are made on the host: gradients repeat them from other places on.
const RANDOM: usize = 1 << 25;

/// Steps read gradients from different places, which are multiples of this many entries: vectors stay aligned.
const SHIFT: usize = 1 << 10;
const SHIFTS: usize = 1 << 10;

/// What is copied before each measurement, so that the device is still busy while all that is measured is put into its stream, as it
/// is during a backward pass; and so that its caches hold nothing of the gradient.
const BUSY: usize = 256 << 20;

/// Gradients by turns, and a residual.
pub struct Workload<'a> {
    device: &'a Cuda,
    pub n: usize,
    pub k: usize,
    gradients: Vec<Memory>,
    busy: Option<[Memory; 2]>,
    pub values: Box<dyn DeviceValues<f32>>,
    threshold: Option<f32>,
    step: usize,
}

/// What a step took.
pub struct Step {
    /// On the device, to the end of the selection, with everything in the stream before it begins.
    pub device: Duration,
    /// On the device, to make what was selected zero.
    pub commit: Duration,
    /// On the host, until the entries are there, from an idle device on.
    pub host: Duration,
    /// Whether the threshold of the step before served.
    pub predicted: bool,
    pub entries: Entries<f32>,
}

impl<'a> Workload<'a> {
    /// The residual of n entries in one block, of which k are selected in a step.
    pub fn new(device: &'a Cuda, n: usize, k: usize, busy: bool) -> Result<Self, DeviceError> {
        let random = random();
        let len = n + SHIFT * SHIFTS;
        let gradients: Vec<Memory> =
            (0..gradients(n)).map(|g| gradient(device, &random, len, g)).collect::<Result<_, _>>()?;
        let mut values = device.zeros(n)?;
        values.cut(std::slice::from_ref(&(0..n)), &[Some(k as u32)])?;
        let busy = if busy { Some([device.memory(BUSY)?, device.memory(BUSY)?]) } else { None };
        Ok(Self { device, n, k, gradients, busy, values, threshold: None, step: 0 })
    }

    /// Where a step's gradient is.
    fn place(&self, step: usize) -> (usize, usize) {
        (step % self.gradients.len(), step.wrapping_mul(0x9e37_79b1) % SHIFTS * SHIFT)
    }

    /// A step's gradient.
    fn slice(&self, step: usize) -> DeviceSlice {
        let (gradient, start) = self.place(step);
        let address = self.gradients[gradient].address() + 4 * start as u64;
        DeviceSlice { address, len: self.n, format: Format::Float32, order: Order::Stream(0) }
    }

    /// A moment behind all kernels so far and before all others.
    fn now(&self) -> Result<Moment, DeviceError> {
        self.device.join_streams()?;
        self.device.now()
    }

    /// Gives the device something to do.
    fn keep_busy(&self) -> Result<(), DeviceError> {
        match &self.busy {
            Some([to, from]) => to.copy(0, from),
            None => Ok(()),
        }
    }

    /// A step from a busy device on.
    pub fn step(&mut self) -> Result<Step, DeviceError> {
        let thresholds = [self.threshold];
        let slice = self.slice(self.step);
        self.keep_busy()?;
        let start = self.now()?;
        let clock = Instant::now();
        self.values.accumulate(0, Given::Device(slice), self.step == 0, &thresholds)?;
        self.values.begin()?;
        let mut end = self.now()?;
        let largest = self.values.largest(0, self.k)?;
        let host = clock.elapsed();
        let predicted =
            self.threshold.is_some_and(|threshold| threshold.to_bits() == largest.threshold.to_bits());
        if !predicted {
            end = self.now()?;
        }
        self.threshold =
            Some(predict_threshold(largest.threshold, largest.reached, largest.smallest, self.k));
        self.step += 1;
        let committing = self.now()?;
        // As a commit does where all that was chosen was delivered.
        if !self.values.clear_chosen(0, largest.entries.len())? {
            self.values.clear_at(0, &largest.entries.indices)?;
        }
        let committed = self.now()?;
        Ok(Step {
            device: end.since(&start)?,
            commit: committed.since(&committing)?,
            host,
            predicted,
            entries: largest.entries,
        })
    }

    /// A step from an idle device on.
    pub fn step_from_idle(&mut self) -> Result<Step, DeviceError> {
        let busy = self.busy.take();
        let step = self.step();
        self.busy = busy;
        step
    }

    /// A gradient that is added, with nothing collected.
    pub fn accumulate(&mut self) -> Result<Duration, DeviceError> {
        let slice = self.slice(self.step);
        self.step += 1;
        self.timed(|values| values.accumulate(0, Given::Device(slice), false, &[None]))
    }

    /// A selection without a prediction.
    pub fn search(&mut self) -> Result<Duration, DeviceError> {
        let k = self.k;
        // Without candidates, as the values have changed.
        self.values.clear_at(0, &[])?;
        self.timed(|values| values.largest(0, k).map(drop))
    }

    /// On the host: the entries as they travel, decoded, and merged with as many others.
    pub fn on_the_host(&self, entries: &Entries<f32>) -> Result<(Duration, Duration), Box<dyn Error>> {
        let (len, count) = (self.n as u32, entries.len() as u32);
        let payloads =
            encode(&[Body::Sparse { entries: entries.clone(), len: self.n, rounded: Rounded::EXACT }]);
        let others = others(entries.len(), self.n);
        let clock = Instant::now();
        let mut decoder = Decoder::<f32>::new(vec![Expected::bag(len, count)]);
        for payload in payloads {
            decoder.feed(payload, |_, part| {
                black_box(part);
            })?;
        }
        let decoded = clock.elapsed();
        let clock = Instant::now();
        black_box(entries.merge(&others));
        Ok((decoded, clock.elapsed()))
    }

    /// The entries as they travel, decoded and added to as many others on both sides, as the device measures it to choose between them. None
    /// where they are few, or travel in another form.
    pub fn merge(&self, entries: &Entries<f32>) -> Result<Option<OffloadTimes>, Box<dyn Error>> {
        let (len, rounded, others) = (self.n, Rounded::EXACT, others(entries.len(), self.n));
        let expected = vec![Expected::bag(len as u32, entries.len() as u32)];
        let mut decoder = Decoder::<f32>::new(expected).with_encoded_from(0);
        let mut came = None;
        for payload in encode(&[Body::Sparse { entries: entries.clone(), len, rounded }]) {
            decoder.feed(payload, |_, part| {
                if let Part::Encoded { encoded, .. } = part {
                    came = Some(encoded);
                }
            })?;
        }
        let Some(came) = came else { return Ok(None) };
        let sums = others.merge(entries);
        for _ in 0..OffloadTimes::TRIALS {
            if self.values.merge(&others, None, &came)?.is_some_and(|found| found != sums) {
                return Err("the device merges otherwise than the host".into());
            }
        }
        Ok(self.measured(Offload::Add, others.len() + entries.len()))
    }

    /// What the device has measured of this, to choose between itself and the host.
    pub fn measured(&self, kind: Offload, entries: usize) -> Option<OffloadTimes> {
        let times = self.device.offload_times().into_iter().filter(|times| times.kind == kind);
        times.into_iter().find(|times| times.size == entries.max(1).ilog2())
    }

    fn timed(
        &mut self,
        what: impl FnOnce(&mut dyn DeviceValues<f32>) -> Result<(), DeviceError>,
    ) -> Result<Duration, DeviceError> {
        self.keep_busy()?;
        let start = self.now()?;
        what(&mut *self.values)?;
        self.now()?.since(&start)
    }

    /// A copy on the device of as many bytes as the residual has.
    pub fn copy(&self) -> Result<Duration, DeviceError> {
        let (to, from) = (&self.gradients[0], &self.gradients[1]);
        self.keep_busy()?;
        let start: Moment = self.now()?;
        to.copy(0, from)?;
        self.now()?.since(&start)
    }

    /// Bytes that `copy` reads and writes.
    pub fn copied(&self) -> usize {
        2 * self.gradients[1].len()
    }

    /// The entries as an update of values of the program, from an idle device on: until they are there, and how long the copies of them
    /// take by themselves.
    pub fn bag_in(&self, entries: &Entries<f32>) -> Result<(Duration, Duration), DeviceError> {
        let into = self.slice(0);
        let how = gleaner_algorithms::device::Apply::Add { scale: 0.0 };
        let start = self.now()?;
        self.device.apply(&into, entries, how)?;
        let whole = self.now()?.since(&start)?;
        self.device.start_trace();
        self.device.apply(&into, entries, how)?;
        Ok((whole, named(&self.device.end_trace()?, "a copy to the device")))
    }

    /// The entries of one more step as they travel: how long the host takes for it. The device encodes them, too, as what it has chosen and as what
    /// the host has, and [measures](Self::measured) both sides the first times.
    pub fn encode(&mut self) -> Result<Duration, Box<dyn Error>> {
        let slice = self.slice(self.step);
        self.step += 1;
        self.values.accumulate(0, Given::Device(slice), false, &[self.threshold])?;
        self.values.begin()?;
        let largest = self.values.largest(0, self.k)?;
        let (len, rounded, entries) = (self.n, Rounded::EXACT, largest.entries);
        self.threshold =
            Some(predict_threshold(largest.threshold, largest.reached, largest.smallest, self.k));
        let body = [Body::Sparse { entries: entries.clone(), len, rounded }];
        let clock = Instant::now();
        let expected = encode(&body);
        let by_host = clock.elapsed();
        for chosen in [true, false] {
            let bag = self.values.encode(0, &entries, rounded, chosen)?;
            if bag.is_some_and(|bag| encode(&[Body::<f32>::Encoded(bag)]) != expected) {
                return Err("the device encodes otherwise than the host".into());
            }
        }
        self.values.clear_at(0, &entries.indices)?;
        Ok(by_host)
    }

    /// How long the copy of this many bytes to the host takes, by itself.
    pub fn bare_out(&self, bytes: usize) -> Result<Duration, DeviceError> {
        self.device.start_trace();
        self.gradients[0].read(0..bytes)?;
        Ok(named(&self.device.end_trace()?, "a copy to the host"))
    }

    /// What is on the host after the same steps, compared bit by bit with what is on the device.
    pub fn equals_the_host(mut self, steps: usize) -> Result<bool, DeviceError> {
        let (mut host, mut equal) = (vec![0.0; self.n], true);
        for step in 0..steps {
            let (gradient, start) = self.place(self.step);
            let bytes = self.gradients[gradient].read(4 * start..4 * (start + self.n))?;
            let gradient: Vec<f32> =
                bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
            if step == 0 {
                host.copy_from_slice(&gradient);
            } else {
                let added =
                    select::accumulate(&mut host, &gradient, f32::INFINITY, 0, &mut Entries::default());
                equal &= added.is_ok();
            }
            let expected = top_k_dense(&host, self.k);
            let found = self.step()?.entries;
            let bits =
                |entries: &Entries<f32>| entries.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            equal &= found.indices == expected.indices && bits(&found) == bits(&expected);
            expected.indices.iter().for_each(|&index| host[index as usize] = 0.0);
        }
        let there = self.values.read(0..self.n)?;
        Ok(equal && there.iter().zip(&host).all(|(a, b)| a.to_bits() == b.to_bits()))
    }
}

/// So many entries of n at random places.
fn others(count: usize, n: usize) -> Entries<f32> {
    let mut random = Generator::seeded(2);
    let most = (2 * n / count.max(1)).saturating_sub(1).max(1) as u32;
    let mut next = 0;
    let entry = |_| {
        next += 1 + random.below(most);
        (next, random.normal())
    };
    (0..count).map(entry).take_while(|(index, _)| (*index as usize) < n).collect()
}

/// How many gradients there are by turns: as many as a cache does not hold, and two at least.
fn gradients(n: usize) -> usize {
    if n < 50_000_000 { 4 } else { 2 }
}

/// The cubes of nearly normal numbers.
fn random() -> Vec<f32> {
    let mut random = Generator::seeded(1);
    (0..RANDOM).map(|_| random.normal().powi(3)).collect()
}

/// Random numbers from another place on in each part of each gradient.
fn gradient(device: &Cuda, random: &[f32], len: usize, number: usize) -> Result<Memory, DeviceError> {
    let memory = device.memory(4 * len)?;
    let (mut at, mut part) = (0, 0_usize);
    while at < len {
        let start = (number * 1009 + part).wrapping_mul(0x9e37_79b1) % (RANDOM / 2);
        let count = (RANDOM / 2).min(len - at);
        let bytes = random[start..start + count].iter().flat_map(|value| value.to_le_bytes());
        memory.write(4 * at, &bytes.collect::<Vec<u8>>())?;
        (at, part) = (at + count, part + 1);
    }
    Ok(memory)
}

/// The time of all operations of a name.
pub fn named(trace: &[(String, Duration)], name: &str) -> Duration {
    trace.iter().filter(|(other, _)| other == name).map(|(_, took)| *took).sum()
}
