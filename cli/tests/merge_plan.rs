//! `gleaner merge-plan` and `gleaner calibrate` as their users see them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn gleaner(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).args(arguments.split_whitespace()).output().unwrap()
}

fn text(folder: &Path, arguments: &str) -> String {
    let output = gleaner(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&text(folder, &format!("{arguments} --json"))).unwrap()
}

/// The sentence with which a command ends that writes and prints nothing else.
fn refused(folder: &Path, arguments: &str) -> String {
    let before = fs::read_dir(folder).unwrap().count();
    let output = gleaner(folder, arguments);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments}: {sentence}");
    assert_eq!(fs::read_dir(folder).unwrap().count(), before, "{arguments}");
    sentence
}

fn strategy<'a>(plan: &'a Value, name: &str) -> &'a Value {
    plan["strategies"].as_array().unwrap().iter().find(|row| row["strategy"] == name).unwrap()
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-6), "{found} is not {expected}");
}

const VGG: &str = "merge-plan --model vgg16 --backward 180ms --forward 100ms --workers 8 --latency 300us";

#[test]
fn all_strategies_are_compared_and_optimal_is_the_least() {
    let folder = TempDir::new().unwrap();
    for place in ["backward", "beside"] {
        let plan = json(folder.path(), &format!("{VGG} --select-in {place}"));
        assert_eq!(plan["select_in"], place);
        let rows = plan["strategies"].as_array().unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["layer-wise", "single", "threshold", "mg-wfbp", "omgs", "omgs-printed", "optimal"]
        );
        for row in rows {
            let part = |name: &str| row[name].as_f64().unwrap();
            close(&row["seconds_iteration"], 0.28 + part("seconds_selecting") + part("seconds_exposed"));
            assert!(part("ratio") >= 1.0 && (0.0..=1.0).contains(&part("hidden_share")), "{row}");
            assert_eq!(row["ends"].as_array().unwrap().len() as u64, row["groups"]);
            assert_eq!(row["ends"].as_array().unwrap().last().unwrap(), 54);
        }
        assert_eq!(strategy(&plan, "layer-wise")["groups"], 54);
        assert_eq!(strategy(&plan, "threshold")["groups"], 13);
        assert!(
            plan["dense"]["seconds_iteration"].as_f64()
                > strategy(&plan, "optimal")["seconds_iteration"].as_f64()
        );
        let layers = plan["layers"].as_array().unwrap();
        assert_eq!(layers[0]["name"], "classifier.bias");
        close(&layers[53]["seconds"], 0.18 / 54.0);
    }
    let table = text(folder.path(), VGG);
    assert!(
        table.contains("54 layers, 14_728_266 entries; forward 100.00 ms, backward 180.00 ms"),
        "{table}"
    );
    assert!(table.contains("optimal merges"), "{table}");
    // Where it is not said, the forward pass takes half as long as the backward pass.
    close(
        &json(folder.path(), "merge-plan --model lstm-ptb --backward 180ms --workers 2")["seconds_forward"],
        0.09,
    );
}

/// One cost model: all layers at once take what `plan --compare` forecasts for a step, and `auto` takes the method that merges best.
#[test]
fn merging_all_takes_what_plan_forecasts() {
    let folder = TempDir::new().unwrap();
    let network = "--workers 8 --density 0.01 --latency 300us";
    let compared =
        json(folder.path(), &format!("plan --compare {network} --params 14_728_266 --bandwidth 100mbit"));
    let mut least = f64::INFINITY;
    for method in ["spardl", "topka", "gtopk", "oktopk", "ring", "rabenseifner"] {
        let plan = json(
            folder.path(),
            &format!(
                "merge-plan --model vgg16 --backward 180ms {network} --bandwidth 100mbit --method {method}"
            ),
        );
        let row = compared["methods"].as_array().unwrap().iter().find(|row| {
            row["method"] == method && [Value::Null, "1".into()].contains(&row["options"]["teams"])
        });
        let single = strategy(&plan, "single")["seconds_iteration"].as_f64().unwrap();
        close(&row.unwrap()["seconds"], single - 0.27);
        least = least.min(strategy(&plan, "optimal")["seconds_iteration"].as_f64().unwrap());
    }
    let auto = json(
        folder.path(),
        &format!("merge-plan --model vgg16 --backward 180ms {network} --bandwidth 100mbit --method auto"),
    );
    assert!(strategy(&auto, "optimal")["seconds_iteration"].as_f64().unwrap() <= least);
}

