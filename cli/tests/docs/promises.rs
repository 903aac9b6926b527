//! The tests that the book promises are there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{pages, root};

/// What the sources call tests, with their files.
fn tests_there_are() -> BTreeMap<String, Vec<PathBuf>> {
    let mut sources = Vec::new();
    for package in [
        "algorithms",
        "bindings",
        "burn",
        "candle",
        "charts",
        "cli",
        "cuda",
        "processes",
        "regress",
        "runtime",
        "src",
        "statistics",
        "testbed",
        "trainer",
        "transport",
        "units",
    ] {
        collect_sources(Path::new(package), &mut sources);
    }
    let mut tests: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources {
        for name in tests_in(&text) {
            tests.entry(name).or_default().push(path.clone());
        }
    }
    tests
}

fn collect_sources(folder: &Path, sources: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() {
            collect_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push((path.clone(), fs::read_to_string(root().join(path)).unwrap()));
        }
    }
}

/// The functions behind `#[test]` and `#[tokio::test]`.
fn tests_in(text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = function {
            if is_test {
                tests.push(name.split(['(', '<']).next().unwrap_or_default().to_owned());
            }
            is_test = false;
        }
    }
    tests
}

/// Of each table under a heading, the words in backticks in the last cell of each row; a row without any has an empty list.
fn last_cells<'a>(text: &'a str, heading: &str) -> Vec<Vec<Vec<&'a str>>> {
    let section = text.split(&format!("\n{heading}\n")).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut tables = Vec::new();
    let mut table = Vec::new();
    for line in section.lines().chain([""]) {
        if let Some(row) = line.strip_prefix("| ") {
            let cell = row.trim_end_matches([' ', '|']).rsplit("| ").next().unwrap_or_default();
            table.push(cell.split('`').skip(1).step_by(2).collect());
        } else if !line.starts_with('|') && !table.is_empty() {
            // Without its heading.
            tables.push(std::mem::take(&mut table).split_off(1));
        }
    }
    tables
}

/// The table of what is protected names a test for each property. The first one's are all the transport's.
#[test]
fn every_property_that_is_promised_has_a_test() {
    let pages = pages();
    let tables = last_cells(&pages[Path::new("docs/src/architecture/transport.md")], "## What is protected");
    let tests = tests_there_are();
    assert!(tables.len() == 2 && tables.iter().all(|table| table.len() >= 8), "{tables:?}");
    for (number, named) in
        tables.iter().enumerate().flat_map(|(number, table)| table.iter().map(move |row| (number, row)))
    {
        assert!(!named.is_empty(), "a property without a test");
        for name in named {
            let files = tests.get(*name).unwrap_or_else(|| panic!("there is no test {name}"));
            let is_of_transport = files.iter().any(|file| file.starts_with("transport"));
            assert!(number > 0 || is_of_transport, "{name} is in {files:?}");
        }
    }
}

#[test]
fn a_test_that_is_not_there_is_found() {
    let source =
        "#[test]\nfn one() {}\nfn two() {}\n    #[tokio::test(flavor = \"x\")]\n    async fn three() {\n";
    assert_eq!(tests_in(source), ["one", "three"]);
    let text = "# T\n## A\n| what | test |\n|---|---|\n| `no` | `one`, `two` |\n| x | none |\n\nand\n\n| what | test |\n|---|---|\n| y | `three` |\n## B\n| z | `four` |\n";
    let expected = [vec![vec!["one", "two"], vec![]], vec![vec!["three"]]];
    assert_eq!(last_cells(text, "## A"), expected);
}
