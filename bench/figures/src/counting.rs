//! The allocator of the shipped binary, with a counter of the allocated bytes. Memory is therefore counted,
//! not estimated, and the measured code costs as much as in `rolldock`.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; this one forwards calls and adds up")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The number of bytes that are allocated now, without the allocator's own overhead.
pub fn held_bytes() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// Passes every call to the allocator and counts the bytes.
pub struct Counting;

// SAFETY: every call goes to the allocator unchanged, and the counter is atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the allocator.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the allocator.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD_BYTES.fetch_add(size, Ordering::Relaxed);
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the allocator.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the allocator.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}
