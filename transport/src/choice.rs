//! Which network carries a job's links, and its options: the one place that knows all of them by name.

use std::fmt;
use std::str::FromStr;

use crate::tcp::{self, JoinConfig, JoinError, Joining};
use crate::{Network, Sockets, VerbsDevice};

mod auto;

/// What carries links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One connection of TCP for each pair of workers, or [several](TransportChoice::sockets).
    #[default]
    Tcp,
    /// One connection of QUIC for each pair of workers, with a stream for each lane.
    Quic,
    /// Queue pairs over InfiniBand or RoCE.
    Verbs,
}

impl Transport {
    const ALL: [(Self, &str); 3] = [(Self::Tcp, "tcp"), (Self::Quic, "quic"), (Self::Verbs, "verbs")];

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

/// Which transport is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// This one, or none.
    Named(Transport),
    /// The one that a stated rule finds best here: see [`TransportChoice::resolve`].
    Auto,
}

impl Default for Preference {
    fn default() -> Self {
        Self::Named(Transport::default())
    }
}

impl From<Transport> for Preference {
    fn from(transport: Transport) -> Self {
        Self::Named(transport)
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(transport) => fmt::Display::fmt(transport, f),
            Self::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Preference {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Transport::ALL.into_iter().find(|(_, name)| *name == text);
        let named = named.map(|(transport, _)| Self::Named(transport));
        named.or((text == "auto").then_some(Self::Auto)).ok_or("tcp, quic, verbs or auto")
    }
}

/// How QUIC, which recovers from losses by itself, finds its speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// It slows down when packets are lost (RFC 9438).
    #[default]
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
        let all = [Self::Cubic, Self::Bbr];
        all.into_iter().find(|one| one.to_string() == text).ok_or("cubic or bbr")
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

/// What carries links, and its options. The transport is the same at all workers of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportChoice {
    /// What carries them.
    pub transport: Preference,
    /// Which adapter is used by verbs; the first that can be, unless it is said otherwise.
    pub device: Option<VerbsDevice>,
    /// How many connections of TCP each link has; the same at all workers.
    pub sockets: Sockets,
    /// How QUIC finds its speed; by Cubic, unless it is said otherwise. TCP asks the system.
    pub congestion: Option<Congestion>,
}

impl From<Transport> for TransportChoice {
    fn from(transport: Transport) -> Self {
        Self { transport: transport.into(), ..Self::default() }
    }
}

impl TransportChoice {
    /// The environment variables that say it.
    pub const VARIABLES: [&str; 4] =
        ["GLEANER_TRANSPORT", "GLEANER_VERBS_DEVICE", "GLEANER_SOCKETS", "GLEANER_CONGESTION"];

    /// What the variables say; an empty one says nothing.
    ///
    /// # Errors
    /// One that makes no sense.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, ChoiceError> {
        let [transport, device, sockets, congestion] = Self::VARIABLES;
        Ok(Self {
            transport: variable(&get, transport)?.unwrap_or_default(),
            device: variable(&get, device)?,
            sockets: variable(&get, sockets)?.unwrap_or_default(),
            congestion: variable(&get, congestion)?,
        })
    }

    /// The transport. Where that was left open, it is resolved now, and a sentence says which it is and why.
    ///
    /// Each worker resolves it alone, by what it knows of its own host, before it meets another: verbs where the program has them, links
    /// are plain and an adapter can be used, and else TCP. On hosts that are alike the result is the same. Where it is not, rank 0
    /// refuses the job with the names of two workers and both transports. QUIC is never chosen: it pays where links lose
    /// packets, and that is not known before a job has run.
    pub fn resolve(&mut self, is_plain: bool) -> (Transport, Option<String>) {
        match self.transport {
            Preference::Named(transport) => (transport, None),
            Preference::Auto => {
                let (transport, why) = auto::recommended(auto::verbs(self.device.as_ref(), is_plain));
                self.transport = transport.into();
                (transport, Some(format!("transport: {transport} ({why})")))
            }
        }
    }

    /// Whether nothing is said that another transport would need.
    pub(crate) fn check(&self, transport: Transport) -> Result<(), JoinError> {
        match self {
            Self { device: Some(device), .. } if transport != Transport::Verbs => {
                Err(JoinError::Device { device: device.clone(), transport })
            }
            Self { sockets, .. } if transport != Transport::Tcp && *sockets != Sockets::default() => {
                Err(JoinError::Sockets { sockets: *sockets, transport })
            }
            Self { congestion: Some(congestion), .. } if transport != Transport::Quic => {
                Err(JoinError::Congestion { congestion: *congestion, transport })
            }
            _ => Ok(()),
        }
    }
}

