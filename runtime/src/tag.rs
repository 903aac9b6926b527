//! How conversations are numbered on the wire.

use gleaner_transport::Tag;

/// One step of one gradient that is exchanged by itself, among the workers of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepId {
    /// The lowest 12 bits of the membership epoch: how often the set of workers has changed.
    epoch: u16,
    pub(crate) channel: u8,
    group: u16,
    /// The lowest 24 bits of the step's number.
    step: u32,
}

/// The channel of all reducers, each of which is a group of it. The others are numbered from 0.
pub(crate) const REDUCERS: u8 = u8::MAX;

const EPOCH_BITS: u32 = 12;
const STEP_BITS: u32 = 24;

impl StepId {
    pub(crate) fn new(epoch: u16, channel: u8, group: u16, step: u64) -> Self {
        let (epoch, step) = (epoch & low(EPOCH_BITS) as u16, (step & low(STEP_BITS)) as u32);
        Self { epoch, channel, group, step }
    }

    /// Which gradient it is a step of: epoch, channel and group.
    pub(crate) fn gradient(self) -> (u16, u8, u16) {
        (self.epoch, self.channel, self.group)
    }

    /// The step after it.
    pub(crate) fn following(self) -> Self {
        Self::new(self.epoch, self.channel, self.group, u64::from(self.step) + 1)
    }

    /// Whether it comes before another step of the same gradient, where the two are less than 2²³ steps apart.
    pub(crate) fn is_before(self, other: Self) -> bool {
        (other.step.wrapping_sub(self.step) << (u32::BITS - STEP_BITS)) as i32 > 0
    }

    fn pack(self) -> u64 {
        u64::from(self.channel) << 40 | u64::from(self.group) << STEP_BITS | u64::from(self.step)
    }

    fn unpack(epoch: u16, rest: u64) -> Self {
        Self::new(epoch, (rest >> 40) as u8, (rest >> STEP_BITS) as u16, rest)
    }
}

/// What a message is about. On the wire 4 bits kind and 12 bits epoch; then 8 bits channel, 16 bits group and 24 bits step,
/// or the number of a call in the lowest 32 bits.
///
/// A message of another epoch has another tag, so it is never taken for one of this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Nothing: "I am alive".
    Alive,
    /// The job has failed; the payload says who, when and why.
    Abort,
    /// The sender leaves.
    Bye,
    /// Small control data, numbered in the order of the calls.
    Note { epoch: u16, call: u32 },
    /// Bags of one step.
    Bags(StepId),
    /// Whether one step is to be given up.
    Cancel(StepId),
    /// Measuring the network, numbered in the order of the measurements.
    Probe { epoch: u16, round: u32 },
    /// A link has fallen silent; the payload says which.
    Silence,
}

impl Topic {
    pub(crate) fn tag(self) -> Tag {
        let (kind, epoch, rest) = match self {
            Topic::Alive => (0, 0, 0),
            Topic::Abort => (1, 0, 0),
            Topic::Bye => (2, 0, 0),
            Topic::Note { epoch, call } => (3, epoch, u64::from(call)),
            Topic::Bags(id) => (4, id.epoch, id.pack()),
            Topic::Cancel(id) => (5, id.epoch, id.pack()),
            Topic::Probe { epoch, round } => (6, epoch, u64::from(round)),
            Topic::Silence => (7, 0, 0),
        };
        Tag(kind << 60 | (u64::from(epoch) & low(EPOCH_BITS)) << 48 | rest)
    }

    /// None for a tag that no worker gives.
    pub(crate) fn of(tag: Tag) -> Option<Self> {
        let (epoch, rest) = ((tag.0 >> 48 & low(EPOCH_BITS)) as u16, tag.0 & low(48));
        let topic = match tag.0 >> 60 {
            0 => Topic::Alive,
            1 => Topic::Abort,
            2 => Topic::Bye,
            3 => Topic::Note { epoch, call: rest as u32 },
            4 => Topic::Bags(StepId::unpack(epoch, rest)),
            5 => Topic::Cancel(StepId::unpack(epoch, rest)),
            6 => Topic::Probe { epoch, round: rest as u32 },
            7 => Topic::Silence,
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
        let mut topics = vec![Topic::Alive, Topic::Abort, Topic::Bye, Topic::Silence];
        for epoch in [0, 1, 0xfff] {
            for number in [0, 1, u32::MAX] {
                topics.extend([Topic::Note { epoch, call: number }, Topic::Probe { epoch, round: number }]);
            }
            for (channel, group, step) in
                [(0, 0, 0), (0, 0, 1), (0, 0, LAST), (0, 1, 0), (0, 65535, 0), (1, 0, 0), (255, 65535, LAST)]
            {
                let id = StepId::new(epoch, channel, group, step);
                topics.extend([Topic::Bags(id), Topic::Cancel(id)]);
            }
        }
        let mut tags = std::collections::HashSet::new();
        for topic in topics {
            assert_eq!(Topic::of(topic.tag()), Some(topic));
            assert!(tags.insert(topic.tag()), "{topic:?} has the tag of another");
        }
    }

    #[test]
    fn tags_with_bits_that_their_kind_does_not_use_are_refused() {
        let (call, step) = (low(32) | low(12) << 48, low(60));
        for (kind, used) in (0..).zip([0, 0, 0, call, step, step, call, 0]) {
            for bit in 0..60 {
                let known = Topic::of(Tag(kind << 60 | 1 << bit)).is_some();
                assert_eq!(known, used >> bit & 1 == 1, "kind {kind}, bit {bit}");
            }
        }
        (8..16).for_each(|kind| assert_eq!(Topic::of(Tag(kind << 60)), None));
    }

    #[test]
    fn steps_are_in_order_where_their_numbers_begin_again() {
        for step in [0, 7, LAST - 1, LAST, LAST + 1, u64::from(u32::MAX)] {
            let id = StepId::new(0, 0, 0, step);
            assert_eq!(id.following(), StepId::new(0, 0, 0, step + 1));
            for later in [1, 2, 1000, (1 << 23) - 1] {
                let later = StepId::new(0, 0, 0, step + later);
                assert!(id.is_before(later) && !later.is_before(id));
            }
            assert!(!id.is_before(id));
        }
    }
}
