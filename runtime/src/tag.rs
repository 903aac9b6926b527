//! How conversations are numbered on the wire.

use gleaner_transport::Tag;

/// One step of one gradient that is exchanged by itself, among the workers of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepId {
    /// The lowest 8 bits of the membership epoch: how often the set of workers has changed.
    epoch: u8,
    /// Every group of every gradient exchange and every reducer has a number of its own in a session.
    pub(crate) gradient: u32,
    /// The lowest 24 bits of the step's number.
    step: u32,
}

/// How many gradients a session can number. The last of the numbers is not one's: it is reserved for measuring the network.
pub(crate) const GRADIENTS: u32 = (1 << GRADIENT_BITS) - 1;

/// Numbers from this one on are those of what workers and servers say to each other.
pub(crate) const SERVED: u32 = GRADIENTS - (1 << 20);

/// See [`GRADIENTS`].
pub(crate) const PROBE: u32 = GRADIENTS;

const GRADIENT_BITS: u32 = 28;
const STEP_BITS: u32 = 24;

impl StepId {
    pub(crate) fn new(epoch: u16, gradient: u32, step: u64) -> Self {
        Self { epoch: epoch as u8, gradient, step: (step & low(STEP_BITS)) as u32 }
    }

    /// The step after it.
    pub(crate) fn following(self) -> Self {
        Self::new(u16::from(self.epoch), self.gradient, u64::from(self.step) + 1)
    }

    /// How many steps it comes before another one of the same gradient, where the two are less than 2²³ steps apart.
    pub(crate) fn ahead(self, other: Self) -> i32 {
        (other.step.wrapping_sub(self.step) << (u32::BITS - STEP_BITS)) as i32 >> (u32::BITS - STEP_BITS)
    }
}

/// What a message is about. On the wire 4 bits kind and 8 bits epoch; then the gradient's number in 28 bits and the step's in
/// 24, or the number of a call or of a measurement in the lowest 32 bits. The kinds of control data have the highest bit.
///
/// A message of another epoch has another tag, so it is never taken for one of this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Bags of one step.
    Bags(StepId),
    /// Measuring the network, numbered in the order of the measurements.
    Probe { epoch: u16, round: u32 },
    /// Nothing: "I am alive".
    Alive,
    /// The job has failed; the payload says who, when and why.
    Abort,
    /// The job goes on without a worker that has failed; the payload says who, when and why.
    Dropped,
    /// The sender leaves.
    Bye,
    /// Small control data, numbered in the order of the calls.
    Note { epoch: u16, call: u32 },
    /// Whether one step is to be given up.
    Cancel(StepId),
    /// A link has fallen silent; the payload says which.
    Silence,
    /// How many bytes of a gradient's bags, or of measurements, may have been sent in all: the payload says.
    Credit { gradient: u32 },
    /// The leave message of the receiver and all its bags have come.
    AllCame,
}

impl Topic {
    pub(crate) fn tag(self) -> Tag {
        let step =
            |StepId { epoch, gradient, step }| (epoch, u64::from(gradient) << STEP_BITS | u64::from(step));
        let (kind, (epoch, rest)) = match self {
            Topic::Bags(id) => (0, step(id)),
            Topic::Probe { epoch, round } => (1, (epoch as u8, u64::from(round))),
            Topic::Alive => (8, (0, 0)),
            Topic::Abort => (9, (0, 0)),
            Topic::Dropped => (9, (0, 1)),
            Topic::Bye => (10, (0, 0)),
            Topic::Note { epoch, call } => (11, (epoch as u8, u64::from(call))),
            Topic::Cancel(id) => (12, step(id)),
            Topic::Silence => (13, (0, 0)),
            Topic::Credit { gradient } => (14, (0, u64::from(gradient))),
            Topic::AllCame => (15, (0, 0)),
        };
        Tag(kind << 60 | u64::from(epoch) << 52 | rest)
    }

