//! Descriptors that are held for files.
//!
//! A process with thousands of connections may run out of file descriptors. A connection that cannot be
//! opened is tried again later. A file that cannot be opened stops the queue or the ledger that writes it. A
//! server or a run therefore holds some descriptors from its start ([`hold`]). [`open`] releases them one by
//! one while no other descriptor is free for a file. Later calls acquire them again, as soon as the process
//! has free descriptors.
//!
//! The limit of descriptors belongs to the process, and so does this reserve.

use std::fs::File;
use std::io;

use parking_lot::Mutex;
use rustix::io::Errno;

/// The held descriptors of this process.
static HELD: Mutex<Held> = Mutex::new(Held { files: Vec::new(), count: 0 });

struct Held {
    files: Vec<File>,
    /// The number of descriptors that should be held.
    count: usize,
}

impl Held {
    fn fill(&mut self) -> io::Result<()> {
        while self.files.len() < self.count {
            self.files.push(File::open("/dev/null")?);
        }
        Ok(())
    }
}

/// Holds `count` descriptors for files. If an earlier call has requested more, the larger number stays.
///
/// # Errors
/// Returns the system's error if the process has fewer descriptors. In that case, the process holds the
/// descriptors that it got.
pub fn hold(count: usize) -> io::Result<()> {
    let mut held = HELD.lock();
    held.count = held.count.max(count);
    held.fill()
}

/// Calls `open`, which opens a file. While no descriptor is free, releases a held descriptor and calls `open`
/// again.
///
/// # Errors
/// Returns the error of the last call. It is a [lack of descriptors](is_lack) if no held descriptor is left.
pub fn open<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    loop {
        match open() {
            // Another thread may get the released descriptor, so several may have to be released.
            Err(error) if is_lack(&error) => drop(HELD.lock().files.pop().ok_or(error)?),
            outcome => {
                // If too few descriptors are free now, a later call acquires the missing descriptors.
                let _ = HELD.lock().fill();
                return outcome;
            }
        }
    }
}

/// Whether an error means that this process or its machine has no more descriptors, or no memory for a
/// descriptor.
pub fn is_lack(error: &io::Error) -> bool {
    const LACKS: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| LACKS.iter().any(|lack| lack.raw_os_error() == code))
}
