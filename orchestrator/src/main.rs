//! The `rolldock` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    rolldock::cli::main()
}
