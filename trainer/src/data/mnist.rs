//! MNIST and its relatives in IDX files.

use std::path::{Path, PathBuf};

use super::{Dataset, Examples, ImageShape, Input, TrainerError};

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
const CLASSES: u8 = 10;
const ADVICE: &str = "download the file again and unpack it with gunzip";

/// Handwritten digits: 1,437 images of 8 × 8 to train on and 360 held out.
const DIGITS: [&[u8]; 4] = [
    include_bytes!("../../data/digits/train-images-idx3-ubyte"),
    include_bytes!("../../data/digits/train-labels-idx1-ubyte"),
    include_bytes!("../../data/digits/t10k-images-idx3-ubyte"),
    include_bytes!("../../data/digits/t10k-labels-idx1-ubyte"),
];

/// The images that are inside the program.
pub fn digits() -> Result<Dataset, TrainerError> {
    let path = || PathBuf::from("the digits inside this program");
    let part = |images: &[u8], labels: &[u8]| {
        let images = Idx::parse(path(), images, IMAGES_MAGIC)?;
        examples(images, Idx::parse(path(), labels, LABELS_MAGIC)?)
    };
    let [train_images, train_labels, images, labels] = DIGITS;
    let (train, shape) = part(train_images, train_labels)?;
    let (held_out, _) = part(images, labels)?;
    Ok(Dataset { input: Input::Images(shape), classes: usize::from(CLASSES), train, held_out })
}

/// The four files with their usual names.
pub fn load(directory: &Path) -> Result<Dataset, TrainerError> {
    let part = |part: &str| {
        let images = Idx::read(locate(directory, part, "images", "idx3"), IMAGES_MAGIC)?;
        examples(images, Idx::read(locate(directory, part, "labels", "idx1"), LABELS_MAGIC)?)
    };
    let (train, train_shape) = part("train")?;
    let (held_out, shape) = part("t10k")?;
    if shape != train_shape {
        return Err(TrainerError::Data {
            path: directory.into(),
            expected: format!("held-out images of {} × {}", train_shape.height, train_shape.width),
            found: format!("{} × {}", shape.height, shape.width),
            advice: "take all four files from one data set",
        });
    }
    Ok(Dataset { input: Input::Images(shape), classes: usize::from(CLASSES), train, held_out })
}

fn examples(images: Idx, labels: Idx) -> Result<(Examples, ImageShape), TrainerError> {
    if images.sizes[0] != labels.sizes[0] || images.sizes[0] == 0 {
        let (expected, found) = (images.sizes[0].max(1), labels.sizes[0]);
        return Err(labels.refuse(format!("{expected} labels, as many as images"), found.to_string()));
    }
    if let Some(label) = labels.content.iter().find(|&&label| label >= CLASSES) {
        return Err(labels.refuse(format!("labels below {CLASSES}"), label.to_string()));
    }
    let shape = ImageShape { height: images.sizes[1], width: images.sizes[2], channels: 1 };
    Ok((Examples::Images { pixels: images.content, labels: labels.content, shape }, shape))
}

/// `train-images-idx3-ubyte`, or with a dot as some mirrors have it.
fn locate(directory: &Path, part: &str, kind: &str, format: &str) -> PathBuf {
    let usual = directory.join(format!("{part}-{kind}-{format}-ubyte"));
    let dotted = directory.join(format!("{part}-{kind}.{format}-ubyte"));
    if !usual.exists() && dotted.exists() { dotted } else { usual }
}

/// An IDX file of bytes: a magic number, the size of each dimension, the content.
struct Idx {
    path: PathBuf,
    sizes: Vec<usize>,
    content: Vec<u8>,
}

impl Idx {
    fn read(path: PathBuf, magic: u32) -> Result<Self, TrainerError> {
        let file = super::read_file(&path, "an unpacked IDX file of MNIST", ADVICE)?;
        Self::parse(path, &file, magic)
    }

