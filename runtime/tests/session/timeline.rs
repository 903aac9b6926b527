//! The trace of all ranks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Layout, Session};
use serde_json::Value;

use crate::job::{self, NETWORKS, Over, gradient};

const STEPS: u64 = 3;

/// A small group and one that compute threads work on, and the program's own words.
fn steps(session: &Session, n: usize) -> Option<String> {
    // Origins of clocks that lie far apart.
    std::thread::sleep(Duration::from_millis(20 * session.rank() as u64));
    let layout = Layout::new().parameter("large", n).group().parameter("small", 100);
    let mut gradients = session.gradients(&layout, Method::spardl().density(0.05)).unwrap();
    let timeline = session.timeline().unwrap();
    for step in 0..STEPS {
        let began = Instant::now();
        let g = gradient(n + 100, session.rank(), step);
        session.record(step, format!("\"pass\" of {step}"), began..Instant::now());
        gradients.ready("small", &g[n..]).unwrap();
        gradients.ready("large", &g[..n]).unwrap();
        gradients.wait().unwrap();
    }
    timeline.gather().unwrap()
}

fn events(trace: &str) -> (f64, Vec<Value>) {
    let trace: Value = serde_json::from_str(trace).unwrap();
    let within = trace["otherData"].as_object().unwrap().values().next().unwrap();
    (within.as_str().unwrap().parse().unwrap(), trace["traceEvents"].as_array().unwrap().clone())
}

fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().or(event["args"][name].as_u64()).unwrap()
}

#[test]
fn all_that_ranks_do_is_on_one_clock() {
    let workers = 4;
    for over in NETWORKS {
        let traces = job::run(over, workers, |session| steps(&session, 60_000));
        assert!(traces[1..].iter().all(Option::is_none));
        let (within, events) = events(traces[0].as_ref().unwrap());
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).count() as u64;
        let ranks = u64::from(workers);
        assert_eq!((named("commit"), named("wait")), (2 * ranks * STEPS, ranks * STEPS));
        assert_eq!((named("accumulate"), named("\"pass\" of 1")), (2 * ranks * STEPS, ranks));
        assert_eq!((named("process_name"), named("thread_name")), (ranks, 3 * ranks));
        assert!(named("select") >= 2 * ranks * STEPS && named("merge") > 0);

        // What is received was sent before, by rank 0's clock: in order for each step, group and pair.
        let mut sent: HashMap<_, Vec<&Value>> = HashMap::new();
        let mut received = sent.clone();
        for event in &events {
            let key = |from, to| (from, to, number(event, "tid"), number(event, "step"));
            match event["name"].as_str().unwrap() {
                name if name.starts_with("send") => {
                    sent.entry(key(number(event, "pid"), number(event, "to"))).or_default().push(event);
                }
                name if name.starts_with("receive") => {
                    assert!((1..=4).contains(&number(event, "round")), "{event}");
                    received.entry(key(number(event, "from"), number(event, "pid"))).or_default().push(event);
                }
                _ => {}
            }
        }
        assert!(received.len() as u64 >= 2 * STEPS * ranks);
        for (key, received) in received {
            let sent = &sent[&key];
            assert_eq!(sent.len(), received.len(), "{key:?}");
            for (sent, received) in sent.iter().zip(received) {
                assert_eq!(number(sent, "bytes"), number(received, "bytes"));
                let at = |event: &Value, name: &str| event[name].as_f64().unwrap();
                let arrived = at(received, "ts") + at(received, "dur");
                assert!(arrived - at(sent, "ts") > -2.0 * within - 1.0, "{within}: {sent} {received}");
            }
        }
    }
}

/// What was recorded before, and after, is in no trace.
#[test]
fn a_timeline_has_a_beginning_and_an_end() {
    let traces = job::run(Over::Memory, 2, |session| {
        let first = steps(&session, 1000);
        let layout = Layout::new().parameter("w", 10);
        let mut gradients = session.gradients(&layout, Method::ring()).unwrap();
        let mut step = || {
            gradients.ready("w", &[1.0; 10]).unwrap();
            gradients.wait().unwrap();
        };
        step();
        let timeline = session.timeline().unwrap();
        step();
        let second = timeline.gather().unwrap();
        step();
        let nothing = session.timeline().unwrap().gather().unwrap();
        [first, second, nothing]
    });
    let waits = |trace: &Option<String>| {
        let (_, events) = events(trace.as_ref().unwrap());
        events.iter().filter(|event| event["name"] == "wait").count()
    };
    assert_eq!(traces[0].each_ref().map(waits), [2 * STEPS as usize, 2, 0]);
}
