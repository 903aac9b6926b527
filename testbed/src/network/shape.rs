//! Arguments of `tc` for one direction of a link.

use std::time::Duration;

use super::Kernel;
use crate::topology::Shape;

/// The largest frame without jumbo: 1500 bytes and the Ethernet header.
const FRAME: f64 = 1514.0;

/// How long the queue before a full link may grow; a frame that would wait longer is dropped.
const QUEUE: Duration = Duration::from_millis(20);

/// The queue holds a few packets of the 64 KiB that TCP hands over at once, however slow the link is.
const LEAST_QUEUE: f64 = 131_072.0;

/// What may pass at once after a pause, as time at the link's rate. Shorter ones lose more of the rate to timers: at
/// 1 Gbit/s TCP carries 907 Mbit/s with 0.5 ms and 939 with 1 ms, of 956 that headers leave of it.
const BURST: Duration = Duration::from_millis(1);

/// The discipline of this shape, in tc's words; none where nothing holds a packet up.
///
/// A bare rate is a token bucket, whose queue is bounded in bytes. With delay, jitter or loss it is netem with the rate
/// inside: netem keeps packets in order then, as a cable does.
pub(super) fn discipline(shape: &Shape, kernel: &Kernel) -> Option<String> {
    if shape.delays_or_loses() || (shape.rate.is_some() && kernel.lacks("tbf").is_some()) {
        return Some(netem(shape));
    }
    shape.rate.map(|rate| bucket(rate.bytes_per_second()))
}

/// The most that TCP may hand over at once: 64 KiB, or what passes a bucket whole with a header for each frame in it. What is
/// longer than its bucket tbf cuts into frames, which takes so much of a processor that several hosts on one machine do not reach
/// their rates: a ring of five at 500 Mbit/s took longer than one at 300.
pub(super) fn at_once(shape: &Shape) -> u32 {
    let bucket = shape.rate.map_or(f64::INFINITY, |rate| burst(rate.bytes_per_second()));
    (0.9 * bucket).clamp(2.0 * FRAME, 65_536.0) as u32
}

/// What may pass at once after a pause, in bytes. A bucket of less than a frame would let none pass; two keep the link busy
/// between timers.
fn burst(rate: f64) -> f64 {
    (rate * BURST.as_secs_f64()).max(2.0 * FRAME)
}

/// The most that waits before a full link, in bytes.
pub(super) fn queue(rate: f64) -> f64 {
    (rate * QUEUE.as_secs_f64()).max(LEAST_QUEUE)
}

fn bucket(rate: f64) -> String {
    let burst = burst(rate);
    let limit = burst + queue(rate);
    format!("tbf rate {:.0}bit burst {burst:.0}b limit {limit:.0}b", 8.0 * rate)
}

fn netem(shape: &Shape) -> String {
    // Without a rate, netem lets a packet overtake another whose jitter is larger. This rate holds nothing up.
    let rate = shape.rate.map_or(1.25e11, |rate| rate.bytes_per_second());
    let held = shape.delay + shape.jitter + QUEUE;
    // Counted in packets, on their way and waiting; at least as many as netem allows by itself.
    let limit = (rate * held.as_secs_f64() / FRAME).clamp(1e3, 1e6);
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let (delay, jitter) = (micros(shape.delay), micros(shape.jitter));
    let mut words = format!("netem limit {limit:.0} delay {delay}us");
    if jitter > 0.0 {
        words += &format!(" {jitter}us");
    }
    if shape.loss.share() > 0.0 {
        words += &format!(" loss {:.8}%", 100.0 * shape.loss.share());
    }
    format!("{words} rate {:.0}bit", 8.0 * rate)
}
