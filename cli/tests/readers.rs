//! What steps and rules mean is said where they are defined, by the machine, and once by each reader: no other file takes them
//! apart.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Where steps and rules may be taken apart: their definitions, the machine, and the readers that choose entries by a rule.
const READERS: [&str; 5] = [
    "algorithms/src/schedule/step.rs",
    "algorithms/src/schedule/rule.rs",
    "algorithms/src/schedule/machine.rs",
    "algorithms/src/schedule/values/choose.rs",
    "testbed/src/simulation/lengths/steps.rs",
];
const SOURCES: [&str; 12] = [
    "algorithms/src",
    "algorithms/examples",
    "candle/src",
    "transport/src",
    "runtime/src",
    "testbed/src",
    "trainer/src",
    "regress/src",
    "src",
    "examples",
    "cli/src",
    "cli/examples",
];

/// The variants of `Step` and `Rule` that a text uses as patterns or compares with, not to make one; `use` of them without
/// their names, and other names for them.
fn patterns(text: &str) -> Vec<String> {
    let code = |line: &str| line.split("//").next().unwrap().to_owned() + "\n";
    let text: String = text.lines().map(code).collect();
    let starts = ["Step::", "Rule::"].into_iter().flat_map(|name| text.match_indices(name));
    let mut found = Vec::new();
    for (start, name) in starts {
        let variant = start + name.len();
        let end =
            text[variant..].find(|c: char| !c.is_alphanumeric()).map_or(text.len(), |len| variant + len);
        let is_variant = text[variant..].starts_with(char::is_uppercase);
        let part_of_a_name = text[..start].ends_with(|c: char| c.is_alphanumeric());
        let taken = is_variant && (is_pattern(&text, end) || is_compared(&text[..start]));
        if !part_of_a_name && (taken || is_used(&text[..start])) {
            found.push(text[start..end].to_owned());
        }
    }
    found.extend(["Step", "Rule"].iter().flat_map(|name| text.match_indices(name)).filter_map(
        |(start, name)| {
            let part_of_a_name = text[..start].ends_with(|c: char| c.is_alphanumeric());
            let rest = &text[start + name.len()..];
            let renamed =
                rest.trim_start().starts_with("as ") || rest.starts_with(';') && is_aliased(&text[..start]);
            (!part_of_a_name && renamed).then(|| format!("{name} by another name"))
        },
    ));
    found
}

/// Whether what follows is all that a `type` stands for.
fn is_aliased(before: &str) -> bool {
    let statement = before.rsplit([';', '}']).next().unwrap_or_default();
    statement.split_whitespace().any(|word| word == "type")
}

/// Whether what follows, at the end of a path, is compared with what stands before.
fn is_compared(before: &str) -> bool {
    let before = before.trim_end_matches(|c: char| c.is_alphanumeric() || "_:".contains(c));
    let before = before.trim_end_matches(|c: char| c.is_whitespace() || "&*(".contains(c));
    before.ends_with("==") || before.ends_with("!=")
}

/// Whether what follows stands in a `use`.
fn is_used(before: &str) -> bool {
    let statement = before.rsplit(';').next().unwrap_or_default();
    statement.split_whitespace().any(|word| word == "use")
}

/// Whether what ends here, with its fields, is one.
fn is_pattern(text: &str, mut at: usize) -> bool {
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let rest = &text[at..];
        match rest.chars().next() {
            Some('{' | '(') => at = closes(text, at + 1),
            Some('|') => return !rest.starts_with("||"),
            Some('=') => return true,
            Some('!') => return rest.starts_with("!="),
            Some('i') => return rest.starts_with("if "),
            // Part of something larger.
            Some(',' | ')' | ']') => {
                let end = closes(text, at);
                let mut start = text[..at].char_indices().rev().scan(0, |depth, (i, c)| {
                    *depth += i32::from(")]}".contains(c)) - i32::from("([{".contains(c));
                    Some((i, *depth))
                });
                let start = start.find(|&(_, depth)| depth < 0).map_or(0, |(i, _)| i);
                match &text[end - 1..end] {
                    ")" if text[..start].ends_with("matches!") => return true,
                    ")" | "]" => at = end,
                    _ => return false,
                }
            }
            _ => return false,
        }
    }
}

/// Behind the bracket that closes what is open here.
fn closes(text: &str, from: usize) -> usize {
    let mut depth = 0;
    for (i, c) in text[from..].char_indices() {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        if depth < 0 {
            return from + i + 1;
        }
    }
    text.len()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn no_other_file_takes_steps_apart() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let (mut read, mut readers) = (0, Vec::new());
    for path in SOURCES.iter().flat_map(|folder| files(&root.join(folder))) {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).unwrap();
        // Tests make wrong ones of right ones.
        let found = patterns(text.split("\n#[cfg(test)]\nmod ").next().unwrap());
        read += 1;
        if READERS.contains(&&*name) {
            assert!(!found.is_empty(), "{name} takes nothing apart any more: remove it from the list");
            readers.push(name);
        } else {
            assert_eq!(found, [""; 0], "{name} takes steps or rules apart: let a reader do it");
        }
    }
    assert!(read > 100 && readers.len() == READERS.len(), "{readers:?} of {read} files");
}

#[test]
fn patterns_are_distinguished_from_what_is_made() {
    for made in [
        "vec![Step::Sum { slots }, Step::Split { slots }]",
        "match sparse { true => Step::Keep { slots, rule: Rule::Top(k), coding }, false => Step::Sum { slots } }",
        "steps.push(Step::Exchange { sends: vec![], receives: vec![one] });",
        "let rule = Rule::Every; return Some(Rule::Dense); // Step::Sum { slots } =>",
        "MyStep::Sum { slots } => 1, Step::prepare(x) == y",
        "use super::Step; let sum = Step::Sum { slots };",
        "use crate::schedule::{After, Rule, Step}; type Program = Vec<Step>; let first: Step;",
    ] {
        assert_eq!(patterns(made), [""; 0], "{made}");
    }
    for (taken, expected) in [
        ("match step { Step::Keep { slots, .. } => 1 }", "Step::Keep"),
        ("matches!(step, Step::Sum { .. })", "Step::Sum"),
        ("if let Step::Exchange { sends, receives } = step {", "Step::Exchange"),
        ("let Some(Step::Split { slots }) = steps.get(0) else { return }", "Step::Split"),
        ("(Rule::Top(k), true) if k.is_empty() => k", "Rule::Top"),
        ("Rule::Every | other => {}", "Rule::Every"),
        ("if *rule == Rule::Every { 1 }", "Rule::Every"),
        ("let dense = rule != &super::schedule::Rule::Dense;", "Rule::Dense"),
        ("assert!(Rule::Top(k) != rule)", "Rule::Top"),
        ("use crate::schedule::Rule::*;", "Rule::"),
        ("fn f() {}\nuse crate::schedule::{Slots, Step::{Keep, Sum}};", "Step::"),
        ("use crate::schedule::Step as S; matches!(step, S::Sum { .. })", "Step by another name"),
        ("use crate::schedule::{After, Rule as By, Slots};", "Rule by another name"),
        ("fn f() {}\ntype S = super::schedule::Step;", "Step by another name"),
    ] {
        assert_eq!(patterns(taken), [expected], "{taken}");
    }
}
