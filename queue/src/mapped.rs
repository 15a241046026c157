//! Memory that is mapped, of other processes and of files: the one place of this crate that is `unsafe`.
#![allow(unsafe_code, reason = "what others can reach cannot be mapped by safe code")]

use std::fs::File;
use std::io::{self, Error, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::buffer::Buffer;
use bytes::Bytes;
use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

/// What keeps a region's size as it is: a mapping never leads to where there is no memory.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What a process may do with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A mapped region; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    access: Access,
    /// Bytes from the start whose pages are there.
    touched: AtomicUsize,
}

/// Makes a sealed region of `bytes` zeros that take no memory yet, and maps it.
pub(crate) fn create(bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
    let descriptor = memfd_create("rolldock-rows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SEALS)?;
    let mapping = Mapping::of(&descriptor, bytes, Access::Write)?;
    Ok((descriptor, mapping))
}

impl Mapping {
    /// Maps what another process sent, if it is `bytes` long and stays so.
    pub(crate) fn of(descriptor: &OwnedFd, bytes: usize, access: Access) -> io::Result<Self> {
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

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Bytes that it is long.
    pub(crate) fn length(&self) -> usize {
        self.map.len()
    }

    /// Where it lies in this process.
    pub(crate) fn address(&self) -> usize {
        self.map.as_ptr() as usize
    }

    /// Has the pages of the first `bytes` there, which is cheaper at once than page by page, and an error instead of a
    /// signal where there is no memory.
    pub(crate) fn touch(&self, bytes: usize) -> io::Result<()> {
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
pub(crate) fn buffer<Owner: Send + Sync + 'static>(
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

/// A stretch of a file as a buffer that keeps it mapped, also when the file is deleted; `None` where the kernel cannot
/// promise that all of it can be read. Blocks while it is read from the disk, and brings its error.
///
/// The stretch has to be written already, and is never written to or cut off again.
pub(crate) fn stretch(file: &File, offset: u64, length: usize) -> io::Result<Option<Buffer>> {
    // Beyond the file's end there is a signal and no error.
    if length == 0 || file.metadata()?.len() < offset + length as u64 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the stretch lies within the file, and the caller promises that it stays as it is. The directory belongs to
    // the process that has its lock.
    let map = unsafe { MmapOptions::new().offset(offset).len(length).map(file)? };
    match map.advise(Advice::PopulateRead) {
        Ok(()) => Ok(Some(Buffer::from(Bytes::from_owner(map)))),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// From here on a second thread is worth its start; bytes.
const SHARED_COPY_BYTES: usize = 1 << 20;
/// What a thread copies at a time; bytes.
const COPIED_BYTES: usize = 256 << 10;

/// Writes to a region from its start. Whoever makes one has the region lent to it: no buffer of it exists.
#[derive(Debug)]
pub(crate) struct Writer {
    mapping: Arc<Mapping>,
    at: usize,
}

impl Writer {
    pub(crate) fn new(mapping: Arc<Mapping>) -> io::Result<Self> {
        if mapping.access() != Access::Write {
            return Err(Error::new(ErrorKind::PermissionDenied, "a region that is mapped to be read"));
        }
        Ok(Self { mapping, at: 0 })
    }
}

/// Copies, with two cores where there is much: one alone does not use up what memory gives. Each takes the next piece when
/// it has done one, since the second one comes late.
fn copy(from: &[u8], into: &mut [u8]) {
    if from.len() < SHARED_COPY_BYTES {
        into.copy_from_slice(from);
        return;
    }
    let pieces = Mutex::new(from.chunks(COPIED_BYTES).zip(into.chunks_mut(COPIED_BYTES)));
    let copy_pieces = || {
        loop {
            let piece = pieces.lock().next();
            let Some((from, into)) = piece else { return };
            into.copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(copy_pieces);
        copy_pieces();
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
    fn a_stretch_of_a_file_is_read_after_the_file_is_deleted_and_never_beyond_its_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let read = stretch(file.as_file(), 64, 99_936).unwrap().unwrap();
        assert!(stretch(file.as_file(), 64, 99_937).is_err());
        assert!(stretch(file.as_file(), 200_000, 1).is_err());
        drop(file);
        assert_eq!(read.as_slice(), &bytes[64..]);
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
