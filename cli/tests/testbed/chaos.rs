//! A short campaign of faults at random moments, as `gleaner testbed chaos` runs it.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use super::{Network, namespaces, testbed, text};

/// A seed, which is printed first of all, however the test ends: what is printed in a test is shown only when it ends.
fn seed() -> String {
    // A hasher of the standard library is seeded at random.
    let seed = (std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) >> 44).to_string();
    let line = format!("campaign: gleaner testbed chaos --runs {RUNS} --at-once 3 --seed {seed}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    seed
}

const RUNS: &str = "28";

/// Every fault twice, at moments that follow from a random seed.
#[test]
fn whatever_happens_to_a_job_it_ends_in_time_and_names_the_right_rank() {
    if Network::named("chaos").is_none() {
        return;
    }
    let seed = seed();
    let arguments = ["chaos", "--runs", RUNS, "--at-once", "3", "--seed", &seed, "--json"];
    let campaign = testbed(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = campaign.id();
    let output = campaign.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(said.starts_with(&format!("gleaner testbed chaos: seed {seed}\n")), "{said}");
    let Ok(object) = serde_json::from_slice::<Value>(&output.stdout) else { panic!("no object: {said}") };
    println!("{:.1} s", object["seconds_run"].as_f64().unwrap());
    assert_eq!(object["seed"].to_string(), seed);
    assert_eq!((object["tried"].as_u64(), object["wrong"].as_u64()), (Some(28), Some(0)), "{said}");
    assert!(output.status.success(), "{said}");
    let rows = object["faults"].as_array().unwrap();
    for row in rows {
        let count = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(
            (count("tried"), count("in_time"), count("digests_equal"), count("orphans")),
            (2, 2, 2, 0),
            "{row}"
        );
        assert_eq!(count("failed"), count("named_right"), "{row}");
    }
    let jobs = object["jobs"].as_array().unwrap();
    for job in jobs {
        let as_expected =
            job["expected"] == "either" || (job["expected"] == "succeed") == (job["succeeded"] == true);
        assert!(as_expected, "{job}");
    }
    // All but the jobs without a fault, and those whose fault is there from the start.
    let meant = jobs
        .iter()
        .filter(|job| !["none", "full-stderr", "unequal"].iter().any(|fault| job["fault"] == *fault));
    let met = meant.clone().filter(|job| job["met"] == true).count();
    assert!(rows.len() == 14 && meant.count() == 22, "{object}");
    assert!(met >= 18, "only {met} of 22 faults came where that was meant: {object}");
    let of = |key: &str| jobs.iter().map(|job| job[key].to_string()).collect::<BTreeSet<_>>();
    assert!(of("phase").len() == 7 && of("victim").len() > 1 && of("workers").len() > 1, "{object}");
    for lane in 0..3 {
        assert_eq!(namespaces(&format!("chaos-{id}-{lane}")), [""; 0]);
    }
}

/// A number means the same job again, and impossible options are refused.
#[test]
fn one_job_of_a_campaign_is_run_again_by_its_number() {
    if Network::named("chaos").is_none() {
        return;
    }
    let again = || {
        let output = testbed(&["chaos", "--seed", "7", "--only", "1", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let job = &object["jobs"][0];
        ["number", "fault", "workers", "victim", "phase", "share", "extent"].map(|key| job[key].clone())
    };
    let first = again();
    assert_eq!((first[0].as_u64(), first[1].as_str()), (Some(1), Some("kill")));
    assert_eq!(again(), first);
    let output = testbed(&["chaos", "--workers", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "one worker has no other to name it");
}
