//! Finds the first node on which a Job may fit without looking at all of them: a tree of the largest
//! free amounts. The largest of each amount may be on different nodes, so the caller checks the node.

use super::{need::Need, node::Free};

/// A complete binary tree over the nodes; the leaves are in the order of the allocation.
#[derive(Debug)]
pub(super) struct Index {
    /// Number of leaves, a power of two.
    width: usize,
    /// Heap order: the children of `i` are `2i` and `2i + 1`; the root is 1.
    tree: Vec<Free>,
}

impl Index {
    pub(super) fn new(free: impl ExactSizeIterator<Item = Free>) -> Self {
        let width = free.len().max(1).next_power_of_two();
        let mut tree = vec![Free::default(); 2 * width];
        for (node, free) in free.enumerate() {
            tree[width + node] = free;
        }
        for at in (1..width).rev() {
            tree[at] = tree[2 * at].max(tree[2 * at + 1]);
        }
        Self { width, tree }
    }

    pub(super) fn set(&mut self, node: usize, free: Free) {
        let mut at = self.width + node;
        self.tree[at] = free;
        while at > 1 {
            at /= 2;
            let both = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == both {
                return;
            }
            self.tree[at] = both;
        }
    }

    /// The first node that may hold the Job and passes `check`.
    pub(super) fn first(&self, need: &Need, check: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.first_below(1, need, check)
    }

    fn first_below(&self, at: usize, need: &Need, check: &dyn Fn(usize) -> bool) -> Option<usize> {
        if !self.tree[at].may_hold(need) {
            return None;
        }
        if at >= self.width {
            let node = at - self.width;
            return check(node).then_some(node);
        }
        self.first_below(2 * at, need, check).or_else(|| self.first_below(2 * at + 1, need, check))
    }
}
