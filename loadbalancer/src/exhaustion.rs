//! Failures of this machine that look like a server's.
//!
//! A connection that could not even be tried, for want of a descriptor, a port or memory, says nothing about whoever it was
//! for. Held against servers, it would have a process that has too much open take its whole fleet for dead.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Whether `error`, or what caused it, is that this process or its machine has run out of something.
pub fn is_exhaustion(error: &(dyn Error + 'static)) -> bool {
    const WANTS: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let Some(of_io) = error.downcast_ref::<io::Error>() else {
            cause = error.source();
            continue;
        };
        if let Some(code) = of_io.raw_os_error() {
            return WANTS.iter().any(|want| want.raw_os_error() == code);
        }
        // What it was made of is not its source, but that one's source is.
        cause = of_io.get_ref().map(|inner| inner as &(dyn Error + 'static));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_lacks_is_told_from_what_a_server_does() {
        let of = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(is_exhaustion(&of(Errno::MFILE)));
        let deep = io::Error::other(io::Error::other(of(Errno::ADDRNOTAVAIL)));
        assert!(is_exhaustion(&deep));
        assert!(!is_exhaustion(&of(Errno::CONNREFUSED)));
        assert!(!is_exhaustion(&io::Error::other("os error 24")));
    }
}
