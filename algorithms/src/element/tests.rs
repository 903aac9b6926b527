//! Every type against f64, in which sums and products of values of 32 bits and of 16 are exact or nearly.

use proptest::prelude::*;

use super::*;

/// All values of a 16-bit type.
fn all<T: Element>(from_bits: fn(u16) -> T) -> Vec<T> {
    (0..=u16::MAX).map(from_bits).collect()
}

/// Little-endian bytes.
fn bytes<T: Element>(values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le()).collect()
}

/// The finite value nearest to `exact`, the even one of two, by searching all of them.
fn nearest<T: Element>(sorted: &[T], exact: f64) -> T {
    let above = sorted.partition_point(|value| value.to_f64() < exact).min(sorted.len() - 1);
    let below = above.saturating_sub(1);
    let distance = |at: usize| (sorted[at].to_f64() - exact).abs();
    match distance(below).total_cmp(&distance(above)) {
        std::cmp::Ordering::Less => sorted[below],
        std::cmp::Ordering::Greater => sorted[above],
        std::cmp::Ordering::Equal if sorted[below].bits() & 1 == 0 => sorted[below],
        std::cmp::Ordering::Equal => sorted[above],
    }
}

/// Finite values from the least to the greatest, one zero only.
fn ascending<T: Element>(from_bits: fn(u16) -> T) -> Vec<T> {
    let mut finite = all(from_bits);
    finite.retain(|value| value.is_finite() && !(*value == T::ZERO && value.bits() != 0));
    finite.sort_by(|a, b| a.to_f64().total_cmp(&b.to_f64()));
    finite
}

/// Equal bits, or both NaN.
fn same<T: Element>(a: T, b: T) -> bool {
    a.bits() == b.bits() || (a.magnitude() > T::INFINITE && b.magnitude() > T::INFINITE)
}

fn check_half<T: Element<Wide = f32>>(from_bits: fn(u16) -> T, from_f32: fn(f32) -> T) {
    for value in all(from_bits) {
        let magnitude = value.to_f64().abs();
        assert_eq!(T::from_le(value.to_le().as_ref()).bits(), value.bits());
        assert_eq!(value.is_finite(), magnitude.is_finite(), "{value:?}");
        if !magnitude.is_nan() {
            assert_eq!(T::from_magnitude(value.magnitude()).to_f64(), magnitude);
            assert_eq!(T::from_f64(value.to_f64()).bits(), value.bits());
        }
    }
    // Widening is exact; narrowing agrees with the crate's own conversion, which is written otherwise.
    for value in all(from_bits) {
        assert!(
            same(T::narrow(value.widen()), value)
                && f64::from(value.widen()).to_bits() == value.to_f64().to_bits()
                || !value.is_finite()
        );
        for offset in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let wide = f32::from_bits(value.widen().to_bits().wrapping_add(offset));
            assert!(same(T::narrow(wide), from_f32(wide)), "{wide}");
        }
    }
    let ascending = ascending(from_bits);
    assert!(ascending.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!((ascending[0], ascending[ascending.len() - 1]), (T::LEAST, T::GREATEST));
}

#[test]
fn every_value_of_16_bits_is_as_it_should_be() {
    check_half(bf16::from_bits, bf16::from_f32);
    check_half(f16::from_bits, f16::from_f32);
    assert_eq!([f32::NAME, f64::NAME, bf16::NAME, f16::NAME], ["float32", "float64", "bfloat16", "float16"]);
}

fn check_limits<T: Element>() {
    let infinity = T::from_magnitude(T::INFINITE);
    assert!(infinity.to_f64().is_infinite() && !infinity.is_finite() && T::GREATEST < infinity);
    assert!(T::GREATEST.is_finite() && T::LEAST.is_finite() && T::LEAST == -T::GREATEST);
    assert_eq!((T::ZERO.to_f64(), T::ONE.to_f64(), T::default()), (0.0, 1.0, T::ZERO));
    assert_eq!(T::ZERO.magnitude(), (-T::ZERO).magnitude());
    assert!(T::from_magnitude(T::Magnitude::ONE) > T::ZERO);
    assert!(T::from_f64(f64::NAN).magnitude() > T::INFINITE && T::Magnitude::MAX > T::INFINITE);
    assert_eq!(T::Magnitude::MAX.bit_length() as usize, 8 * T::WIDTH - 1);
}

