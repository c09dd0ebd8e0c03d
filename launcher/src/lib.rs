//! Copal's launcher: the pilot process inside an allocation. It holds a Session, acquires Jobs, places
//! them on the nodes and reports what became of them; workers on the nodes run them.
//!
//! Pure parts: `packing` (who runs where), `hostlist`, the command lines of `mpi`. Living parts: `pilot`
//! (the head's loop), `session` and `report` (the service), `fleet` (the workers), `worker` (a node).

pub mod apps;
pub mod args;
pub mod fleet;
pub mod hardware;
pub mod hostlist;
pub mod login;
pub mod logs;
pub mod memory;
pub mod mode;
pub mod mpi;
pub mod nodes;
pub mod packing;
pub mod partition;
pub mod pilot;
pub mod process;
pub mod protocol;
pub mod report;
pub mod session;
pub mod stop;
pub mod worker;
