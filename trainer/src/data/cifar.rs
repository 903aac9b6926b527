//! CIFAR-10 and CIFAR-100 in their binary version.

use std::path::Path;

use super::{Dataset, Examples, ImageShape, Input, TrainerError};

const SHAPE: ImageShape = ImageShape { height: 32, width: 32, channels: 3 };
const ADVICE: &str = "download the binary version of the data set again and unpack it";

/// `data_batch_1.bin` to `data_batch_5.bin`, held out `test_batch.bin`.
pub fn load_10(directory: &Path) -> Result<Dataset, TrainerError> {
    let names: Vec<String> = (1..=5).map(|number| format!("data_batch_{number}.bin")).collect();
    let records = Records { label_bytes: 1, classes: 10 };
    records.load(&subdirectory(directory, "cifar-10-batches-bin"), &names, "test_batch.bin")
}

/// `train.bin`, held out `test.bin`; the fine one of the two labels.
pub fn load_100(directory: &Path) -> Result<Dataset, TrainerError> {
    let records = Records { label_bytes: 2, classes: 100 };
    records.load(&subdirectory(directory, "cifar-100-binary"), &["train.bin".to_string()], "test.bin")
}

/// The directory itself, or the one that the archive unpacks into.
fn subdirectory(directory: &Path, name: &str) -> std::path::PathBuf {
    let inner = directory.join(name);
    if inner.is_dir() { inner } else { directory.into() }
}

/// Labels, of which the last counts, then the pixels channel by channel.
struct Records {
    label_bytes: usize,
    classes: u8,
}

impl Records {
    fn load(&self, directory: &Path, train: &[String], held_out: &str) -> Result<Dataset, TrainerError> {
        let train = self.examples(directory, train)?;
        let held_out = self.examples(directory, &[held_out.to_string()])?;
        Ok(Dataset { input: Input::Images(SHAPE), classes: usize::from(self.classes), train, held_out })
    }

    fn examples(&self, directory: &Path, names: &[String]) -> Result<Examples, TrainerError> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for name in names {
            self.read(&directory.join(name), &mut pixels, &mut labels)?;
        }
        Ok(Examples::Images { pixels, labels, shape: SHAPE })
    }

    fn read(&self, path: &Path, pixels: &mut Vec<u8>, labels: &mut Vec<u8>) -> Result<(), TrainerError> {
        let length = self.label_bytes + SHAPE.values();
        let expected = format!("records of {length} bytes");
        let content = super::read_file(path, &expected, ADVICE)?;
        let refuse = |expected: String, found: String| TrainerError::Data {
            path: path.into(),
            expected,
            found,
            advice: ADVICE,
        };
        if content.is_empty() || content.len() % length != 0 {
            return Err(refuse(expected, format!("{} bytes, not a multiple", content.len())));
        }
        for record in content.chunks_exact(length) {
            let (head, planes) = record.split_at(self.label_bytes);
            let label = head[self.label_bytes - 1];
            if label >= self.classes {
                return Err(refuse(format!("labels below {}", self.classes), label.to_string()));
            }
            labels.push(label);
            let plane = SHAPE.height * SHAPE.width;
            pixels.extend(
                (0..plane).flat_map(|pixel| {
                    (0..SHAPE.channels).map(move |channel| planes[channel * plane + pixel])
                }),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(labels: &[u8]) -> Vec<u8> {
        let mut record = labels.to_vec();
        record.extend((0..3072).map(|at| (at / 1024) as u8 * 100));
        record
    }

    #[test]
    fn both_versions_are_read_with_channels_side_by_side() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("cifar-10-batches-bin");
        std::fs::create_dir(&inner).unwrap();
        for number in 1..=5 {
            std::fs::write(inner.join(format!("data_batch_{number}.bin")), record(&[number])).unwrap();
        }
        std::fs::write(inner.join("test_batch.bin"), [record(&[3]), record(&[9])].concat()).unwrap();
        let dataset = load_10(directory.path()).unwrap();
        assert_eq!((dataset.train.len(), dataset.held_out.len(), dataset.classes), (5, 2, 10));
        let Examples::Images { pixels, labels, .. } = &dataset.held_out else { panic!("CIFAR has images") };
        assert_eq!((&pixels[..6], &labels[..]), (&[0, 100, 200, 0, 100, 200][..], &[3, 9][..]));

        std::fs::write(directory.path().join("train.bin"), record(&[1, 99])).unwrap();
        std::fs::write(directory.path().join("test.bin"), record(&[1, 42])).unwrap();
        let dataset = load_100(directory.path()).unwrap();
        assert_eq!(dataset.held_out.batch(&[0], 0, &candle_core::Device::Cpu).unwrap().targets, [42]);
        assert_eq!(dataset.classes, 100);
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let refusal = |content: Option<&[u8]>| {
            if let Some(content) = content {
                std::fs::write(directory.path().join("train.bin"), content).unwrap();
            }
            load_100(directory.path()).unwrap_err().to_string()
        };
        assert!(refusal(None).contains("no such file"));
        assert!(refusal(Some(&[])).contains("found 0 bytes"));
        assert!(refusal(Some(&record(&[1, 2])[..3000])).contains("records of 3074 bytes, found 3000"));
        assert!(refusal(Some(&record(&[1, 100]))).contains("labels below 100, found 100"));
        assert!(refusal(Some(&record(&[1, 99]))).contains("test.bin"));
    }
}
