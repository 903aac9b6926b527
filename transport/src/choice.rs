//! Which network carries a job's links, and what else it is told: the one place that knows all of them by name.

use std::fmt;
use std::str::FromStr;

use crate::tcp::{self, JoinConfig, JoinError};
use crate::{Network, Sockets, VerbsDevice};

/// What carries links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One connection of TCP for each pair of workers, or [several](TransportChoice::sockets).
    #[default]
    Tcp,
    /// Queue pairs over InfiniBand or RoCE.
    Verbs,
}

impl Transport {
    const ALL: [(Self, &str); 2] = [(Self::Tcp, "tcp"), (Self::Verbs, "verbs")];

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
        found.map(|(transport, _)| transport).ok_or("tcp or verbs")
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
    /// Which adapter is used by verbs; the first that can be, unless it is said otherwise.
    pub device: Option<VerbsDevice>,
    /// How many connections of TCP each link has; the same at all workers.
    pub sockets: Sockets,
}

impl TransportChoice {
    /// The environment variables that say it.
    pub const VARIABLES: [&str; 3] = ["GLEANER_TRANSPORT", "GLEANER_VERBS_DEVICE", "GLEANER_SOCKETS"];

    /// What the variables say; an empty one says nothing.
    ///
    /// # Errors
    /// One that makes no sense.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, ChoiceError> {
        let [transport, device, sockets] = Self::VARIABLES;
        Ok(Self {
            transport: variable(&get, transport)?.unwrap_or_default(),
            device: variable(&get, device)?,
            sockets: variable(&get, sockets)?.unwrap_or_default(),
        })
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
pub async fn join(config: JoinConfig) -> Result<Box<dyn Network>, JoinError> {
    let TransportChoice { transport, sockets, .. } = config.choice;
    if transport != Transport::Tcp && sockets != Sockets::default() {
        return Err(JoinError::Sockets { sockets, transport });
    }
    if let Some(device) = &config.choice.device
        && transport != Transport::Verbs
    {
        return Err(JoinError::Device { device: device.clone(), transport });
    }
    match transport {
        Transport::Tcp => Ok(Box::new(tcp::join(config).await?)),
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        Transport::Verbs => Ok(Box::new(crate::verbs::join(config).await?)),
        #[cfg(not(all(feature = "verbs", target_os = "linux")))]
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
    }

    #[test]
    fn what_makes_no_sense_is_told_with_the_names_that_do() {
        assert_eq!(read(&[("GLEANER_TRANSPORT", "")]), Ok(TransportChoice::default()));
        let device = Some("rxe0:1".parse().unwrap());
        let choice = TransportChoice { transport: Transport::Verbs, device, ..TransportChoice::default() };
        assert_eq!(read(&[("GLEANER_TRANSPORT", "verbs"), ("GLEANER_VERBS_DEVICE", "rxe0:1")]), Ok(choice));
        let several = read(&[("GLEANER_SOCKETS", "4")]).unwrap();
        assert_eq!((several.transport, several.sockets.number()), (Transport::Tcp, 4));
        assert_eq!(
            read(&[("GLEANER_SOCKETS", "65")]).unwrap_err().to_string(),
            "the environment variable GLEANER_SOCKETS is '65'; expected a number from 1 to 64"
        );
        assert_eq!(
            read(&[("GLEANER_TRANSPORT", "udp")]).unwrap_err().to_string(),
            "the environment variable GLEANER_TRANSPORT is 'udp'; expected tcp or verbs"
        );
        let wrong = read(&[("GLEANER_VERBS_DEVICE", "rxe0:x")]).unwrap_err().to_string();
        assert!(
            wrong.starts_with("the environment variable GLEANER_VERBS_DEVICE is 'rxe0:x'; expected NAME"),
            "{wrong}"
        );
    }
}
