//! Which network carries a job's links, and what else it is told: the one place that knows all of them by name.

use std::fmt;
use std::str::FromStr;

use crate::Network;
use crate::tcp::{self, JoinError, TcpConfig};

/// What carries links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One connection of TCP for each pair of workers.
    #[default]
    Tcp,
    /// One connection of QUIC for each pair of workers, with a stream for each lane.
    Quic,
    /// Queue pairs over InfiniBand or RoCE.
    Verbs,
    /// Which of them is best here, by a stated rule: see [`TransportChoice::settle`].
    Auto,
}

impl Transport {
    const ALL: [(Self, &str); 4] =
        [(Self::Tcp, "tcp"), (Self::Quic, "quic"), (Self::Verbs, "verbs"), (Self::Auto, "auto")];

    /// What a hello says.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The name of what a hello says.
    pub(crate) fn name_of(number: u8) -> &'static str {
        Self::ALL.get(usize::from(number)).map_or("of another version", |(_, name)| name)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::name_of(self.number()))
    }
}

impl FromStr for Transport {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(transport, _)| transport).ok_or("tcp, quic, verbs or auto")
    }
}

/// How a network that recovers from losses by itself finds its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// It slows down when packets are lost (RFC 9438).
    Cubic,
    /// By the rate and the delay that it measures.
    Bbr,
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        })
    }
}

impl FromStr for Congestion {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cubic" => Ok(Self::Cubic),
            "bbr" => Ok(Self::Bbr),
            _ => Err("cubic or bbr"),
        }
    }
}

/// A variable that makes no sense.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {name} is '{value}'; expected {expected}")]
pub struct ChoiceError {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub value: String,
    /// What it should say.
    pub expected: &'static str,
}

crate::debug_as_sentence!(ChoiceError);

/// What carries links, and what that is told. The transport is the same at all workers of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportChoice {
    /// What carries them.
    pub transport: Transport,
    /// How QUIC finds its speed; Cubic, unless it is said otherwise. TCP asks the system.
    pub congestion: Option<Congestion>,
}

impl TransportChoice {
    /// The environment variables that say it.
    pub const VARIABLES: [&str; 2] = ["GLEANER_TRANSPORT", "GLEANER_CONGESTION"];

    /// What the variables say; an empty one says nothing.
    ///
    /// # Errors
    /// One that makes no sense.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, ChoiceError> {
        let [transport, congestion] = Self::VARIABLES;
        Ok(Self {
            transport: variable(&get, transport)?.unwrap_or_default(),
            congestion: variable(&get, congestion)?,
        })
    }

    /// Makes [`Transport::Auto`] the one that it stands for on this host, and says which and why; nothing where another was
    /// named. It stands for TCP, which is as fast as any between hosts without adapters for RDMA and needs no more than that
    /// the address of rank 0 can be reached.
    pub fn settle(&mut self) -> Option<String> {
        if self.transport != Transport::Auto {
            return None;
        }
        self.transport = Transport::Tcp;
        Some(format!(
            "the transport is {}, chosen by auto: it needs no device and no option, and is the fastest over links that lose little",
            self.transport
        ))
    }
}

fn variable<T: FromStr<Err = &'static str>>(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, ChoiceError> {
    let Some(value) = get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.parse().map(Some).map_err(|expected| ChoiceError { name, value, expected })
}

/// Takes part in a job over the network that its [choice](TcpConfig::choice) names: returns when all workers have come, or says why
/// they did not.
///
/// # Errors
/// Those of the rendezvous, a network that this build has not or this host cannot use, and options that do not fit it.
pub async fn join(mut config: TcpConfig) -> Result<Box<dyn Network>, JoinError> {
    config.choice.settle();
    let TransportChoice { transport, congestion } = config.choice;
    if let Some(congestion) = congestion
        && transport != Transport::Quic
    {
        return Err(JoinError::Congestion { congestion, transport });
    }
    match transport {
        Transport::Tcp | Transport::Auto => Ok(Box::new(tcp::join(config).await?)),
        #[cfg(feature = "quic")]
        Transport::Quic => Ok(Box::new(crate::quic::join(config).await?)),
        #[cfg(not(feature = "quic"))]
        Transport::Quic => Err(JoinError::NotBuilt { transport }),
        Transport::Verbs => Err(JoinError::NotBuilt { transport }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<TransportChoice, ChoiceError> {
        TransportChoice::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for (number, (transport, name)) in (0..).zip(Transport::ALL) {
            assert_eq!((transport.number(), transport.to_string().as_str()), (number, name));
            assert_eq!(name.parse(), Ok(transport));
        }
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            assert_eq!(congestion.to_string().parse(), Ok(congestion));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_with_the_names_that_do() {
        assert_eq!(read(&[("GLEANER_TRANSPORT", "")]), Ok(TransportChoice::default()));
        let (transport, congestion) = (Transport::Quic, Some(Congestion::Bbr));
        let both = [("GLEANER_TRANSPORT", "quic"), ("GLEANER_CONGESTION", "bbr")];
        assert_eq!(read(&both), Ok(TransportChoice { transport, congestion }));
        assert_eq!(
            read(&[("GLEANER_TRANSPORT", "udp")]).unwrap_err().to_string(),
            "the environment variable GLEANER_TRANSPORT is 'udp'; expected tcp, quic, verbs or auto"
        );
        assert_eq!(
            read(&[("GLEANER_CONGESTION", "reno")]).unwrap_err().to_string(),
            "the environment variable GLEANER_CONGESTION is 'reno'; expected cubic or bbr"
        );
    }

    #[test]
    fn what_auto_stands_for_is_told_once() {
        let mut choice = read(&[("GLEANER_TRANSPORT", "auto")]).unwrap();
        assert!(choice.settle().unwrap().starts_with("the transport is tcp, chosen by auto: "));
        assert_eq!((choice.transport, choice.settle()), (Transport::Tcp, None));
    }
}
