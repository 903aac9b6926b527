//! A queue pair with its completion queue, and the wait for completions.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::device::Device;
use super::error::VerbsError;
use super::memory::Domain;
use super::offer::Offer;
use super::sys::*;
use super::{RECEIVES, SENDS};

/// Completions that are taken at once.
const BATCH: usize = 16;

/// Retries before a send fails. Seven is the most that the header knows, but Soft-RoCE takes that for retries without an end.
const RETRIES: u8 = 6;

/// For a receive that is not posted yet, which credit rules out: without an end, since a peer that is stopped is noticed by
/// its silence, and 0.64 ms apart.
const WITHOUT_END: u8 = 7;
const NOT_READY_TIMER: u8 = 12;

/// See the module.
pub(super) struct Queue {
    /// Where the channel reports completions.
    readiness: AsyncFd<OwnedFd>,
    objects: Objects,
    /// Whether the next completion makes the channel ready.
    is_armed: bool,
}

/// The library's objects, none while they are being made.
struct Objects {
    channel: *mut CompChannel,
    cq: *mut Cq,
    qp: *mut Qp,
    domain: Arc<Domain>,
}

// SAFETY: functions of libibverbs may be called from any thread, and one owner has all of these.
unsafe impl Send for Objects {}

impl Drop for Objects {
    fn drop(&mut self) {
        let functions = self.domain.device.functions;
        // SAFETY: each was made by the library and is destroyed once, after what uses it. All events were acknowledged.
        unsafe {
            if !self.qp.is_null() {
                (functions.ibv_destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (functions.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (functions.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}

impl Queue {
    /// A queue pair that takes receives and is not connected yet. Within a tokio runtime.
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        let device = &domain.device;
        let refused = |what| VerbsError::Refused { what, source: io::Error::last_os_error() };
        let mut objects = Objects {
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            domain: Arc::clone(domain),
        };
        let context = device.context.as_ptr();
        // SAFETY: the context is open.
        objects.channel = unsafe { (device.functions.ibv_create_comp_channel)(context) };
        if objects.channel.is_null() {
            return Err(refused("a completion channel"));
        }
        let entries = (SENDS + RECEIVES) as c_int;
        // SAFETY: context and channel are there; each completion has room, as each work request has one.
        objects.cq = unsafe {
            (device.functions.ibv_create_cq)(context, entries, ptr::null_mut(), objects.channel, 0)
        };
        if objects.cq.is_null() {
            return Err(refused("a completion queue"));
        }
        let mut attributes = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: objects.cq,
            recv_cq: objects.cq,
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: SENDS as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are there, and the attributes have the layout of the header.
        objects.qp = unsafe { (device.functions.ibv_create_qp)(domain.pd.as_ptr(), &raw mut attributes) };
        if objects.qp.is_null() {
            return Err(refused("a queue pair"));
        }
        // SAFETY: the channel was made by the library, whose struct begins so.
        let descriptor = unsafe { (*objects.channel).fd };
        // SAFETY: it is open, as the channel is.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let watched = |source| VerbsError::Refused { what: "to be waited for", source };
        // Another descriptor of the same channel, which may be open for longer.
        let own = borrowed.try_clone_to_owned().map_err(watched)?;
        rustix::io::ioctl_fionbio(&own, true).map_err(|error| watched(error.into()))?;
        // SAFETY: the descriptor is owned, and is closed once it is no longer waited for.
        let readiness = unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) };
        let readiness = readiness.map_err(|error| watched(error.into()))?;
        let queue = Self { readiness, objects, is_armed: false };
        queue.modify(
            QpAttr {
                qp_state: QPS_INIT,
                port_num: device.port.number,
                pkey_index: device.class.partition,
                qp_access_flags: (ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE) as u32,
                ..QpAttr::default()
            },
            QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS,
        )?;
        Ok(queue)
    }

    /// The number by which the peer reaches it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair was made by the library, whose struct begins so.
        unsafe { (*self.objects.qp).qp_num }
    }

    /// The largest packet that both ports carry, as the header numbers it.
    fn path_mtu(&self, theirs: &Offer) -> u32 {
        self.objects.domain.device.port.mtu.min(theirs.port.mtu)
    }

    /// The same in bytes.
    pub(super) fn mtu(&self, theirs: &Offer) -> usize {
        128 << self.path_mtu(theirs)
    }

    /// Connects it with the peer's. From then on it receives, and may send.
    pub(super) fn connect(&self, ours: &Offer, theirs: &Offer, timeout: Duration) -> Result<(), VerbsError> {
        let Device { port, class, .. } = &*self.objects.domain.device;
        let is_routed = ours.port.is_ethernet || ours.port.gid[..8] != theirs.port.gid[..8];
        let ah_attr = AhAttr {
            grh: GlobalRoute {
                dgid: Gid(theirs.port.gid),
                sgid_index: port.gid_index as u8,
                hop_limit: 64,
                traffic_class: class.traffic_class,
                ..GlobalRoute::default()
            },
            dlid: theirs.port.lid,
            sl: class.service_level,
            is_global: is_routed.into(),
            port_num: port.number,
            ..AhAttr::default()
        };
        self.modify(
            QpAttr {
                qp_state: QPS_RTR,
                path_mtu: self.path_mtu(theirs),
                dest_qp_num: theirs.number,
                rq_psn: theirs.psn,
                min_rnr_timer: NOT_READY_TIMER,
                ah_attr,
                ..QpAttr::default()
            },
            QP_STATE
                | QP_AV
                | QP_PATH_MTU
                | QP_DEST_QPN
                | QP_RQ_PSN
                | QP_MAX_DEST_RD_ATOMIC
                | QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            QpAttr {
                qp_state: QPS_RTS,
                sq_psn: ours.psn,
                timeout: exponent(timeout),
                retry_cnt: RETRIES,
                rnr_retry: WITHOUT_END,
                ..QpAttr::default()
            },
            QP_STATE | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Ends it: nothing more is sent or received, and what is under way is completed with an error.
    pub(super) fn stop(&self) {
        // One that is in error already stays so.
        let _ = self.modify(QpAttr { qp_state: QPS_ERR, ..QpAttr::default() }, QP_STATE);
    }

    fn modify(&self, mut attributes: QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let functions = self.objects.domain.device.functions;
        // SAFETY: the queue pair is there, and the attributes have the layout of the header.
        let refused = unsafe { (functions.ibv_modify_qp)(self.objects.qp, &raw mut attributes, mask) };
        match refused {
            0 => Ok(()),
            code => Err(VerbsError::Refused {
                what: "to connect a queue pair",
                source: io::Error::from_raw_os_error(code.abs()),
            }),
        }
    }

    /// Has what the request names sent.
    ///
    /// # Safety
    /// What it names is registered in the queue's domain, and stays where it is and as it is until the request is completed
    /// without an error, or the queue is dropped.
    pub(super) unsafe fn send(&self, mut request: SendWr, pieces: &mut [Sge]) -> io::Result<()> {
        request.sg_list = pieces.as_mut_ptr();
        request.num_sge = pieces.len() as c_int;
        let (qp, mut bad) = (self.objects.qp, ptr::null_mut());
        // SAFETY: the queue pair is there, and so is its driver's function; request and list are copied by the call.
        let code = unsafe {
            let Some(post) = (*(*qp).context).ops.post_send else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            post(qp, &raw mut request, &raw mut bad)
        };
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.abs())) }
    }

    /// Has a message received there. Its completion has this number.
    ///
    /// # Safety
    /// The place is registered in the queue's domain for the adapter to write, and nothing else uses it until the request is
    /// completed, or the queue is dropped.
    pub(super) unsafe fn receive(&self, number: usize, mut place: Sge) -> io::Result<()> {
        let mut request =
            RecvWr { wr_id: number as u64, next: ptr::null_mut(), sg_list: &raw mut place, num_sge: 1 };
        let (qp, mut bad) = (self.objects.qp, ptr::null_mut());
        // SAFETY: as above.
        let code = unsafe {
            let Some(post) = (*(*qp).context).ops.post_recv else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            post(qp, &raw mut request, &raw mut bad)
        };
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.abs())) }
    }

    /// Takes completions that are there, and says how many.
    pub(super) fn take(&self, completions: &mut [Wc; BATCH]) -> io::Result<usize> {
        let cq = self.objects.cq;
        // SAFETY: the completion queue is there, and so is its driver's function; there is room for so many.
        let taken = unsafe {
            let Some(poll) = (*(*cq).context).ops.poll_cq else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            poll(cq, BATCH as c_int, completions.as_mut_ptr())
        };
        usize::try_from(taken).map_err(|_| io::Error::other("the completion queue is broken"))
    }

    /// Room for them.
    pub(super) fn completions() -> [Wc; BATCH] {
        [Wc::default(); BATCH]
    }

    /// Ready when there may be completions again: they are to be taken before this is polled.
    pub(super) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_armed {
            let cq = self.objects.cq;
            // SAFETY: as above.
            let code = unsafe {
                let Some(arm) = (*(*cq).context).ops.req_notify_cq else {
                    return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
                };
                arm(cq, 0)
            };
            if code != 0 {
                return Poll::Ready(Err(io::Error::from_raw_os_error(code.abs())));
            }
            self.is_armed = true;
            // What was completed before that is not reported.
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut guard = std::task::ready!(self.readiness.poll_read_ready(context))?;
            if self.objects.take_events() {
                self.is_armed = false;
                return Poll::Ready(Ok(()));
            }
            guard.clear_ready();
        }
    }

    /// What a status means, in the library's words.
    pub(super) fn status(&self, status: u32) -> String {
        // SAFETY: the text is static, and ends with a zero.
        let text =
            unsafe { CStr::from_ptr((self.objects.domain.device.functions.ibv_wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

impl Objects {
    /// Takes the events of the channel. Says whether there was any.
    fn take_events(&self) -> bool {
        let functions = self.domain.device.functions;
        let mut events = 0;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is there and does not block; it writes to both, and has events of the one completion queue alone.
        while unsafe { (functions.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) } == 0 {
            events += 1;
        }
        if let Some(cq) = NonNull::new(self.cq).filter(|_| events > 0) {
            // SAFETY: so many were taken.
            unsafe { (functions.ibv_ack_cq_events)(cq.as_ptr(), events) };
        }
        events > 0
    }
}

/// The time that a send waits for its acknowledgement, as the header has it: 4.096 µs · 2^n. With all retries it takes about half of the
/// timeout until the peer counts as unreachable.
fn exponent(timeout: Duration) -> u8 {
    let each = timeout.as_secs_f64() / 2.0 / f64::from(RETRIES + 1);
    (each / 4.096e-6).log2().clamp(12.0, 22.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_retries_take_about_half_of_the_time_out() {
        for seconds in [2, 30, 60] {
            let each = 4.096e-6 * f64::from(1u32 << exponent(Duration::from_secs(seconds)));
            let all = each * f64::from(RETRIES + 1);
            assert!(all <= seconds as f64 / 2.0 && all > seconds as f64 / 4.1, "{all} s of {seconds} s");
        }
        assert_eq!(exponent(Duration::from_millis(1)), 12, "never so short that an adapter is too slow");
    }
}