#[test]
fn layers_come_from_a_file() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::write(
        at.join("l.csv"),
        "name,entries,seconds\nfc,5000,0.004\n\nconv2,200000,0.0005\nconv1,1000,0.002\n",
    )
    .unwrap();
    let layers = json!([
        {"name": "fc", "entries": 5000, "seconds": 0.004},
        {"name": "conv2", "entries": 200_000, "seconds": 0.0005},
        {"name": "conv1", "entries": 1000, "seconds": 0.002}
    ]);
    fs::write(at.join("l.json"), json!({"forward": 0.003, "layers": layers}).to_string()).unwrap();
    let csv = json(at, "merge-plan --layers l.csv --workers 4 --forward 3ms");
    let file = json(at, "merge-plan --layers l.json --workers 4");
    assert_eq!(csv["strategies"], file["strategies"]);
    assert_eq!((&csv["layers"], &csv["times"]), (&layers, &json!("as given")));
    close(&csv["seconds_backward"], 0.0065);
    // Sizes alone, with the whole backward pass.
    fs::write(at.join("sizes.csv"), "name,entries\nfc,5000\nconv1,1000\n").unwrap();
    let sizes = json(at, "merge-plan --layers sizes.csv --workers 4 --backward 8ms");
    close(&sizes["layers"][0]["seconds"], 0.004);
    // As numbers are written elsewhere.
    fs::write(at.join("written.csv"), "name,entries,seconds\nfc,5k,4e-3\nconv1,1_000,0.002\n").unwrap();
    let written = json(at, "merge-plan --layers written.csv --workers 4");
    assert_eq!(
        (&written["layers"][0]["entries"], &written["layers"][1]["entries"]),
        (&json!(5000), &json!(1000))
    );
    close(&written["layers"][0]["seconds"], 0.004);
}

#[test]
fn layers_that_cannot_be_get_a_sentence() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let says = |text: &str, more: &str| {
        fs::write(at.join("l"), text).unwrap();
        refused(at, &format!("merge-plan --layers l --workers 4 --svg p.svg {more}"))
    };
    let missing = says("name,entries,seconds\nfc,5000,0.1\nconv,1000,\n", "");
    assert!(missing.contains("layer 'conv' has no time") && missing.contains("--backward"), "{missing}");
    assert!(says("name,entries\nfc,5000\n", "").contains("layer 'fc' has no time"));
    assert!(says("name,entries,seconds\nfc,5000,-1\n", "").contains("layer 'fc' takes -1 s"));
    assert!(says("name,entries,seconds\nfc,5000,nan\n", "").contains("layer 'fc' takes NaN s"));
    assert!(says("name,entries,seconds\nfc,5000,inf\n", "").contains("layer 'fc' takes inf s"));
    assert!(says("name,entries,seconds\nfc,0,1\n", "").contains("has no entries"));
    assert!(says("name,entries,seconds\n", "").contains("no layers"));
    assert!(says("name,entries,seconds\nfc,many,1\n", "").contains("line 2 is 'fc,many,1'"));
    assert!(says("fc,1,1\n", "").contains("its first line is 'fc,1,1'"));
    assert!(says("{\"layers\": [{\"name\": \"fc\"}]}", "").contains("missing field `entries`"));
    assert!(
        says("{\"forward\": -1, \"layers\": [{\"name\": \"fc\", \"entries\": 1, \"seconds\": 1}]}", "")
            .contains("the forward pass takes -1 s")
    );
    let twice = says("name,entries,seconds\nfc,5000,1\n", "--backward 8ms");
    assert!(twice.contains("leave one of them out"), "{twice}");
    let other = says("name,entries,seconds\nfc,5000,1\n", "--model vgg16");
    assert!(
        other.contains("another model than vgg16") && other.contains("1 layers, vgg16 has 54 tensors"),
        "{other}"
    );
    assert!(refused(at, "merge-plan --layers none.csv --workers 4").contains("none.csv"));
    assert!(
        refused(at, "merge-plan --model vgg16 --workers 4").contains("layer 'classifier.bias' has no time")
    );
    assert!(
        refused(at, "merge-plan --model alexnet --workers 4")
            .contains("vgg16, resnet50, inception-v4, lstm-ptb")
    );
    assert!(refused(at, "merge-plan --model vgg16 --backward 1s").contains("--workers"));
    assert!(refused(at, &format!("{VGG} --svg no/such/folder.svg")).contains("folder.svg"));
}