#[test]
fn limits() {
    check_limits::<f32>();
    check_limits::<f64>();
    check_limits::<bf16>();
    check_limits::<f16>();
}

fn check_non_finite<T: Element>(raw: &[u64]) {
    let finite = |value: &T| value.is_finite();
    let values: Vec<T> = raw.iter().map(|&raw| T::from_le(&raw.to_le_bytes()[..T::WIDTH])).collect();
    assert_eq!(first_non_finite::<T>(&bytes(&values)), values.iter().position(|v| !finite(v)));
    let calm: Vec<T> = values.into_iter().filter(finite).collect();
    assert_eq!(first_non_finite::<T>(&bytes(&calm)), None);
    let infinity = T::from_magnitude(T::INFINITE);
    for (bad, at) in
        [infinity, -infinity, T::from_f64(f64::NAN)].into_iter().zip([0, calm.len() / 2, calm.len()])
    {
        let mut values = calm.clone();
        values.insert(at, bad);
        assert_eq!(first_non_finite::<T>(&bytes(&values)), Some(at));
    }
}

fn check_order<T: Element>(a: T, b: T) {
    if a.is_finite() && b.is_finite() {
        assert_eq!(a.magnitude().cmp(&b.magnitude()), a.to_f64().abs().total_cmp(&b.to_f64().abs()));
    }
}

proptest! {
    #[test]
    fn what_is_not_finite_is_found(raw in prop::collection::vec(any::<u64>(), 0..200)) {
        check_non_finite::<f32>(&raw);
        check_non_finite::<f64>(&raw);
        check_non_finite::<bf16>(&raw);
        check_non_finite::<f16>(&raw);
    }

    #[test]
    fn magnitudes_order_as_absolute_values_do(a in any::<u64>(), b in any::<u64>()) {
        check_order(f32::from_bits(a as u32), f32::from_bits(b as u32));
        check_order(f64::from_bits(a), f64::from_bits(b));
        check_order(bf16::from_bits(a as u16), bf16::from_bits(b as u16));
        check_order(f16::from_bits(a as u16), f16::from_bits(b as u16));
    }
}

fn check_rounding<T: Element>(from_bits: fn(u16) -> T, pairs: &[(u16, u16)], counts: &[u32]) {
    let ascending = ascending(from_bits);
    for &(a, b) in pairs {
        let (a, b) = (from_bits(a), from_bits(b));
        if !a.is_finite() || !b.is_finite() {
            continue;
        }
        // Sums of two values of 16 bits are exact in f64, products too.
        for (found, exact) in [(a + b, a.to_f64() + b.to_f64()), (a - b, a.to_f64() - b.to_f64())] {
            if found.is_finite() {
                assert_eq!(found.to_f64(), nearest(&ascending, exact).to_f64(), "{a} and {b}");
            }
        }
        for &count in counts {
            let exact = a.to_f64() / f64::from(count);
            assert_eq!(a.divide(count).to_f64(), nearest(&ascending, exact).to_f64(), "{a} / {count}");
        }
        // Halfway between two neighbours, and a little beside: what rounding twice gets wrong.
        let middle = (a.to_f64() + nearest(&ascending, a.to_f64() * 1.01).to_f64()) / 2.0;
        for exact in [middle, middle.next_up(), middle.next_down()] {
            assert_eq!(T::from_f64(exact).to_f64(), nearest(&ascending, exact).to_f64(), "{exact}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn types_of_16_bits_round_to_the_nearest(
        pairs in prop::collection::vec((any::<u16>(), any::<u16>()), 100),
        counts in prop::collection::vec(1u32..1000, 5),
    ) {
        check_rounding(bf16::from_bits, &pairs, &counts);
        check_rounding(f16::from_bits, &pairs, &counts);
    }
}
