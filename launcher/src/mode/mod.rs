//! What a Job becomes when it is run: the command, with or without a shell, and its environment; in mpi
//! mode the platform's command around it.

pub mod command;
pub mod task;
