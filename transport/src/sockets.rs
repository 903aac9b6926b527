//! How many connections a link over TCP has.

use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;

/// How many sockets each link over TCP has: 1, or up to 64. Several share what the link carries, and each recovers by itself from what
/// it loses: for long paths that lose packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets(NonZeroU8);

impl Sockets {
    /// The most that a link has.
    const MOST: u8 = 64;

    /// The number.
    pub fn number(self) -> u8 {
        self.0.get()
    }
}

impl Default for Sockets {
    fn default() -> Self {
        Self(NonZeroU8::MIN)
    }
}

impl fmt::Display for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Sockets {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok().filter(|number: &NonZeroU8| number.get() <= Self::MOST);
        number.map(Self).ok_or("a number from 1 to 64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_sockets_is_one_to_sixty_four() {
        assert_eq!(Sockets::default().number(), 1);
        for number in ["1", "2", "64"] {
            assert_eq!(number.parse::<Sockets>().map(|sockets| sockets.to_string()).as_deref(), Ok(number));
        }
        for text in ["0", "65", "256", "-1", "many", ""] {
            assert_eq!(text.parse::<Sockets>(), Err("a number from 1 to 64"));
        }
    }
}
