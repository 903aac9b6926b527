use gleaner_algorithms::collectives::COLLECTIVES;
use gleaner_algorithms::schedule::check;
use gleaner_algorithms::{Method, Rank};
use std::time::Instant;
fn main() {
    let p: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    for c in COLLECTIVES {
        let method = Method::named(c.name()).unwrap().density(0.01);
        let start = Instant::now();
        let shape = method.shape(p, 10_000_000usize).unwrap();
        let proof = check(method.schedules_after(&shape, &method.memory(&shape))).unwrap();
        let a = start.elapsed();
        let program = proof.program(Rank(p - 1));
        let rss = std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .find(|l| l.starts_with("VmHWM"))
            .unwrap()
            .to_string();
        println!("{:24} {:?} {:?} {} {}", c.name(), a, start.elapsed() - a, program.facts().len(), rss);
    }
}
