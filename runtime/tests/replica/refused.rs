//! What cannot be is a sentence, on every rank.

use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_algorithms::{Method, SelectOver};
use gleaner_runtime::{Options, Pass, Session};

use crate::job::{self, Over};
use crate::problem::{initial, layout, options, places};

#[test]
fn options_that_do_not_fit_are_refused() {
    let session = Session::join().unwrap();
    let refusal = |options: Options, initial: &[f32]| {
        session.replica(&layout(), initial, options).err().unwrap().to_string()
    };
    let bsp = || options("bsp", Method::spardl().density(0.1));
    let short = refusal(bsp(), &[1.0; 3]);
    assert!(short.contains("given 3 starting values; the layout has 500"), "{short}");
    let over = Options { method: Method::spardl().select_over(SelectOver::Gradient), ..bsp() };
    let over = refusal(over, &initial());
    assert!(over.contains("select over each group"), "{over}");
    let share = refusal(options("osp", Method::spardl().norm_share(0.5)), &initial());
    assert!(share.contains("osp does not go with a share of the norm"), "{share}");
    let decays = Correction { decay: Some(0.9), ..Correction::default() };
    let decays = refusal(options("osp", Method::spardl().corrected(decays)), &initial());
    assert!(decays.contains("osp does not go with a decay of the residual"), "{decays}");
    let moving = Correction { momentum: 0.5, ..Correction::default() };
    let moving = refusal(options("local/4", Method::spardl().corrected(moving)), &initial());
    assert!(moving.contains("local/4 does not go with momentum correction"), "{moving}");
    let skips = refusal(options("local/4", Method::ring().on_nonfinite(OnNonFinite::Skip)), &initial());
    assert!(skips.contains("let them be refused"), "{skips}");
    for served in ["asp", "ssp/3", "dssp", "r2sp"] {
        let served = refusal(options(served, Method::ring()), &initial());
        assert!(served.contains("needs parameter servers"), "{served}");
    }
    let none = refusal(Options { samples: 0, ..bsp() }, &initial());
    assert!(none.contains("a pass of 0 samples"), "{none}");
}

#[test]
fn calls_that_do_not_fit_change_nothing() {
    let session = Session::join().unwrap();
    let mut replica = session.replica(&layout(), &initial(), options("bsp", Method::ring())).unwrap();
    let pass = Pass { rate: 0.1, samples: 8, loss: 1.0 };
    let say = |error: gleaner_runtime::Error, expected: &str| {
        let said = error.to_string();
        assert!(said.contains(expected), "{said}");
    };
    say(replica.ready("p9", &[]).unwrap_err(), "no parameter named 'p9'");
    say(replica.ready("p1", &[1.0, 2.0]).unwrap_err(), "has 2 entries; the layout says 1");
    replica.ready("p1", &[1.0]).unwrap();
    say(replica.ready("p1", &[1.0]).unwrap_err(), "given twice");
    say(replica.step(pass).unwrap_err(), "before the gradients of 'p0', 'p2', 'p3', 'p4' were ready");
    say(replica.flush().unwrap_err(), "flush() is called between steps only");
    assert_eq!((replica.parameters(), replica.step_number()), (&initial()[..], 0));
    let zeros = [0.0; 300];
    places().filter(|(name, _)| name != "p1").for_each(|(name, place)| {
        replica.ready(&name, &zeros[..place.len()]).unwrap();
    });
    replica.step(pass).unwrap();
    assert_eq!(replica.step_number(), 1);
}

/// All ranks are told which one differs, and in what.
#[test]
fn ranks_that_differ_are_named() {
    for expected in
        ["Sgd { momentum: 0.5", "7 steps in an epoch", "starting values with SHA-256", "synchrony local/2"]
    {
        let said = job::run(Over::Memory, 3, |session| {
            let (mut options, mut initial) = (self::options("bsp", Method::ring()), initial());
            if session.rank() == 2 {
                match expected {
                    "Sgd { momentum: 0.5" => options.sgd.momentum = 0.5,
                    "7 steps in an epoch" => options.epoch = 7,
                    "synchrony local/2" => {
                        options.synchrony = self::options("local/2", Method::ring()).synchrony
                    }
                    _ => initial[499] += 1.0,
                }
            }
            session.replica(&layout(), &initial, options).err().unwrap().to_string()
        });
        for said in said {
            assert!(said.contains("rank 2") && said.contains(expected), "{said}");
        }
    }
}
