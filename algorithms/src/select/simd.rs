//! Which instructions the passes use.

use std::sync::OnceLock;

/// A set of instructions that the passes of this module are written for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Simd {
    /// Plain Rust, for any processor.
    Portable,
    /// 8 lanes; candidates are packed by a permutation looked up by their mask.
    Avx2,
    /// 16 lanes; candidates are packed by the compress instruction.
    Avx512,
}

impl Simd {
    /// What the passes of this process use: the best that the processor has, at most what the environment variable
    /// `GLEANER_SIMD` names (`portable`, `avx2` or `avx512`; anything else is as if it were unset). Read once.
    pub fn current() -> Simd {
        static CURRENT: OnceLock<Simd> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let asked = match std::env::var("GLEANER_SIMD").as_deref() {
                Ok("portable") => Simd::Portable,
                Ok("avx2") => Simd::Avx2,
                _ => Simd::Avx512,
            };
            asked.min(Simd::best())
        })
    }

    /// The best that this processor has.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) fn best() -> Simd {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")) {
            Simd::Portable
        } else if is_x86_feature_detected!("avx512f") {
            Simd::Avx512
        } else {
            Simd::Avx2
        }
    }

    /// The best that this processor has.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) fn best() -> Simd {
        Simd::Portable
    }
}
