//! The `rolldock` binary.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Gives freed memory back to the system about a second later, whichever thread had it. The system's own allocator
/// keeps what was freed for up to eight threads per core each, so a server with threads that come and go grows for
/// hours. The crate's feature `override` makes libraries in C, such as zstd, use it too.
///
/// A shorter time than the allocator's own would make large puts slow: their buffers would be mapped anew each time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    rolldock::cli::main()
}
