//! How conversations are numbered on the wire.

use gleaner_transport::Tag;

/// One step of one gradient that is exchanged by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepId {
    pub(crate) channel: u8,
    pub(crate) group: u16,
    /// The lowest bits of the step's number.
    pub(crate) step: u32,
}

/// The channel of all reducers, each of which is a group of it. The others are numbered from 0.
pub(crate) const REDUCERS: u8 = u8::MAX;

impl StepId {
    /// Which gradient it is a step of: channel and group.
    pub(crate) fn gradient(self) -> (u8, u16) {
        (self.channel, self.group)
    }
}

/// What a message is about. On the wire 8 bits kind, 8 bits channel, 16 bits group, 32 bits step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Nothing: "I am alive".
    Alive,
    /// The job has failed; the payload says who, when and why.
    Abort,
    /// The sender leaves.
    Bye,
    /// Small control data, numbered in the order of the calls.
    Note { call: u32 },
    /// Bags of one step.
    Bags(StepId),
    /// Whether one step is to be given up.
    Cancel(StepId),
    /// Measuring the network, numbered in the order of the measurements.
    Probe { round: u32 },
    /// A link has fallen silent; the payload says which.
    Silence,
}

impl Topic {
    pub(crate) fn tag(self) -> Tag {
        let pack = |kind: u64, channel: u8, group: u16, step: u32| {
            Tag(kind << 56 | u64::from(channel) << 48 | u64::from(group) << 32 | u64::from(step))
        };
        match self {
            Topic::Alive => pack(0, 0, 0, 0),
            Topic::Abort => pack(1, 0, 0, 0),
            Topic::Bye => pack(2, 0, 0, 0),
            Topic::Note { call } => pack(3, 0, 0, call),
            Topic::Bags(StepId { channel, group, step }) => pack(4, channel, group, step),
            Topic::Cancel(StepId { channel, group, step }) => pack(5, channel, group, step),
            Topic::Probe { round } => pack(6, 0, 0, round),
            Topic::Silence => pack(7, 0, 0, 0),
        }
    }

    /// None for a tag that no worker gives.
    pub(crate) fn of(tag: Tag) -> Option<Self> {
        let (channel, group, step) = ((tag.0 >> 48) as u8, (tag.0 >> 32) as u16, tag.0 as u32);
        let topic = match tag.0 >> 56 {
            0 => Topic::Alive,
            1 => Topic::Abort,
            2 => Topic::Bye,
            3 => Topic::Note { call: step },
            4 => Topic::Bags(StepId { channel, group, step }),
            5 => Topic::Cancel(StepId { channel, group, step }),
            6 => Topic::Probe { round: step },
            7 => Topic::Silence,
            _ => return None,
        };
        (topic.tag() == tag).then_some(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_read_back() {
        let topics = [
            Topic::Alive,
            Topic::Abort,
            Topic::Bye,
            Topic::Silence,
            Topic::Note { call: u32::MAX },
            Topic::Bags(StepId { channel: 255, group: 65535, step: u32::MAX }),
            Topic::Bags(StepId { channel: 1, group: 2, step: 3 }),
            Topic::Cancel(StepId { channel: 1, group: 2, step: 3 }),
            Topic::Probe { round: u32::MAX },
        ];
        topics.into_iter().for_each(|topic| assert_eq!(Topic::of(topic.tag()), Some(topic)));
        assert_eq!(Topic::of(Tag(8 << 56)), None);
        assert_eq!(Topic::of(Tag(1)), None);
    }
}
