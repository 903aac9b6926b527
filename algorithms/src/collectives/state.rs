//! What a method learns from step to step: typed for the method, plain numbers for rules and checkpoints.

use std::fmt::Debug;
use std::sync::Arc;

use super::{Collective, MethodError, Shape, Structure};
use crate::schedule::{Memory, Observed};

/// A number of a state. All of them are stored as 64-bit floats, which hold whole numbers below 2^53 exactly.
pub trait Number {
    /// The number as it is stored.
    fn stored(&self) -> f64;
    /// Takes what was stored; of a whole number the nearest that there is.
    fn take(&mut self, stored: f64);
}

macro_rules! numbers {
    ($($number:ty: $stored:expr, $take:expr;)*) => {$(
        impl Number for $number {
            fn stored(&self) -> f64 {
                $stored(*self)
            }
            fn take(&mut self, stored: f64) {
                *self = $take(stored);
            }
        }
    )*};
}

numbers! {
    f64: |v| v, |v| v;
    u32: f64::from, |v| v as u32;
    usize: |v| v as f64, |v| v as usize;
    bool: |v| f64::from(u8::from(v)), |v| v != 0.0;
}

/// What a method knows between two steps, with named fields. It says once which of its numbers are agreed and which are a
/// worker's own; rules read them by their places as [`Register`](crate::schedule::Register)s, and checkpoints hold them.
/// How many there are depends on the shape alone. `()` is for methods that learn nothing.
pub trait State: Clone + Debug + Default + Send + Sync + 'static {
    /// Numbers that are the same on all workers, bit by bit.
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        Vec::new()
    }

    /// Numbers of this worker alone: they decide only what it selects of its own gradient.
    fn own(&mut self) -> Vec<&mut dyn Number> {
        Vec::new()
    }

    /// The same for another number of workers, another n or another k.
    #[must_use]
    fn migrate(self, _from: &Shape, _to: &Shape) -> Self {
        self
    }
}

impl State for () {}

/// For a method that learns only with some of its options.
impl<S: State> State for Option<S> {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        self.as_mut().map_or_else(Vec::new, S::agreed)
    }

    fn own(&mut self) -> Vec<&mut dyn Number> {
        self.as_mut().map_or_else(Vec::new, S::own)
    }

    fn migrate(self, from: &Shape, to: &Shape) -> Self {
        self.map(|state| state.migrate(from, to))
    }
}

/// A collective without the types that only itself knows.
pub(super) trait Erased: Collective {
    fn memory(&self, shape: &Shape) -> Memory;
    fn structure_after(&self, shape: &Shape, memory: &Memory) -> Result<Structure, MethodError>;
    fn learn_from(&self, shape: &Shape, structure: &Structure, memory: &mut Memory, observed: &Observed);
    fn migrated(&self, from: &Shape, to: &Shape, memory: &Memory) -> Memory;
    fn with_option(&self, option: &str, value: &str) -> Option<Arc<dyn Erased>>;
    fn members(&self, workers: u32) -> Vec<Arc<dyn Erased>>;
}

impl<C: Collective + Clone + 'static> Erased for C {
    fn memory(&self, shape: &Shape) -> Memory {
        written(self.start(shape), Memory::default())
    }

    fn structure_after(&self, shape: &Shape, memory: &Memory) -> Result<Structure, MethodError> {
        self.structure(shape, memory.steps, &typed(self, shape, memory))
    }

    fn learn_from(&self, shape: &Shape, structure: &Structure, memory: &mut Memory, observed: &Observed) {
        let mut state = typed(self, shape, memory);
        self.learn(shape, structure, &mut state, observed);
        *memory = written(state, std::mem::take(memory));
    }

    fn migrated(&self, from: &Shape, to: &Shape, memory: &Memory) -> Memory {
        written(
            typed(self, from, memory).migrate(from, to),
            Memory { steps: memory.steps, ..Memory::default() },
        )
    }

    fn with_option(&self, option: &str, value: &str) -> Option<Arc<dyn Erased>> {
        Some(Arc::new(self.with(option, value)?))
    }

    fn members(&self, workers: u32) -> Vec<Arc<dyn Erased>> {
        self.family(workers).into_iter().map(|member| Arc::new(member) as Arc<dyn Erased>).collect()
    }
}

