//! An accumulator in a device's memory.
//!
//! What writes the values is in one stream and what selects from them in two others, in turns that events make, so that nothing here waits but
//! where something comes to the host. What a selection needs beside the values is allocated before, and used by one selection at a time.

mod blocks;
mod collected;
mod entries;
mod gradient;
mod merge;
mod output;
mod rice;
mod search;
mod selection;
mod turns;

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gleaner_algorithms::bag::wire::Encoded;
use gleaner_algorithms::bag::{Entries, Rounded};
use gleaner_algorithms::device::{DeviceError, DeviceValues, Format, Given, Largest};
use gleaner_algorithms::residual::NonFinite;

use crate::context::Context;
use crate::journal::Operation;
use crate::kernels::{self, THREADS, arguments};
use crate::memory::{Growing, Memory};
use crate::staging::PIECE_BYTES;
use crate::streams::Readers;
use blocks::{Block, Blocks, asked};
use collected::limit;
use merge::MergeBuffers;
use output::Output;
use rice::RiceBuffers;
use selection::{Selection, Source, Written};
use turns::Turns;

/// Values on a device, and what was collected of them.
#[derive(Debug)]
pub(crate) struct CudaValues {
    context: Arc<Context>,
    memory: Memory,
    len: usize,
    turns: Turns,
    state: Mutex<State>,
    /// For bags that are merged.
    merging: Mutex<Growing<MergeBuffers>>,
    /// For indices that are encoded.
    encoding: Mutex<Growing<RiceBuffers>>,
}

/// All that is not the values.
#[derive(Debug)]
struct State {
    blocks: Blocks,
    /// For selections that were not foreseen.
    spare: Growing<Output>,
    /// Whether the step's gradient is complete: what comes next begins another step.
    complete: bool,
}

impl State {
    /// Cuts into blocks, with all that they need: memory that is missing is missed before a step begins. The context is entered.
    fn cut(
        &mut self,
        context: &Arc<Context>,
        blocks: &[Range<usize>],
        quotas: &[Option<u32>],
    ) -> Result<(), DeviceError> {
        (self.complete, self.spare) = (false, Growing::new());
        self.blocks.cut(blocks)?;
        // For a selection without a prediction, and where nothing is collected.
        let asked = blocks.iter().zip(quotas).map(|(block, quota)| asked(block.len(), *quota));
        if let Some(most) = asked.max().filter(|most| *most > 0) {
            Output::with_room(&mut self.spare, context, most)?;
        }
        self.blocks.collect(quotas)
    }
}

impl CudaValues {
    /// This many zeros, in one block.
    pub(crate) fn zeros(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let zeros = Self::new(context, len, (std::iter::once(0..len).collect(), vec![None]))?;
        let _entered = context.enter()?;
        zeros.turns.write(|| zeros.fill(0..len))?;
        Ok(zeros)
    }