    fn parse(path: PathBuf, file: &[u8], magic: u32) -> Result<Self, TrainerError> {
        let mut idx = Idx { path, sizes: Vec::new(), content: Vec::new() };
        let word = |at: usize| {
            file.get(4 * at..4 * at + 4)
                .map(|bytes| bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)))
        };
        let found = word(0).map_or(format!("{} bytes", file.len()), |word| format!("{word:#010x}"));
        if word(0) != Some(magic) {
            return Err(idx.refuse(format!("the magic number {magic:#010x}"), found));
        }
        let dimensions = (magic & 0xff) as usize;
        let sizes: Option<Vec<usize>> =
            (1..=dimensions).map(|at| word(at).map(|size| size as usize)).collect();
        let header = 4 * (1 + dimensions);
        let Some(sizes) = sizes else {
            return Err(idx.refuse(format!("a header of {header} bytes"), format!("{} bytes", file.len())));
        };
        let expected = sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        if expected != Some(file.len() - header) {
            let expected = expected.map_or("an impossible number of".into(), |count| count.to_string());
            let sizes = format!("{expected} bytes of content for sizes {sizes:?}");
            return Err(idx.refuse(sizes, (file.len() - header).to_string()));
        }
        idx.sizes = sizes;
        idx.content = file[header..].to_vec();
        Ok(idx)
    }

    fn refuse(&self, expected: String, found: String) -> TrainerError {
        TrainerError::Data { path: self.path.clone(), expected, found, advice: ADVICE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, sizes: &[u32], content: &[u8]) -> Vec<u8> {
        let mut file = magic.to_be_bytes().to_vec();
        sizes.iter().for_each(|size| file.extend(size.to_be_bytes()));
        file.extend(content);
        file
    }

    /// Writes a small good data set, lets `change` spoil one file, and loads it.
    fn loaded(spoiled: &str, content: Option<Vec<u8>>) -> Result<Dataset, TrainerError> {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, content: &[u8]| std::fs::write(directory.path().join(name), content).unwrap();
        for part in ["train", "t10k"] {
            write(&format!("{part}-images-idx3-ubyte"), &idx(IMAGES_MAGIC, &[3, 2, 2], &[7; 12]));
            write(&format!("{part}-labels-idx1-ubyte"), &idx(LABELS_MAGIC, &[3], &[0, 9, 5]));
        }
        match content {
            Some(content) => write(spoiled, &content),
            None if !spoiled.is_empty() => std::fs::remove_file(directory.path().join(spoiled)).unwrap(),
            None => {}
        }
        load(directory.path())
    }

    #[test]
    fn good_files_are_read() {
        let dataset = loaded("", None).unwrap();
        assert_eq!((dataset.train.len(), dataset.held_out.len(), dataset.classes), (3, 3, 10));
        let batch = dataset.train.batch(&[1, 2], 0, &candle_core::Device::Cpu).unwrap();
        assert_eq!(batch.targets, [9, 5]);
        assert_eq!(batch.input.dims(), [2, 2, 2, 1]);
    }

    #[test]
    fn the_digits_inside_the_program_are_whole() {
        let dataset = digits().unwrap();
        assert_eq!((dataset.train.len(), dataset.held_out.len()), (1437, 360));
        let Examples::Images { labels, .. } = &dataset.train else { panic!("digits are images") };
        let count = |class: u8| labels.iter().filter(|&&label| label == class).count();
        assert!((0..10).all(|class| (130..160).contains(&count(class))));
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        let images = "train-images-idx3-ubyte";
        for (file, content, reason) in [
            (images, None, "no such file"),
            (images, Some(vec![]), "found 0 bytes"),
            (
                images,
                Some(idx(LABELS_MAGIC, &[3], &[1, 2, 3])),
                "the magic number 0x00000803, found 0x00000801",
            ),
            (images, Some(vec![0x1f, 0x8b, 8, 0, 0]), "0x1f8b0800"),
            (images, Some(idx(IMAGES_MAGIC, &[3], &[])), "a header of 16 bytes, found 8"),
            (images, Some(idx(IMAGES_MAGIC, &[3, 2, 2], &[7; 11])), "12 bytes of content"),
            (images, Some(idx(IMAGES_MAGIC, &[u32::MAX, u32::MAX, u32::MAX], &[7; 11])), "impossible"),
            ("t10k-labels-idx1-ubyte", Some(idx(LABELS_MAGIC, &[2], &[1, 2])), "expected 3 labels"),
            (
                "t10k-labels-idx1-ubyte",
                Some(idx(LABELS_MAGIC, &[3], &[1, 2, 10])),
                "labels below 10, found 10",
            ),
            ("t10k-images-idx3-ubyte", Some(idx(IMAGES_MAGIC, &[3, 1, 4], &[7; 12])), "found 1 × 4"),
        ] {
            let refusal = loaded(file, content).unwrap_err().to_string();
            assert!(refusal.contains(reason), "expected {reason:?} in: {refusal}");
        }
    }
}
