//! Memory that processes share: the one place of this crate that is `unsafe`.
#![allow(unsafe_code, reason = "memory that another process maps cannot be had from safe code")]

use std::io::{self, Error, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::buffer::Buffer;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

/// What keeps a region's size as it is: a mapping never leads to where there is no memory.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What a process may do with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A mapped region; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    map: MmapRaw,
    access: Access,
    /// Bytes from the start whose pages are there.
    touched: AtomicUsize,
}

/// Makes a sealed region of `bytes` zeros that take no memory yet, and maps it.
pub(super) fn create(bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
    let descriptor = memfd_create("rolldock-rows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SEALS)?;
    let mapping = Mapping::of(&descriptor, bytes, Access::Write)?;
    Ok((descriptor, mapping))
}

impl Mapping {
    /// Maps what another process sent, if it is `bytes` long and stays so.
    pub(super) fn of(descriptor: &OwnedFd, bytes: usize, access: Access) -> io::Result<Self> {
        let sealed = fcntl_get_seals(descriptor.as_fd())?.contains(SEALS);
        let length = u64::try_from(fstat(descriptor)?.st_size).unwrap_or(0);
        if !sealed || length != bytes as u64 || bytes == 0 {
            let words = format!("a region of bytes={bytes} has bytes={length} and sealed={sealed}");
            return Err(Error::new(ErrorKind::InvalidData, words));
        }
        let mut options = MmapOptions::new();
        options.len(bytes);
        let map = match access {
            Access::Read => options.map_raw_read_only(descriptor.as_raw_fd())?,
            Access::Write => options.map_raw(descriptor.as_raw_fd())?,
        };
        Ok(Self { map, access, touched: AtomicUsize::new(0) })
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Bytes that it is long.
    pub(super) fn length(&self) -> usize {
        self.map.len()
    }

    /// Where it lies in this process.
    pub(super) fn address(&self) -> usize {
        self.map.as_ptr() as usize
    }

    /// Has the pages of the first `bytes` there, which is cheaper at once than page by page, and an error instead of a
    /// signal where there is no memory.
    pub(super) fn touch(&self, bytes: usize) -> io::Result<()> {
        let touched = self.touched.load(Ordering::Relaxed);
        if bytes <= touched {
            return Ok(());
        }
        let advice = match self.access {
            Access::Read => Advice::PopulateRead,
            Access::Write => Advice::PopulateWrite,
        };
        match self.map.advise_range(advice, touched, bytes.min(self.length()) - touched) {
            // Kernels before 5.14 do not know it: the pages come as they are touched.
            Err(error) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => Err(error),
            _ => {
                self.touched.fetch_max(bytes, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// The first `length` bytes of a mapping as a buffer that keeps `owner`, and with it whatever the bytes' stay depends
/// on. `None` where it is shorter.
pub(super) fn buffer<Owner: Send + Sync + 'static>(
    mapping: &Arc<Mapping>,
    length: usize,
    owner: Owner,
) -> Option<Buffer> {
    let start = NonNull::new(mapping.map.as_mut_ptr()).filter(|_| length <= mapping.length())?;
    // Nothing is called on it but its drop.
    let owner = Arc::new(AssertUnwindSafe((Arc::clone(mapping), owner)));
    // SAFETY: `start` is valid for `length` bytes for as long as the mapping is there, and the buffer keeps it through
    // its owner. The file cannot shrink (seals). Nobody writes to it while buffers of it exist: this process writes
    // only through `Writer`, whose user has the region lent to it, and other processes are trusted as the module's
    // documentation says.
    Some(unsafe { Buffer::from_custom_allocation(start, length, owner) })
}

/// From here on a second thread is worth its start; bytes.
const SHARED_COPY_BYTES: usize = 2 << 20;

/// Writes to a region from its start. Whoever makes one has the region lent to it: no buffer of it exists.
#[derive(Debug)]
pub(super) struct Writer {
    mapping: Arc<Mapping>,
    at: usize,
}

impl Writer {
    pub(super) fn new(mapping: Arc<Mapping>) -> io::Result<Self> {
        if mapping.access() != Access::Write {
            return Err(Error::new(ErrorKind::PermissionDenied, "a region that is mapped to be read"));
        }
        Ok(Self { mapping, at: 0 })
    }
}

/// Copies, with two cores where there is much: one alone does not use up what memory gives.
fn copy(from: &[u8], into: &mut [u8]) {
    if from.len() < SHARED_COPY_BYTES {
        into.copy_from_slice(from);
        return;
    }
    let (first, second) = from.split_at(from.len() / 2);
    let (into_first, into_second) = into.split_at_mut(first.len());
    std::thread::scope(|scope| {
        scope.spawn(|| into_second.copy_from_slice(second));
        into_first.copy_from_slice(first);
    });
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.mapping.length() - self.at {
            return Err(Error::new(ErrorKind::WriteZero, "a region is too small for its rows"));
        }
        // SAFETY: `at + bytes.len()` is within the mapping, which is writable and lives as long as `self`; `bytes` is
        // no part of it, because a region that is lent has no other user.
        let into = unsafe {
            std::slice::from_raw_parts_mut(self.mapping.map.as_mut_ptr().add(self.at), bytes.len())
        };
        copy(bytes, into);
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_through_another_mapping() {
        let (descriptor, mapping) = create(1 << 20).unwrap();
        let mut writer = Writer::new(Arc::new(mapping)).unwrap();
        writer.mapping.touch(100).unwrap();
        writer.write_all(b"rows").unwrap();
        let read = Arc::new(Mapping::of(&descriptor, 1 << 20, Access::Read).unwrap());
        read.touch(1 << 20).unwrap();
        assert_eq!(buffer(&read, 4, ()).unwrap().as_slice(), b"rows");
        assert!(buffer(&read, (1 << 20) + 1, ()).is_none());
        assert!(Writer::new(read).is_err());
        assert!(writer.write_all(&[0; 1 << 20]).is_err());
    }

    #[test]
    fn a_region_cannot_shrink_and_one_that_could_is_refused() {
        let (descriptor, _mapping) = create(4096).unwrap();
        assert!(ftruncate(&descriptor, 10).is_err());
        assert!(Mapping::of(&descriptor, 8192, Access::Read).is_err());
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(Mapping::of(&open, 4096, Access::Read).is_err());
    }
}
