//! The page of the book on JSON fields, held to what the commands print: every field that is printed stands on the page, and every
//! field of the page is printed by some run.
#![cfg(all(feature = "train", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What a field holds, where the page says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JsonKind {
    Number,
    Text,
    Other,
}

/// Fields by their names, each with what it held wherever it was printed; null is nothing.
type Fields = BTreeMap<String, BTreeSet<JsonKind>>;

/// Units of numbers.
const UNITS: &str = "s ns bytes share ratio steps entries words nats jobs frames samples/s bytes/s bits/s";

/// Fields whose own fields are options or axes of experiments.
const OPEN: [&str; 2] = ["options", "setting"];

/// The commands, each with the section of its fields.
const RUNS: [(&str, &str); 28] = [
    ("bench", "bench --workers 2 --params 2000 --method ring --steps 2 --warmup 1 --bandwidth 1gbit"),
    ("bench", "bench --workers 3 --params 2000 --method all --values qsgd4 --steps 1 --warmup 0"),
    ("bench", "bench --workers 2 --params 2000 --method auto --steps 2 --warmup 0"),
    (
        "train",
        "train --data synthetic --model mlp --batch 4 --workers 2 --steps 2 --evaluate-every 2 --record rec",
    ),
    // So few entries that it finds something to say.
    (
        "train",
        "train --data synthetic --model mlp --batch 1 --workers 2 --steps 69 --evaluate-every 69 --k 1",
    ),
    ("regress", "regress --data webspam --samples 500 --features 1000 --epochs 1"),
    // Of so few steps that nothing else is tried.
    ("regress", "regress --data webspam --samples 500 --features 1000 --epochs 1 --workers 2 --method auto"),
    ("plan", "plan --workers 4 --params 1000"),
    ("plan", "plan --compare --workers 4 --params 1000"),
    ("plan", "plan --speedup --workers 4"),
    ("merge-plan", "merge-plan --model resnet50 --backward 100ms --workers 4"),
    ("select", "select --selector top rec/gradient-0.npy"),
    ("simulate", "simulate --method all --values qsgd4 --workers 3 --params 10000"),
    ("simulate", "simulate --workers 4 --model resnet50 --compute 100ms --method ring --workload expected"),
    ("simulate", "simulate --workers 4 --model resnet50 --compute 100ms --synchrony bsp --batch 8"),
    ("simulate", "simulate --fit rec/gradient-0.npy rec/gradient-1.npy"),
    ("simulate", "simulate --against bench.json"),
    ("calibrate", "calibrate --workers 2"),
    ("reduce", "reduce --out out rec/gradient-0.npy rec/gradient-1.npy"),
    ("launch", "launch -n 1 -- true"),
    ("testbed run", "testbed run bench.toml --out runs/bench"),
    ("testbed run", "testbed run train.toml --out runs/train"),
    ("testbed report", "testbed report runs/bench runs/train"),
    ("testbed vm", "testbed vm -- true"),
    // What follows makes networks.
    ("testbed up", "testbed up --name NAME --hosts 2 --bandwidth 10mbit --link-latency 1ms --relay"),
    ("testbed status", "testbed status --name NAME"),
    ("testbed status", "testbed down --name NAME"),
    ("testbed chaos", "testbed chaos --runs 1"),
];