    /// This many values, anything, in these blocks.
    fn new(
        context: &Arc<Context>,
        len: usize,
        (blocks, quotas): (Vec<Range<usize>>, Vec<Option<u32>>),
    ) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let memory = Memory::new(context, len * size_of::<f32>(), "a residual")?;
        // Copies have a buffer from now on.
        drop(context.stage(context.streams().writes, &[])?);
        let turns = Turns::new(context)?;
        let state = turns.write(|| {
            let (uncut, spare) = (Blocks::new(context, len)?, Growing::new());
            let mut state = State { blocks: uncut, spare, complete: false };
            state.cut(context, &blocks, &quotas).map(|()| state)
        })?;
        Ok(Self {
            context: Arc::clone(context),
            memory,
            len,
            turns,
            state: Mutex::new(state),
            merging: Mutex::new(Growing::new()),
            encoding: Mutex::new(Growing::new()),
        })
    }

    /// Where the value at a position is.
    fn at(&self, position: usize) -> u64 {
        self.memory.address() + (position * size_of::<f32>()) as u64
    }

    /// Makes values zero, in the stream of writes.
    fn fill(&self, range: Range<usize>) -> Result<(), DeviceError> {
        if range.is_empty() {
            return Ok(());
        }
        let (context, bytes) = (&self.context, range.len() * size_of::<f32>());
        let writes = context.streams().writes;
        context.put(Operation::Copy("making values zero"), writes, || {
            // SAFETY: it is within the memory, which is freed only when nothing is under way.
            unsafe { context.backend().fill(self.at(range.start), 0, bytes, writes) }
        })
    }

    /// Puts what the host asks for into the stream for that.
    fn ask<R>(&self, work: impl FnOnce() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
        self.turns.select(self.context.streams().asked.selections, work)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a lock, as there is no other thread.
    fn state(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a block begins, after its values were changed otherwise than by a gradient.
    fn changed(&mut self, block: usize) -> Range<usize> {
        let state = self.state();
        state.blocks.invalidate(Some(block));
        state.blocks.blocks[block].range.clone()
    }

    /// Another accumulator of the same device and length.
    fn alike<'a>(&self, other: &'a dyn DeviceValues<f32>) -> Result<&'a Self, DeviceError> {
        let alike = other.as_any().downcast_ref::<Self>();
        alike.filter(|other| Arc::ptr_eq(&other.context, &self.context) && other.len == self.len).ok_or_else(
            || {
                let found = alike.map_or_else(
                    || "another device's".to_owned(),
                    |o| format!("{} on {:?}", o.len, o.context),
                );
                DeviceError::Other(format!(
                    "expected {} values on {:?}, found {found}",
                    self.len, self.context
                ))
            },
        )
    }
}

impl DeviceValues<f32> for CudaValues {
    fn len(&self) -> usize {
        self.len
    }

    fn duplicate(&self) -> Result<Box<dyn DeviceValues<f32>>, DeviceError> {
        let shape = self.locked().blocks.shape();
        let mut same = Self::new(&self.context, self.len, shape)?;
        same.copy_from(self)?;
        Ok(Box::new(same))
    }

    fn copy_from(&mut self, other: &dyn DeviceValues<f32>) -> Result<(), DeviceError> {
        let other = self.alike(other)?;
        self.state().blocks.invalidate(None);
        if self.len > 0 { self.turns.write(|| self.memory.copy(0, &other.memory)) } else { Ok(()) }
    }

    fn cut(&mut self, blocks: &[Range<usize>], quotas: &[Option<u32>]) -> Result<(), DeviceError> {
        assert!(blocks.iter().all(|block| block.end <= self.len), "blocks of the values");
        let context = Arc::clone(&self.context);
        let _entered = context.enter()?;
        if self.state().blocks.shape() == (blocks.to_vec(), quotas.to_vec()) {
            // The memory is there.
            let mut state = self.locked();
            state.complete = false;
            return self.turns.write(|| state.blocks.clear());
        }
        self.encoding = Mutex::new(Growing::new());
        let mut state = self.locked();
        self.turns.write(|| state.cut(&context, blocks, quotas))
    }

    fn accumulate(
        &mut self,
        offset: usize,
        part: Given<'_>,
        replaces: bool,
        thresholds: &[Option<f32>],
    ) -> Result<(), DeviceError> {
        let (context, state) = (&self.context, &mut *self.locked());
        let _entered = context.enter()?;
        assert_eq!(thresholds.len(), state.blocks.blocks.len(), "one threshold for each block");
        assert!(offset + part.len() <= self.len, "a part of the values");
        self.turns.write(|| {
            if std::mem::take(&mut state.complete) {
                state.blocks.clear()?;
            }
            match part {
                Given::Device(slice) => context.in_order_of(&slice, "the gradient", || {
                    let given = (slice.address, slice.len, slice.format);
                    self.add_gradient(state, offset, given, replaces, thresholds)
                }),
                Given::Host(gradient) => {
                    let most = PIECE_BYTES / size_of::<f32>();
                    for (number, part) in gradient.chunks(most).enumerate() {
                        // Memory can be missing for the first alone: all of the gradient is added, or nothing.
                        let staged =
                            context.stage(context.streams().writes, &[bytemuck::cast_slice(part)])?;
                        staged.upload()?;
                        let given = (staged.part(0), part.len(), Format::Float32);
                        self.add_gradient(state, offset + number * most, given, replaces, thresholds)?;
                    }
                    Ok(())
                }
            }
        })
    }

