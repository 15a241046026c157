//! Failures of this machine that look like failures of a server.
//!
//! If a connection cannot be tried because descriptors, ports or memory have run out, the failure says
//! nothing about the server. If such failures counted against servers, a process with too many open files
//! would treat its whole fleet as dead.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Whether `error` or one of its causes says that this process or its machine has run out of a resource.
pub fn is_exhaustion(error: &(dyn Error + 'static)) -> bool {
    const RESOURCES: [Errno; 5] =
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let Some(of_io) = error.downcast_ref::<io::Error>() else {
            cause = error.source();
            continue;
        };
        if let Some(code) = of_io.raw_os_error() {
            return RESOURCES.iter().any(|errno| errno.raw_os_error() == code);
        }
        // The `source` of an I/O error skips the error that it wraps; `get_ref` returns that error.
        cause = of_io.get_ref().map(|inner| inner as &(dyn Error + 'static));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_of_this_machine_is_distinguished_from_errors_of_a_server() {
        let of = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(is_exhaustion(&of(Errno::MFILE)));
        let deep = io::Error::other(io::Error::other(of(Errno::ADDRNOTAVAIL)));
        assert!(is_exhaustion(&deep));
        assert!(!is_exhaustion(&of(Errno::CONNREFUSED)));
        assert!(!is_exhaustion(&io::Error::other("os error 24")));
    }
}