#[test]
fn sizes_of_another_model_are_named() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let plan = json(at, VGG);
    let mut layers = plan["layers"].clone();
    fs::write(at.join("l.json"), json!({"layers": layers}).to_string()).unwrap();
    text(at, "merge-plan --model vgg16 --layers l.json --workers 4");
    layers[1]["entries"] = json!(7);
    fs::write(at.join("l.json"), json!({"layers": layers}).to_string()).unwrap();
    let sentence = refused(at, "merge-plan --model vgg16 --layers l.json --workers 4");
    assert!(sentence.contains("has 7 entries where vgg16's classifier.weight has 5120"), "{sentence}");
}

/// Four pipelines, with as many exchanges in each as it has groups.
#[test]
fn the_picture_has_four_pipelines() {
    let folder = TempDir::new().unwrap();
    for (place, lanes) in [("backward", 2), ("beside", 3)] {
        let said = text(folder.path(), &format!("{VGG} --bandwidth 10gbit --select-in {place} --svg p.svg"));
        assert!(said.contains("The picture is in p.svg."), "{said}");
        let picture = fs::read_to_string(folder.path().join("p.svg")).unwrap();
        for title in [
            "(a) P-SGD",
            "(b) TopK-SGD: all layers at once: 1 group,",
            "(c) LAGS-SGD: layer-wise: 54 groups",
            "(d) merged, optimal",
        ] {
            assert!(picture.contains(title), "{title}");
        }
        assert_eq!(picture.matches(">\nexchange\n").count(), 5, "four lanes and the legend");
        assert_eq!(picture.matches(">\ncompute\n").count(), 4);
        assert_eq!(picture.matches(">\nselect\n").count(), 4 * (lanes - 2));
    }
}

#[test]
fn the_papers_tables_are_printed() {
    let folder = TempDir::new().unwrap();
    let report = text(folder.path(), "merge-plan --paper");
    for words in ["Table V", "Table VI", "Fig. 4", "assumed", "solved", "printed", "53 | 53", "0.666 | 0.666"]
    {
        assert!(report.to_lowercase().contains(&words.to_lowercase()), "{words}: {report}");
    }
    refused(folder.path(), "merge-plan --paper --workers 4");
}

/// A job measures, stores and draws; merge-plan takes the file where it fits, and names what differs where it does not.
#[test]
fn a_calibration_is_measured_and_planned_with() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let stored = json(at, "calibrate --workers 2 --method topka --density 0.02 --out c.json --svg c.svg");
    assert_eq!(
        stored,
        serde_json::from_str::<Value>(&fs::read_to_string(at.join("c.json")).unwrap()).unwrap()
    );
    assert_eq!((&stored["workers"], stored["sizes"].as_array().unwrap().len() >= 4), (&json!(2), true));
    let picture = fs::read_to_string(at.join("c.svg")).unwrap();
    assert_eq!(picture.matches("measured\n").count(), 1, "one legend for both panels");
    assert!(picture.contains("time of a selection, ms") && picture.contains("time of an exchange, ms"));
    // The fits are least squares of what was measured: their errors are those that are stored.
    for (fit, part) in
        [("select", "seconds_select"), ("exchange", "seconds_exchange"), ("dense", "seconds_dense")]
    {
        let number = |name: &str| stored[fit][name].as_f64().unwrap();
        let errors = stored["sizes"].as_array().unwrap().iter().map(|size| {
            let n = size["entries"].as_f64().unwrap();
            let fitted = number("seconds_fixed") + number("seconds_per_entry") * n;
            (fitted / size[part].as_f64().unwrap() - 1.0).abs()
        });
        close(&stored[fit]["most"], errors.fold(0.0, f64::max));
        assert!(number("seconds_fixed") >= 0.0 && number("seconds_per_entry") >= 0.0);
        assert!(number("rms") <= number("most"));
    }
    // All layers at once cost what the lines say of all entries.
    let wanted =
        "merge-plan --model vgg16 --backward 180ms --method topka --density 0.02 --calibration c.json";
    let plan = json(at, &format!("{wanted} --workers 2"));
    let line = |fit: &str| {
        let number = |name: &str| stored[fit][name].as_f64().unwrap();
        number("seconds_fixed") + number("seconds_per_entry") * 14_728_266.0
    };
    close(&strategy(&plan, "single")["seconds_iteration"], 0.27 + line("select") + line("exchange"));
    let rate = stored["bandwidth_bits_per_second"].as_f64().unwrap() * 1e-6;
    text(at, &format!("{wanted} --bandwidth {rate:.0}mbit"));
    let network = refused(at, &format!("{wanted} --bandwidth {:.0}mbit", 2.0 * rate));
    assert!(network.contains("c.json is of another network") && network.contains("Mbit/s"), "{network}");
    let latency = stored["seconds_latency"].as_f64().unwrap() * 1e6;
    text(at, &format!("{wanted} --bandwidth {rate:.0}mbit --latency {:.3}us", 1.5 * latency));
    for factor in [0.4, 2.5] {
        let far = refused(at, &format!("{wanted} --latency {:.3}us", factor * latency));
        let words = format!(
            "c.json is of another network: it was measured with a latency of {latency:.0} µs, and a latency of"
        );
        assert!(far.contains(&words), "{far}");
    }
    let workers = refused(at, &format!("{wanted} --workers 4"));
    assert!(workers.contains("another number of workers: it was measured with 2, and 4"), "{workers}");
    let method = refused(at, "merge-plan --model vgg16 --backward 180ms --calibration c.json");
    assert!(method.contains("another method") && method.contains("topka at density 0.02"), "{method}");
    assert!(
        refused(at, "merge-plan --model vgg16 --backward 1s --method auto --calibration c.json")
            .contains("auto")
    );

    let changed = |key: &[&str], value: Value| {
        let mut other = stored.clone();
        *key.iter().fold(&mut other, |inner, key| &mut inner[key]) = value;
        fs::write(at.join("c.json"), other.to_string()).unwrap();
        refused(at, wanted)
    };
    let machine = changed(&["machine", "processor"], json!("Z80"));
    assert!(machine.contains("another machine") && machine.contains("cores of Z80"), "{machine}");
    assert!(changed(&["version"], json!(2)).contains("it has version 2"));
    assert!(changed(&["seconds_latency"], json!(1e20)).contains("a cost in it is 100000000000000000000 s"));
    assert!(
        changed(&["bandwidth_bits_per_second"], json!(0.0)).contains("its links carry 0 bits in a second")
    );
    assert!(changed(&["exchange", "seconds_fixed"], json!(-1.0)).contains("a cost in it is -1 s"));
    assert!(changed(&["exchange"], json!(null)).contains("no calibration"));
    assert!(
        refused(at, "merge-plan --model vgg16 --backward 1s --calibration none.json").contains("none.json")
    );
}

