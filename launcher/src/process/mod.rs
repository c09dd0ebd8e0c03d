//! Processes of this machine: starting one, waiting for it, finding and killing all that came of it,
//! the last lines of what it said. No Jobs, no frames, no async runtime: that is `worker`'s.

mod birth;
pub mod end;
pub mod group;
pub mod spawn;
pub mod tail;
pub mod tree;
