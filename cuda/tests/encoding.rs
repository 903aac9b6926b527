//! The indices of what a device has chosen travel as the host would encode them.

#![allow(clippy::unwrap_used)]

mod devices;

use devices::{Random, emulation, on_each};
use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::bag::wire::{Body, Encoded, encode};
use gleaner_algorithms::device::{Device, Given};
use gleaner_algorithms::select::predict_threshold;
use gleaner_cuda::Cuda;

#[test]
fn what_was_chosen_is_encoded_where_it_lies() {
    on_each(|cuda| {
        let (few, n, k) = (100, 400_000, 40_000);
        let mut random = Random::new(99);
        let mut values = cuda.zeros(few + n).unwrap();
        values.cut(&[0..few, few..few + n], &[Some(7), Some(k as u32)]).unwrap();
        let mut threshold = None;
        for step in 0..3 {
            let gradient: Vec<f32> = (0..few + n).map(|_| random.cube()).collect();
            values.accumulate(0, Given::Host(&gradient), step == 0, &[threshold; 2]).unwrap();
            values.begin().unwrap();
            assert_eq!(values.rice_indices(1, k).unwrap(), None, "nothing is chosen yet");
            values.largest(0, 7).unwrap();
            let largest = values.largest(1, k).unwrap();
            threshold = Some(predict_threshold(largest.threshold, largest.reached, largest.smallest, k));
            // Few are left to the host, and so are others than those that were chosen.
            assert_eq!(values.rice_indices(0, 7).unwrap(), None);
            assert_eq!(values.rice_indices(1, k - 1).unwrap(), None);
            // The first ones were searched for, without a prediction.
            let rice = values.rice_indices(1, k).unwrap();
            assert_eq!(rice.is_some(), step > 0, "in step {step}");
            values.clear_at(1, &largest.entries.indices).unwrap();
            let Some(rice) = rice else { continue };
            // Also after the commit.
            assert_eq!(values.rice_indices(1, k).unwrap().as_ref(), Some(&rice));
            for coding in [Coding::Exact, Coding::Bf16] {
                let (rounded, entries, _) = coding.round(&largest.entries, n, 1);
                let bag = Encoded::of_rice(&entries, n, rounded, rice.clone()).unwrap();
                let expected = encode(&[Body::Sparse { entries, len: n, rounded }]);
                assert_eq!(encode(&[Body::<f32>::Encoded(bag)]), expected);
            }
        }
    });
}

#[test]
fn without_memory_for_it_the_host_encodes() {
    let Some(emulation) = emulation() else { return };
    let cuda = Cuda::emulated(emulation.ordinal(11).memory(40_000_000)).unwrap();
    let (n, k) = (400_000, 40_000);
    let mut random = Random::new(98);
    let mut values = cuda.zeros(n).unwrap();
    values.cut(std::slice::from_ref(&(0..n)), &[Some(k as u32)]).unwrap();
    let gradient: Vec<f32> = (0..n).map(|_| random.cube()).collect();
    values.accumulate(0, Given::Host(&gradient), true, &[Some(0.8)]).unwrap();
    values.begin().unwrap();
    assert_eq!(values.largest(0, k).unwrap().entries.len(), k);
    let rest = cuda.memory(cuda.available().unwrap().0).unwrap();
    assert_eq!(values.rice_indices(0, k).unwrap(), None);
    drop(rest);
    assert!(values.rice_indices(0, k).unwrap().is_some());
}
