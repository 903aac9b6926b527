//! Ranks that do not agree are refused on all sides, with a sentence that names the difference.

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Layout, LayoutError, Session};

use crate::job::{self, NETWORKS, Over};

fn refusals(over: Over, choose: impl Fn(usize) -> (Layout, Method) + Sync) -> Vec<String> {
    job::run(over, 3, |session| {
        let (layout, method) = choose(session.rank());
        match session.gradients(&layout, method) {
            Err(error @ Error::Failed(_)) => error.to_string(),
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("rank {} was accepted", session.rank()),
        }
    })
}

#[test]
fn layouts_and_methods_must_agree() {
    let layout = |last: usize| Layout::new().parameter("a", 10).parameter("b", last);
    for over in NETWORKS {
        for sentence in refusals(over, |rank| (layout(if rank == 2 { 21 } else { 20 }), Method::spardl())) {
            assert!(sentence.starts_with("rank 2 failed"), "{sentence}");
            assert!(
                sentence.contains("31 entries in all") && sentence.contains("30 entries in all"),
                "{sentence}"
            );
        }
        for sentence in refusals(over, |rank| {
            (layout(20), if rank == 1 { Method::spardl().density(0.5) } else { Method::spardl() })
        }) {
            assert!(sentence.starts_with("rank 1 failed"), "{sentence}");
            assert!(sentence.contains("density 0.5") && sentence.contains("density 0.05"), "{sentence}");
        }
        for sentence in refusals(over, |rank| {
            let name = if rank == 1 { "other" } else { "a" };
            (Layout::new().parameter(name, 10), Method::ring())
        }) {
            assert!(
                sentence.contains("parameter 'other'") && sentence.contains("parameter 'a'"),
                "{sentence}"
            );
        }
    }
}

/// Of the texts of all ranks two are shown, those of rank 0 and of the first that differs, however many differ.
#[test]
fn only_two_of_the_differing_layouts_are_passed_on() {
    let (workers, parameters) = (20, 2000);
    let ends = job::run(Over::Memory, workers, |session| {
        let name =
            |i: usize| format!("{} of {}", i, "a parameter with a long name, as models have ".repeat(2));
        let layout = (0..parameters).fold(Layout::new(), |layout, i| layout.parameter(name(i), 10));
        // They differ in what comes last.
        let layout = layout.parameter("last", if session.rank() < 3 { 10 } else { 10 + session.rank() });
        let lines = (parameters * name(parameters - 1).len()) as u64;
        let error = session.gradients(&layout, Method::ring()).err().unwrap().to_string();
        (error, session.traffic(), lines)
    });
    for (said, ..) in &ends {
        assert!(said.starts_with("rank 3 failed") && said.contains("20013 entries in all"), "{said}");
    }
    for (rank, (_, traffic, lines)) in ends.iter().enumerate() {
        // The text of rank 3 goes up to rank 0, which hands both to its children, and rank 1 to its own. Those may be notified of the
        // failure before both have come.
        let (least, most) = if rank == 0 { (1, 2) } else { (0, 3) };
        assert!(traffic.bytes_received >= least * lines, "rank {rank}: {traffic:?}, {lines}");
        assert!(traffic.bytes_received < most * lines, "rank {rank}: {traffic:?}, {lines}");
    }
}

#[test]
fn calls_must_agree() {
    for over in NETWORKS {
        let sentences = job::run(over, 3, |session| {
            let result =
                if session.rank() == 1 { session.barrier() } else { session.all_gather(b"x").map(drop) };
            result.unwrap_err().to_string()
        });
        for sentence in sentences {
            assert!(sentence.contains("barrier()") && sentence.contains("all_gather()"), "{sentence}");
            assert!(sentence.starts_with("rank 1 failed"), "{sentence}");
        }
    }
}

#[test]
fn the_trainers_own_mistakes_are_named() {
    let session = Session::join().unwrap();
    let twice = session.gradients(&Layout::new().parameter("a", 1).parameter("a", 2), Method::ring());
    assert!(matches!(twice, Err(Error::Layout(LayoutError::Twice(name))) if name == "a"));
    let too_dense = session.gradients(&Layout::new().parameter("a", 1), Method::spardl().density(1.5));
    assert!(too_dense.err().unwrap().to_string().contains("1.5"));
    let too_long = session.gradients(&Layout::new().parameter("a", 5_000_000_000), Method::ring());
    assert!(too_long.err().unwrap().to_string().contains("blocks of 5000000000"));
    let too_many = session.gradients(&Layout::new().parameter("a", 4), Method::spardl().k(5));
    assert!(too_many.err().unwrap().to_string().contains("k is 5, but the gradient has 4 entries"));

    let layout = Layout::new().parameter("a", 2).parameter("b", 1);
    let mut gradients = session.gradients(&layout, Method::ring()).unwrap();
    let error = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert!(error(gradients.ready("c", &[1.0])).contains("no parameter named 'c'"));
    assert!(error(gradients.ready("a", &[1.0])).contains("has 1 entries; the layout says 2"));
    gradients.ready("a", &[1.0, 2.0]).unwrap();
    assert!(error(gradients.ready("a", &[1.0, 2.0])).contains("given twice"));
    assert!(gradients.wait().unwrap_err().to_string().contains("'b'"));
    gradients.ready("b", &[3.0]).unwrap();
    let update = gradients.wait().unwrap();
    assert_eq!(update.entries(), 3);
    assert!(update.add_to("a", &mut [0.0], 1.0).is_err());
    assert!(update.add_to("z", &mut [0.0], 1.0).is_err());
}
