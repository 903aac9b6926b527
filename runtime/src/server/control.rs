//! Control messages between a worker and a server, on a number of their own: what a push is about, and what the server answers.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use gleaner_algorithms::synchrony::Stage;

/// Digits that a run is known by.
const RUN: usize = 32;

/// What a worker sends to a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ask {
    /// It begins with this step, and wants the values of all its parts.
    Begin { step: u64 },
    /// It has something to push in this step; where pushes are granted.
    MayPush { step: u64 },
    /// It pushes its gradient of some units.
    Push(Head),
    /// All of the reply has come; where pushes are granted.
    HasCome { step: u64 },
    /// It wants the present values of all parts.
    Fetch { step: u64 },
    /// It needs nothing more.
    Done,
}

/// The header of a push.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) step: u64,
    pub(crate) stage: Stage,
    /// The units that are pushed.
    pub(crate) units: Vec<bool>,
    /// The learning rate.
    pub(crate) rate: f32,
    /// Samples of the pass, and their mean loss.
    pub(crate) samples: u64,
    pub(crate) loss: f32,
    /// How long the pass took.
    pub(crate) computing: Duration,
}

/// What a server sends to a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// It has its parts, and has applied all of every worker's steps before this one. Its state is of this run.
    Ready { step: u64, run: String },
    /// The worker may push its step.
    Granted { step: u64 },
    /// The values follow that a push has asked for.
    Reply {
        step: u64,
        stage: Stage,
        /// The worker that pushed last of those that this worker waited for, itself perhaps.
        awaited: u32,
    },
    /// The values of all parts follow.
    Fetched { step: u64 },
    /// How important this server's part of each unit is for this step; how many entries may go to the background, and U_max.
    Split { step: u64, importance: Vec<f64>, budget: [u64; 2] },
}

fn stage_byte(stage: Stage) -> u8 {
    match stage {
        Stage::Routine => 0,
        Stage::Background => 1,
    }
}

fn stage_of(byte: u8) -> Option<Stage> {
    [Stage::Routine, Stage::Background].into_iter().find(|&stage| stage_byte(stage) == byte)
}

fn start(kind: u8, step: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.put_u64_le(step);
    bytes
}

impl Ask {
    pub(crate) fn encode(&self) -> Bytes {
        let bytes = match self {
            Ask::Begin { step } => start(0, *step),
            Ask::MayPush { step } => start(1, *step),
            Ask::HasCome { step } => start(3, *step),
            Ask::Fetch { step } => start(4, *step),
            Ask::Done => start(5, 0),
            Ask::Push(head) => {
                let mut bytes = start(2, head.step);
                bytes.put_u8(stage_byte(head.stage));
                bytes.put_f32_le(head.rate);
                bytes.put_u64_le(head.samples);
                bytes.put_f32_le(head.loss);
                bytes.put_u64_le(u64::try_from(head.computing.as_nanos()).unwrap_or(u64::MAX));
                bytes.extend(head.units.chunks(8).map(|units| {
                    units.iter().enumerate().map(|(bit, unit)| u8::from(*unit) << bit).sum::<u8>()
                }));
                bytes
            }
        };
        bytes.into()
    }

