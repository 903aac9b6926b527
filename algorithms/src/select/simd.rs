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

/// A value of `GLEANER_SIMD` that names no instructions.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected 'portable', 'avx2' or 'avx512' in the environment variable GLEANER_SIMD, found '{0}': name one of them, or unset it"
)]
pub struct UnknownSimd(pub(crate) String);

crate::sentence::debug_as_sentence!(UnknownSimd);

impl Simd {
    /// What the passes of this process use: the best that the processor has, at most what is [asked for](Self::asked), if it
    /// is known. Read once.
    pub fn current() -> Simd {
        static CURRENT: OnceLock<Simd> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let asked = Simd::asked().ok().flatten();
            asked.unwrap_or(Simd::Avx512).min(Simd::best())
        })
    }

    /// What the environment variable `GLEANER_SIMD` names: `portable`, `avx2` or `avx512`. None if it is not set.
    ///
    /// # Errors
    /// Anything else.
    pub fn asked() -> Result<Option<Simd>, UnknownSimd> {
        let Some(name) = std::env::var_os("GLEANER_SIMD") else { return Ok(None) };
        match name.to_str() {
            Some("portable") => Ok(Some(Simd::Portable)),
            Some("avx2") => Ok(Some(Simd::Avx2)),
            Some("avx512") => Ok(Some(Simd::Avx512)),
            _ => Err(UnknownSimd(name.to_string_lossy().into_owned())),
        }
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
