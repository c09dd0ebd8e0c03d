//! Command lines of every launcher of ranks, for several runs each.
