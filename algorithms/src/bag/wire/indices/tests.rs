use super::super::error::Wrong;
use super::*;
use gleaner_statistics::random::Generator;
use proptest::prelude::*;

/// One index at least, ascending and below a length, of many kinds: few and many, even and clustered, ranges and far apart.
fn indices() -> impl Strategy<Value = (Vec<u32>, u32)> {
    let gap = prop_oneof![
        4 => 0u32..300,
        2 => Just(0u32),
        1 => (0u32..32).prop_flat_map(|width| 0..=(1u32 << width)),
    ];
    let alike = (0u32..2000, 0u32..100)
        .prop_flat_map(|(least, more)| proptest::collection::vec(least..=least + more, 1..200));
    let gaps = prop_oneof![proptest::collection::vec(gap, 1..200), alike];
    (gaps, prop_oneof![Just(0u32), 0u32..40, any::<u32>()]).prop_map(|(gaps, behind)| {
        let mut next = 0u64;
        let ends = gaps.into_iter().map(|gap| {
            next += u64::from(gap) + 1;
            next - 1
        });
        let indices: Vec<u32> = ends.map_while(|end| (end < u32::MAX.into()).then_some(end as u32)).collect();
        let least = indices.last().map_or(0, |last| last + 1);
        (indices, least.saturating_add(behind))
    })
}

/// The bits that indices take, added up index by index as the forms are defined.
fn bits(form: Form, parameter: u8, indices: &[u32], len: u32) -> u64 {
    let gaps: Vec<u64> = (0..indices.len())
        .map(|i| u64::from(indices[i]) - if i == 0 { 0 } else { u64::from(indices[i - 1]) + 1 })
        .collect();
    let width = u64::from(parameter);
    match form {
        Form::Raw => indices.iter().map(|_| 32).sum(),
        Form::Packed => indices.iter().map(|_| width).sum(),
        Form::Bitmap => len.into(),
        Form::EliasFano => {
            indices.iter().map(|_| width + 1).sum::<u64>() + u64::from(len.max(1) - 1) / (1 << width)
        }
        Form::Rice => gaps.iter().map(|gap| width + 1 + gap / (1 << width)).sum(),
        Form::Dense | Form::Full | Form::Aligned => unreachable!("these have no indices"),
    }
}

/// All forms and parameters that can say these indices.
fn forms(indices: &[u32], len: u32) -> Vec<Packing> {
    let widest = indices.iter().zip(std::iter::once(&u32::MAX).chain(indices));
    let widest = widest.map(|(i, before)| i.wrapping_sub(*before).wrapping_sub(1)).max().unwrap_or(0);
    let pairs = [
        (Form::Raw, 0..=0),
        (Form::Packed, 0..=32),
        (Form::Bitmap, 0..=0),
        (Form::EliasFano, 0..=31),
        (Form::Rice, 0..=31),
    ];
    pairs
        .into_iter()
        .flat_map(|(form, parameters)| parameters.map(move |parameter| (form, parameter)))
        .filter(|&(form, parameter)| form != Form::Packed || u64::from(widest) < 1 << parameter)
        .map(|(form, parameter)| {
            let words = bits(form, parameter, indices, len).div_ceil(32);
            Packing { form, parameter, words }
        })
        .collect()
}

