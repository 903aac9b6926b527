//! The addresses of an emulated network.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A range of IPv4 addresses, such as 10.77.0.0/24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    first: Ipv4Addr,
    prefix: u32,
}

impl Default for Subnet {
    fn default() -> Self {
        Self { first: Ipv4Addr::new(10, 77, 0, 0), prefix: 24 }
    }
}

impl Subnet {
    /// How many hosts it has addresses for: all but the first and the last, which are the network and broadcast addresses.
    pub fn hosts(self) -> usize {
        (1 << (32 - self.prefix)) - 2
    }

    /// The address of a host, counted from 0; none beyond [`Self::hosts`].
    pub fn address(self, host: usize) -> Option<Ipv4Addr> {
        let offset = u32::try_from(host).ok()?.checked_add(1)?;
        (host < self.hosts()).then(|| Ipv4Addr::from_bits(self.first.to_bits() + offset))
    }

    /// The length of the prefix in bits.
    pub fn prefix(self) -> u32 {
        self.prefix
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let expected =
                "an IPv4 network with 8 to 30 bits of prefix and zeros behind them, such as 10.77.0.0/24";
            format!("'{text}' is no subnet; expected {expected}")
        };
        let (first, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let first: Ipv4Addr = first.parse().map_err(|_| wrong())?;
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        let zeros_behind = (8..=30).contains(&prefix) && first.to_bits() << prefix == 0;
        if zeros_behind { Ok(Self { first, prefix }) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}