    fn begin(&mut self) -> Result<(), DeviceError> {
        let (context, state) = (&self.context, &mut *self.locked());
        let _entered = context.enter()?;
        if state.complete {
            // A step without a gradient.
            self.turns.write(|| state.blocks.clear())?;
        }
        let Readers { selections, downloads } = context.streams().ahead;
        self.turns.before_downloads(downloads)?;
        state.blocks.send_status(downloads)?;
        state.complete = true;
        let blocks = &mut state.blocks;
        self.turns.select(selections, || {
            for number in 0..blocks.blocks.len() {
                let Block { collected, candidates, .. } = &mut blocks.blocks[number];
                let (Some(candidates), Some(calls)) = (candidates, collected.calls()) else { continue };
                candidates.set_calls(context, calls)?;
                candidates.begun = true;
                let block = &blocks.blocks[number];
                let (Some(candidates), k) = (&block.candidates, block.asked()) else { continue };
                let output = &candidates.output;
                // What the step before has sent must have left.
                output.before_selections()?;
                let source = Source::Found(block, candidates, number);
                let selection = Selection { context, blocks, source, stream: selections };
                selection.find_cut(output.cut(), k)?;
                selection.count(output.cut())?;
                let into = Written { indices: output.indices(), values: output.values(k), most: k };
                selection.emit(output.cut(), into)?;
                output.send(k)?;
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<Option<NonFinite>, DeviceError> {
        let _entered = self.context.enter()?;
        let state = self.locked();
        if !state.complete {
            let downloads = self.context.streams().asked.downloads;
            self.turns.before_downloads(downloads)?;
            state.blocks.send_status(downloads)?;
        }
        let (entry, count) = state.blocks.receive_status()?;
        Ok((count > 0).then_some(NonFinite { entry: entry as usize, count: count as usize }))
    }

    fn largest(&self, block: usize, k: usize) -> Result<Largest<f32>, DeviceError> {
        let _entered = self.context.enter()?;
        let mut state = self.locked();
        let k = k.min(state.blocks.blocks[block].range.len());
        if k == 0 {
            return Ok(Largest::default());
        }
        let chosen = self.chosen(&state, block, k)?;
        if let Some(candidates) = &mut state.blocks.blocks[block].candidates {
            candidates.chosen = chosen.as_ref().map(|chosen| chosen.entries.len());
        }
        match chosen {
            Some(largest) => Ok(largest),
            None => self.ask(|| self.search(&mut state, block, k)),
        }
    }

    fn encode(
        &self,
        block: usize,
        entries: &Entries<f32>,
        rounded: Rounded,
        chosen: bool,
    ) -> Result<Option<Encoded>, DeviceError> {
        self.encoded(block, entries, rounded, chosen)
    }

    fn merge(
        &self,
        held: &Entries<f32>,
        beneath: Option<usize>,
        came: &Encoded,
    ) -> Result<Option<Entries<f32>>, DeviceError> {
        self.merged(held, beneath, came)
    }

    fn reaching(
        &self,
        block: usize,
        threshold: f32,
        most: usize,
    ) -> Result<Option<Entries<f32>>, DeviceError> {
        let _entered = self.context.enter()?;
        let state = &mut *self.locked();
        let (context, limit) = (&*self.context, limit(threshold));
        if state.blocks.blocks[block].range.is_empty() {
            return Ok(Some(Entries::default()));
        }
        let found = self.found(state, block, limit)?;
        let blocks = &state.blocks;
        let searched = &blocks.blocks[block];
        let source = match &searched.candidates {
            Some(candidates) if found => Source::Found(searched, candidates, block),
            _ => Source::All(searched, self.at(searched.range.start)),
        };
        let selection = Selection { context, blocks, source, stream: context.streams().asked.selections };
        self.ask(|| {
            let output = Output::with_room(&mut state.spare, &self.context, 0)?;
            selection.fix_cut(output.cut(), limit)?;
            selection.count(output.cut())?;
            output.send(0)?;
            let kept = output.receive()?.kept as usize;
            if kept > most {
                return Ok(None);
            }
            // It may be another one than before, with more room.
            let output = Output::with_room(&mut state.spare, &self.context, kept)?;
            selection.fix_cut(output.cut(), limit)?;
            let into = Written { indices: output.indices(), values: output.values(kept), most: kept };
            selection.emit(output.cut(), into)?;
            output.send(kept)?;
            output.receive()?;
            Ok(Some(output.entries(kept, kept)))
        })
    }

    fn gather(&self, block: usize, indices: &[u32]) -> Result<Vec<f32>, DeviceError> {
        let _entered = self.context.enter()?;
        let range = self.locked().blocks.blocks[block].range.clone();
        self.ask(|| self.values_at(&range, indices))
    }

    fn read(&self, range: Range<usize>) -> Result<Vec<f32>, DeviceError> {
        assert!(range.end <= self.len, "a part of the values");
        let _entered = self.context.enter()?;
        let mut values = Vec::with_capacity(range.len());
        self.turns.before_downloads(self.context.streams().asked.downloads)?;
        let take = |part: &[u8]| values.extend_from_slice(bytemuck::cast_slice(part));
        // SAFETY: it is within the memory, which is freed only when nothing is under way.
        unsafe { self.context.read(self.at(range.start), range.len() * size_of::<f32>(), take)? };
        Ok(values)
    }

    fn write(&mut self, offset: usize, values: &[f32]) -> Result<(), DeviceError> {
        assert!(offset + values.len() <= self.len, "a part of the values");
        let context = Arc::clone(&self.context);
        let _entered = context.enter()?;
        self.state().blocks.invalidate(None);
        let writes = context.streams().writes;
        // SAFETY: as above.
        self.turns.write(|| unsafe { context.write(self.at(offset), bytemuck::cast_slice(values), writes) })
    }

    fn clear(&mut self, block: usize) -> Result<(), DeviceError> {
        let range = self.changed(block);
        let _entered = self.context.enter()?;
        self.turns.write(|| self.fill(range))
    }

    fn clear_at(&mut self, block: usize, indices: &[u32]) -> Result<(), DeviceError> {
        let range = self.changed(block);
        let _entered = self.context.enter()?;
        self.turns.write(|| self.change_at(kernels::CLEAR_AT, &range, indices, None))
    }

    fn clear_chosen(&mut self, block: usize, count: usize) -> Result<bool, DeviceError> {
        let candidates = self.state().blocks.blocks[block].candidates.as_ref();
        let chosen = candidates.filter(|candidates| count > 0 && candidates.chosen == Some(count));
        let Some(indices) = chosen.map(|candidates| candidates.output.indices()) else { return Ok(false) };
        let range = self.changed(block);
        let _entered = self.context.enter()?;
        let (context, given) = (&self.context, arguments![self.at(range.start), indices, count as u32]);
        let (writes, grid) = (context.streams().writes, (context.grid_of_entries(count), THREADS));
        // SAFETY: this many indices of the block are there, and all is freed only when nothing is under way.
        self.turns.write(|| unsafe { context.launch(writes, kernels::CLEAR_AT, grid, given) })?;
        Ok(true)
    }

    fn set(&mut self, block: usize, entries: &Entries<f32>) -> Result<(), DeviceError> {
        let range = self.changed(block);
        let _entered = self.context.enter()?;
        self.turns.write(|| self.change_at(kernels::SET_AT, &range, &entries.indices, Some(&entries.values)))
    }

    fn add(&mut self, block: usize, entries: &Entries<f32>) -> Result<(), DeviceError> {
        let range = self.changed(block);
        let _entered = self.context.enter()?;
        self.turns.write(|| self.change_at(kernels::ADD_AT, &range, &entries.indices, Some(&entries.values)))
    }

    fn add_all(&mut self, other: &dyn DeviceValues<f32>) -> Result<(), DeviceError> {
        let other = self.alike(other)?;
        self.state().blocks.invalidate(None);
        if self.len == 0 {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        let (grid, given) =
            (context.grid_of_entries(self.len), arguments![self.at(0), other.at(0), self.len as u64]);
        let writes = context.streams().writes;
        // SAFETY: both are as long, and are freed only when nothing is under way.
        self.turns.write(|| unsafe { context.launch(writes, kernels::ADD_ALL, (grid, THREADS), given) })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
