//! A test of the binary itself. `cargo test` builds the binary of a package only if the package has an integration
//! test, such as this file. The tests in `tests/system/` run that binary. They are in a separate package, so a change
//! of this library does not rebuild them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

#[test]
fn the_binary_says_its_version() {
    let said = Command::new(env!("CARGO_BIN_EXE_rolldock")).arg("--version").output().unwrap();
    assert!(said.status.success());
    let version = String::from_utf8(said.stdout).unwrap();
    assert!(version.starts_with(concat!("rolldock ", env!("CARGO_PKG_VERSION"))), "{version}");
}
