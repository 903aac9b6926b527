//! What was planned and did not happen.

use super::*;

/// With an axis of faults or without, a measurement whose fault did not happen is neither one with the fault nor one without.
#[test]
fn what_a_planned_fault_missed_is_in_no_figure() {
    let of = |method: &str, turn: u32, seconds: f64, faults: Option<&str>, missed: bool| {
        let mut record = bench(method, 4, None, turn, seconds);
        if let Some(faults) = faults {
            record.case.insert("faults".into(), faults.into());
            record.chaos = vec!["1.00 s, step 2: cut host 1".into()];
        }
        if missed {
            record.chaos.clear();
            record.missed =
                vec!["cut host 1 at step 20: the job ended before, after 1.00 s, at step 5".into()];
        }
        record
    };
    let records = vec![
        of("ring", 0, 80.0, None, true),
        of("ring", 0, 8.0, None, false),
        of("spardl", 0, 2.0, None, false),
        of("spardl", 1, 70.0, None, true),
        of("spardl", 0, 4.0, Some("cut"), false),
        of("spardl", 1, 60.0, Some("cut"), true),
    ];
    let step = figure(records.clone(), "step-time");
    for (label, seconds) in [("ring", 8.0), ("spardl", 2.0), ("spardl, faults cut", 4.0)] {
        assert_eq!(spreads(series(&step, 0, label)), [(None, Spread::exact(seconds))], "{label}");
    }
    let speed_up = figure(records, "step-speed-up");
    assert_eq!(spreads(series(&speed_up, 0, "spardl")), [(None, Spread::exact(4.0))]);
}
