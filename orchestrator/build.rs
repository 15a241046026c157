//! How a binary starts.
//!
//! 70,000 places in a binary hold addresses. Packed, they are a table of 60 KB instead of 1.7 MB that is read
//! into memory whole. The C library has to know how; where it is older than 2.36 they stay as they are.
#![allow(clippy::print_stdout, reason = "a build script speaks so")]

use std::process::Command;

/// Version 2.36 of glibc.
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
