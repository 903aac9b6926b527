//! Symbolic contents of slots: whose contributions, selected how, added in which order. The block is where they lie: what
//! happened alike to many blocks is one expression.
//!
//! Equal expressions of one block have equal bits: addition of two floating-point numbers commutes (so the two sides of a sum are stored
//! in one order) but does not associate (so its shape is kept), and selection depends on nothing but its input, the rule, what
//! the rule reads, and where a rounding gets its random numbers from.
//!
//! Expressions are stored up to rotation. In a rotation by r, rank w becomes rank w + r, modulo P, and blocks move as far. A
//! [`Term`] is a stored node and the rotation that makes it what is meant. So where all ranks run the same program, rotated,
//! one rank's expressions are those of all. Where they do not, rotations are modulo 1.

use std::collections::HashMap;

use super::Note;
use crate::{Block, Rank};

/// An expression: equal expressions are equal terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    node: u32,
    /// By how much the node is rotated, below its period.
    by: u32,
}

impl Term {
    /// The same for all rotations of an expression.
    pub(super) fn unrotated(self) -> Self {
        Self { by: 0, ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The accumulated gradient of one worker.
    Leaf(Rank),
    /// What one worker has learnt by itself.
    Own(Rank),
    /// The sum of two.
    Add(Term, Term),
    /// What was kept of one expression.
    Kept(Kept),
    /// The indices that were chosen of one.
    Proposed(Kept),
    /// Indices that are the same on every worker, by the rule of this number.
    Sampled(u32),
    /// One of this many pieces of one.
    Piece { of: Term, piece: u32, pieces: u32 },
    /// A note about what this expression was chosen from.
    Seen(Term),
    /// A note of one worker.
    Noted(Rank, Note),
    /// Several of one block together, whatever their order.
    Set(Box<[Term]>),
    /// Those of several blocks together, from this one on and round the circle; of all, from the first on.
    Joint(Block, Box<[Term]>),
}

/// A choice of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    /// Of which expression.
    pub(super) of: Term,
    /// What is looked at together with it, a [`Node::Joint`], if that matters; or the indices that were agreed on, a
    /// [`Node::Set`].
    pub(super) among: Option<Term>,
    /// By the rule of this number; None for the indices that were agreed on.
    pub(super) rule: Option<u32>,
    /// What the rule reads, if that is one worker's alone.
    pub(super) reads: Option<Term>,
    /// The number of a rounding and the lane that it takes its random numbers from.
    pub(super) rounded: Option<(u32, u32)>,
}

pub(super) struct Expressions {
    /// Rotations are modulo this.
    rotations: u32,
    /// Blocks move modulo this.
    blocks: u32,
    nodes: Vec<Stored>,
    terms: HashMap<Node, Term>,
}

struct Stored {
    node: Node,
    /// The smallest rotation that changes nothing.
    period: u32,
    /// How many selections lie one behind the other, at most.
    depth: u32,
}

impl Expressions {
    /// Up to rotation among this many ranks, 1 for none, in this many blocks.
    pub(super) fn new(rotations: u32, blocks: usize) -> Self {
        Self { rotations, blocks: blocks as u32, nodes: Vec::new(), terms: HashMap::new() }
    }