/// A state from its numbers.
fn typed<C: Collective>(collective: &C, shape: &Shape, memory: &Memory) -> C::State {
    let mut state = collective.start(shape);
    state.agreed().into_iter().zip(&memory.agreed).for_each(|(number, &stored)| number.take(stored));
    state.own().into_iter().zip(&memory.own).for_each(|(number, &stored)| number.take(stored));
    state
}

/// The numbers of a state. Own numbers beyond them are a selector's, and stay.
fn written<S: State>(mut state: S, mut memory: Memory) -> Memory {
    let stored =
        |numbers: Vec<&mut dyn Number>| numbers.iter().map(|number| number.stored()).collect::<Vec<_>>();
    memory.agreed = stored(state.agreed());
    let own = stored(state.own());
    memory.own.splice(..own.len().min(memory.own.len()), own);
    memory
}

#[cfg(test)]
mod tests {
    use super::super::{Method, Shape};
    use crate::schedule::Observed;
    use crate::{Block, Partition};

    /// What was learnt goes over to any other shape: as many numbers as that has, of which a partition can be made, and
    /// back again.
    #[test]
    fn what_was_learnt_is_carried_over() {
        let bruck = Method::spardl().with("teams", "3").and_then(|m| m.with("sag", "bruck")).unwrap();
        for method in Method::all().chain([bruck]) {
            for (from, to) in
                [((6, 1000, 60), (3, 1000, 60)), ((6, 1000, 60), (12, 4000, 100)), ((12, 500, 9), (6, 70, 3))]
            {
                let shape =
                    |(workers, n, k): (u32, usize, usize)| method.clone().k(k).shape(workers, n).unwrap();
                let (from, to) = (shape(from), shape(to));
                let mut memory = method.memory(&from);
                memory.steps = 5;
                let structure = method.structure(&from, &memory).unwrap();
                let blocks = structure.partition.blocks();
                let proposed = (0..blocks).map(|b| Some((0..(b as u32 % 3)).collect())).collect();
                let observed =
                    Observed { counts: vec![1; blocks], smallest: 0.5, proposed, ..Observed::default() };
                method.learn(&from, &structure, &mut memory, &observed);
                let migrated = method.migrate(&from, &to, &memory);
                let fresh = method.memory(&to);
                let lengths = (migrated.agreed.len(), migrated.own.len(), migrated.steps);
                assert_eq!(lengths, (fresh.agreed.len(), fresh.own.len(), 5), "{method}");
                assert_eq!(migrated.agreed.iter().find(|v| !v.is_finite()), None, "{method}");
                let partition = method.structure(&to, &migrated).unwrap().partition;
                assert_eq!(
                    (partition.entries(), partition.blocks()),
                    (to.n, method.collective().blocks(&to) as usize)
                );
                // Between equal shapes nothing changes but means of counts.
                let same = method.migrate(&from, &from, &memory);
                assert_eq!(method.structure(&from, &same), method.structure(&from, &memory), "{method}");
            }
        }
    }

    /// Cuts keep their shares of the gradient.
    #[test]
    fn cuts_go_along() {
        let shape = |workers, n| -> Shape { Method::ring().shape(workers, n).unwrap() };
        assert_eq!(super::super::recut(&[10.0, 20.0, 60.0], 100, &shape(2, 100)), [20.0]);
        assert_eq!(super::super::recut(&[20.0], 100, &shape(4, 200)), [20.0, 40.0, 120.0]);
        let even = Partition::even(99, 3);
        let cuts: Vec<f64> = (1..3).map(|b| even.range(Block(b)).start as f64).collect();
        assert_eq!(super::super::recut(&cuts, 99, &shape(3, 99)), cuts);
    }
}
