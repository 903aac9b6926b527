//! Puts the project's README and book into one text, which the trainer uses when no other data are given.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut pages = vec![PathBuf::from("../README.md")];
    println!("cargo::rerun-if-changed=../README.md");
    println!("cargo::rerun-if-changed=../docs");
    collect(Path::new("../docs"), &mut pages)?;
    let mut text = String::new();
    for page in pages.iter().filter(|page| page.is_file()) {
        text.push_str(&fs::read_to_string(page)?);
        text.push('\n');
    }
    let directory = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo did not set OUT_DIR"))?;
    fs::write(Path::new(&directory).join("documentation.md"), text)
}

/// Adds all Markdown files below a directory, sorted, so that every build gives the same text.
fn collect(directory: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    let mut entries =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}
