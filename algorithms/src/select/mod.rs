//! Choosing entries: which of a gradient's entries are worth sending.
//!
//! A step costs one pass over memory: [`accumulate`] adds the gradient to the residual and, in the same pass, notes every
//! entry that reaches a threshold predicted from the step before. [`top_k`] then selects exactly, among those few
//! candidates alone. If at least k entries reach the threshold, then the k largest are among them: that count is the
//! proof of exactness. If fewer do, the prediction was too high, and if many times k do, it was too low: collecting stops
//! there. Then [`top_k_dense`] selects without a prediction: from a sample, and where that fails too, from histograms.
//!
//! Magnitudes are compared as bits, those of x without its sign ([`Element::magnitude`]), an order in which every finite value stands below
//! infinity and infinity below every NaN, and which no rounding or flush-to-zero mode changes. Both zeros have
//! magnitude 0: no scan finds them, and a choice from entries takes them last.
//!
//! The passes work for every [`Element`]. Those over f32 run on AVX-512, AVX2 or portable code, whichever is the best that
//! the processor has; all give the same bits. See [`Simd`] to force one.

mod bucket;
mod estimate;
mod narrow;
mod portable;
mod simd;
mod sweep;
mod top;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod packer;

#[cfg(test)]
mod tests;

pub use bucket::bucketed;
pub(crate) use estimate::{estimate_from, places, sample};
pub use estimate::{estimate_threshold, predict_threshold};
pub use simd::{Simd, UnknownSimd};
pub use sweep::{NonFiniteSum, accumulate, replace, scan};
pub(crate) use top::{STRIDE, candidates, scan_few, surplus};
pub use top::{top_k, top_k_dense};

use crate::Element;
use crate::bag::Entries;
use crate::element::Magnitude;

/// The bits of infinity in f32, for the kernels: every magnitude from here on is not finite.
#[cfg(target_arch = "x86_64")]
const INFINITE: u32 = f32::INFINITY.to_bits();

/// The smallest magnitude that reaches `threshold`: never 0, so zeros never do; never above infinity, so whatever is not
/// finite always does. A threshold that is not a positive number (NaN too) lets every non-zero entry pass.
fn limit<T: Element>(threshold: T) -> T::Magnitude {
    if threshold > T::ZERO { threshold.magnitude() } else { T::Magnitude::ONE }
}
