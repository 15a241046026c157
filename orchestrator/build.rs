//! Packs the relocations of the binaries, so that they start faster.
//!
//! A binary has 70,000 relative relocations. At the start the whole table of relocations is read into memory:
//! 1.7 MB, or 60 KB if the table is packed. glibc reads packed tables since version 2.36. With an older or
//! another C library, the table is not packed.
#![allow(clippy::print_stdout, reason = "a build script speaks so")]

use std::process::Command;

/// The first version of glibc that reads packed relocations.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|there| there == value);
    let is_native = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    let knows = is_native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if knows && glibc_version().is_some_and(|version| version >= PACKED_SINCE) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn glibc_version() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = std::str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
