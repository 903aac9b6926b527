//! What belongs to the program: its memory, its streams and events, which are checked before they are used and kept in order with ours.

use gleaner_algorithms::device::{DeviceError, DeviceSlice, Order};

use crate::backend::{Belongs, Event, Failure, Place, Stream};
use crate::context::Context;

impl Context {
    /// Does something with memory of the program in the stream of writes, which waits for what the program has said; what the program
    /// puts into its stream afterwards waits for ours. The context is entered.
    pub(crate) fn in_order_of(
        &self,
        slice: &DeviceSlice,
        what: &str,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let writes = self.streams().writes;
        match slice.order {
            Order::Stream(stream) => {
                let stream = Stream(stream);
                self.check_stream(stream, what)?;
                self.check_memory(slice, what)?;
                // SAFETY: the stream was checked, and the program keeps it until the call is over.
                unsafe { self.order(stream, writes)? };
                let done = work();
                // Also if not all was started: what was, reads or writes there.
                // SAFETY: as above.
                unsafe { self.order(writes, stream)? };
                done
            }
            Order::Event(event) => {
                let event = Event(event);
                self.check_event(event, what)?;
                self.check_memory(slice, what)?;
                // SAFETY: the event was checked, and the program keeps it until the call is over.
                unsafe { self.put_behind(writes, event)? };
                work()
            }
        }
    }

    /// An event that is being captured would make ours a part of the graph.
    fn check_event(&self, event: Event, what: &str) -> Result<(), DeviceError> {
        let found = match (event.0, self.backend().was_recorded(event)) {
            (0, _) => "none".to_owned(),
            (_, Ok(true)) => return Ok(()),
            (_, Ok(false)) => "one of a CUDA graph that is recorded, whose work is not done now: hand it over outside of the capture".to_owned(),
            (_, Err(failure)) => format!("one of which the driver says {}", failure.said),
        };
        Err(self.refusal(format!(
            "expected for {what} an event that was recorded and is not destroyed, found {found} (event {:#x}, for {})",
            event.0,
            self.name()
        )))
    }

    /// The answer to whose something is.
    fn asked<T>(&self, whose: &str, answer: Result<T, Failure>) -> Result<T, DeviceError> {
        answer.map_err(|failure| {
            self.refusal(format!("{}: asking whose {whose} is failed: {}", self.name(), failure.said))
        })
    }

    fn check_memory(&self, slice: &DeviceSlice, what: &str) -> Result<(), DeviceError> {
        let width = slice.format.width() as u64;
        if slice.len == 0 {
            return Ok(());
        }
        if !slice.address.is_multiple_of(width) {
            return Err(DeviceError::Refused(format!(
                "expected {what} at a multiple of {width} bytes, found the address {:#x}",
                slice.address
            )));
        }
        // Memory may be put together of pieces, so that the end need not be in the piece that the start is in.
        let last = slice.address.checked_add(slice.len as u64 * width - 1);
        for address in [Some(slice.address), last] {
            let place = match address {
                Some(address) => self.asked("an address", self.backend().place(address))?,
                None => Place::Unknown,
            };
            let found = match place {
                Place::Ours => continue,
                Place::OtherDevice(other) => format!("it on CUDA device {other}"),
                Place::OtherContext => "it in another context of the same device: allocate it in the primary context, as \
                                        frameworks do"
                    .to_owned(),
                Place::Host => "it in the host's memory: hand it over as the host's".to_owned(),
                Place::Unknown => "memory there that the driver does not know: it was freed, is shorter, or never was a device's"
                    .to_owned(),
            };
            return Err(DeviceError::Refused(format!(
                "expected {what} in the memory of {}, {} values from {:#x} on; found {found}",
                self.name(),
                slice.len,
                slice.address
            )));
        }
        Ok(())
    }

    fn check_stream(&self, stream: Stream, what: &str) -> Result<(), DeviceError> {
        let found = match self.asked("a stream", self.backend().belongs(stream))? {
            Belongs::Ours => return Ok(()),
            Belongs::Capturing => "one that records a CUDA graph, whose work is not done now: hand it over outside of the capture".to_owned(),
            Belongs::OtherContext => "one of another context on the same device: make it in the primary context, as frameworks do".to_owned(),
            Belongs::OtherDevice(other) => format!("one of CUDA device {other}"),
        };
        Err(DeviceError::Refused(format!(
            "expected for {what} a stream of {}, found {found} (stream {:#x})",
            self.name(),
            stream.0
        )))
    }
}
