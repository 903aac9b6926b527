//! Makes `include/gleaner.h` of the code: `--write` writes it, and `--check` fails if what is there differs.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

/// Where in Rust's documentation the part for those who write Rust begins.
const SAFETY: &str = "// # Safety";

/// The header of the crate in this folder.
fn header(library: &Path) -> Result<String, Box<dyn Error>> {
    let config = cbindgen::Config::from_file(library.join("cbindgen.toml"))?;
    let bindings = cbindgen::Builder::new().with_crate(library).with_config(config).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(without_safety(&String::from_utf8(text)?))
}

/// What a caller has to see to is said once, at the top.
fn without_safety(text: &str) -> String {
    let (mut lines, mut skips) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim() == SAFETY {
            skips = true;
            // The empty line of the comment before it.
            if lines.last().is_some_and(|last: &&str| last.trim() == "//") {
                lines.pop();
            }
        }
        skips = skips && line.trim_start().starts_with("//");
        if !skips {
            lines.push(line);
        }
    }
    lines.push("");
    lines.join("\n")
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = library.join("include/gleaner.h");
    let made = header(&library)?;
    match env::args().nth(1).as_deref() {
        Some("--write") => fs::write(&path, made)?,
        Some("--check") if fs::read_to_string(&path)? == made => {
            println!("include/gleaner.h is that of the code")
        }
        Some("--check") => {
            eprintln!(
                "include/gleaner.h is not that of the code: run this with --write, and look at what changes"
            );
            return Ok(ExitCode::FAILURE);
        }
        _ => {
            eprintln!("expected --write or --check");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
