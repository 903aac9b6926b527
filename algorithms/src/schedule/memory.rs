//! What a method has learnt from earlier steps.

use super::Register;

/// Numbers that a method carries from step to step: they belong to the step like the residual does, and change, are
/// undone and are written into checkpoints with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Steps that were learnt from.
    pub steps: u64,
    /// Numbers that are the same, bit by bit, on all workers.
    pub agreed: Vec<f64>,
    /// Numbers of this worker alone.
    pub own: Vec<f64>,
}

impl Memory {
    /// What a register holds; 0 where nothing was ever learnt.
    pub fn read(&self, register: Register) -> f64 {
        let (numbers, r) = match register {
            Register::Agreed(r) => (&self.agreed, r),
            Register::Own(r) => (&self.own, r),
        };
        numbers.get(r as usize).copied().unwrap_or(0.0)
    }
}
