//! Placeholder until the codecs land.
use super::Entries;
/// How values are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coding {
    /// As they are.
    #[default]
    Exact,
}
/// How values were rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rounded;
impl Coding {
    /// Whether chance decides.
    pub fn is_stochastic(self) -> bool {
        false
    }
    /// Rounds.
    pub fn round(self, entries: &Entries, _len: usize, _seed: u64) -> (Rounded, Entries, Entries) {
        (Rounded, entries.clone(), Entries::default())
    }
}
impl std::fmt::Display for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("exact")
    }
}

impl std::str::FromStr for Coding {
    type Err = String;
    fn from_str(_: &str) -> Result<Self, String> {
        Ok(Coding::Exact)
    }
}
