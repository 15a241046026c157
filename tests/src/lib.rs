//! Helpers for the tests that span crates. The tests themselves are in `tests/`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns `path` inside `shared/`, the folder of real data beside the checkout. Prints a note and returns
/// `None` if it does not exist.
pub fn shared(path: &str) -> Option<PathBuf> {
    let found = workspace_root().join("../shared").join(path);
    if found.exists() {
        return Some(found);
    }
    eprintln!("skipped: {} does not exist", found.display());
    None
}

/// The program under test: `$ROLLDOCK_BINARY`, relative to the workspace, or the program that was built beside
/// this test. Panics if the program does not exist.
pub fn binary() -> PathBuf {
    let given = std::env::var_os("ROLLDOCK_BINARY").map(|path| workspace_root().join(path));
    let path = given.unwrap_or_else(|| {
        let own = std::env::current_exe().unwrap_or_default();
        own.parent().and_then(Path::parent).map(|built| built.join("rolldock")).unwrap_or_default()
    });
    assert!(path.exists(), "{} does not exist; expected `cargo build` before this test", path.display());
    path
}

/// The number in an environment variable, or `None` if the variable is not set. Panics if the value is not a
/// number.
#[expect(clippy::panic, reason = "a test fails by panicking")]
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}

/// The ports of [`free_address`]. The system gives ports of 32768 and above to outgoing connections and to listeners
/// that take any port, so a port from there may be taken before its server starts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// An address of the loopback interface for a server that starts later. Nothing listens there now. In a process, no
/// two calls return the same address before all ports were used.
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes of tests that run at the same time begin at different places.
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(101).wrapping_add(call) % PORTS.len() as u32;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORTS.start + place as u16);
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
