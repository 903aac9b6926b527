//! Momentum that counts how long entries have waited.

use gleaner::LateSgd;
use gleaner::algorithms::synchrony::Sgd;

use crate::method::refused;
use crate::status::{Refused, call, gleaner_status, slice, slice_mut};

/// Refuses arrays of so many values that overlap. Those that are null, or longer than memory, are left to `slice`.
fn apart(arrays: [*const f32; 4], count: usize) -> Result<(), Refused> {
    let arrays = arrays.into_iter().filter(|array| !array.is_null());
    let mut starts: Vec<usize> = arrays.map(|array| array.addr()).collect();
    starts.sort_unstable();
    let bytes = count.checked_mul(size_of::<f32>()).unwrap_or(0);
    if starts.windows(2).any(|pair| pair[1] - pair[0] < bytes) {
        return Err(Refused::argument(
            "the parameters, the velocities, the steps waited and the gradient overlap; expected an array of its own for each",
        ));
    }
    Ok(())
}

/// Steps `count` parameters along a gradient, by stochastic gradient descent whose momentum counts how long entries have waited in residuals.
/// The gradient is a mean as gleaner_read writes it: an entry comes where it is not 0. The velocities and the steps waited, 0 at first, are those
/// of the last call; keep them in checkpoints. The rate and the weight decay are 0 or more, and the momentum is from 0 to below 1; with
/// `nesterov` the step looks ahead along the new velocity. The arrays do not overlap. With a dense method take the usual momentum: there an
/// entry of 0 has not waited. Each call computes 4,096 shares first, so parameters that lie side by side are best stepped together.
///
/// # Safety
/// The pointers are null or valid, and there are `count` values behind each, which no other code uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gleaner_late_sgd_step(
    parameters: *mut f32,
    velocities: *mut f32,
    waited: *mut f32,
    gradient: *const f32,
    count: usize,
    rate: f32,
    momentum: f32,
    weight_decay: f32,
    nesterov: bool,
) -> gleaner_status {
    call(|| {
        let sgd = Sgd { momentum, weight_decay, nesterov };
        sgd.check(rate).map_err(refused)?;
        apart([parameters.cast_const(), velocities.cast_const(), waited.cast_const(), gradient], count)?;
        // SAFETY: the caller promises it, and no two of them overlap.
        let (parameters, velocities, waited, gradient) = unsafe {
            (
                slice_mut(parameters, count, "the parameters")?,
                slice_mut(velocities, count, "the velocities")?,
                slice_mut(waited, count, "the steps waited")?,
                slice(gradient, count, "the gradient")?,
            )
        };
        LateSgd::new(sgd).step(parameters, velocities, waited, gradient, rate);
        Ok(())
    })
}
