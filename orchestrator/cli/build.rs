//! What `--version` says.
#![allow(clippy::print_stdout, reason = "a build script speaks so")]

use std::process::Command;

/// What `--version` says: the package's version, and the commit of builds that are kept. A development build
/// has none: it would be compiled again after each commit. Without git, `ROLLDOCK_COMMIT` may say it.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