proptest! {
    #[test]
    fn the_choice_is_the_smallest((indices, len) in indices()) {
        let choice = choose(&indices, len.into());
        let all = forms(&indices, len);
        let least = all.iter().map(|c| c.words).min().unwrap();
        let first = all.iter().filter(|c| c.words == least).map(|c| c.form).min().unwrap();
        prop_assert_eq!((choice.words, choice.form), (least, first));
        let fewest = all.iter().filter(|c| c.form == first).map(|c| (bits(first, c.parameter, &indices, len), c.parameter)).min();
        prop_assert_eq!(fewest.unwrap().1, choice.parameter);
    }

    #[test]
    fn every_form_is_read_as_it_was_written((indices, len) in indices()) {
        for choice in forms(&indices, len).into_iter().filter(|c| c.words < 100_000) {
            let mut bytes = vec![0xab; 3];
            write(choice, &indices, &mut bytes);
            prop_assert_eq!(bytes.len() as u64, 3 + 4 * choice.words);
            bytes.extend([0xff; 5]);
            let read = read(choice.form, choice.parameter, indices.len(), len, &bytes[3..]);
            prop_assert_eq!(read, Ok((indices.clone(), &[0xff; 5][..])), "{:?}", choice);
        }
    }

    #[test]
    fn what_is_not_an_index_set_is_refused((indices, len) in indices(), flip: prop::sample::Index, which: prop::sample::Index) {
        let all: Vec<Packing> =
            forms(&indices, len).into_iter().filter(|c| (1..100_000).contains(&c.words)).collect();
        let choice = all[which.index(all.len())];
        let (form, parameter, count) = (choice.form, choice.parameter, indices.len());
        let mut bytes = Vec::new();
        write(choice, &indices, &mut bytes);
        // A shorter block, and an end that comes too soon.
        let last = indices[count - 1];
        if !matches!(form, Form::Bitmap | Form::EliasFano) {
            prop_assert!(matches!(read(form, parameter, count, last, &bytes), Err(Wrong::Index(index)) if index == u64::from(last)));
        }
        prop_assert!(read(form, parameter, count, len, &bytes[..bytes.len() - 4]).is_err());
        // Another bit somewhere: refused, or another set of indices, and nothing else.
        let bit = flip.index(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok((other, _)) = read(form, parameter, count, len, &bytes) {
            prop_assert!(other != indices);
            prop_assert!(other.len() == count && other[count - 1] < len && other.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn any_bytes_are_survived(
        (form, parameter) in prop_oneof![
            Just((Form::Raw, 0)),
            (0u8..33).prop_map(|width| (Form::Packed, width)),
            Just((Form::Bitmap, 0)),
            (0u8..32).prop_map(|low| (Form::EliasFano, low)),
            (0u8..32).prop_map(|low| (Form::Rice, low)),
        ],
        count in 1usize..300,
        len in prop_oneof![1u32..1000, any::<u32>()],
        bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(u8::MAX), any::<u8>()], 0..600),
    ) {
        prop_assert!(has_parameter(form, parameter));
        if let Ok((indices, rest)) = read(form, parameter, count, len, &bytes) {
            prop_assert!(indices.len() == count && indices[count - 1] < len && indices.is_sorted_by(|a, b| a < b));
            // One set of indices has one set of bytes.
            let words = bits(form, parameter, &indices, len).div_ceil(32);
            let mut again = Vec::new();
            write(Packing { form, parameter, words }, &indices, &mut again);
            prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
        }
    }
}

/// What the sizes promise for random positions, where gaps are geometric: the bits of the best Rice code.
#[test]
fn random_positions_take_what_theory_says() {
    let mut random = Generator::seeded(1);
    for (density, bits) in [(0.01f64, 8.11), (0.001, 11.49)] {
        let mut next = 0u32;
        let indices: Vec<u32> = (0..100_000)
            .map(|_| {
                next += ((1.0 - random.unit()).ln() / (1.0 - density).ln()) as u32 + 1;
                next - 1
            })
            .collect();
        let choice = choose(&indices, next.into());
        assert_eq!(choice.form, Form::Rice);
        // k + 1 + Σ_{i ≥ 1} (1 − density)^(i 2^k), the least over k.
        let mean = |k: i32| {
            let tail = (1.0 - density).powi(1 << k);
            f64::from(k) + 1.0 + tail / (1.0 - tail)
        };
        let theory = (0..20).map(mean).fold(f64::INFINITY, f64::min);
        let found = 32.0 * choice.words as f64 / 100_000.0;
        assert!((theory - bits).abs() < 0.01, "{theory}");
        assert!((found / theory - 1.0).abs() < 0.005, "{found} bits an index, expected {theory}");
    }
}
