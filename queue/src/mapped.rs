//! Mapped memory of other processes and of files. Nearly all `unsafe` code of the crate is in this module.
#![allow(unsafe_code, reason = "safe code cannot map memory that other processes can change")]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_buffer::Buffer;
use bytes::Bytes;
use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use tokio::sync::Notify;

/// The seals that fix the size of a region, so that a mapping always has memory behind it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The access of this process to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A mapped region. It is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    access: Access,
    /// The number of bytes, from the start, whose pages are populated.
    touched: AtomicUsize,
}

/// Creates a sealed region of `bytes` zeros, which uses no memory yet, and maps it.
pub(crate) fn create(bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
    let descriptor = memfd_create("rolldock-rows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&descriptor, bytes as u64)?;
    fcntl_add_seals(&descriptor, SEALS)?;
    let mapping = Mapping::of(&descriptor, bytes, Access::Write)?;
    Ok((descriptor, mapping))
}

impl Mapping {
    /// Maps a region from another process, if it is exactly `bytes` long and sealed.
    pub(crate) fn of(descriptor: &OwnedFd, bytes: usize, access: Access) -> io::Result<Self> {
        let sealed = fcntl_get_seals(descriptor.as_fd())?.contains(SEALS);
        let length = u64::try_from(fstat(descriptor)?.st_size).unwrap_or(0);
        if !sealed || length != bytes as u64 || bytes == 0 {
            let reason = format!(
                "expected a sealed region of bytes={bytes}, found bytes={length} and sealed={sealed}"
            );
            return Err(Error::new(ErrorKind::InvalidData, reason));
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

    /// The length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.map.len()
    }

    /// The address of the mapping in this process.
    pub(crate) fn address(&self) -> usize {
        self.map.as_ptr() as usize
    }

    /// Whether the pages of the first `bytes` are populated.
    pub(crate) fn is_touched(&self, bytes: usize) -> bool {
        bytes <= self.touched.load(Ordering::Relaxed)
    }

    /// Populates the pages of the first `bytes`. Populating them together is cheaper than one by one. If no
    /// memory is left, this returns an error. A plain access would raise a signal.
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
            // Kernels before 5.14 do not support this advice; pages are then populated on access.
            Err(error) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => Err(error),
            _ => {
                self.touched.fetch_max(bytes, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// Returns the first `length` bytes of a mapping as a buffer. The buffer keeps `owner` and the mapping alive.
/// Returns `None` if the mapping is shorter.
pub(crate) fn buffer<Owner: Send + Sync + 'static>(
    mapping: &Arc<Mapping>,
    length: usize,
    owner: Owner,
) -> Option<Buffer> {
    let start = NonNull::new(mapping.map.as_mut_ptr()).filter(|_| length <= mapping.length())?;
    // The only call on the owner is its drop.
    let owner = Arc::new(AssertUnwindSafe((Arc::clone(mapping), owner)));
    // SAFETY: `start` is valid for `length` bytes while the mapping exists, and the buffer keeps the mapping
    // through its owner. The file cannot shrink (seals). It is not written to while buffers of it exist: this
    // process writes only through a `Filling`, which is the only user of its region. Other processes are
    // trusted (see `edges/local/mod.rs`).
    Some(unsafe { Buffer::from_custom_allocation(start, length, owner) })
}

/// Returns a part of a file as a buffer. The buffer keeps the part mapped, even after the file is deleted.
/// Returns `None` if the kernel cannot populate the mapping in advance. Blocks while the part is read from
/// disk, and returns read errors.
///
/// The part must be written already, and must never be overwritten or truncated.
pub(crate) fn stretch(file: &File, offset: u64, length: usize) -> io::Result<Option<Buffer>> {
    // Access beyond the end of the file would raise a signal.
    if length == 0 || file.metadata()?.len() < offset + length as u64 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the part lies within the file, and the caller promises that it does not change. The directory
    // belongs to the process that holds its lock.
    let map = unsafe { MmapOptions::new().offset(offset).len(length).map(file)? };
    match map.advise(Advice::PopulateRead) {
        Ok(()) => Ok(Some(Buffer::from(Bytes::from_owner(map)))),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of bytes that are copied at a time. Copying them takes less than 0.1 ms, and they fit into the
/// cache of a core.
const PIECE_BYTES: usize = 512 << 10;

/// Copies buffers into a region, one after the other from its start. Several threads may copy at the same
/// time, and each copies the next piece. A single core cannot use the full memory bandwidth.
#[derive(Debug)]
pub(crate) struct Filling<Lent> {
    mapping: Arc<Mapping>,
    pieces: Mutex<Pieces>,
    is_done: Notify,
    _lent: Lent,
}

#[derive(Debug, Default)]
struct Pieces {
    left: VecDeque<Piece>,
    under_way: usize,
}

#[derive(Debug)]
struct Piece {
    at: usize,
    bytes: usize,
    buffers: Vec<Buffer>,
}

impl<Lent> Filling<Lent> {
    /// Prepares the copy. `lent` guarantees that the region has no other user: no buffer of the region exists
    /// while `lent` exists. The pages must already be populated.
    pub(crate) fn new(mapping: Arc<Mapping>, buffers: Vec<Buffer>, lent: Lent) -> io::Result<Self> {
        if mapping.access() != Access::Write {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "expected a region that is mapped for writing, found one for reading",
            ));
        }
        let bytes = buffers.iter().map(Buffer::len).fold(0, usize::saturating_add);
        if bytes > mapping.length() {
            return Err(Error::new(ErrorKind::WriteZero, "a region is too small for its rows"));
        }
        let pieces = Pieces { left: cut(buffers), under_way: 0 };
        Ok(Self { mapping, pieces: Mutex::new(pieces), is_done: Notify::new(), _lent: lent })
    }

    /// Copies the next piece. Returns `false` if no piece is left.
    pub(crate) fn copy_next(&self) -> bool {
        let piece = {
            let mut pieces = self.pieces.lock();
            let Some(piece) = pieces.left.pop_front() else { return false };
            pieces.under_way += 1;
            piece
        };
        let mut at = piece.at;
        for buffer in &piece.buffers {
            // SAFETY: the pieces are adjacent and lie within the mapping, which is writable and lives as long
            // as `self`. Each piece is handed out once. The source buffer does not overlap the mapping,
            // because a lent region has no other user.
            unsafe {
                let into = self.mapping.map.as_mut_ptr().add(at);
                std::ptr::copy_nonoverlapping(buffer.as_ptr(), into, buffer.len());
            }
            at += buffer.len();
        }
        let mut pieces = self.pieces.lock();
        pieces.under_way -= 1;
        if pieces.is_done() {
            self.is_done.notify_one();
        }
        true
    }

    /// Waits until every piece has been copied. Only one caller may wait.
    pub(crate) async fn done(&self) {
        while !self.pieces.lock().is_done() {
            self.is_done.notified().await;
        }
    }
}

impl Pieces {
    fn is_done(&self) -> bool {
        self.left.is_empty() && self.under_way == 0
    }
}

fn cut(buffers: Vec<Buffer>) -> VecDeque<Piece> {
    let mut pieces: VecDeque<Piece> = VecDeque::new();
    let mut at = 0;
    for buffer in buffers {
        let mut start = 0;
        while start < buffer.len() {
            if pieces.back().is_none_or(|piece| piece.bytes == PIECE_BYTES) {
                pieces.push_back(Piece { at, bytes: 0, buffers: Vec::new() });
            }
            let Some(piece) = pieces.back_mut() else { break };
            let length = (buffer.len() - start).min(PIECE_BYTES - piece.bytes);
            piece.buffers.push(buffer.slice_with_length(start, length));
            piece.bytes += length;
            start += length;
            at += length;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn written_bytes_are_read_through_another_mapping() {
        let (descriptor, mapping) = create(1 << 20).unwrap();
        let mapping = Arc::new(mapping);
        mapping.touch(100).unwrap();
        assert!(mapping.is_touched(100) && !mapping.is_touched(5000));
        let filling = Filling::new(Arc::clone(&mapping), vec![Buffer::from(b"ro"), Buffer::from(b"ws")], ());
        assert!(filling.unwrap().copy_next());
        let read = Arc::new(Mapping::of(&descriptor, 1 << 20, Access::Read).unwrap());
        read.touch(1 << 20).unwrap();
        assert_eq!(buffer(&read, 4, ()).unwrap().as_slice(), b"rows");
        assert!(buffer(&read, (1 << 20) + 1, ()).is_none());
        assert!(Filling::new(read, Vec::new(), ()).is_err());
        assert!(Filling::new(mapping, vec![Buffer::from(vec![0_u8; (1 << 20) + 1])], ()).is_err());
    }

    #[tokio::test]
    async fn threads_that_fill_a_region_together_copy_every_byte_once() {
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
        let lengths = [1, 0, 700_000, PIECE_BYTES, 3, 2_000_000];
        let mut buffers = Vec::new();
        let mut start = 0;
        for length in lengths.into_iter().chain([bytes.len() - lengths.iter().sum::<usize>()]) {
            buffers.push(Buffer::from(&bytes[start..start + length]));
            start += length;
        }
        let (_descriptor, mapping) = create(bytes.len()).unwrap();
        let mapping = Arc::new(mapping);
        let filling = Filling::new(Arc::clone(&mapping), buffers, ()).unwrap();
        let copied = std::thread::scope(|scope| {
            let copy = || (0..).take_while(|_| filling.copy_next()).count();
            let threads = [scope.spawn(copy), scope.spawn(copy), scope.spawn(copy)];
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        filling.done().await;
        assert_eq!(copied, bytes.len().div_ceil(PIECE_BYTES));
        assert_eq!(buffer(&mapping, bytes.len(), ()).unwrap().as_slice(), bytes);
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
