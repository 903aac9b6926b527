//! The files that `examples/digits` writes are the images that `fresh-digits` has.

#[path = "../examples/digits/write.rs"]
mod write;

use candle_core::Device;
use gleaner_trainer::data::{Batch, Source};

#[test]
fn written_digits_are_those_that_are_made() {
    let folder = tempfile::tempdir().unwrap();
    write::write(folder.path(), 50, 20).unwrap();
    let read: Source = format!("mnist:{}", folder.path().display()).parse().unwrap();
    let (read, made) = (read.load(1).unwrap(), Source::FreshDigits.load(1).unwrap());
    assert_eq!((read.train.len(), read.held_out.len()), (50, 20));
    let values = |batch: Batch| (batch.input.flatten_all().unwrap().to_vec1::<f32>().unwrap(), batch.targets);
    for (read, made) in [(read.train, made.train), (read.held_out, made.held_out)] {
        let batch = |examples: gleaner_trainer::data::Examples| {
            values(examples.batch(&[0, 3, 19], 0, &Device::Cpu).unwrap())
        };
        assert_eq!(batch(read), batch(made));
    }
}