    /// None for a tag that no worker gives.
    pub(crate) fn of(tag: Tag) -> Option<Self> {
        let (epoch, rest) = ((tag.0 >> 52) as u8, tag.0 & low(52));
        let (wide, number) = (u16::from(epoch), rest as u32);
        let id = StepId::new(wide, (rest >> STEP_BITS) as u32, rest);
        let topic = match tag.0 >> 60 {
            0 if id.gradient < GRADIENTS => Topic::Bags(id),
            1 => Topic::Probe { epoch: wide, round: number },
            8 => Topic::Alive,
            9 if number == 0 => Topic::Abort,
            9 => Topic::Dropped,
            10 => Topic::Bye,
            11 => Topic::Note { epoch: wide, call: number },
            12 if id.gradient < GRADIENTS => Topic::Cancel(id),
            13 => Topic::Silence,
            14 if rest <= u64::from(PROBE) => Topic::Credit { gradient: number },
            15 => Topic::AllCame,
            _ => return None,
        };
        // Bits that its kind does not use.
        (topic.tag() == tag).then_some(topic)
    }
}

/// So many of the lowest bits.
fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = (1 << STEP_BITS) - 1;

    #[test]
    fn tags_read_back_and_differ_wherever_a_field_does() {
        let alone = [Topic::Alive, Topic::Abort, Topic::Dropped, Topic::Bye, Topic::Silence, Topic::AllCame];
        let mut topics = alone.to_vec();
        topics.extend([0, 1, PROBE].map(|gradient| Topic::Credit { gradient }));
        for epoch in [0, 1, 0xff] {
            for number in [0, 1, u32::MAX] {
                topics.extend([Topic::Note { epoch, call: number }, Topic::Probe { epoch, round: number }]);
            }
            for (gradient, step) in [(0, 0), (0, 1), (0, LAST), (1, 0), (GRADIENTS - 1, LAST)] {
                let id = StepId::new(epoch, gradient, step);
                topics.extend([Topic::Bags(id), Topic::Cancel(id)]);
            }
        }
        let mut tags = std::collections::HashSet::new();
        for topic in topics {
            assert_eq!(Topic::of(topic.tag()), Some(topic));
            let is_data = matches!(topic, Topic::Bags(_) | Topic::Probe { .. });
            assert_eq!(topic.tag().is_control(), !is_data, "{topic:?}");
            assert!(tags.insert(topic.tag()), "{topic:?} has the tag of another");
        }
    }

    #[test]
    fn tags_with_bits_that_their_kind_does_not_use_are_refused() {
        let (call, step) = (low(32) | low(8) << 52, low(60));
        let used = [
            (0, step),
            (1, call),
            (8, 0),
            (9, 1),
            (10, 0),
            (11, call),
            (12, step),
            (13, 0),
            (14, low(28)),
            (15, 0),
        ];
        for kind in 0..16 {
            let used = used.iter().find(|(known, _)| *known == kind).map(|(_, used)| *used);
            assert_eq!(Topic::of(Tag(kind << 60)).is_some(), used.is_some(), "kind {kind}");
            for bit in 0..60 {
                let known = Topic::of(Tag(kind << 60 | 1 << bit)).is_some();
                assert_eq!(known, used.is_some_and(|used| used >> bit & 1 == 1), "kind {kind}, bit {bit}");
            }
        }
        for kind in [0, 12] {
            assert_eq!(
                Topic::of(Tag(kind << 60 | u64::from(PROBE) << STEP_BITS)),
                None,
                "no gradient's number"
            );
        }
    }

    #[test]
    fn steps_are_in_order_where_their_numbers_begin_again() {
        for step in [0, 7, LAST - 1, LAST, LAST + 1, u64::from(u32::MAX)] {
            let id = StepId::new(0, 0, step);
            assert_eq!(id.following(), StepId::new(0, 0, step + 1));
            for later in [1, 2, 1000, (1 << 23) - 1] {
                let other = StepId::new(0, 0, step + later);
                assert_eq!((id.ahead(other), other.ahead(id)), (later as i32, -(later as i32)));
            }
            assert_eq!(id.ahead(id), 0);
        }
    }
}