/// The fields of an object, and of those within it: `a.b`, and `a[].b` in lists.
fn fields(value: &Value, path: &str, found: &mut Fields) {
    match value {
        Value::Object(object) => {
            for (name, inner) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let before = found.len();
                if !OPEN.contains(&name.as_str()) {
                    fields(inner, &path, found);
                }
                // A field with fields of its own stands on the page by these.
                if found.len() == before && !has_fields(inner, name) {
                    kinds(inner, found.entry(path).or_default());
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| fields(inner, &format!("{path}[]"), found)),
        _ => {}
    }
}

/// What a value holds; of a list, what its elements hold.
fn kinds(value: &Value, found: &mut BTreeSet<JsonKind>) {
    match value {
        Value::Null => {}
        Value::Number(_) => {
            found.insert(JsonKind::Number);
        }
        Value::String(_) => {
            found.insert(JsonKind::Text);
        }
        Value::Bool(_) | Value::Object(_) => {
            found.insert(JsonKind::Other);
        }
        Value::Array(list) => list.iter().for_each(|inner| kinds(inner, found)),
    }
}

/// Whether something has fields that the page lists.
fn has_fields(value: &Value, name: &str) -> bool {
    let has = |value: &Value| value.as_object().is_some_and(|object| !object.is_empty());
    !OPEN.contains(&name) && (has(value) || value.as_array().is_some_and(|list| list.iter().any(has)))
}

/// What a unit says of a field; nothing where it is words about several fields.
fn of_unit(unit: &str) -> Option<JsonKind> {
    match unit {
        "text" | "text with its unit" => Some(JsonKind::Text),
        _ => UNITS.split(' ').any(|known| known == unit).then_some(JsonKind::Number),
    }
}

/// The fields of a row, and what its units say of each: one for each field, or any number that say the same of all.
fn of_row(line: &str) -> Vec<(String, Option<JsonKind>)> {
    let cells: Vec<&str> = line.split('|').collect();
    let names: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
    let units: Vec<Option<JsonKind>> = cells[2].trim().split(", ").map(of_unit).collect();
    let is_one = units.iter().all(|unit| *unit == units[0]);
    let of_place = |place: usize| match units.len() == names.len() {
        true => units[place],
        false => units[0].filter(|_| is_one),
    };
    names.iter().enumerate().map(|(place, name)| ((*name).to_owned(), of_place(place))).collect()
}

/// The fields of each section of the page, and what their units say of them.
fn listed() -> BTreeMap<String, BTreeMap<String, Option<JsonKind>>> {
    let page = include_str!("../../docs/src/commands/json.md");
    let sections = page.split("\n## ").skip(1).map(|section| {
        let (name, rest) = section.split_once('\n').unwrap();
        let rows = rest.lines().filter(|line| line.starts_with("| `"));
        (name.to_owned(), rows.flat_map(of_row).collect())
    });
    sections.collect()
}

/// Runs a command with `--json`, and gives the object on its last line.
fn json(folder: &Path, words: &str, name: &str) -> Value {
    let (own, program) =
        words.split_once(" -- ").map_or((words, None), |(own, program)| (own, Some(program)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).env("GLEANER_TIMEOUT", "20s");
    command.args(own.split(' ').map(|word| if word == "NAME" { name } else { word })).arg("--json");
    if let Some(program) = program {
        command.arg("--").args(program.split(' '));
    }
    if words.starts_with("testbed vm") {
        // Without a machine the fields are the same.
        command.env("PATH", "");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .or_else(|_| serde_json::from_str(&text))
        .unwrap_or_else(|_| panic!("{words}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Fields that are null, or a list without elements, wherever they were printed: they may have fields of their own.
fn without_empty(printed: &mut Fields) {
    let all: Vec<String> = printed.keys().cloned().collect();
    let has_inner = |field: &str| {
        all.iter().any(|other| {
            other.strip_prefix(field).is_some_and(|rest| rest.starts_with('.') || rest.starts_with("[]."))
        })
    };
    printed.retain(|field, _| !has_inner(field));
}

#[test]
fn the_page_lists_what_the_commands_print() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let workload = |command: &str, rest: &str| {
        format!("title = \"{command}\"\n[workload]\ncommand = \"{command}\"\nworkers = 2\nsteps = 2\n{rest}")
    };
    let bench = workload("bench", "params = 1000\nmethod = \"ring\"\n");
    let train = "data = \"synthetic\"\nmodel = \"mlp\"\nbatch = 4\nevaluate_every = 1\nmethod = \"ring\"\n";
    std::fs::write(at.join("bench.toml"), bench).unwrap();
    std::fs::write(at.join("train.toml"), workload("train", train)).unwrap();
    let networks =
        Command::new("unshare").args(["--net", "ip", "link", "add", "gleaner0", "type", "veth"]).output();
    let networks = networks.is_ok_and(|made| made.status.success());
    let name = format!("json-{}", std::process::id());

    let mut printed: BTreeMap<String, Fields> = BTreeMap::new();
    for (section, words) in RUNS {
        let makes_networks = ["testbed up", "testbed status", "testbed chaos"].contains(&section);
        if makes_networks && !networks {
            continue;
        }
        if words.starts_with("testbed down") {
            let mut down = Command::new(env!("CARGO_BIN_EXE_gleaner"));
            assert!(down.args(["testbed", "down", "--name", &name]).status().unwrap().success());
            continue;
        }
        let object = json(at, words, &name);
        if words.starts_with("bench --workers 2") && words.contains("ring") {
            std::fs::write(at.join("bench.json"), object.to_string()).unwrap();
        }
        let mut found = Fields::new();
        fields(&object, "", &mut found);
        if section == "bench" {
            // Several methods are a list of what one is.
            let each = |field: String| field.strip_prefix("methods[].").map_or(field.clone(), str::to_owned);
            found = found.into_iter().map(|(field, kinds)| (each(field), kinds)).collect();
        }
        let of_section = printed.entry(section.to_owned()).or_default();
        for (field, kinds) in found {
            of_section.entry(field).or_default().extend(kinds);
        }
    }
    if !networks {
        gleaner_skips::skip(
            "netns",
            "fields of commands that make networks are not compared: they take root",
        );
    }
    printed.values_mut().for_each(without_empty);
    let mut listed = listed();
    if !networks {
        listed.retain(|section, _| printed.contains_key(section));
    }
    for (section, printed) in &printed {
        let listed = listed.get(section).unwrap_or_else(|| panic!("the page has no section {section}"));
        let missing: Vec<_> = printed.keys().filter(|field| !listed.contains_key(*field)).collect();
        let unknown: Vec<_> = listed.keys().filter(|field| !printed.contains_key(*field)).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{section}: the page lacks {missing:?}, and no run printed {unknown:?}"
        );
        for (field, said) in listed.iter().filter_map(|(field, said)| Some((field, (*said)?))) {
            let held = &printed[field];
            assert!(
                held.iter().all(|kind| *kind == said),
                "{section}: {field} is {held:?}, and the page says {said:?}"
            );
        }
    }
    assert!(listed.keys().eq(printed.keys()), "{:?}", listed.keys());
}