    /// None for bytes that a worker with this many units does not send.
    pub(crate) fn decode(mut bytes: &[u8], units: usize) -> Option<Self> {
        let (kind, step) = (bytes.try_get_u8().ok()?, bytes.try_get_u64_le().ok()?);
        let ask = match kind {
            0 => Ask::Begin { step },
            1 => Ask::MayPush { step },
            2 => {
                let stage = stage_of(bytes.try_get_u8().ok()?)?;
                let (rate, samples) = (bytes.try_get_f32_le().ok()?, bytes.try_get_u64_le().ok()?);
                let loss = bytes.try_get_f32_le().ok()?;
                let computing = Duration::from_nanos(bytes.try_get_u64_le().ok()?);
                let bits = std::mem::take(&mut bytes);
                if bits.len() != units.div_ceil(8) {
                    return None;
                }
                let units = (0..units).map(|unit| bits[unit / 8] >> (unit % 8) & 1 == 1).collect();
                Ask::Push(Head { step, stage, units, rate, samples, loss, computing })
            }
            3 => Ask::HasCome { step },
            4 => Ask::Fetch { step },
            5 => Ask::Done,
            _ => return None,
        };
        bytes.is_empty().then_some(ask)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Bytes {
        let bytes = match self {
            Answer::Ready { step, run } => [&start(0, *step), run.as_bytes()].concat(),
            Answer::Granted { step } => start(1, *step),
            Answer::Reply { step, stage, awaited } => {
                let mut bytes = start(2, *step);
                bytes.put_u8(stage_byte(*stage));
                bytes.put_u32_le(*awaited);
                bytes
            }
            Answer::Fetched { step } => start(3, *step),
            Answer::Split { step, importance, budget } => {
                let mut bytes = start(4, *step);
                budget.iter().for_each(|entries| bytes.put_u64_le(*entries));
                importance.iter().for_each(|importance| bytes.put_f64_le(*importance));
                bytes
            }
        };
        bytes.into()
    }

    /// None for bytes that a server with this many units does not send.
    pub(crate) fn decode(mut bytes: &[u8], units: usize) -> Option<Self> {
        let (kind, step) = (bytes.try_get_u8().ok()?, bytes.try_get_u64_le().ok()?);
        let answer = match kind {
            0 => {
                let run = std::str::from_utf8(std::mem::take(&mut bytes)).ok()?;
                Answer::Ready { step, run: Some(run).filter(|run| run.len() == RUN)?.to_owned() }
            }
            1 => Answer::Granted { step },
            2 => {
                let stage = stage_of(bytes.try_get_u8().ok()?)?;
                Answer::Reply { step, stage, awaited: bytes.try_get_u32_le().ok()? }
            }
            3 => Answer::Fetched { step },
            4 => {
                let budget = [bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?];
                let importance = (0..units).map(|_| bytes.try_get_f64_le().ok()).collect::<Option<_>>()?;
                Answer::Split { step, importance, budget }
            }
            _ => return None,
        };
        bytes.is_empty().then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_reads_back_and_nothing_else_does() {
        let head = |units: Vec<bool>, stage| Head {
            step: 1 << 40,
            stage,
            units,
            rate: 0.1,
            samples: 64,
            loss: 2.5,
            computing: Duration::from_micros(1234),
        };
        for units in 0..20 {
            let bits = |of: usize| (0..units).map(|unit| unit % of == 0).collect::<Vec<_>>();
            let asks = [
                Ask::Begin { step: 7 },
                Ask::MayPush { step: u64::MAX },
                Ask::Push(head(bits(1), Stage::Routine)),
                Ask::Push(head(bits(3), Stage::Background)),
                Ask::HasCome { step: 0 },
                Ask::Fetch { step: 1 },
                Ask::Done,
            ];
            for ask in asks {
                let bytes = ask.encode();
                assert_eq!(Ask::decode(&bytes, units), Some(ask));
                assert_eq!(Ask::decode(&bytes[..bytes.len() - 1], units), None);
                assert_eq!(Ask::decode(&[&bytes[..], &[0]].concat(), units), None);
            }
            let importance = (0..units).map(|unit| unit as f64 / 3.0).collect();
            let answers = [
                Answer::Ready { step: 3, run: "0123456789abcdef".repeat(2) },
                Answer::Granted { step: 4 },
                Answer::Reply { step: 5, stage: Stage::Background, awaited: 2 },
                Answer::Fetched { step: 6 },
                Answer::Split { step: 7, importance, budget: [7, 1 << 40] },
            ];
            for answer in answers {
                let bytes = answer.encode();
                assert_eq!(Answer::decode(&bytes, units), Some(answer));
                assert_eq!(Answer::decode(&bytes[..bytes.len() - 1], units), None);
                assert_eq!(Answer::decode(&[&bytes[..], &[0]].concat(), units), None);
            }
        }
        assert_eq!(Ask::decode(&[9; 9], 0), None);
        assert_eq!(Answer::decode(&[9; 9], 0), None);
    }
}
