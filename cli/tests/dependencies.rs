//! What the project depends on: only under licences that it allows, on candle only where a model is trained, and on
//! quinn only where links may go over QUIC.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// `cargo tree` over the packages that are already here: it asks no registry.
fn tree(arguments: &[&str]) -> String {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--offline", "--locked", "--prefix", "none", "--color", "never"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn names_candle(tree: &str) -> bool {
    tree.lines().any(|line| line.starts_with("candle"))
}

#[test]
fn only_the_trainer_needs_candle() {
    for package in [
        "gleaner-algorithms",
        "gleaner-transport",
        "gleaner-runtime",
        "gleaner-testbed",
        "gleaner-regress",
        "gleaner",
    ] {
        let tree = tree(&["--package", package, "--edges", "normal,build"]);
        assert!(tree.starts_with(package) && !names_candle(&tree), "{tree}");
    }
    let tree = tree(&["--package", "gleaner-cli", "--no-default-features", "--edges", "normal,build"]);
    assert!(tree.starts_with("gleaner-cli ") && !names_candle(&tree), "{tree}");
}

/// A program that embeds the library, in Rust, C or Python, builds what the runtime needs, and neither the command nor the testbed.
#[test]
fn a_program_that_embeds_the_library_builds_few_crates() {
    for package in ["gleaner", "gleaner-c", "gleaner-python"] {
        let tree = tree(&["--package", package, "--edges", "normal,build"]);
        let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        println!("{package}: {} crates", crates.len());
        assert!(crates.len() > 20 && crates.len() <= 95, "{package}: {} crates: {crates:#?}", crates.len());
        for command in ["clap", "plotters", "maud", "indicatif", "gleaner-testbed", "candle-core"] {
            assert!(
                !crates.iter().any(|line| line.starts_with(&format!("{command} "))),
                "{package} needs {command}: {crates:#?}"
            );
        }
    }
}

#[test]
fn the_trainer_is_a_default_feature() {
    assert!(names_candle(&tree(&["--package", "gleaner-cli", "--edges", "normal"])));
}

/// QUIC brings quinn, rustls and what these need. A build without it has none of them, with verbs or without.
#[test]
fn only_quic_needs_quinn() {
    let names_quinn = |of: &[&str]| {
        let tree = tree(&[&["--edges", "normal,build", "--package"], of].concat());
        assert!(tree.starts_with(of[0]), "{tree}");
        tree.lines().any(|line| line.starts_with("quinn") || line.starts_with("rustls"))
    };
    for package in ["gleaner-transport", "gleaner-runtime"] {
        assert!(!names_quinn(&[package]) && !names_quinn(&[package, "--features", "verbs"]), "{package}");
        assert!(names_quinn(&[package, "--features", "quic"]), "{package}");
    }
    assert!(!names_quinn(&["gleaner-candle"]) && !names_quinn(&["gleaner-testbed"]));
    assert!(!names_quinn(&["gleaner-cli", "--no-default-features", "--features", "train,verbs"]));
    assert!(!names_quinn(&["gleaner"]) && names_quinn(&["gleaner-cli"]));
}

/// Whatever is below candle has the same features for the command as for the tests, where development dependencies add
/// theirs. Otherwise candle, which is most of the build, would be built once for each.
#[test]
fn tests_and_the_command_share_one_candle() {
    let features = |arguments: &[&str]| -> BTreeMap<String, String> {
        let tree = tree(&[arguments, &["--format", "{p}|{f}"]].concat());
        let lines = tree.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|'));
        lines.map(|(package, features)| (package.to_owned(), features.to_owned())).collect()
    };
    let below = features(&["--package", "candle-core", "--edges", "normal,build"]);
    let command = features(&["--package", "gleaner-cli", "--edges", "normal,build"]);
    let tests = features(&["--workspace", "--edges", "normal,build,dev"]);
    assert!(below.len() > 20, "{below:?}");
    for package in below.keys() {
        assert_eq!(command.get(package), tests.get(package), "features of {package}");
    }
}

/// The licences that `deny.toml` allows.
fn allowed() -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml")).unwrap();
    let list = text.split_once("\nallow = [").unwrap().1.split_once(']').unwrap().0;
    list.split(',').map(|word| word.trim().trim_matches('"').to_owned()).filter(|w| !w.is_empty()).collect()
}

