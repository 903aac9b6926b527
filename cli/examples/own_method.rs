//! A method of one's own, with an option: `cargo run --example own_method -- plan --method star/2 --workers 5 --params 100`,
//! and `bench --method star/1,ring --workers 4 --params 100000`, which runs it over TCP. Without a command it tests the invariants.

use std::process::ExitCode;

use gleaner::Method;
use gleaner::algorithms::collectives::{Collective, MethodError, Setting, Shape, Structure};
use gleaner::algorithms::schedule::{After, How, Receive, Send, Slots, Step};
use gleaner::algorithms::{Block, Rank, invariants};

/// Every rank sends everything to the root, which adds and sends the sum back.
#[derive(Clone, Debug)]
struct Star {
    root: u32,
}

impl Collective for Star {
    type State = ();

    fn name(&self) -> &'static str {
        "star"
    }
    fn summary(&self) -> &'static str {
        "dense star: 2 rounds, n(P−1) words at the root"
    }
    fn is_sparse(&self) -> bool {
        false
    }
    fn options(&self) -> Vec<Setting> {
        vec![Setting { name: "root", value: self.root.to_string(), expects: "a rank" }]
    }
    fn with(&self, option: &str, value: &str) -> Option<Self> {
        (option == "root").then(|| value.parse().ok())?.map(|root| Self { root })
    }
    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        let (root, workers) = (self.root, shape.workers);
        let refused = || {
            format!("there is no root {root} among {workers} workers; choose one from 0 to {}", workers - 1)
        };
        if root < workers { Ok(()) } else { Err(MethodError::Refused(refused())) }
    }
    fn blocks(&self, _: &Shape) -> u32 {
        1
    }
    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let (slots, root) = (Slots::one(Block(0)), Rank(self.root));
        let others = || (0..shape.workers).map(Rank).filter(|other| *other != root);
        let exchange = |sends, receives| Step::Exchange { sends, receives };
        if rank == root {
            let receives = others().map(|from| Receive { from, slots, how: How::Add }).collect();
            let back = others().map(|to| Send { to, slots, after: After::Retain }).collect();
            vec![exchange(vec![], receives), exchange(back, vec![])]
        } else {
            let send = Send { to: root, slots, after: After::Drop };
            vec![
                exchange(vec![send], vec![]),
                exchange(vec![], vec![Receive { from: root, slots, how: How::Place }]),
            ]
        }
    }
}

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        return gleaner_cli::main_with([Method::of(Star { root: 0 })]);
    }
    for workers in 1..=9 {
        if let Err(broken) = invariants::check(&Method::of(Star { root: workers / 2 }), workers, 100) {
            eprintln!("star among {workers} workers: {broken}");
            return ExitCode::FAILURE;
        }
    }
    println!("star keeps the invariants");
    ExitCode::SUCCESS
}
