//! Random histories of ranks that begin, ask, finish and leave, with messages that take any time.

use std::collections::VecDeque;

use gleaner_statistics::random::Generator;

use super::*;

const STEPS: u64 = 6;

/// The numbers on the wire begin again in between.
fn id(step: u64) -> StepId {
    StepId::new(0, 3, (1 << 24) - 3 + step)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Cancelled { by: u32, cause: Cause },
}

#[derive(Debug)]
enum Mail {
    Word(StepId, Word),
    Bye,
}

struct Rank {
    steps: Steps,
    /// Where the step stands that is under way.
    running: Option<Stand>,
    ends: Vec<End>,
    left: bool,
}

struct World {
    ranks: Vec<Rank>,
    /// By sender and receiver, in order.
    links: Vec<Vec<VecDeque<Mail>>>,
    /// The ranks that asked, by step, and why.
    asked: Vec<HashSet<(u32, u8)>>,
    random: Generator,
}

impl World {
    fn new(workers: u32, coordinator: u32, seed: u64) -> Self {
        let rank = |rank| {
            let mut steps = Steps::new(rank, workers, coordinator);
            steps.add(id(0), true);
            Rank { steps, running: None, ends: Vec::new(), left: false }
        };
        Self {
            ranks: (0..workers).map(rank).collect(),
            links: (0..workers).map(|_| (0..workers).map(|_| VecDeque::new()).collect()).collect(),
            asked: vec![HashSet::new(); STEPS as usize],
            random: Generator::seeded(seed),
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random.below(below as u32) as usize
    }

    fn post(&mut self, from: usize) {
        for effect in self.ranks[from].steps.effects() {
            match effect {
                Effect::Tell(to, id, word) => {
                    assert_eq!(Word::decode(&word.encode()), Some(word));
                    self.links[from][to as usize].push_back(Mail::Word(id, word));
                }
                Effect::Stand(of, stand) => {
                    let rank = &mut self.ranks[from];
                    assert_eq!(of, id(rank.ends.len() as u64), "of the step that is under way");
                    rank.running = Some(stand);
                }
                Effect::Discard(_) => {}
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        match self.links[from][to].pop_front() {
            None => return false,
            Some(Mail::Word(id, word)) => self.ranks[to].steps.heard(from as u32, id, word).unwrap(),
            Some(Mail::Bye) => self.ranks[to].steps.left(from as u32),
        }
        self.post(to);
        true
    }

    /// Takes note of a cancelled step.
    fn look(&mut self, rank: usize) -> bool {
        let rank = &mut self.ranks[rank];
        let Some(Stand::Cancelled { by, cause }) = rank.running else { return false };
        rank.ends.push(End::Cancelled { by, cause });
        rank.running = None;
        true
    }

    fn begin(&mut self, rank: usize) -> bool {
        let rank = &mut self.ranks[rank];
        let next = rank.ends.len() as u64;
        if rank.running.is_some() || next == STEPS {
            return false;
        }
        rank.running = Some(rank.steps.begin(id(next)));
        true
    }

    /// A step can finish once all have begun it.
    fn finish(&mut self, rank: usize) -> bool {
        let step = self.ranks[rank].ends.len();
        let all = self.ranks.iter().all(|r| r.ends.len() + usize::from(r.running.is_some()) > step);
        let rank = &mut self.ranks[rank];
        if rank.running.is_none() || !all || !rank.steps.finish(id(step as u64)) {
            return false;
        }
        rank.running = None;
        rank.ends.push(End::Finished);
        true
    }

    fn ask(&mut self, rank: usize) {
        let step = self.ranks[rank].ends.len();
        if self.ranks[rank].running.is_some() {
            let cause = [Cause::Wish, Cause::NonFinite, Cause::Memory][self.random(3)];
            self.asked[step].insert((rank as u32, cause as u8));
            self.ranks[rank].steps.ask(id(step as u64), cause);
            self.post(rank);
        }
    }

    fn leave(&mut self, rank: usize) -> bool {
        if self.ranks[rank].left || self.ranks[rank].ends.len() < STEPS as usize {
            return false;
        }
        self.ranks[rank].left = true;
        for to in (0..self.ranks.len()).filter(|&to| to != rank) {
            self.links[rank][to].push_back(Mail::Bye);
        }
        true
    }

    fn anything(&mut self) {
        let (a, b) = (self.random(self.ranks.len()), self.random(self.ranks.len()));
        match self.random(12) {
            0..4 => {
                self.deliver(a, b);
            }
            4..7 => {
                self.begin(a);
            }
            7..10 => {
                self.finish(a);
            }
            10 => self.ask(a),
            _ => {
                self.leave(a);
            }
        }
        self.look(a);
        self.look(b);
    }

    /// Lets everything run to its end.
    fn run_out(&mut self) {
        let ranks = self.ranks.len();
        let mut moved = true;
        while moved {
            moved = false;
            for a in 0..ranks {
                moved |= self.look(a) || self.finish(a) || self.begin(a) || self.leave(a);
                for b in 0..ranks {
                    moved |= self.deliver(a, b);
                }
            }
        }
    }
}

/// Numbers of workers, and who of them decides.
const COORDINATORS: [(u32, u32); 8] = [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (3, 2), (4, 2), (5, 2)];

#[test]
fn all_ranks_decide_the_same_whatever_comes_when() {
    let (mut finished_though_asked, mut cancelled) = (0, 0);
    for (workers, coordinator) in COORDINATORS {
        for seed in 1..=4000 {
            let mut world = World::new(workers, coordinator, seed * 10 + u64::from(workers));
            for _ in 0..world.random(400) {
                world.anything();
            }
            world.run_out();
            for step in 0..STEPS as usize {
                let ends: Vec<_> = world.ranks.iter().map(|rank| rank.ends.get(step)).collect();
                assert!(
                    ends[0].is_some(),
                    "step {step} does not end: {workers} workers under {coordinator}, seed {seed}"
                );
                assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}: {workers} workers, seed {seed}");
                match ends[0] {
                    Some(End::Cancelled { by, cause }) => {
                        let asked = (*by, *cause as u8);
                        assert!(world.asked[step].contains(&asked), "in the name of one that did not ask");
                        cancelled += 1;
                    }
                    _ => finished_though_asked += usize::from(!world.asked[step].is_empty()),
                }
            }
            for rank in &world.ranks {
                assert!(rank.steps.open.is_empty() && rank.steps.inquiries.is_empty(), "something stays");
                assert!(rank.left);
            }
        }
    }
    // Both happen, or nothing is tested.
    assert!(cancelled > 1000 && finished_though_asked > 1000, "{cancelled} {finished_though_asked}");
}

#[test]
fn who_speaks_out_of_turn_breaks_the_rules() {
    let words = [
        Word::Ask(Cause::Wish),
        Word::Freeze,
        Word::Unfinished,
        Word::Finished,
        Word::TooLate,
        Word::Cancelled { by: 1, cause: Cause::Wish },
    ];
    // A gradient whose steps can be cancelled, and one of a kind that cannot.
    let steps = |rank, coordinator| {
        let mut steps = Steps::new(rank, 3, coordinator);
        steps.add(id(0), true);
        steps.add(StepId::new(0, 0, 0), false);
        steps
    };
    let cases = [(0, 0, 1), (0, 1, 0), (0, 1, 2), (2, 2, 1), (2, 1, 2), (2, 1, 0), (2, 0, 1)];
    for ((coordinator, rank, from), word) in cases.into_iter().flat_map(|case| words.map(|word| (case, word)))
    {
        let steps = || steps(rank, coordinator);
        let answer = steps().heard(from, id(0), word);
        let allowed = match word {
            Word::Ask(_) | Word::Unfinished | Word::Finished => rank == coordinator,
            Word::Freeze => from == coordinator,
            // Nothing was frozen.
            _ => false,
        };
        assert_eq!(answer.is_ok(), allowed, "{word:?} from rank {from} to rank {rank} under {coordinator}");
        let elsewhere = StepId::new(0, 0, 0);
        let wish = matches!(word, Word::Ask(_) | Word::Cancelled { .. });
        let answer = steps().heard(from, elsewhere, word);
        assert_eq!(answer.is_ok(), allowed && !wish, "only a reducer's step can be cancelled at will");
        let nonfinite = steps().heard(from, elsewhere, Word::Ask(Cause::NonFinite));
        assert_eq!(nonfinite.is_ok(), rank == coordinator, "any step can be skipped");
        assert_eq!(steps().heard(from, StepId::new(0, 9, 0), word), Ok(()), "a gradient that is gone");
    }
    assert_eq!(Word::decode(&[]), None);
    for nonsense in [&[0][..], &[0, 3], &[5, 1], &[5, 3, 0, 0, 0, 0]] {
        assert_eq!(Word::decode(nonsense), None);
    }
    assert_eq!(Word::decode(&[6]), None);
}

#[test]
fn a_rank_whose_values_are_not_finite_is_heard_before_one_that_cancels() {
    let mut steps = Steps::new(0, 3, 0);
    steps.add(id(0), true);
    assert_eq!(steps.begin(id(0)), Stand::Free);
    steps.ask(id(0), Cause::Wish);
    steps.heard(2, id(0), Word::Ask(Cause::NonFinite)).unwrap();
    steps.heard(1, id(0), Word::Ask(Cause::NonFinite)).unwrap();
    for rank in [1, 2] {
        steps.heard(rank, id(0), Word::Unfinished).unwrap();
    }
    let cancelled = Effect::Stand(id(0), Stand::Cancelled { by: 2, cause: Cause::NonFinite });
    assert!(steps.effects().contains(&cancelled));
    assert!(!steps.expects(id(0)) && steps.expects(id(1)));
}

/// What ranks say about a step of another epoch is not about the step of this one that has the same numbers.
#[test]
fn epochs_have_steps_of_their_own() {
    let of = |epoch| StepId::new(epoch, 3, 7);
    let mut steps = Steps::new(1, 3, 0);
    steps.add(of(5), true);
    assert_eq!(steps.begin(of(5)), Stand::Free);
    steps.heard(0, of(4), Word::Freeze).unwrap();
    steps.heard(0, of(4), Word::Cancelled { by: 2, cause: Cause::Wish }).unwrap();
    assert_eq!(steps.stand(of(5)), Some(Stand::Free));
    assert!(steps.finish(of(5)));
}

/// What is remembered of steps that were not begun is bounded, and it is enough for a rank that is late.
#[test]
fn steps_that_are_not_begun_are_remembered_up_to_a_bound() {
    let mut steps = Steps::new(1, 2, 0);
    steps.add(id(0), true);
    for step in 0..u64::from(EARLY) {
        steps.heard(0, id(step), Word::Freeze).unwrap();
    }
    assert_eq!(steps.open.len(), EARLY as usize);
    let beyond = steps.heard(0, id(u64::from(EARLY)), Word::Freeze);
    assert!(beyond.is_err_and(|what| what.contains("thousands")), "{beyond:?}");
    steps.heard(0, id(0), Word::TooLate).unwrap_err();
}
