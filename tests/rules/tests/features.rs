//! Checks that the two commands of the README share what they compile.
//!
//! Cargo compiles a crate once for each set of features that a build asks for, and then compiles all crates
//! above it again. So each crate of `cargo run` must have the features that it has in `cargo test
//! --workspace`. A dependency of a test or of `bench` may ask for more; then the workspace's manifest asks for
//! the same features in all builds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

/// The crates of a build with their versions and features, one in a line.
fn compiled(options: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none", "--format", "{p} {f}"])
        .args(options)
        .current_dir(rolldock_tests::workspace_root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).unwrap();
    // The mark of a crate that an earlier line has shown with its dependencies.
    lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

#[test]
fn the_first_command_and_the_tests_share_what_they_compile() {
    let run = compiled(&["--edges", "normal,build"]);
    let test = compiled(&["--edges", "normal,build,dev", "--workspace"]);
    assert!(run.len() > 100, "expected the dependencies of the binary, found {run:?}");
    let twice: Vec<&String> = run.difference(&test).collect();
    assert!(twice.is_empty(), "expected the features of `cargo test --workspace`, found {twice:#?}");
}
