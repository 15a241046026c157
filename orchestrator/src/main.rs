//! The `rolldock` binary.

use std::ffi::{c_int, c_long};
use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Gives freed memory back to the system, whichever thread had it. The system's own allocator keeps what was
/// freed for up to eight threads per core each, so a server with threads that come and go grows for hours. The
/// crate's feature `override` makes libraries in C, such as zstd, use it too.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The number of the allocator's option `purge_delay` in its `mimalloc.h`.
const PURGE_DELAY: c_int = 15;
/// After this time, in milliseconds, freed memory goes back to the system. With the allocator's own value of a
/// second, a dozen threads that take snapshots and check rows hold what each of them has freed in that second.
const PURGE_DELAY_MS: c_long = 10;

#[expect(unsafe_code, reason = "functions in C, which take any numbers")]
unsafe extern "C" {
    /// Sets an option that is not in the environment, such as `MIMALLOC_PURGE_DELAY`.
    safe fn mi_option_set_default(option: c_int, value: c_long);
    /// The value of an option.
    #[cfg(test)]
    safe fn mi_option_get(option: c_int) -> c_long;
}

fn main() -> ExitCode {
    mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
    rolldock::cli::main()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_of_the_allocator_has_this_number() {
        // The option is known by its default, which no other one has.
        assert_eq!(mi_option_get(PURGE_DELAY), 1000);
        mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
        assert_eq!(mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
