//! When packets arrive that cross one direction of a link: each waits until those before it have left, leaves at the link's
//! rate, and is under way for the delay.

use std::time::Duration;

use gleaner_statistics::random::Generator;

use crate::network::shape;
use crate::topology::Shape;

/// See the module. Times count from the beginning.
#[derive(Debug)]
pub(super) struct Course {
    shape: Shape,
    random: Generator,
    /// When all that came has left.
    free: Duration,
    /// When the last of it arrives: none overtakes another.
    last: Duration,
}

impl Course {
    pub(super) fn new(random: Generator) -> Self {
        Self { shape: Shape::default(), random, free: Duration::ZERO, last: Duration::ZERO }
    }

    /// From now on the link is like that. What is on its way stays as it was.
    pub(super) fn change(&mut self, shape: Shape, now: Duration) {
        self.shape = shape;
        self.free = self.free.min(now);
    }

    pub(super) fn loses(&self) -> bool {
        self.shape.loss.share() > 0.0
    }

    pub(super) fn is_lost(&mut self) -> bool {
        self.random.unit() < self.shape.loss.share()
    }

    /// When a packet arrives that comes now and has so many bytes on the wire. None if the queue before the link is full.
    pub(super) fn admit(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let begins = self.free.max(now);
        let mut leaves = begins;
        if let Some(rate) = self.shape.rate {
            let rate = rate.bytes_per_second();
            let waiting = (begins - now).as_secs_f64() * rate;
            if waiting + bytes as f64 > shape::queue(rate) {
                return None;
            }
            leaves += Duration::from_secs_f64(bytes as f64 / rate);
        }
        self.free = leaves;
        let mut under_way = self.shape.delay;
        if !self.shape.jitter.is_zero() {
            under_way = (under_way + self.shape.jitter.mul_f64(2.0 * self.random.unit()))
                .saturating_sub(self.shape.jitter);
        }
        self.last = self.last.max(leaves + under_way);
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_units as units;

    const MILLI: Duration = Duration::from_millis(1);

    fn course(shape: Shape) -> Course {
        let mut course = Course::new(Generator::seeded(1));
        course.change(shape, Duration::ZERO);
        course
    }

    fn at(rate: &str) -> Shape {
        Shape { rate: Some(units::rate(rate).unwrap()), ..Shape::default() }
    }

    #[test]
    fn a_packet_leaves_at_the_rate_and_arrives_after_the_delay() {
        let mut link = course(Shape { delay: 10 * MILLI, ..at("8mbit") });
        // A thousand bytes take a millisecond.
        assert_eq!(link.admit(5 * MILLI, 1000), Some(16 * MILLI));
        assert_eq!(link.admit(5 * MILLI, 2000), Some(18 * MILLI));
        assert_eq!(link.admit(30 * MILLI, 1000), Some(41 * MILLI));
        assert_eq!(course(Shape::default()).admit(MILLI, 65_000), Some(MILLI), "without a shape");
    }

    /// A queue of 20 ms, and at least of 128 KiB; what does not fit is gone and takes no time.
    #[test]
    fn a_full_queue_takes_no_more() {
        for (rate, room) in [("1gbit", 2_500_000), ("8mbit", 131_072)] {
            let mut link = course(at(rate));
            let taken = (0..5000).filter(|_| link.admit(MILLI, 1000).is_some()).count();
            assert_eq!(taken, room / 1000, "{rate}");
            assert!(link.admit(2 * MILLI, 1000).is_some(), "{rate}: a millisecond later there is room");
        }
    }

    #[test]
    fn a_share_is_lost_the_same_for_the_same_seed() {
        let lost = |seed: u64, loss: &str| {
            let mut course = Course::new(Generator::seeded(seed));
            course.change(Shape { loss: loss.parse().unwrap(), ..Shape::default() }, Duration::ZERO);
            (0..100_000).map(|_| course.is_lost()).collect::<Vec<_>>()
        };
        let count = |lost: Vec<bool>| lost.into_iter().filter(|is_lost| *is_lost).count() as f64;
        for (loss, expected) in [("0.1%", 100.0), ("1%", 1000.0), ("50%", 50_000.0)] {
            assert_eq!(lost(7, loss), lost(7, loss));
            assert!(lost(7, loss) != lost(8, loss));
            // Five standard deviations.
            let off = (count(lost(7, loss)) - expected).abs();
            assert!(off < 5.0 * f64::sqrt(expected), "{loss}: {off} off");
        }
        assert_eq!(count(lost(7, "0")), 0.0);
    }

    #[test]
    fn jitter_keeps_within_its_bounds_and_lets_none_overtake() {
        let mut link = course(Shape { delay: 10 * MILLI, jitter: 4 * MILLI, ..Shape::default() });
        let (mut last, mut least, mut most) = (Duration::ZERO, Duration::MAX, Duration::ZERO);
        for number in 0..10_000 {
            let now = number * 100 * MILLI;
            let arrives = link.admit(now, 100).unwrap();
            assert!(arrives >= last);
            last = arrives;
            (least, most) = (least.min(arrives - now), most.max(arrives - now));
        }
        assert!(least >= 6 * MILLI && least < 7 * MILLI && most <= 14 * MILLI && most > 13 * MILLI);
    }
}
