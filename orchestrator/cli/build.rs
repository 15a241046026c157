//! Sets the text that `--version` prints.
#![allow(clippy::print_stdout, reason = "a build script speaks so")]

use std::process::Command;

/// Sets the text that `--version` prints: the package's version and, in a release build, the commit. A
/// development build does not contain the commit, because cargo would then compile it again after each commit. The
/// variable `ROLLDOCK_COMMIT` overrides the commit, for example where there is no git.
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
    // The log of HEAD changes with every commit and every checkout.
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
