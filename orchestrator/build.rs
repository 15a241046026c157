//! How a binary starts, and what its `--version` says.
//!
//! 70,000 places in a binary hold addresses. Packed, they are a table of 60 KB instead of 1.7 MB that is read
//! into memory whole. The C library has to know how; where it is older than 2.36 they stay as they are.
#![allow(clippy::print_stdout, reason = "a build script speaks so")]

use std::process::Command;

/// Version 2.36 of glibc.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    say_version();
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|there| there == value);
    let is_native = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    let knows = is_native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if knows && glibc_version().is_some_and(|version| version >= PACKED_SINCE) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// What `--version` says: the package's version, and the commit of builds that are kept. A development build
/// has none: it would be compiled again after each commit. Without git, `ROLLDOCK_COMMIT` may say it.
fn say_version() {
    println!("cargo::rerun-if-env-changed=ROLLDOCK_COMMIT");
    let is_kept = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let named = std::env::var("ROLLDOCK_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| is_kept.then(commit).flatten());
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let note = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo::rustc-env=ROLLDOCK_VERSION={version}{note}");
}

/// The commit that is checked out; absent where there is no git or no repository.
fn commit() -> Option<String> {
    // It changes with every commit and every checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if std::path::Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(std::str::from_utf8(&output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn glibc_version() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = std::str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
