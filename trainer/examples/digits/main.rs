//! Writes images of the data `fresh-digits` in the format of MNIST's files, for trainings by other programs in which no image is seen twice.
//!
//! cargo run --release -p gleaner-trainer --example digits -- FOLDER

mod write;

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("expected the name of a folder, found nothing; say where the files go")?;
    write::write(Path::new(&folder), 1 << 16, 8192)
}