    pub(super) fn add(&mut self, a: Term, b: Term) -> Term {
        self.intern(ordered(a, b))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Several terms of one block together.
    pub(super) fn set(&mut self, mut terms: Vec<Term>) -> Term {
        terms.sort_unstable();
        terms.dedup();
        self.intern(Node::Set(terms.into()))
    }

    /// Terms of blocks together, from one block on.
    pub(super) fn joint(&mut self, first: Block, mut terms: Vec<Term>) -> Term {
        let all = terms.len() == self.blocks as usize;
        if all {
            terms.rotate_right(first.index());
        }
        self.intern(Node::Joint(if all { Block(0) } else { first }, terms.into()))
    }

    /// The term of a node.
    pub(super) fn intern(&mut self, node: Node) -> Term {
        let (node, by) = self.normal(node);
        let stored = match self.terms.get(&node) {
            Some(&term) => term,
            None => {
                let term = Term { node: self.nodes.len() as u32, by: 0 };
                let (period, depth) = (self.period_of(&node), self.depth_of(&node));
                self.nodes.push(Stored { node: node.clone(), period, depth });
                self.terms.insert(node, term);
                term
            }
        };
        self.rotated(stored, by)
    }

    /// A term rotated further.
    pub(super) fn rotated(&self, term: Term, by: u32) -> Term {
        Term { by: (term.by + by) % self.period(term), ..term }
    }

    /// The smallest rotation that changes nothing of a term.
    pub(super) fn period(&self, term: Term) -> u32 {
        self.nodes[term.node as usize].period
    }

    /// By how much a term is rotated against another; None if it is no rotation of it.
    pub(super) fn rotation(&self, from: Term, to: Term) -> Option<u32> {
        let period = self.period(from);
        (from.node == to.node).then(|| (to.by + period - from.by) % period)
    }

    /// What a term is.
    pub(super) fn node(&self, term: Term) -> Node {
        self.node_rotated(&self.nodes[term.node as usize].node, term.by)
    }

    /// How many selections lie one behind the other in an expression, at most.
    pub(super) fn depth(&self, term: Term) -> u32 {
        self.nodes[term.node as usize].depth
    }

    /// A node rotated.
    fn node_rotated(&self, node: &Node, by: u32) -> Node {
        if by == 0 {
            return node.clone();
        }
        let rank = |rank: Rank| Rank((rank.0 + by) % self.rotations);
        let term = |term: Term| self.rotated(term, by);
        let kept = |kept: &Kept| Kept {
            of: term(kept.of),
            among: kept.among.map(term),
            reads: kept.reads.map(term),
            ..*kept
        };
        match node {
            Node::Leaf(r) => Node::Leaf(rank(*r)),
            Node::Own(r) => Node::Own(rank(*r)),
            Node::Add(a, b) => ordered(term(*a), term(*b)),
            Node::Kept(of) => Node::Kept(kept(of)),
            Node::Proposed(of) => Node::Proposed(kept(of)),
            Node::Sampled(rule) => Node::Sampled(*rule),
            Node::Piece { of, piece, pieces } => {
                Node::Piece { of: term(*of), piece: *piece, pieces: *pieces }
            }
            Node::Seen(of) => Node::Seen(term(*of)),
            Node::Noted(r, note) => Node::Noted(rank(*r), *note),
            Node::Set(terms) => {
                let mut terms: Vec<Term> = terms.iter().map(|&t| term(t)).collect();
                terms.sort_unstable();
                Node::Set(terms.into())
            }
            Node::Joint(first, terms) => {
                let mut terms: Box<[Term]> = terms.iter().map(|&t| term(t)).collect();
                let all = terms.len() == self.blocks as usize;
                if all {
                    terms.rotate_right((by % self.blocks) as usize);
                }
                Node::Joint(if all { Block(0) } else { Block((first.0 + by) % self.blocks) }, terms)
            }
        }
    }

    /// The one of a node's rotations that is stored, and the rotation from there to the node.
    fn normal(&self, node: Node) -> (Node, u32) {
        let back = match &node {
            _ if self.rotations == 1 => return (node, 0),
            Node::Leaf(rank) | Node::Own(rank) | Node::Noted(rank, _) => vec![rank.0],
            Node::Sampled(_) => return (node, 0),
            Node::Piece { of, .. } | Node::Seen(of) => vec![of.by],
            Node::Joint(first, terms) if terms.len() < self.blocks as usize => vec![first.0],
            Node::Set(_) | Node::Joint(..) if self.node_rotated(&node, 1) == node => return (node, 0),
            _ => self.candidates(&node),
        };
        let of = |by: u32| (self.node_rotated(&node, (self.rotations - by) % self.rotations), by);
        let least = |least: (Node, u32), next: (Node, u32)| {
            if children(&next.0) < children(&least.0) { next } else { least }
        };
        back.into_iter().map(of).reduce(least).unwrap_or((node, 0))
    }

    /// Rotations of which one leads back to the stored form: all rotations of a node have the same forms there. They bring one of
    /// the terms whose period is longest, and of these one of the first node, to the rotation 0.
    fn candidates(&self, node: &Node) -> Vec<u32> {
        let terms = children(node);
        let order = |term: &Term| (std::cmp::Reverse(self.period(*term)), term.node);
        let Some(first) = terms.iter().map(order).min() else { return Vec::new() };
        let longest = first.0.0;
        // Where no term changes, those of several blocks may still change places.
        let alone = !matches!(node, Node::Joint(..))
            && terms.iter().all(|&term| longest.is_multiple_of(self.period(term)));
        let again = if alone { 1 } else { self.rotations / longest };
        let of = |term: &Term| {
            let by = term.by;
            (0..again).map(move |i| by + i * longest)
        };
        let mut all: Vec<u32> = terms.iter().filter(|term| order(term) == first).flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The smallest rotation of a node that changes nothing: a divisor of all.
    fn period_of(&self, node: &Node) -> u32 {
        let same = |by: &u32| {
            self.rotations.is_multiple_of(*by) && self.node_rotated(node, *by % self.rotations) == *node
        };
        (1..=self.rotations).find(same).unwrap_or(self.rotations)
    }

    fn depth_of(&self, node: &Node) -> u32 {
        match node {
            Node::Leaf(_) | Node::Own(_) | Node::Noted(..) | Node::Proposed(_) | Node::Sampled(_) => 0,
            Node::Kept(kept) => {
                let among = kept.rule.and(kept.among);
                self.depth(kept.of).max(among.map_or(0, |among| self.depth(among))) + 1
            }
            _ => children(node).into_iter().map(|term| self.depth(term)).max().unwrap_or(0),
        }
    }

    /// Calls `visit` for every occurrence of every node that an expression's entries come from, until it returns false. What
    /// else was chosen from together brings no entries.
    pub(super) fn visit(&self, root: Term, mut visit: impl FnMut(&Node) -> bool) {
        let mut stack = vec![root];
        while let Some(term) = stack.pop() {
            let node = self.node(term);
            if !visit(&node) {
                return;
            }
            match node {
                Node::Add(a, b) => stack.extend([a, b]),
                Node::Kept(kept) => stack.push(kept.of),
                Node::Piece { of, .. } | Node::Seen(of) => stack.push(of),
                Node::Leaf(_) | Node::Own(_) | Node::Noted(..) | Node::Set(_) | Node::Joint(..) => {}
                Node::Proposed(_) | Node::Sampled(_) => {}
            }
        }
    }
}

/// A sum with its two sides in one order.
fn ordered(a: Term, b: Term) -> Node {
    Node::Add(a.min(b), a.max(b))
}

/// The terms that a node is made of, in their order: what rotations of one node are compared by.
fn children(node: &Node) -> Vec<Term> {
    match node {
        Node::Add(a, b) => vec![*a, *b],
        Node::Set(terms) | Node::Joint(_, terms) => terms.to_vec(),
        Node::Kept(kept) | Node::Proposed(kept) => {
            [Some(kept.of), kept.among, kept.reads].into_iter().flatten().collect()
        }
        Node::Piece { of, .. } | Node::Seen(of) => vec![*of],
        Node::Leaf(_) | Node::Own(_) | Node::Noted(..) | Node::Sampled(_) => Vec::new(),
    }
}
