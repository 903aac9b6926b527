//! The timeline of two stages, and who waited for whom in it.

use std::thread;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Pass, Session, Waits};
use serde_json::Value;

use crate::job::{self, Over};
use crate::problem::{SAMPLES, gradient, initial, layout, options, places, rate};

const STEPS: u64 = 6;

/// Rank 1 is slow.
fn steps(session: Session) -> Option<String> {
    let mut replica =
        session.replica(&layout(), &initial(), options("osp/budget=0.5", Method::ring())).unwrap();
    let timeline = session.timeline().unwrap();
    let mut waits = Waits::new(&session);
    for step in 0..STEPS {
        thread::sleep(Duration::from_millis(if session.rank() == 1 { 40 } else { 5 }));
        let gradient = gradient(replica.parameters(), session.rank(), step);
        places().for_each(|(name, place)| replica.ready(&name, &gradient[place]).unwrap());
        let stepped = replica.step(Pass { rate: rate(step), samples: SAMPLES, loss: 1.0 }).unwrap();
        waits.count(step, stepped.waiting, stepped.awaited);
    }
    waits.share(&session).unwrap();
    replica.flush().unwrap();
    timeline.gather().unwrap()
}

#[test]
fn both_stages_are_in_the_timeline_and_waiting_says_for_whom() {
    let traces = job::run(Over::Memory, 3, steps);
    let trace: Value = serde_json::from_str(traces[0].as_ref().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |rank: u64, name: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["pid"] == rank && event["name"] == name).collect()
    };
    let time = |event: &Value, name: &str| event[name].as_f64().unwrap();
    let step = |event: &Value| event["args"]["step"].as_u64().unwrap();
    for rank in 0..3 {
        let (whole, routine) = (of(rank, "synchronise"), of(rank, "routine synchronisation"));
        assert_eq!((whole.len() as u64, routine.len() as u64), (STEPS, STEPS));
        // Of the first step everything is important alike, so that the least that fits goes to the background in it, too; what is
        // under way at the end comes with the flush.
        let background = of(rank, "in-computation synchronisation");
        assert_eq!(background.len() as u64, STEPS, "rank {rank}");
        for event in background {
            assert_ne!(event["tid"], whole[0]["tid"], "it overlaps with passes, and has a track of its own");
            let of_step = |events: &[&Value]| time(events[step(event) as usize], "ts");
            assert!(time(event, "ts") >= of_step(&routine) && time(event, "ts") >= of_step(&whole));
        }
        for (whole, routine) in whole.iter().zip(&routine) {
            let ends = |event: &Value| time(event, "ts") + time(event, "dur");
            assert!(time(routine, "ts") >= time(whole, "ts") && ends(routine) <= ends(whole) + 0.01);
        }
        // The slow rank is the one that the others waited for, but where the scheduler has made another one slower.
        let awaited = whole.iter().filter(|event| event["args"]["for"] == 1).count();
        match rank {
            1 => assert_eq!(awaited, 0, "no rank waits for itself"),
            _ => assert!(awaited as u64 >= STEPS / 2, "rank {rank}: {awaited}"),
        }
    }
}