/// Whether an SPDX expression can be met. A slash is the older way to write OR.
fn met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any(&mut rest, allowed);
    met && rest.is_empty()
}

fn any(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = all(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any(words, allowed);
            let closed = words.first() == Some(&")");
            *words = words.get(1..).unwrap_or_default();
            met && closed
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed.contains(&format!("{licence} WITH {exception}"))
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed.contains(*licence)
        }
        [] => false,
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = allowed();
    assert!(allowed.contains("MIT"), "{allowed:?}");
    let tree = tree(&["--workspace", "--edges", "normal,build,dev", "--format", "{l}|{p}"]);
    // A package that was shown before is shown again with a mark, and an empty line parts the workspace's packages.
    let packages: BTreeSet<&str> =
        tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|l| !l.is_empty()).collect();
    assert!(packages.len() > 20, "{tree}");
    let refused: Vec<&&str> = packages
        .iter()
        .filter(|line| !line.split_once('|').is_some_and(|(licence, _)| met(licence, &allowed)))
        .collect();
    assert!(refused.is_empty(), "not allowed by deny.toml: {refused:#?}");
}

#[test]
fn licences_are_read_as_they_are_meant() {
    let allowed: BTreeSet<String> =
        ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].into_iter().map(String::from).collect();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("", false),
        ("MIT/Apache-2.0", true),
        ("GPL-2.0-only OR MIT", true),
        ("GPL-2.0-only AND MIT", false),
        ("(GPL-2.0-only OR MIT) AND Zlib", true),
        ("MIT AND (GPL-2.0-only OR Apache-2.0)", false),
        ("GPL-2.0-only OR MIT AND Zlib", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("(MIT", false),
        ("MIT MIT", false),
    ] {
        assert_eq!(met(expression, &allowed), expected, "{expression}");
    }
}

/// The crates of the page, each with those that it depends on.
fn on_the_page(page: &'static str) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let names = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').collect::<Vec<_>>());
    let crates = cells.filter(|cells| cells.len() == 3);
    crates.filter_map(|cells| Some((names(cells[0]).next()?, names(cells[2]).collect()))).collect()
}

/// The folders of the workspace's own packages that a manifest names as dependencies.
fn in_the_manifest(folder: &str) -> BTreeSet<String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let mut of_dependencies = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            of_dependencies =
                line == "[dependencies]" || line.starts_with("[target") && line.ends_with("'.dependencies]");
        } else if of_dependencies && let Some(rest) = line.strip_prefix("gleaner") {
            let name = rest.split([' ', '.']).next().unwrap_or_default().trim_start_matches('-');
            found.insert(if name.is_empty() { "src" } else { name }.to_owned());
        }
    }
    found
}

/// All that is reached from a crate.
fn reached<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let next: Vec<&str> = edges.get(from).into_iter().flatten().copied().collect();
    next.iter().copied().chain(next.iter().flat_map(|next| reached(edges, next))).collect()
}

#[test]
fn the_page_and_the_picture_of_the_crates_match_the_manifests() {
    let page = include_str!("../../docs/src/architecture/crates.md");
    let table = on_the_page(page);
    assert_eq!(table.len(), 17, "{table:?}");
    for (folder, expected) in &table {
        let place = if *folder == "src" { "." } else { folder };
        let found = in_the_manifest(place);
        assert_eq!(found, expected.iter().map(|&name| name.to_owned()).collect(), "{folder}");
    }
    let picture = include_str!("../../docs/src/images/crates.svg");
    let mut drawn: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in picture.split("class=\"arrow\" id=\"").skip(1) {
        let (from, to) = arrow.split('"').next().unwrap().split_once("-on-").unwrap();
        assert!(table[from].contains(to), "{from} does not depend on {to}");
        drawn.entry(from).or_default().insert(to);
    }
    for (from, expected) in &table {
        let found = reached(&drawn, from);
        assert!(
            expected.is_subset(&found),
            "the picture lacks what {from} depends on: {expected:?}, {found:?}"
        );
    }
}
