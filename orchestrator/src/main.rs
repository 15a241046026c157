//! The `rolldock` binary.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The allocator returns freed memory to the operating system after a delay of at least a second, when memory
/// is allocated or freed again. An idle process keeps the memory that it freed last. The system's own
/// allocator keeps freed memory in up to eight arenas per core, so the memory of a server that starts and
/// ends many threads grows for hours. The crate's feature `override` makes C libraries such as zstd use this
/// allocator too.
///
/// The delay is the allocator's default. A shorter delay would make large puts slow, because the buffers of
/// each put would be mapped again.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    rolldock::cli::main()
}
