//! Symbolic contents of slots: whose contributions, selected how, added in which order.
//!
//! Equal expressions have equal bits: addition of two floating-point numbers commutes (so the two sides of a
//! sum are stored in one order) but does not associate (so its shape is kept), and selection depends on
//! nothing but its input, the rule, and where a rounding gets its random numbers from.

use std::collections::HashMap;

use super::{Note, Place, Register, Rule};
use crate::allotment::Share;
use crate::bag::Coding;
use crate::{Block, Rank};

/// An expression's number in its [`Expressions`]. Equal expressions have equal numbers.
pub(super) type Id = u32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The accumulated gradient of one worker in one block.
    Leaf(Rank, Block),
    /// The sum of two.
    Add(Id, Id),
    /// What was kept of one of several that were chosen from together.
    Kept(Kept),
    /// One of so many pieces of one.
    Piece { of: Id, piece: u32, pieces: u32 },
    /// A note about what this expression was chosen from.
    Seen(Id),
    /// A note of one worker.
    Told(Rank, Note),
    /// The indices that were chosen of one of several inputs together.
    Proposed(Kept),
    /// Indices that are the same whoever chooses them.
    Drawn(Block, Choice),
    /// The indices of several proposals, in ascending order of their numbers.
    Union(Box<[Id]>),
}

/// A selection: of the input at `position`, chosen from all inputs together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    pub(super) inputs: Box<[Id]>,
    pub(super) position: u32,
    pub(super) choice: Choice,
    /// Where a stochastic rounding gets its random numbers from; None if nothing is left to chance.
    pub(super) rounded: Option<(Coding, Place)>,
}

/// A rule, as far as it concerns one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    Top(Share),
    TopOf(Share, Chooser, u8),
    Jointly(usize),
    Above(usize, Chooser, u8),
    /// So many at most, by a selector of this worker. It chooses once, so nothing else need tell the choice apart.
    By(usize, Rank),
    Random(Share),
    Every,
    Dense,
    /// What the indices of this union have.
    At(Id),
}

/// Who knows the number that a choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Chooser {
    All,
    One(Rank),
}

impl Choice {
    /// The part of a rule that concerns one block, when this worker applies it.
    pub(super) fn of(rule: &Rule, block: Block, rank: Rank) -> Self {
        let chooser = |register: &Register| match *register {
            Register::Agreed(r) => (Chooser::All, r),
            Register::Own(r) => (Chooser::One(rank), r),
        };
        match rule {
            Rule::Top(k) => Choice::Top(k.share(block)),
            Rule::TopOf { register, most } => {
                let (chooser, register) = chooser(register);
                Choice::TopOf(most.share(block), chooser, register)
            }
            Rule::Jointly(k) => Choice::Jointly(*k),
            Rule::Above { register, most } => {
                let (chooser, register) = chooser(register);
                Choice::Above(*most, chooser, register)
            }
            Rule::By(selection) => Choice::By(selection.most(), rank),
            Rule::Random(k) => Choice::Random(k.share(block)),
            Rule::Every => Choice::Every,
            Rule::Dense => Choice::Dense,
        }
    }

    /// Whether the indices do not depend on any value.
    pub(super) fn is_blind(self) -> bool {
        matches!(self, Choice::Random(_) | Choice::Every | Choice::Dense)
    }

    /// Whether the slots are chosen from together.
    pub(super) fn is_joint(self) -> bool {
        self.most_together().is_some()
    }

    /// How many entries are chosen at most where the slots are chosen from together.
    pub(super) fn most_together(self) -> Option<usize> {
        match self {
            Choice::Jointly(most) | Choice::Above(most, ..) | Choice::By(most, _) => Some(most),
            _ => None,
        }
    }
}

#[derive(Default)]
pub(super) struct Expressions {
    nodes: Vec<Node>,
    /// How many selections lie one behind the other, at most.
    depths: Vec<u32>,
    ids: HashMap<Node, Id>,
}

impl Expressions {
    pub(super) fn leaf(&mut self, rank: Rank, block: Block) -> Id {
        self.intern(Node::Leaf(rank, block))
    }

    pub(super) fn add(&mut self, a: Id, b: Id) -> Id {
        self.intern(Node::Add(a.min(b), a.max(b)))
    }

    pub(super) fn intern(&mut self, node: Node) -> Id {
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let id = self.nodes.len() as Id;
        let depth = match &node {
            Node::Leaf(..) | Node::Told(..) | Node::Proposed(_) | Node::Drawn(..) | Node::Union(_) => 0,
            Node::Add(a, b) => self.depth(*a).max(self.depth(*b)),
            Node::Kept(kept) => kept.inputs.iter().map(|&i| self.depth(i)).max().unwrap_or(0) + 1,
            Node::Piece { of, .. } | Node::Seen(of) => self.depth(*of),
        };
        self.depths.push(depth);
        self.nodes.push(node.clone());
        self.ids.insert(node, id);
        id
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    /// How many selections lie one behind the other in an expression, at most.
    pub(super) fn depth(&self, id: Id) -> u32 {
        self.depths[id as usize]
    }

    /// Calls `visit` for every occurrence of every node that an expression's entries come from, until it returns
    /// false. What else was chosen from together brings no entries.
    pub(super) fn visit(&self, root: Id, mut visit: impl FnMut(Id, &Node) -> bool) {
        let mut stack = vec![root];
        while let Some(id) = stack.pop() {
            let node = self.node(id);
            if !visit(id, node) {
                return;
            }
            match node {
                Node::Leaf(..) | Node::Told(..) | Node::Proposed(_) | Node::Drawn(..) | Node::Union(_) => {}
                Node::Add(a, b) => stack.extend([*a, *b]),
                Node::Kept(kept) => stack.push(kept.inputs[kept.position as usize]),
                Node::Piece { of, .. } | Node::Seen(of) => stack.push(*of),
            }
        }
    }
}
