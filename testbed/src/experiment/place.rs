//! Where jobs run: on the loopback, or on an emulated network that is reshaped from job to job.

use gleaner_runtime::launcher::Host;

use super::Wanted;
use super::case::Case;
use super::chaos::LinkText;
use crate::record::Traffic;

/// What refused.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no network.
    #[error("there is no emulated network here; write a [network] into the experiment's file")]
    Loopback,
}

/// A place with workers' hosts.
pub struct Place {}

impl Place {
    /// Brings it up, with links as this case has them.
    ///
    /// # Errors
    /// A network that cannot be emulated.
    pub fn up(_wanted: &Wanted, _first: &Case, _name: &str, _replace: bool) -> Result<Self, PlaceError> {
        Ok(Self {})
    }

    /// Takes it down.
    ///
    /// # Errors
    /// What cannot be removed.
    pub fn down(self) -> Result<(), PlaceError> {
        Ok(())
    }

    /// The first hosts, as the launcher has them; none on the loopback.
    pub fn hosts(&self, _count: u32) -> Vec<Host> {
        Vec::new()
    }

    /// The command that reaches a host; empty on the loopback.
    pub fn agent(&self) -> Vec<String> {
        Vec::new()
    }

    /// Gives the links what this case says.
    pub fn shape(&mut self, _case: &Case) -> Result<(), PlaceError> {
        Ok(())
    }

    /// What each of the first hosts has received and sent so far.
    pub fn traffic(&self, _count: u32) -> Result<Vec<Traffic>, PlaceError> {
        Ok(Vec::new())
    }

    /// Takes a host's link down.
    pub fn cut(&mut self, _host: u32) -> Result<(), PlaceError> {
        Err(PlaceError::Loopback)
    }

    /// Takes it up.
    pub fn mend(&mut self, _host: u32) -> Result<(), PlaceError> {
        Err(PlaceError::Loopback)
    }

    /// Gives one host's link other properties; what is not said stays as the case has it.
    pub fn reshape(&mut self, _host: u32, _link: &LinkText) -> Result<(), PlaceError> {
        Err(PlaceError::Loopback)
    }

    /// Undoes what was done to single hosts.
    pub fn restore(&mut self) -> Result<(), PlaceError> {
        Ok(())
    }
}
