//! The page of the book on JSON fields, held to what the commands print: every field that is printed stands on the page, and every
//! field of the page is printed by some run. A name has one unit.
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

/// The fields of each section of the page, each with its unit, which is empty where there is none.
type Listed = BTreeMap<String, BTreeMap<String, String>>;

/// Units of numbers.
const UNITS: &str =
    "s ns µs bytes share ratio steps entries words loss jobs frames processes samples/s bytes/s bits/s";

/// What `train --metrics` writes, beside what it prints.
const METRICS: &str = "steps.jsonl";

/// Fields whose own fields are options or axes of experiments.
const OPEN: [&str; 2] = ["options", "setting"];

/// The commands, each with the section of its fields.
const RUNS: [(&str, &str); 28] = [
    ("bench", "bench --workers 2 --params 2000 --method ring --steps 2 --warmup 1 --bandwidth 1gbit"),
    ("bench", "bench --workers 3 --params 2000 --method all --values qsgd4 --steps 1 --warmup 0"),
    ("bench", "bench --workers 2 --params 2000 --method auto --steps 2 --warmup 0"),
    (
        "train",
        "train --data synthetic --model mlp --batch 4 --workers 2 --steps 2 --evaluate-every 2 --record rec --metrics steps.jsonl",
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

/// What a unit says of a field; nothing where there is none, or where it is that of an axis.
fn of_unit(unit: &str) -> Option<JsonKind> {
    match unit {
        "" | "of the axes" => None,
        "text" | "text with its unit" => Some(JsonKind::Text),
        _ => {
            assert!(
                UNITS.split(' ').any(|known| known == unit),
                "the page has the unit '{unit}'; expected none, text, or one of {UNITS}"
            );
            Some(JsonKind::Number)
        }
    }
}

/// The fields of a row, each with its unit: one for all of them, or one for each.
fn of_row(line: &str) -> Vec<(String, String)> {
    let cells: Vec<&str> = line.split('|').collect();
    let names: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
    let units: Vec<&str> = cells[2].trim().split(", ").collect();
    assert!(
        units.len() == 1 || units.len() == names.len(),
        "{line}: expected one unit for all fields, or one for each"
    );
    let pairs = names.into_iter().zip(units.into_iter().cycle());
    pairs.map(|(name, unit)| (name.to_owned(), unit.to_owned())).collect()
}

/// What the page says.
fn listed() -> Listed {
    let page = include_str!("../../docs/src/commands/json.md");
    let sections = page.split("\n## ").skip(1).map(|section| {
        let (name, rest) = section.split_once('\n').unwrap();
        let rows = rest.lines().filter(|line| line.starts_with("| `"));
        (name.to_owned(), rows.flat_map(of_row).collect())
    });
    sections.collect()
}

/// A field's name, without the lists that it is in.
fn name_of(field: &str) -> &str {
    field.rsplit("[].").next().unwrap_or(field)
}

/// The unit of each name that has one.
fn units(listed: &Listed) -> BTreeMap<&str, &str> {
    let mut units: BTreeMap<&str, &str> = BTreeMap::new();
    for (section, fields) in listed {
        for (field, unit) in fields.iter().filter(|(_, unit)| !unit.is_empty()) {
            let first = *units.entry(name_of(field)).or_insert(unit);
            assert_eq!(first, unit, "{section}: {field} has another unit elsewhere on the page");
        }
    }
    units
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

/// Adds what an object has to the fields of its section.
fn add(printed: &mut BTreeMap<String, Fields>, section: &str, object: &Value) {
    let mut found = Fields::new();
    fields(object, "", &mut found);
    let of_section = printed.entry(section.to_owned()).or_default();
    for (field, kinds) in found {
        // Several methods of bench are a list of what one is.
        let field =
            if section == "bench" { field.trim_start_matches("methods[].").to_owned() } else { field };
        of_section.entry(field).or_default().extend(kinds);
    }
}

#[test]
fn a_name_has_one_unit_and_times_are_in_seconds() {
    let listed = listed();
    for (field, unit) in listed.values().flatten() {
        of_unit(unit);
        let name = field.rsplit('.').next().unwrap();
        let is_time = ["seconds", "slowest"].iter().any(|word| name.starts_with(*word));
        assert_eq!(unit == "s", is_time, "{field} has the unit '{unit}'");
    }
    assert!(units(&listed).len() > 100);
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
        add(&mut printed, section, &object);
        if words.contains(METRICS) {
            let lines = std::fs::read_to_string(at.join(METRICS)).unwrap();
            for line in lines.lines() {
                add(&mut printed, "train --metrics", &serde_json::from_str::<Value>(line).unwrap());
            }
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
    let units = units(&listed);
    for (section, printed) in &printed {
        let listed = listed.get(section).unwrap_or_else(|| panic!("the page has no section {section}"));
        let missing: Vec<_> = printed.keys().filter(|field| !listed.contains_key(*field)).collect();
        let unknown: Vec<_> = listed.keys().filter(|field| !printed.contains_key(*field)).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{section}: the page lacks {missing:?}, and no run printed {unknown:?}"
        );
        for (field, unit) in listed {
            let held = &printed[field];
            let said = of_unit(unit);
            assert!(
                said.is_none_or(|said| held.iter().all(|kind| *kind == said)),
                "{section}: {field} is {held:?}, and the page says '{unit}'"
            );
            let lacks = unit.is_empty() && held.contains(&JsonKind::Number);
            let elsewhere = units.get(name_of(field)).filter(|unit| of_unit(unit) == Some(JsonKind::Number));
            assert!(!lacks || elsewhere.is_none(), "{section}: {field} lacks the unit {elsewhere:?}");
        }
    }
    assert!(listed.keys().eq(printed.keys()), "{:?}", listed.keys());
}
