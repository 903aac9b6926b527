//! Squared L2 norms, by which a density follows what a step delivers.

use gleaner_algorithms::Element;
use gleaner_algorithms::device::DeviceError;
use gleaner_algorithms::residual::Residual;

/// Values that are read at a time.
const PIECE: usize = 1 << 14;

/// Of some values.
pub(crate) fn of<T: Element>(values: &[T]) -> f64 {
    values.iter().map(|value| value.to_f64().powi(2)).sum()
}

/// Of what waits in a residual.
pub(crate) fn waiting<T: Element>(residual: &Residual<T>) -> Result<f64, DeviceError> {
    let n = residual.partition().entries();
    (0..n).step_by(PIECE).map(|at| Ok(of(&residual.read(at..n.min(at + PIECE))?))).sum()
}
