//! The `copal-agent` program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    copal_agent::cli::main()
}
