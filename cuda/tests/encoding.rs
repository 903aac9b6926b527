//! The indices of what a device has chosen travel as the host would encode them.

#![allow(clippy::unwrap_used)]

mod devices;

use devices::{Random, on_each};
use gleaner_algorithms::bag::Rounded;
use gleaner_algorithms::bag::wire::{Body, Encoded, encode};
use gleaner_algorithms::device::{Device, Given};
use gleaner_algorithms::select::predict_threshold;

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
            assert_eq!(values.packed(1, k).unwrap(), None, "nothing is chosen yet");
            values.largest(0, 7).unwrap();
            let largest = values.largest(1, k).unwrap();
            threshold = Some(predict_threshold(largest.threshold, largest.reached, largest.smallest, k));
            // Few are left to the host, and so are others than those that were chosen.
            assert_eq!(values.packed(0, 7).unwrap(), None);
            assert_eq!(values.packed(1, k - 1).unwrap(), None);
            // The first ones were searched for, without a prediction.
            let packed = values.packed(1, k).unwrap();
            assert_eq!(packed.is_some(), step > 0, "in step {step}");
            let (entries, rounded) = (largest.entries, Rounded::EXACT);
            if let Some(packed) = packed {
                let bag = Encoded::of_packed(&entries, n, rounded, packed).unwrap();
                let expected = encode(&[Body::Sparse { entries: entries.clone(), len: n, rounded }]);
                assert_eq!(encode(&[Body::<f32>::Encoded(bag)]), expected);
            }
            values.clear_at(1, &entries.indices).unwrap();
        }
    });
}