/// What the links of a job take is measured over the transport that carries them, and every command that predicts takes it.
#[test]
fn each_transport_has_costs_of_its_own_that_every_prediction_takes() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    for transport in ["tcp", "quic"] {
        let mut calibrate = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        calibrate.current_dir(at).env("GLEANER_TRANSPORT", transport);
        let file = format!("{transport}.json");
        calibrate.args(["calibrate", "--workers", "2", "--method", "ring", "--json", "--out", &file]);
        let output = calibrate.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stored: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(stored["transport"], transport);
        let rate = (stored["bandwidth_bits_per_second"].as_f64().unwrap() / 1e5).round() * 100.0;
        let latency = stored["seconds_latency"].as_f64().unwrap() * 1e9;
        let of_message = format!("--latency {latency:.0}ns");
        // Of each of the two links that a message crosses.
        let of_link = format!("--link-latency {:.0}ns", (latency.round() / 2.0).floor());
        for (command, given) in [
            ("plan --compare --workers 8 --params 100_000 --json", &of_message),
            ("plan --method ring --workers 8 --params 100_000 --json", &of_message),
            ("simulate --method ring --workers 8 --params 100_000 --json", &of_link),
        ] {
            let measured = text(at, &format!("{command} --calibration {file}"));
            assert_eq!(
                measured,
                text(at, &format!("{command} {given} --bandwidth {rate:.0}kbit")),
                "{command}"
            );
            let both = refused(at, &format!("{command} --calibration {file} {given}"));
            assert!(both.contains("--calibration"), "{both}");
            let missing = refused(at, &format!("{command} --calibration none.json"));
            assert!(missing.contains("none.json"), "{missing}");
        }
    }
}

#[test]
fn what_cannot_be_calibrated_gets_a_sentence() {
    let folder = TempDir::new().unwrap();
    let output = gleaner(folder.path(), "calibrate --workers 1");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(refused(folder.path(), "calibrate --workers 1").contains("at least two"));
    assert!(refused(folder.path(), "calibrate --method auto").contains("name a method"));
    assert!(
        refused(folder.path(), "calibrate --k 2000").contains("k is 2000, but the gradient has 1000 entries")
    );
    assert!(refused(folder.path(), "calibrate --out no/such/c.json").contains("c.json"));
}
