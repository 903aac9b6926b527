//! Symbolic contents of slots: whose contributions, selected how, added in which order.
//!
//! Equal expressions have equal bits: addition of two floating-point numbers commutes (so the two sides of a
//! sum are stored in one order) but does not associate (so its shape is kept), and selection depends on
//! nothing but its input.

use std::collections::HashMap;

use crate::{Block, Rank};

/// An expression's number in its [`Expressions`]. Equal expressions have equal numbers.
pub(super) type Id = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The accumulated gradient of one worker in one block.
    Leaf(Rank, Block),
    /// The sum of two.
    Add(Id, Id),
    /// The k largest of one.
    Top(Id, u32),
}

#[derive(Default)]
pub(super) struct Expressions {
    nodes: Vec<Node>,
    ids: HashMap<Node, Id>,
}

impl Expressions {
    pub(super) fn leaf(&mut self, rank: Rank, block: Block) -> Id {
        self.intern(Node::Leaf(rank, block))
    }

    pub(super) fn add(&mut self, a: Id, b: Id) -> Id {
        self.intern(Node::Add(a.min(b), a.max(b)))
    }

    pub(super) fn top(&mut self, of: Id, k: u32) -> Id {
        self.intern(Node::Top(of, k))
    }

    fn intern(&mut self, node: Node) -> Id {
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            (self.nodes.len() - 1) as Id
        })
    }

    /// Calls `visit` for every occurrence of every node in an expression, until it returns false.
    pub(super) fn visit(&self, root: Id, mut visit: impl FnMut(Id, Node) -> bool) {
        let mut stack = vec![root];
        while let Some(id) = stack.pop() {
            let node = self.nodes[id as usize];
            if !visit(id, node) {
                return;
            }
            match node {
                Node::Leaf(..) => {}
                Node::Add(a, b) => stack.extend([a, b]),
                Node::Top(of, _) => stack.push(of),
            }
        }
    }
}