fn variable<T: FromStr<Err = &'static str>>(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, ChoiceError> {
    let Some(value) = get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.parse().map(Some).map_err(|expected| ChoiceError { name, value, expected })
}

/// Takes part in a job over the network that its [choice](JoinConfig::choice) names: returns when all workers have come, or says why
/// they did not.
///
/// # Errors
/// Those of the rendezvous, a network that this build has not or this host cannot use, and options that do not fit it.
pub fn join(mut config: JoinConfig) -> Joining<Box<dyn Network>> {
    Box::pin(async move {
        let (transport, _) = config.choice.resolve(config.is_plain);
        config.choice.check(transport)?;
        let network: Box<dyn Network> = match transport {
            Transport::Tcp => Box::new(tcp::join(config).await?),
            #[cfg(feature = "quic")]
            Transport::Quic => Box::new(crate::quic::join(config).await?),
            #[cfg(not(feature = "quic"))]
            Transport::Quic => return Err(JoinError::NotBuilt { transport }),
            #[cfg(all(feature = "verbs", target_os = "linux"))]
            Transport::Verbs => Box::new(crate::verbs::join(config).await?),
            #[cfg(not(all(feature = "verbs", target_os = "linux")))]
            Transport::Verbs => return Err(JoinError::NotBuilt { transport }),
        };
        Ok(network)
    })
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
            assert_eq!(name.parse(), Ok(Preference::Named(transport)));
        }
        assert_eq!(Preference::Auto.to_string().parse(), Ok(Preference::Auto));
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            assert_eq!(congestion.to_string().parse(), Ok(congestion));
        }
    }

    #[test]
    fn what_makes_no_sense_is_reported_with_the_names_that_do() {
        assert_eq!(read(&[("GLEANER_TRANSPORT", "")]), Ok(TransportChoice::default()));
        let verbs = [("GLEANER_TRANSPORT", "verbs"), ("GLEANER_VERBS_DEVICE", "rxe0:1")];
        let device = Some("rxe0:1".parse().unwrap());
        assert_eq!(read(&verbs), Ok(TransportChoice { device, ..Transport::Verbs.into() }));
        let several = read(&[("GLEANER_SOCKETS", "4")]).unwrap();
        assert_eq!((several.transport, several.sockets.number()), (Transport::Tcp.into(), 4));
        let quic = [("GLEANER_TRANSPORT", "quic"), ("GLEANER_CONGESTION", "bbr")];
        let congestion = Some(Congestion::Bbr);
        assert_eq!(read(&quic), Ok(TransportChoice { congestion, ..Transport::Quic.into() }));
        for (name, value, expected) in [
            ("GLEANER_TRANSPORT", "udp", "expected tcp, quic, verbs or auto"),
            ("GLEANER_SOCKETS", "65", "expected a number from 1 to 64"),
            ("GLEANER_CONGESTION", "reno", "expected cubic or bbr"),
            ("GLEANER_VERBS_DEVICE", "rxe0:x", "expected NAME"),
        ] {
            let wrong = read(&[(name, value)]).unwrap_err().to_string();
            let begins = format!("the environment variable {name} is '{value}'; {expected}");
            assert!(wrong.starts_with(&begins), "{wrong}");
        }
    }

    #[test]
    fn what_auto_means_is_resolved_once() {
        let mut choice = read(&[("GLEANER_TRANSPORT", "auto")]).unwrap();
        // Verbs are not usable where links are to be encrypted.
        let (transport, why) = choice.resolve(false);
        assert_eq!(transport, Transport::Tcp);
        assert!(why.unwrap().starts_with("transport: tcp ("));
        assert_eq!((choice.transport, choice.resolve(false)), (transport.into(), (transport, None)));
    }
}
