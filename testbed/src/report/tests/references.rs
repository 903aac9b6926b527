//! Which ring a method is compared with, and lines of what has no place on an axis.

use super::*;

/// One of a bench with an option besides.
fn with(method: &str, option: (&str, Value), seconds: f64) -> Record {
    let mut record = bench(method, 4, None, 0, seconds);
    record.case.insert(option.0.into(), option.1);
    record
}

/// A ring over plain links and one over encrypted links are references of what goes over such links.
#[test]
fn of_several_rings_the_one_with_the_methods_options_is_the_reference() {
    let plain = |method: &str, is_plain: bool, seconds| with(method, ("plain", is_plain.into()), seconds);
    let mut records = vec![
        plain("ring", false, 8.0),
        plain("ring", true, 6.0),
        plain("spardl", false, 2.0),
        plain("spardl", true, 2.0),
        // It says nothing of links, which are encrypted then.
        bench("gtopk", 4, None, 0, 4.0),
    ];
    // An option that no ring states distinguishes none.
    records[3].case.insert("teams".into(), 2.into());
    let of = |records: &[Record], label: &str| {
        let figure = figure(records.to_vec(), "step-speed-up");
        series(&figure, 0, label).points[0].spread.value
    };
    for (label, expected) in [("spardl", 4.0), ("spardl, teams 2, plain", 3.0), ("gtopk", 2.0)] {
        assert_eq!(of(&records, label), expected, "{label}");
    }
    // Where none is equal, the nearest is.
    records.remove(1);
    assert_eq!(of(&records, "spardl, teams 2, plain"), 4.0);
}

#[test]
fn values_of_the_reference_are_those_of_the_method() {
    let values = |method: &str, values: &str, seconds| with(method, ("values", values.into()), seconds);
    let records = vec![
        values("ring", "bf16", 6.0),
        values("ring", "f32", 8.0),
        values("spardl", "f32", 2.0),
        values("spardl", "bf16", 2.0),
    ];
    let figure = figure(records, "step-speed-up");
    assert_eq!(series(&figure, 0, "spardl, values f32").points[0].spread, Spread::exact(4.0));
    assert_eq!(series(&figure, 0, "spardl, values bf16").points[0].spread, Spread::exact(3.0));
}

/// A dense method has no place on the axis of densities: its line is level and has no markers, which stand where something was measured.
/// Of two methods the first by name has dots.
#[test]
fn a_level_line_has_no_markers() {
    for (sparse, dots) in [("spardl", 0), ("a", 2)] {
        let mut records = vec![bench("ring", 4, None, 0, 8.0)];
        records.extend([0.01, 0.1].map(|density| bench(sparse, 4, Some(density), 0, 1.0)));
        let figure = figure(records, "density");
        let svg = pictures(&figure, &figure.panels[0], "density", true).unwrap().concat();
        assert_eq!(svg.matches("<circle").count(), dots, "{svg}");
    }
}
