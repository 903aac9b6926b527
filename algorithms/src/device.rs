//! Values in the memory of a device, such as a GPU, on which gradients are computed.
//!
//! The traits say what a [`Residual`](crate::residual::Residual) and an execution ask of a device. They name no driver and no
//! stream of ours: a crate for a kind of device implements them, and whatever a device chooses, it chooses as the host would,
//! bit by bit.

use std::fmt::Debug;
use std::ops::Range;

use crate::Element;
use crate::bag::wire::Encoded;
use crate::bag::{Entries, Rounded};
use crate::residual::NonFinite;

/// From so many entries on a device is asked to encode, decode and merge. With 33,000 it took less time to encode than the host on an H100
/// (cargo bench -p gleaner-cuda --bench device); with fewer it was not measured.
pub const WORTHWHILE: usize = 1 << 15;

/// What a device could not do, in a sentence that names the operation.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Memory was missing, and how much. Values are as they were before the call, which may be repeated once there is more.
    #[error("{0}")]
    Memory(String),
    /// Memory, a stream or an event of the caller's that is not the device's, or cannot be used now. Nothing was done, and the call may be repeated
    /// with others.
    #[error("{0}")]
    Refused(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

crate::sentence::debug_as_sentence!(DeviceError);

/// How values lie in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Floats of 32 bits.
    Float32,
    /// IEEE 754 floats of 16 bits.
    Float16,
    /// The upper halves of floats of 32 bits.
    BFloat16,
}

impl Format {
    /// Bytes of one value.
    pub fn width(self) -> usize {
        match self {
            Format::Float32 => 4,
            Format::Float16 | Format::BFloat16 => 2,
        }
    }
}

/// When the program's values may be read or written, as the device's driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of this stream: after what was put into it before, and before what is put into it afterwards. 0 is the default
    /// stream.
    Stream(u64),
    /// After this event, which was recorded before. Nothing of the program's waits for what is done with the values.
    Event(u64),
}

/// Consecutive values in a device's memory that belong to the program: a gradient, or parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The address of the first.
    pub address: u64,
    /// How many there are.
    pub len: usize,
    /// What they are.
    pub format: Format,
    /// When they may be used.
    pub order: Order,
}

/// A part of a gradient.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a, T: Element = f32> {
    /// In main memory.
    Host(&'a [T]),
    /// In the device's memory. What the program enqueues in its stream afterwards may overwrite it; after an event, nothing may before
    /// [`check`](DeviceValues::check) has waited.
    Device(DeviceSlice),
}

impl<'a, T: Element> From<&'a [T]> for Given<'a, T> {
    fn from(values: &'a [T]) -> Self {
        Given::Host(values)
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Given<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        Given::Host(values)
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Given<'a, T> {
    fn from(values: &'a [T; N]) -> Self {
        Given::Host(values)
    }
}

impl<T: Element> From<DeviceSlice> for Given<'_, T> {
    fn from(values: DeviceSlice) -> Self {
        Given::Device(values)
    }
}

impl<T: Element> Given<'_, T> {
    /// How many values.
    pub fn len(&self) -> usize {
        match self {
            Given::Host(values) => values.len(),
            Given::Device(slice) => slice.len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The largest entries of a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Largest<T: Element = f32> {
    /// They, indexed in the block, indices ascending.
    pub entries: Entries<T>,
    /// The smallest magnitude among them, 0 if there are none.
    pub smallest: T,
    /// A magnitude that they were searched from, and how many non-zero entries of the block reach it.
    pub threshold: T,
    /// See `threshold`.
    pub reached: usize,
}

/// What is done with an update where parameters or gradients lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Apply {
    /// `into = 0`, and at each entry `value / divisor`.
    Write {
        /// By what each value is divided.
        divisor: u32,
    },
    /// `into += scale · value`, where there is an entry.
    Add {
        /// The factor.
        scale: f32,
    },
}

/// A device whose memory residuals can lie in.
pub trait Device<T: Element = f32>: Debug + Send + Sync {
    /// Its name for people, with its number.
    fn name(&self) -> String;

    /// This many zeros, in one block.
    ///
    /// # Errors
    /// Not enough memory, with how much was missing.
    fn zeros(&self, len: usize) -> Result<Box<dyn DeviceValues<T>>, DeviceError>;

    /// Applies sparse entries to the program's values: indices count from `into`'s first value and ascend. In the order of a stream the
    /// call returns before it is done; after an event, it waits until the values are there.
    ///
    /// # Errors
    /// Memory of another device, an index beyond the slice, or what has failed on the device before.
    fn apply(&self, into: &DeviceSlice, entries: &Entries<T>, how: Apply) -> Result<(), DeviceError>;

    /// The same with a value for every entry.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    fn apply_dense(&self, into: &DeviceSlice, values: &[T], how: Apply) -> Result<(), DeviceError>;
}

/// An accumulator in a device's memory, cut into blocks, with what was collected on the way of each. All indices below are
/// relative to the block, but for `offset` and the positions of [`NonFinite`].
pub trait DeviceValues<T: Element>: Debug + Send + Sync {
    /// How many values.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same values in memory of their own, with the same blocks and nothing collected.
    ///
    /// # Errors
    /// Not enough memory.
    fn duplicate(&self) -> Result<Box<dyn DeviceValues<T>>, DeviceError>;

    /// Takes over the values of another accumulator of the same device and length.
    ///
    /// # Errors
    /// What has failed on the device, or values of another device.
    fn copy_from(&mut self, other: &dyn DeviceValues<T>) -> Result<(), DeviceError>;

    /// Cuts the values into blocks, and forgets what was collected. `quotas` says how many entries will be asked for of each by
    /// [`largest`](Self::largest), if that is known.
    ///
    /// # Errors
    /// Not enough memory for as many entries: the values are in these blocks then, and nothing is collected of them.
    fn cut(&mut self, blocks: &[Range<usize>], quotas: &[Option<u32>]) -> Result<(), DeviceError>;

    /// Adds a part of a gradient from position `offset` on, or writes it there if the values are known to be zero (`replaces`),
    /// and collects in the same pass the non-zero sums that reach their block's threshold, if it has one. Returns before it is
    /// done, and waits on the device for no selection from other values.
    ///
    /// # Errors
    /// Memory or a stream of another device, or what has failed on the device before.
    fn accumulate(
        &mut self,
        offset: usize,
        part: Given<'_, T>,
        replaces: bool,
        thresholds: &[Option<T>],
    ) -> Result<(), DeviceError>;

    /// The gradient is complete: a device may begin to choose what the quotas say. Returns before it is done.
    ///
    /// # Errors
    /// What has failed on the device.
    fn begin(&mut self) -> Result<(), DeviceError>;

    /// Waits for what was accumulated since the last step began, and says which sums were not finite.
    ///
    /// # Errors
    /// What has failed on the device.
    fn check(&self) -> Result<Option<NonFinite>, DeviceError>;

    /// The k non-zero entries of largest magnitude of a block, the lower index first among equal magnitudes; fewer if there are
    /// not so many. The same as on the host, whatever was collected.
    ///
    /// # Errors
    /// What has failed on the device.
    fn largest(&self, block: usize, k: usize) -> Result<Largest<T>, DeviceError>;

    /// How entries of a block travel, in the bytes that [`Encoded::of`] gives. `chosen` says that they are what [`largest`](Self::largest) has chosen
    /// for this step, or a part of it: the indices of all of it are encoded where they are, if the device knows them still, and others are copied to
    /// it first. None where they are few, where the host is no slower, where another form than Rice's may be smaller, and where memory is missing:
    /// then the host does it.
    ///
    /// # Errors
    /// What has failed on the device.
    fn encode(
        &self,
        block: usize,
        entries: &Entries<T>,
        rounded: Rounded,
        chosen: bool,
    ) -> Result<Option<Encoded>, DeviceError>;

    /// The sum of entries that are held and of a bag that came, as [`Entries::merge`] gives it; with nothing held, the entries of the bag. With a
    /// block `beneath`, what is held is laid over its values, and the sum is that of [`Entries::merge_over`]. None where the host is no slower,
    /// where the bag is malformed or of another form than a [device reads](Encoded::rice), and where memory is missing: then the host does it.
    ///
    /// # Errors
    /// What has failed on the device.
    fn merge(
        &self,
        held: &Entries<T>,
        beneath: Option<usize>,
        came: &Encoded,
    ) -> Result<Option<Entries<T>>, DeviceError>;

    /// The non-zero entries of a block that reach a threshold, indices ascending; None if they are more than `most`.
    ///
    /// # Errors
    /// What has failed on the device.
    fn reaching(&self, block: usize, threshold: T, most: usize) -> Result<Option<Entries<T>>, DeviceError>;

    /// The values at some indices of a block, in the order given.
    ///
    /// # Errors
    /// What has failed on the device.
    fn gather(&self, block: usize, indices: &[u32]) -> Result<Vec<T>, DeviceError>;

    /// Copies values to the host, from position `range.start` of all.
    ///
    /// # Errors
    /// What has failed on the device.
    fn read(&self, range: Range<usize>) -> Result<Vec<T>, DeviceError>;

    /// Writes values from position `offset` of all.
    ///
    /// # Errors
    /// What has failed on the device.
    fn write(&mut self, offset: usize, values: &[T]) -> Result<(), DeviceError>;

    /// Makes a block zero.
    ///
    /// # Errors
    /// What has failed on the device.
    fn clear(&mut self, block: usize) -> Result<(), DeviceError>;

    /// Makes a block zero at some indices, each given once.
    ///
    /// # Errors
    /// What has failed on the device.
    fn clear_at(&mut self, block: usize, indices: &[u32]) -> Result<(), DeviceError>;

    /// Makes a block zero at the entries that [`largest`](Self::largest) has chosen for this step, if they are so many and the device
    /// knows them still: no index crosses over. Says whether it did.
    ///
    /// # Errors
    /// What has failed on the device.
    fn clear_chosen(&mut self, block: usize, count: usize) -> Result<bool, DeviceError>;

    /// Writes entries of a block, each index once.
    ///
    /// # Errors
    /// What has failed on the device.
    fn set(&mut self, block: usize, entries: &Entries<T>) -> Result<(), DeviceError>;

    /// Adds entries to a block, each index once.
    ///
    /// # Errors
    /// What has failed on the device.
    fn add(&mut self, block: usize, entries: &Entries<T>) -> Result<(), DeviceError>;

    /// Adds all values of another accumulator of the same device and length.
    ///
    /// # Errors
    /// What has failed on the device, or values of another device.
    fn add_all(&mut self, other: &dyn DeviceValues<T>) -> Result<(), DeviceError>;

    /// What it is besides, for those that take another accumulator.
    fn as_any(&self) -> &dyn std::any::Any;
}
